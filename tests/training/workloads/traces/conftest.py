from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from training.workloads.traces.location import FOLDER_VARIABLE, traces_folder

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes text or bytes to a file of no telling name."""

    def _write(content: str | bytes) -> Path:
        path = tmp_path / "recorded"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return _write


@pytest.fixture
def recorded() -> Callable[[str], Path]:
    """Path of a real trace; skips the test where the traces folder does not hold it."""

    def _recorded(name: str) -> Path:
        path = traces_folder() / name
        if not path.is_file():
            pytest.skip(f"{name} is not in the traces folder; set {FOLDER_VARIABLE}")
        return path

    return _recorded
