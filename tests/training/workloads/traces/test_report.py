from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from training.workloads.traces.errors import TraceError
from training.workloads.traces.report import Outcome, RowAudit


def mask(*rows: int) -> np.ndarray:
    found = np.zeros(6, dtype=np.bool_)
    found[list(rows)] = True
    return found


def audit() -> RowAudit:
    return RowAudit(Path("a.csv"), "kind", np.arange(2, 8))


def test_a_row_counts_once_in_the_totals_and_in_each_finding() -> None:
    rows = audit()
    rows.note(mask(0, 1), "flagged", Outcome.KEPT)
    rows.note(mask(1, 2), "mended", Outcome.REPAIRED)
    rows.note(mask(2, 3), "broken", Outcome.DROPPED)
    rows.note(mask(3), "mended too", Outcome.REPAIRED)
    rows.note(mask(), "absent", Outcome.DROPPED)
    np.testing.assert_array_equal(rows.usable, [True, True, False, False, True, True])
    report = rows.report(["a note"])
    assert (report.rows_total, report.rows_kept, report.rows_repaired, report.rows_dropped) == (6, 3, 1, 2)
    assert [(f.reason, f.rows, f.example_line) for f in report.findings] == [
        ("broken", 2, 4),
        ("mended", 2, 3),
        ("mended too", 1, 5),
        ("flagged", 2, 2),
    ]


def test_the_report_prints_as_one_line_and_as_json() -> None:
    rows = audit()
    rows.note(mask(4), "broken", Outcome.DROPPED)
    report = rows.report(["a note"])
    assert str(report) == (
        "a.csv: kind, 6 rows: 5 kept, 0 repaired, 1 dropped; dropped 1: broken (line 6); a note"
    )
    assert json.loads(json.dumps(report.to_json())) == {
        "path": "a.csv",
        "kind": "kind",
        "rows": {"total": 6, "kept": 5, "repaired": 0, "dropped": 1},
        "findings": [{"reason": "broken", "outcome": "dropped", "rows": 1, "example_line": 6}],
        "notes": ["a note"],
    }


def test_half_of_the_rows_may_be_bad_and_no_more() -> None:
    cells = {"cpu": ["1", "x", "y", "3", "z", "4"]}
    lines = [f"{cell},0" for cell in cells["cpu"]]
    audit().refuse_if_mostly_bad({"cpu: not a number": mask(1, 2, 4)}, cells, lines)
    with pytest.raises(TraceError, match="4 of 6 rows are bad") as caught:
        audit().refuse_if_mostly_bad({"late": mask(5), "cpu: not a number": mask(1, 2, 4)}, cells, lines)
    assert (caught.value.line, caught.value.column, caught.value.value) == (3, "cpu", "x")
    with pytest.raises(TraceError) as caught:
        audit().refuse_if_mostly_bad({"late": mask(0, 1, 2, 3)}, cells, lines)
    assert (caught.value.line, caught.value.column, caught.value.value) == (2, None, "1,0")
