"""What became of every row of a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policy_server.cluster.snapshot import BoolArray
from training.workloads.traces.errors import TraceError


class Outcome(IntEnum):
    """Severity of a finding. A row counts in the totals once, under the severest of its findings."""

    KEPT = 0
    REPAIRED = 1
    DROPPED = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """Something found in a number of rows.

    Attributes:
        reason: what, with the rule applied to it.
        outcome: what became of these rows, unless a severer finding applies to them.
        rows: how many.
        example_line: 1-based number of the first such line.
    """

    reason: str
    outcome: Outcome
    rows: int
    example_line: int


@dataclass(frozen=True, slots=True)
class ReadReport:
    """Account of a reading. ``rows_total == rows_kept + rows_repaired + rows_dropped``.

    A row appears in every finding that applies to it, so findings may add up to more than the totals. ``str()``
    gives one line.

    Attributes:
        path: the file.
        kind: kind of trace.
        rows_total: data rows; neither the header nor line ends after the last row count.
        rows_kept: rows taken as they are.
        rows_repaired: rows taken with a correction.
        rows_dropped: rows left out.
        findings: in order of severity, then of first appearance in the rules.
        notes: what concerns the file as a whole and changes no row.
    """

    path: Path
    kind: str
    rows_total: int
    rows_kept: int
    rows_repaired: int
    rows_dropped: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        head = (
            f"{self.path}: {self.kind}, {self.rows_total} rows: {self.rows_kept} kept, "
            f"{self.rows_repaired} repaired, {self.rows_dropped} dropped"
        )
        details = [
            f"{f.outcome.name.lower()} {f.rows}: {f.reason} (line {f.example_line})" for f in self.findings
        ]
        return "; ".join([head, *details, *self.notes])

    def to_json(self) -> dict[str, object]:
        """The report as values that ``json.dumps`` takes."""
        return {
            "path": str(self.path),
            "kind": self.kind,
            "rows": {
                "total": self.rows_total,
                "kept": self.rows_kept,
                "repaired": self.rows_repaired,
                "dropped": self.rows_dropped,
            },
            "findings": [
                {
                    "reason": f.reason,
                    "outcome": f.outcome.name.lower(),
                    "rows": f.rows,
                    "example_line": f.example_line,
                }
                for f in self.findings
            ],
            "notes": list(self.notes),
        }


class RowAudit:
    """Collects the findings of one reading.

    Args:
        path: the file.
        kind: kind of trace.
        line_numbers: [n], 1-based line of each data row.
    """

    def __init__(self, path: Path, kind: str, line_numbers: NDArray[np.int64]) -> None:
        self._path = path
        self._kind = kind
        self._line_numbers = line_numbers
        self._outcome = np.full(len(line_numbers), Outcome.KEPT, dtype=np.uint8)
        self._findings: list[Finding] = []

    @property
    def usable(self) -> BoolArray:
        """bool [n]: rows not dropped so far."""
        return np.asarray(self._outcome < Outcome.DROPPED)

    def note(self, rows: BoolArray, reason: str, outcome: Outcome) -> None:
        """Records a finding about the rows chosen by the mask; about none, it records nothing."""
        if not rows.any():
            return
        first = int(np.argmax(rows))
        self._findings.append(Finding(reason, outcome, int(rows.sum()), int(self._line_numbers[first])))
        np.maximum(self._outcome, np.where(rows, outcome, Outcome.KEPT), out=self._outcome, casting="unsafe")

    def refuse_if_mostly_bad(
        self, problems: Mapping[str, BoolArray], cells: Mapping[str, Sequence[str]], lines: Sequence[str]
    ) -> None:
        """Refuses the file when more than half of its rows are bad.

        Args:
            problems: bool [n], the rows of each problem, named ``COLUMN: PROBLEM`` where it is about one column.
            cells: [n], text of each column.
            lines: [n], text of the rows.

        Raises:
            TraceError: naming the first bad row, its column and the text there.
        """
        bad = np.logical_or.reduce([np.zeros(len(lines), np.bool_), *problems.values()])
        if int(bad.sum()) * 2 <= len(bad):
            return
        first = int(np.argmax(bad))
        reason = next(reason for reason, rows in problems.items() if rows[first])
        column, separator, problem = reason.partition(": ")
        raise TraceError(
            self._path,
            f"{problem if separator else reason}, and {int(bad.sum())} of {len(bad)} rows are bad",
            f"give a trace of kind {self._kind!r} with at least half of its rows sound",
            line=int(self._line_numbers[first]),
            column=column if separator else None,
            value=cells[column][first] if separator else lines[first],
        )

    def report(self, notes: Sequence[str]) -> ReadReport:
        """The account of all rows."""
        kept, repaired, dropped = (int(np.sum(self._outcome == outcome)) for outcome in Outcome)
        return ReadReport(
            path=self._path,
            kind=self._kind,
            rows_total=len(self._outcome),
            rows_kept=kept,
            rows_repaired=repaired,
            rows_dropped=dropped,
            findings=tuple(sorted(self._findings, key=lambda finding: -finding.outcome)),
            notes=tuple(notes),
        )
