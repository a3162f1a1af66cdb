"""From the bytes of a trace to lines, cells and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policy_server.cluster.snapshot import BoolArray, Float64Array
from training.workloads.traces.errors import TraceError
from training.workloads.traces.location import FOLDER_VARIABLE
from training.workloads.traces.report import Outcome, RowAudit

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class TraceText:
    """The lines of a trace.

    Attributes:
        path: the file.
        lines: without line ends; none after the last line with content.
        ends_with_newline: False when the writer may have been cut off within the last line.
        notes: what was normalised.
    """

    path: Path
    lines: list[str]
    ends_with_newline: bool
    notes: tuple[str, ...]


def read_text(path: Path) -> TraceText:
    """Reads UTF-8 text with any line ends, with or without a byte order mark.

    Bytes that are not UTF-8 become replacement characters: the cells they stand in will not parse and be counted.

    Raises:
        TraceError: missing or unreadable file, nothing in it, or not text.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TraceError(
            path,
            f"cannot be read: {error.strerror}",
            f"give an existing file, or set {FOLDER_VARIABLE} to the folder that holds the trace files",
        ) from error
    notes = []
    if content.startswith(_BYTE_ORDER_MARK):
        content = content.removeprefix(_BYTE_ORDER_MARK)
        notes.append("byte order mark removed")
    if b"\0" in content:
        raise TraceError(path, "holds null bytes, so it is not UTF-8 text", "save it as UTF-8 text")
    if b"\r" in content:
        content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        notes.append("carriage returns taken as line ends")
    if not content.endswith(b"\n"):
        notes.append("no line end after the last line, which may be cut short")
    text = content.decode("utf-8", errors="replace").rstrip("\n")
    if not text.strip():
        raise TraceError(path, "empty file", "give a file with at least one row")
    return TraceText(
        path=path, lines=text.split("\n"), ends_with_newline=content.endswith(b"\n"), notes=tuple(notes)
    )


@dataclass(frozen=True, slots=True)
class NumberColumn:
    """A column of numbers, the range they must lie in, and whether they must be whole."""

    name: str
    maximum: float
    minimum: float = 0.0
    whole: bool = False

    def parse(self, cells: Sequence[str]) -> tuple[Float64Array, dict[str, BoolArray]]:
        """Parses a column.

        Returns:
            float64 [n], NaN where the cell is bad; and the bad rows of each problem, bool [n] under
            ``COLUMN: PROBLEM``. A cell has at most one problem.
        """
        values, unreadable = _floats(cells)
        empty = np.zeros(len(cells), dtype=np.bool_)
        empty[unreadable] = [not cells[row].strip() for row in np.flatnonzero(unreadable).tolist()]
        finite = np.isfinite(values)
        in_range = (values >= self.minimum) & (values <= self.maximum)
        problems = {
            "empty": empty,
            "not a number": unreadable & ~empty,
            "not finite": ~finite & ~unreadable,
            f"below {self.minimum:g}": finite & (values < self.minimum),
            f"above {self.maximum:g}": finite & (values > self.maximum),
            "not a whole number": in_range & (values != np.floor(values)) & self.whole,
        }
        problems = {f"{self.name}: {problem}": rows for problem, rows in problems.items() if rows.any()}
        for rows in problems.values():
            values[rows] = np.nan
        return values, problems


def _floats(cells: Sequence[str]) -> tuple[Float64Array, BoolArray]:
    """float64 [n] and bool [n]: rows that hold no number (their value is NaN)."""
    try:
        if "_" not in "".join(cells):
            return np.fromiter(map(float, cells), np.float64, len(cells)), np.zeros(len(cells), np.bool_)
    except ValueError:
        pass
    values = np.full(len(cells), np.nan)
    unreadable = np.zeros(len(cells), dtype=np.bool_)
    for row, cell in enumerate(cells):
        try:
            # float() takes the underscores of Python literals, which no trace writes on purpose.
            values[row] = float(cell.replace("_", "?"))
        except ValueError:
            unreadable[row] = True
    return values, unreadable


def split_rows(
    text: TraceText, first_line: int, column_count: int
) -> tuple[list[tuple[str, ...]], dict[str, BoolArray]]:
    """Splits the lines from 0-based ``first_line`` on into columns.

    Returns:
        ``column_count`` columns of n cells, empty where the row has another width; and the rows of each problem,
        bool [n]. A row has at most one problem.
    """
    rows = [line.split(",") for line in text.lines[first_line:]]
    blank = np.array([row == [""] or not "".join(row).strip() for row in rows])
    wrong = np.array([len(row) != column_count for row in rows]) & ~blank
    truncated = np.zeros_like(wrong)
    truncated[-1] = wrong[-1] and not text.ends_with_newline
    problems = {
        "blank line": blank,
        "truncated last line": truncated,
        f"not {column_count} columns": wrong & ~truncated,
    }
    filler = [""] * column_count
    cells = list(
        zip(*(filler if bad else row for row, bad in zip(rows, blank | wrong, strict=True)), strict=True)
    )
    return cells, problems


def line_numbers(text: TraceText, first_line: int) -> NDArray[np.int64]:
    """int64 [n]: 1-based numbers of the lines from 0-based ``first_line`` on."""
    return np.arange(first_line + 1, len(text.lines) + 1, dtype=np.int64)


def note_unsorted(
    times: NDArray[np.int64] | Float64Array, usable: BoolArray, audit: RowAudit
) -> NDArray[np.int64]:
    """Notes rows that come before an earlier row in time.

    Returns:
        int64 [m]: the usable rows in order of time, rows of equal time in file order.
    """
    rows = np.flatnonzero(usable)
    late = np.zeros(len(usable), dtype=np.bool_)
    late[rows] = times[rows] < np.maximum.accumulate(times[rows])
    audit.note(late, "out of order: sorted by time", Outcome.REPAIRED)
    return rows[np.argsort(times[rows], kind="stable")]
