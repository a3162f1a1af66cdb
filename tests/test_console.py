"""The console commands of an installation without their extras."""

from __future__ import annotations

import sys

import pytest

import bench.console
import training.console


@pytest.mark.parametrize(
    ("console", "package", "missing"),
    [(training.console, "training.cli", "torch"), (bench.console, "bench.cli", "hdrh")],
)
def test_says_what_to_install(
    console: object,
    package: str,
    missing: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Absent:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == package:
                raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    with pytest.raises(SystemExit) as stop:
        console.main()  # type: ignore[attr-defined]
    assert missing in str(stop.value)
    assert "pip install 'policy-server[" in str(stop.value)
