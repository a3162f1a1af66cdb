"""What one run of a load generator yields, and the figures drawn from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from hdrh.histogram import HdrHistogram
from numpy.typing import NDArray

Int64Array: TypeAlias = NDArray[np.int64]

_HIGHEST_LATENCY_MICROSECONDS = 3_600_000_000
_SIGNIFICANT_DIGITS = 3


@dataclass(frozen=True)
class Measurement:
    """A closed loop: every request is sent when an earlier one has ended. All arrays have one value per request.

    Attributes:
        generator: Which program made the load.
        sent_microseconds: int64 [N], on a clock of the generator.
        latency_microseconds: int64 [N], from sending to the end of the response.
        failures: How many requests failed, by reason.
        client_cpu_seconds: CPU time the generator spent.
        responses: Serialized response messages, where the generator keeps them.
    """

    generator: str
    sent_microseconds: Int64Array
    latency_microseconds: Int64Array
    failures: dict[str, int]
    client_cpu_seconds: float
    responses: tuple[bytes, ...] = field(default=(), repr=False)

    @property
    def requests(self) -> int:
        """Number of requests sent."""
        return len(self.sent_microseconds)

    @property
    def requests_per_second(self) -> float:
        """Requests over the time from the first send to the last end of a response."""
        ended = self.sent_microseconds + self.latency_microseconds
        return self.requests / max(1, int(ended.max() - self.sent_microseconds.min())) * 1e6

    @property
    def client_cpu_microseconds_per_request(self) -> float:
        """What one request costs the generator."""
        return self.client_cpu_seconds / self.requests * 1e6


@dataclass(frozen=True)
class OpenLoopMeasurement(Measurement):
    """An open loop: every request has its time, whatever became of the earlier ones.

    ``latency_microseconds`` counts from the scheduled time, so that a stall of the server shows in every request
    that would have been sent during it (no coordinated omission).

    Attributes:
        target_requests_per_second: Rate of the schedule.
        scheduled_microseconds: int64 [N], on the clock of ``sent_microseconds``.
    """

    target_requests_per_second: float = 0.0
    scheduled_microseconds: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def lag_microseconds(self) -> Int64Array:
        """int64 [N]: how late the generator sent each request."""
        return self.sent_microseconds - self.scheduled_microseconds

    @property
    def requests_per_second(self) -> float:
        """Answered requests over the length of the schedule, or over the time until the last answer if longer."""
        ended = int((self.scheduled_microseconds + self.latency_microseconds).max())
        scheduled = self.requests / self.target_requests_per_second * 1e6
        elapsed = max(scheduled, ended - int(self.scheduled_microseconds[0]))
        return (self.requests - sum(self.failures.values())) / elapsed * 1e6


def latency_histogram(measurements: Iterable[Measurement]) -> HdrHistogram:
    """All latencies in one HdrHistogram, in microseconds, to three significant digits."""
    histogram = HdrHistogram(1, _HIGHEST_LATENCY_MICROSECONDS, _SIGNIFICANT_DIGITS)
    for measurement in measurements:
        values, counts = np.unique(measurement.latency_microseconds, return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            histogram.record_value(max(1, value), count)
    return histogram


def percentile_microseconds(measurement: Measurement, percentile: float) -> int:
    """Latency that ``percentile`` per cent of the requests do not exceed."""
    return int(latency_histogram([measurement]).get_value_at_percentile(percentile))
