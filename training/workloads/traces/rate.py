"""Offered load of an application, one number of requests per second a line, one line a second.

A line that does not hold such a number is repaired by interpolation between its neighbours, for dropping it would
shift the time of all that follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from policy_server.cluster.snapshot import Float64Array
from training.workloads.arrivals import choose, poisson_arrivals
from training.workloads.marks import draw_marks
from training.workloads.requests import RequestSequence, check_sequence_arguments
from training.workloads.services import ServiceCatalogue
from training.workloads.traces.report import Outcome, ReadReport, RowAudit
from training.workloads.traces.text import NumberColumn, TraceText, line_numbers
from training.workloads.traces.trace import Trace, random_access_points, trace_random
from training.workloads.traces.windows import TimeWindow

_RATE = NumberColumn("requests_per_second", maximum=1e7)


@dataclass(frozen=True, slots=True, eq=False)
class RequestRateTable:
    """The rate of each second (n rows).

    Attributes:
        requests_per_second: float64 [n], row s is the rate from second s to s + 1.
    """

    requests_per_second: Float64Array

    def __len__(self) -> int:
        return len(self.requests_per_second)


@dataclass(frozen=True, slots=True, eq=False)
class RequestRateTrace(Trace):
    """A rate curve turned into requests: a non-homogeneous Poisson process of the curve's shape.

    Services are drawn by popularity, marks by :func:`~training.workloads.marks.draw_marks`.
    """

    kind: ClassVar[str] = "request-rate"
    default_window_seconds: ClassVar[float] = 600.0

    table: RequestRateTable
    report: ReadReport

    @staticmethod
    def parse(text: TraceText) -> RequestRateTrace:
        """Parses the file.

        Raises:
            TraceError: more than half of the rows are bad.
        """
        audit = RowAudit(text.path, RequestRateTrace.kind, line_numbers(text, 0))
        rates, problems = _RATE.parse(text.lines)
        for reason, rows in problems.items():
            audit.note(rows, f"{reason}: interpolated", Outcome.REPAIRED)
        audit.refuse_if_mostly_bad(problems, {_RATE.name: text.lines}, text.lines)
        second = np.arange(len(rates), dtype=np.float64)
        known = np.isfinite(rates)
        repaired = np.interp(second, second[known], rates[known])
        return RequestRateTrace(RequestRateTable(repaired), audit.report(text.notes))

    @property
    def span(self) -> TimeWindow:
        """From 0 to the number of lines."""
        return TimeWindow(0.0, float(len(self.table)))

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
        seconds = np.arange(len(self.table) + 1, dtype=np.float64)
        edges = np.concatenate(
            [
                [window.start_seconds],
                seconds[(seconds > window.start_seconds) & (seconds < window.end_seconds)],
                [window.end_seconds],
            ]
        )
        recorded = np.concatenate([[0.0], np.cumsum(self.table.requests_per_second)])
        expected = np.diff(np.interp(edges, seconds, recorded))
        if expected.sum() <= 0:
            raise self._nothing_recorded(window)
        expected *= mean_rate_per_second * duration_seconds / expected.sum()

        rng = trace_random(seed)
        edges = (edges - window.start_seconds) * (duration_seconds / window.length_seconds)
        edges[-1] = duration_seconds
        arrival_seconds = poisson_arrivals(edges, expected, rng)
        service = choose(services.popularity[None, :], np.zeros(len(arrival_seconds), np.int64), rng)
        marks = draw_marks(service, services, rng)
        return RequestSequence(
            arrival_seconds=arrival_seconds,
            access_point=random_access_points(access_points, len(service), rng),
            service=service,
            deadline_seconds=marks.deadline_seconds,
            payload_bytes=marks.payload_bytes,
            work_factor=marks.work_factor,
            duration_seconds=float(duration_seconds),
        )
