"""Where a server gets its state from when nobody reports it.

Sources are found by name through the entry point group :data:`ENTRY_POINT_GROUP`, so that the service depends on
none of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Protocol

from policy_server.cluster.snapshot import Snapshot

ENTRY_POINT_GROUP = "policy_server.state_sources"


class StateSourceError(Exception):
    """A source that cannot be had. The message names it, or its option, and the remedy."""


class StateSource(Protocol):
    """Publishes snapshots. Made by calling the entry point with the options as keyword arguments, all strings.

    An option that cannot be used is a ``ValueError`` naming it and the remedy; an unknown one a ``TypeError``.
    """

    def run(self, publish: Callable[[Snapshot], None], stopped: threading.Event) -> None:
        """Publishes a snapshot whenever there is a new one, until ``stopped`` is set. Has a thread of its own.

        Args:
            publish: takes a snapshot whose ``taken_at_seconds`` is on the clock of :func:`time.monotonic`; returns
                at once. The version is the server's affair.
            stopped: the source returns soon after this is set.
        """
        ...


def state_source(name: str, options: Mapping[str, str]) -> StateSource:
    """The source of that name.

    Raises:
        StateSourceError: there is none, it cannot be imported, or it refuses an option.
    """
    found = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none is installed"
        raise StateSourceError(f"state source {name!r}: unknown; choose one of: {known}")
    try:
        source: StateSource = found[name].load()(**options)
    except ImportError as error:
        raise StateSourceError(
            f"state source {name!r}: {error}; install what it needs, for the simulator policy-server[training]"
        ) from error
    except (TypeError, ValueError) as error:
        raise StateSourceError(f"state source {name!r}: {error}") from error
    return source
