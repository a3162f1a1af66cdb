"""Where trace files are kept."""

from __future__ import annotations

import os
from pathlib import Path

from training.workloads.traces.errors import TraceError

FOLDER_VARIABLE = "POLICY_TRACES"
_REPOSITORY = Path(__file__).resolve().parents[3]


def traces_folder() -> Path:
    """The folder named by ``POLICY_TRACES``, by default ``../shared/traces`` beside the repository."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else _REPOSITORY.parent / "shared" / "traces"


def trace_path(name: str) -> Path:
    """Path of a trace in the traces folder.

    Raises:
        TraceError: no such file.
    """
    path = traces_folder() / name
    if not path.is_file():
        raise TraceError(
            path, "no such trace", f"set {FOLDER_VARIABLE} to the folder that holds the trace files"
        )
    return path
