"""Ends requests whose end nobody tells, after the time that requests of their kind take.

A request that takes longer is taken for finished too early, one that takes less too late; on average as many count as
are in flight.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable

from policy_server.envoy.picker import PickedRequest


class Expiry:
    """Requests, in the order of their expected ends. All methods run on one event loop.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: list[tuple[float, int, PickedRequest]] = []
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def end_after(self, seconds: float, picked: PickedRequest) -> None:
        """Ends the request when that time has passed."""
        at_seconds = self._clock() + seconds
        heapq.heappush(self._waiting, (at_seconds, next(self._order), picked))
        if self._waiting[0][0] == at_seconds:
            self._set_timer(seconds)

    def end_all(self) -> None:
        """Ends all requests now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            self._end_first()

    def _end_due(self) -> None:
        self._timer = None
        now = self._clock()
        while self._waiting and self._waiting[0][0] <= now:
            self._end_first()
        if self._waiting:
            self._set_timer(self._waiting[0][0] - now)

    def _end_first(self) -> None:
        _, _, picked = heapq.heappop(self._waiting)
        picked.respond(None, failed=False)
        picked.end()

    def _set_timer(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._end_due)
