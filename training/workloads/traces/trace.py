"""What all kinds of trace have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from policy_server.cluster.snapshot import Float64Array, Int32Array, Int64Array
from training.workloads.marks import WORK_BOUNDS
from training.workloads.requests import RequestSequence
from training.workloads.services import ServiceCatalogue
from training.workloads.traces.errors import TraceError
from training.workloads.traces.report import ReadReport
from training.workloads.traces.windows import Split, TimeWindow, window_for

SPREAD_SECONDS = 10.0
"""Requests that one recorded row stands for arrive within this time after it."""

DEADLINE_BOUNDS = (0.8, 2.0)
_TRACE_STREAM = 0x7ACE


class Trace(ABC):
    """A recorded workload: a parsed table, the account of its reading, and the sequences made of it."""

    kind: ClassVar[str]
    default_window_seconds: ClassVar[float]
    """Trace time of a window when none is asked for: long enough to hold the trace's changes of load."""

    report: ReadReport

    @property
    @abstractmethod
    def span(self) -> TimeWindow:
        """The trace's time, from its first row to after its last."""

    @abstractmethod
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
        """The window's workload, its time scaled to ``duration_seconds`` and its level to the mean rate.

        Requests go to access points at random, as in the KaiS paper. The same arguments give the same bytes.

        Args:
            window: part of the trace, from :meth:`window_for`.
            services: what is asked for.
            access_points: number of access points that receive requests.
            duration_seconds: length of the sequence.
            mean_rate_per_second: expected requests per second, averaged over the sequence.
            seed: of everything the trace does not record.

        Raises:
            WorkloadError: naming the argument and its value.
            TraceError: nothing was recorded in the window.
        """

    def window_for(self, split: Split, index: int, length_seconds: float | None = None) -> TimeWindow:
        """The window at ``index`` of the split; see :func:`training.workloads.traces.windows.window_for`."""
        length = self.default_window_seconds if length_seconds is None else length_seconds
        return window_for(split, index, span=self.span, length_seconds=length)

    def _rows_in(self, row_seconds: Float64Array, window: TimeWindow) -> Int64Array:
        """Rows within the window, of which there is at least one."""
        first, last = np.searchsorted(row_seconds, (window.start_seconds, window.end_seconds))
        if first == last:
            raise self._nothing_recorded(window)
        return np.arange(first, last)

    def _nothing_recorded(self, window: TimeWindow) -> TraceError:
        return TraceError(
            self.report.path,
            f"no requests between {window.start_seconds:g} and {window.end_seconds:g} s of the trace",
            f"take a longer window within {self.span.start_seconds:g} to {self.span.end_seconds:g} s",
        )


def replay_rows(
    row_seconds: Float64Array,
    weights: Float64Array,
    window: TimeWindow,
    duration_seconds: float,
    mean_rate_per_second: float,
    rng: np.random.Generator,
) -> tuple[Float64Array, Int64Array]:
    """Turns the recorded rows of a window into arrivals of any rate, as a Poisson cluster process.

    Row i stands for a client that sends Poisson(c w_i) requests, each at an independent uniform time within
    ``SPREAD_SECONDS`` after the row; c makes the mean rate the one asked for. Given the rows, this is a Poisson
    process whose rate follows the recorded load. What falls beyond the end comes in at the start, which keeps the
    mean rate exact.

    Args:
        row_seconds: float64 [m], trace time of the rows, within the window.
        weights: float64 [m], requests each row stands for, up to a common factor; the sum is above zero.
        window: the rows' window.
        duration_seconds: length of the sequence, to which the window is scaled.
        mean_rate_per_second: expected requests per second.
        rng: consumed.

    Returns:
        float64 [n] ascending arrival times, and int64 [n] the row each stands for.
    """
    expected = weights / weights.sum() * (mean_rate_per_second * duration_seconds)
    row = np.repeat(np.arange(len(row_seconds)), rng.poisson(expected))
    start_seconds = (row_seconds - window.start_seconds) * (duration_seconds / window.length_seconds)
    delay_seconds = rng.random(len(row)) * min(SPREAD_SECONDS, duration_seconds)
    arrival_seconds = (start_seconds[row] + delay_seconds) % duration_seconds
    order = np.argsort(arrival_seconds, kind="stable")
    return arrival_seconds[order], row[order]


def random_access_points(access_points: int, count: int, rng: np.random.Generator) -> Int32Array:
    """int32 [count], uniform."""
    return rng.integers(access_points, size=count, dtype=np.int32)


def bounded_work_factor(ratio: Float64Array) -> Float64Array:
    """Keeps work factors that stem from a recorded figure within the bounds of drawn ones."""
    return np.clip(ratio, *WORK_BOUNDS)


def deadline_factor(work_factor: Float64Array) -> Float64Array:
    """What a typical deadline is multiplied with: more work gets more time, so that the slack stays about the same."""
    return np.clip(work_factor, *DEADLINE_BOUNDS)


def trace_random(seed: int) -> np.random.Generator:
    """The random numbers of a sequence made from a trace, independent of those of generated patterns."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_TRACE_STREAM,)))
