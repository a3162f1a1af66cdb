"""When the requests of an open loop are due."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ConstantRateSchedule:
    """Request ``i`` is due ``i / rate`` seconds after the start, computed from ``i`` so that no error adds up.

    Attributes:
        start_nanoseconds: When the first request is due, on any clock.
        requests_per_second: The rate, above zero.
    """

    start_nanoseconds: int
    requests_per_second: float

    def due_nanoseconds(self, index: int) -> int:
        """When request ``index`` (from 0) is due."""
        return self.start_nanoseconds + int(index * _NANOSECONDS / self.requests_per_second)

    def due_count(self, now_nanoseconds: int) -> int:
        """How many requests are due at that time or earlier."""
        if now_nanoseconds < self.start_nanoseconds:
            return 0
        elapsed = now_nanoseconds - self.start_nanoseconds
        count = int(elapsed * self.requests_per_second / _NANOSECONDS)
        while self.due_nanoseconds(count) <= now_nanoseconds:
            count += 1
        while count and self.due_nanoseconds(count - 1) > now_nanoseconds:
            count -= 1
        return count

    def all_due_nanoseconds(self, count: int) -> NDArray[np.int64]:
        """int64 [count]: when each of the first ``count`` requests is due."""
        return np.array([self.due_nanoseconds(index) for index in range(count)], np.int64)
