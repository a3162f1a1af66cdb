"""What goes wrong while load is generated."""

from __future__ import annotations


class LoadError(RuntimeError):
    """Load that could not be generated, or responses that cannot be trusted. The message says why."""
