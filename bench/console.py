"""Entry point of ``policy-bench``: says what to install when the serving-only installation is asked for more."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line."""
    try:
        from bench.cli import main as command

        command()
    except ModuleNotFoundError as error:
        sys.exit(
            f"policy-bench needs the package {error.name!r}, which is not installed; "
            "install the extra: pip install 'policy-server[bench]'"
        )
