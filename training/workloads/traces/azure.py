"""Requests to an Azure code-completion LLM service (AzurePublicDataset, 2023).

Header, then timestamp (up to nine fractional digits, UTC), context tokens, generated tokens. A row with a cell that
does not parse is dropped; a row earlier than one before it is repaired by sorting.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from policy_server.cluster.snapshot import BoolArray, Float64Array, Int64Array
from training.workloads.arrivals import choose
from training.workloads.marks import draw_marks
from training.workloads.requests import RequestSequence, check_sequence_arguments
from training.workloads.services import ServiceCatalogue
from training.workloads.traces.errors import TraceError
from training.workloads.traces.report import Outcome, ReadReport, RowAudit
from training.workloads.traces.text import NumberColumn, TraceText, line_numbers, note_unsorted, split_rows
from training.workloads.traces.trace import (
    Trace,
    bounded_work_factor,
    deadline_factor,
    random_access_points,
    replay_rows,
    trace_random,
)
from training.workloads.traces.windows import Split, TimeWindow, part_of

HEADER = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
COLUMNS = ("timestamp", "context_tokens", "generated_tokens")
_NUMBERS = tuple(NumberColumn(name, maximum=1e8, whole=True) for name in COLUMNS[1:])
# The years that signed 64-bit nanoseconds since 1970 can hold; numpy overflows without a word outside them.
_TIMESTAMP = re.compile(
    r"\s*((?:19[7-9]\d|2[01]\d\d|22[0-5]\d)-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?)(?:Z|\+00:00)?\s*",
    re.ASCII,
)

PAYLOAD_BOUNDS = (0.1, 4.0)


@dataclass(frozen=True, slots=True, eq=False)
class AzureLlmTable:
    """The rows not dropped, by time (n rows).

    Attributes:
        line: int64 [n], 1-based line in the file.
        timestamp_nanoseconds: int64 [n], since 1970, UTC.
        context_tokens: int64 [n].
        generated_tokens: int64 [n].
    """

    line: Int64Array
    timestamp_nanoseconds: Int64Array
    context_tokens: Int64Array
    generated_tokens: Int64Array

    def __len__(self) -> int:
        return len(self.line)

    @property
    def seconds(self) -> Float64Array:
        """float64 [n]: seconds since the first row."""
        return np.asarray((self.timestamp_nanoseconds - self.timestamp_nanoseconds[0]) / 1e9)


@dataclass(frozen=True, slots=True, eq=False)
class AzureLlmTrace(Trace):
    """LLM requests turned into requests for the catalogue's services.

    The trace has one service, so each request asks for a random one, by popularity. Payload: typical payload x
    context tokens / their mean, within 0.1 to 4 times the typical one. Work factor: (generated tokens / their
    mean)^(1/2) within 0.4 to 2.5, over its mean. Deadline: that of :func:`~training.workloads.marks.draw_marks`
    times the work factor within 0.8 to 2. All means are of the training part. Arrivals:
    :func:`~training.workloads.traces.trace.replay_rows`.
    """

    kind: ClassVar[str] = "azure-llm"
    default_window_seconds: ClassVar[float] = 600.0

    table: AzureLlmTable
    report: ReadReport

    @staticmethod
    def parse(text: TraceText) -> AzureLlmTrace:
        """Parses the file.

        Raises:
            TraceError: another header, no row after it, or more than half of the rows are bad.
        """
        first_line = _header_lines(text)
        audit = RowAudit(text.path, AzureLlmTrace.kind, line_numbers(text, first_line))
        columns, problems = split_rows(text, first_line, len(COLUMNS))
        cells = dict(zip(COLUMNS, columns, strict=True))
        well_formed = ~np.logical_or.reduce(list(problems.values()))
        nanoseconds, found = _parse_timestamps(cells["timestamp"])
        problems |= {reason: rows & well_formed for reason, rows in found.items()}
        values: dict[str, Float64Array] = {}
        for column in _NUMBERS:
            values[column.name], found = column.parse(cells[column.name])
            problems |= {reason: rows & well_formed for reason, rows in found.items()}
        for reason, rows in problems.items():
            audit.note(rows, reason, Outcome.DROPPED)
        audit.refuse_if_mostly_bad(problems, cells, text.lines[first_line:])

        order = note_unsorted(nanoseconds, audit.usable, audit)
        table = AzureLlmTable(
            line=line_numbers(text, first_line)[order],
            timestamp_nanoseconds=nanoseconds[order],
            context_tokens=values["context_tokens"][order].astype(np.int64),
            generated_tokens=values["generated_tokens"][order].astype(np.int64),
        )
        return AzureLlmTrace(table, audit.report(text.notes))

    @property
    def span(self) -> TimeWindow:
        """From 0 to one second after the last request."""
        return TimeWindow(0.0, float(self.table.seconds[-1]) + 1.0)

    def requests(
        self,
        window: TimeWindow,
        *,
        services: ServiceCatalogue,
        access_points: int,
        duration_seconds: float,
        mean_rate_per_second: float,
        seed: int,
    ) -> RequestSequence:
        """See :meth:`Trace.requests`."""
        check_sequence_arguments(access_points, duration_seconds, mean_rate_per_second, seed)
        table = self.table
        rows = self._rows_in(table.seconds, window)
        training_rows = self._rows_in(table.seconds, part_of(self.span, Split.TRAINING))
        mean_context = max(float(table.context_tokens[training_rows].mean()), 1.0)
        mean_generated = max(float(table.generated_tokens[training_rows].mean()), 1.0)
        work = bounded_work_factor(np.sqrt(table.generated_tokens / mean_generated))
        row_work = work[rows] / work[training_rows].mean()
        row_payload = np.clip(table.context_tokens[rows] / mean_context, *PAYLOAD_BOUNDS)

        rng = trace_random(seed)
        arrival_seconds, row = replay_rows(
            table.seconds[rows], np.ones(len(rows)), window, duration_seconds, mean_rate_per_second, rng
        )
        service = choose(services.popularity[None, :], np.zeros(len(row), np.int64), rng)
        marks = draw_marks(service, services, rng)
        work_factor = row_work[row]
        return RequestSequence(
            arrival_seconds=arrival_seconds,
            access_point=random_access_points(access_points, len(row), rng),
            service=service,
            deadline_seconds=(marks.deadline_seconds * deadline_factor(work_factor)).astype(np.float32),
            payload_bytes=(services.payload_bytes[service] * row_payload[row]).astype(np.float32),
            work_factor=work_factor.astype(np.float32),
            duration_seconds=float(duration_seconds),
        )


def _header_lines(text: TraceText) -> int:
    """1 where the file starts with its header, 0 where it starts with data."""
    first = [cell.strip() for cell in text.lines[0].split(",")]
    if any(character.isdigit() for character in first[0]):
        return 0
    if [cell.lower() for cell in first] != [name.lower() for name in HEADER]:
        raise TraceError(
            text.path,
            "unexpected header",
            f"the header must be {','.join(HEADER)}",
            line=1,
            value=text.lines[0],
        )
    if len(text.lines) == 1:
        raise TraceError(
            text.path,
            "no rows after the header",
            "give a file with at least one row",
            line=1,
            value=text.lines[0],
        )
    return 1


def _parse_timestamps(cells: Sequence[str]) -> tuple[Int64Array, dict[str, BoolArray]]:
    """int64 [n] nanoseconds since 1970, zero where the cell is bad; and the bad rows."""
    matches = [_TIMESTAMP.fullmatch(cell) for cell in cells]
    bad = np.array([match is None for match in matches])
    texts = ["1970-01-01" if match is None else match[1] for match in matches]
    try:
        nanoseconds = np.array(texts, dtype="datetime64[ns]").astype(np.int64)
    except ValueError:  # the right form, but no such day or hour
        nanoseconds = np.zeros(len(texts), dtype=np.int64)
        for row, cell in enumerate(texts):
            try:
                nanoseconds[row] = np.datetime64(cell, "ns").astype(np.int64)
            except ValueError:
                bad[row] = True
    return nanoseconds, {"timestamp: not a UTC time YYYY-MM-DD HH:MM:SS.FFFFFFF": bad} if bad.any() else {}
