"""Stops asking something that keeps failing, and tries it again from time to time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum


class BreakerState(IntEnum):
    """Whether calls go through."""

    CLOSED = 0
    """All of them."""
    OPEN = 1
    """None, until the back-off is over."""
    HALF_OPEN = 2
    """One trial call is under way; its outcome closes or reopens."""


@dataclass(frozen=True)
class BreakerSettings:
    """When a breaker opens and how long it stays so."""

    fault_limit: int = 5
    """Consecutive faults that open it."""
    backoff_seconds: float = 1.0
    """Time until the first trial call; doubles after every failed trial."""
    maximum_backoff_seconds: float = 30.0


class CircuitBreaker:
    """Counts consecutive faults. Safe to use from several threads.

    Ask :meth:`allows` before a call and tell :meth:`succeeded` or :meth:`failed` after it. A trial call whose
    outcome is never told is taken for lost after one more back-off.
    """

    def __init__(
        self, settings: BreakerSettings = BreakerSettings(), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._faults = 0
        self._backoff_seconds = settings.backoff_seconds
        self._retry_at = 0.0
        self._state = BreakerState.CLOSED

    @property
    def state(self) -> BreakerState:
        """See :class:`BreakerState`."""
        return self._state

    def allows(self) -> bool:
        """Whether to make the call. In an open breaker, the first one after the back-off is the trial."""
        if self._state is BreakerState.CLOSED:
            return True
        with self._lock:
            if self.state is BreakerState.CLOSED:
                return True
            now = self._clock()
            if now < self._retry_at:
                return False
            self._state = BreakerState.HALF_OPEN
            self._retry_at = now + self._backoff_seconds
            return True

    def succeeded(self) -> bool:
        """The call was sound: forget all faults. True if that closed the breaker."""
        if not self._faults:
            return False
        with self._lock:
            closes = self._state is not BreakerState.CLOSED
            self._faults = 0
            self._backoff_seconds = self._settings.backoff_seconds
            self._state = BreakerState.CLOSED
            return closes

    def failed(self) -> bool:
        """The call was at fault. True if that opened the breaker, for the first time or again."""
        settings = self._settings
        with self._lock:
            self._faults += 1
            if self._faults < settings.fault_limit:
                return False
            if self._state is BreakerState.HALF_OPEN:
                self._backoff_seconds = min(2 * self._backoff_seconds, settings.maximum_backoff_seconds)
            opens = self._state is not BreakerState.OPEN
            self._state = BreakerState.OPEN
            self._retry_at = self._clock() + self._backoff_seconds
            return opens
