from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from training.workloads.traces.errors import TraceError
from training.workloads.traces.location import FOLDER_VARIABLE, trace_path, traces_folder


def test_the_message_names_place_problem_value_and_remedy() -> None:
    error = TraceError(Path("a.csv"), "not a number", "repair it", line=7, column="start_seconds", value="x1")
    assert str(error) == "a.csv:7: start_seconds: not a number ('x1'); repair it"
    assert str(TraceError(Path("a.csv"), "empty file", "fill it")) == "a.csv: empty file; fill it"


def test_long_values_are_shortened() -> None:
    message = str(TraceError(Path("a.csv"), "bad", "repair it", line=1, value="x" * 1000))
    assert len(message) < 120
    assert "xxx..." in message


def test_the_error_crosses_process_boundaries() -> None:
    error = TraceError(Path("a.csv"), "bad", "repair it", line=7, column="c", value="v")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert (copy.path, copy.line, copy.column, copy.value) == (Path("a.csv"), 7, "c", "v")


def test_the_folder_is_the_one_named_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    (tmp_path / "x.csv").touch()
    assert traces_folder() == tmp_path
    assert trace_path("x.csv") == tmp_path / "x.csv"
    with pytest.raises(TraceError, match=rf"y\.csv: no such trace; set {FOLDER_VARIABLE}"):
        trace_path("y.csv")


@pytest.mark.parametrize("unset", [True, False])
def test_the_default_folder_is_beside_the_repository(monkeypatch: pytest.MonkeyPatch, unset: bool) -> None:
    if unset:
        monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(FOLDER_VARIABLE, "")
    repository = Path(__file__).resolve().parents[4]
    assert traces_folder() == repository.parent / "shared" / "traces"
