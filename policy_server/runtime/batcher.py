"""The micro-batcher: what is waiting is batched, nothing waits to be batched.

An event loop handles, turn by turn, what has become readable. A query is decided on the spot while few arrive per
turn, so that a lone one pays nothing. When the turn before brought :data:`BATCH_PAYS_FROM` queries or more, those
of this turn are collected and decided together at its end: from there on, one batch costs less than its members.

A window, off by default, makes queries wait for others on purpose; a query that is alone in flight never does.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Generic, TypeVar

QueryT = TypeVar("QueryT")
AnswerT = TypeVar("AnswerT")

BATCH_PAYS_FROM = 5
"""Dispatch queries from which on a batch beats single decisions: about 230 us against 43 us each by the shipped one."""


class ExpiredError(Exception):
    """The caller's deadline passed while the query waited; it was not decided."""


class MicroBatcher(Generic[QueryT, AnswerT]):
    """Decides queries one by one or together. All methods run on one event loop.

    Args:
        decide_one: decides a query, given the seconds its caller still waits; may raise.
        decide_many: decides queries; what it gives back for each is the answer, or the exception to raise there.
        window_seconds: how long a query that is not alone waits for others.
        maximum_batch: most queries decided together.
        batch_pays_from: queries from which on a batch costs less than its members.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        decide_one: Callable[[QueryT, float], AnswerT],
        decide_many: Callable[[Sequence[QueryT]], Sequence[AnswerT | Exception]],
        *,
        window_seconds: float = 0.0,
        maximum_batch: int = 256,
        batch_pays_from: int = BATCH_PAYS_FROM,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._decide_one = decide_one
        self._decide_many = decide_many
        self._window_seconds = window_seconds
        self._maximum_batch = maximum_batch
        self._batch_pays_from = batch_pays_from
        self._clock = clock
        self._waiting: list[_Waiting[QueryT, AnswerT]] = []
        self._arrived = 0
        self._arrived_before = 0
        # A batch belongs to none of its callers, so it does not run in the context of the first.
        self._no_context = Context()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Queries that are collected and not decided yet, abandoned ones included."""
        return len(self._waiting)

    async def decide(
        self, query: QueryT, remaining_seconds: float = math.inf, *, alone: bool = True
    ) -> AnswerT:
        """The answer to a query.

        Args:
            query: to decide.
            remaining_seconds: until its caller stops waiting.
            alone: whether no other query is in flight; only a window asks.

        Raises:
            ExpiredError: that time passed while the query was waiting.
        """
        loop = asyncio.get_running_loop()
        if not self._arrived:
            loop.call_soon(self._end_turn, context=self._no_context)
        self._arrived += 1
        crowded = (
            not alone or self._waiting
            if self._window_seconds
            else self._arrived_before >= self._batch_pays_from
        )
        if not crowded:
            return self._decide_one(query, remaining_seconds)
        answer: asyncio.Future[AnswerT] = loop.create_future()
        self._waiting.append(_Waiting(query, self._clock() + remaining_seconds, answer))
        if self._window_seconds:
            self._keep_window(loop)
        return await answer

    def flush(self) -> None:
        """Decides what is waiting. Queries that were given up or have expired are left out first."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        collected, self._waiting = self._waiting, []
        now = self._clock()
        live = []
        for waiting in collected:
            if waiting.answer.done():
                continue
            if waiting.expires_at <= now:
                waiting.answer.set_exception(ExpiredError())
            else:
                live.append(waiting)
        for start in range(0, len(live), self._maximum_batch):
            self._answer(live[start : start + self._maximum_batch])

    def _end_turn(self) -> None:
        self._arrived_before, self._arrived = self._arrived, 0
        if self._waiting and not self._window_seconds:
            self.flush()

    def _keep_window(self, loop: asyncio.AbstractEventLoop) -> None:
        if len(self._waiting) >= self._maximum_batch:
            self.flush()
        elif self._timer is None:
            self._timer = loop.call_later(self._window_seconds, self.flush, context=self._no_context)

    def _answer(self, batch: Sequence[_Waiting[QueryT, AnswerT]]) -> None:
        results: Sequence[AnswerT | Exception]
        if len(batch) < self._batch_pays_from:
            results = [self._result_of_one(waiting) for waiting in batch]
        else:
            results = self._results_of_many(batch)
        for waiting, result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                waiting.answer.set_exception(result)
            else:
                waiting.answer.set_result(result)

    def _result_of_one(self, waiting: _Waiting[QueryT, AnswerT]) -> AnswerT | Exception:
        try:
            return self._decide_one(waiting.query, waiting.expires_at - self._clock())
        except Exception as error:
            return error

    def _results_of_many(self, batch: Sequence[_Waiting[QueryT, AnswerT]]) -> Sequence[AnswerT | Exception]:
        try:
            return self._decide_many([waiting.query for waiting in batch])
        except Exception as error:
            return [error] * len(batch)


class _Waiting(Generic[QueryT, AnswerT]):
    __slots__ = ("answer", "expires_at", "query")

    def __init__(self, query: QueryT, expires_at: float, answer: asyncio.Future[AnswerT]) -> None:
        self.query = query
        self.expires_at = expires_at
        self.answer = answer
