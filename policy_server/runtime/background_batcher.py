"""A micro-batcher for decisions too long for the event loop: made on one thread, what waits meanwhile is batched.

While a batch is being decided the event loop serves others, and queries that arrive are collected; they are the next
batch. A lone query starts at once.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar

from policy_server.runtime.batcher import ExpiredError

QueryT = TypeVar("QueryT")
AnswerT = TypeVar("AnswerT")


class BackgroundBatcher(Generic[QueryT, AnswerT]):
    """Decides queries on a thread of its own, which starts with the first. All methods run on one event loop.

    Args:
        decide_many: called on the thread; what it gives back for each query is the answer, or the exception to raise
            there.
        take_back: called on the thread with an answer whose caller gave up while it was being made.
        name: of the thread.
        maximum_batch: most queries decided together.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        decide_many: Callable[[Sequence[QueryT]], Sequence[AnswerT | Exception]],
        take_back: Callable[[AnswerT], None],
        *,
        name: str,
        maximum_batch: int = 64,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._decide_many = decide_many
        self._take_back = take_back
        self._maximum_batch = maximum_batch
        self._clock = clock
        self._waiting: list[_Waiting[QueryT, AnswerT]] = []
        self._busy = False
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    @property
    def waiting(self) -> int:
        """Queries that are collected and not being decided yet."""
        return len(self._waiting)

    async def decide(self, query: QueryT, remaining_seconds: float = math.inf) -> AnswerT:
        """The answer to a query.

        Args:
            query: to decide.
            remaining_seconds: until its caller stops waiting.

        Raises:
            ExpiredError: that time passed while the query was waiting.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[AnswerT] = loop.create_future()
        self._waiting.append(_Waiting(query, self._clock() + remaining_seconds, answer))
        if not self._busy:
            self._busy = True
            # Whoever asks in the same turn belongs to the first batch.
            loop.call_soon(self._start, loop)
        return await answer

    def post(self, work: Callable[[], Any]) -> None:
        """Has something done on the thread, after what is being decided; nobody waits for it."""
        self._executor.submit(work)

    def close(self) -> None:
        """Starts nothing any more."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        batch = self._next_batch()
        self._busy = bool(batch)
        if not batch:
            return
        try:
            self._executor.submit(self._decide, batch, loop)
        except RuntimeError as closed:
            self._give(batch, [closed] * len(batch), loop)

    def _decide(self, batch: list[_Waiting[QueryT, AnswerT]], loop: asyncio.AbstractEventLoop) -> None:
        """On the thread."""
        results: Sequence[AnswerT | Exception]
        try:
            results = self._decide_many([waiting.query for waiting in batch])
        except Exception as error:
            results = [error] * len(batch)
        loop.call_soon_threadsafe(self._give, batch, results, loop)

    def _give(
        self,
        batch: list[_Waiting[QueryT, AnswerT]],
        results: Sequence[AnswerT | Exception],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        for waiting, result in zip(batch, results, strict=True):
            if waiting.answer.done():
                if not isinstance(result, Exception):
                    with suppress(RuntimeError):  # Closed: what is given later does not matter any more.
                        self._executor.submit(self._take_back, result)
            elif isinstance(result, Exception):
                waiting.answer.set_exception(result)
            else:
                waiting.answer.set_result(result)
        self._start(loop)

    def _next_batch(self) -> list[_Waiting[QueryT, AnswerT]]:
        """The queries that have waited longest. Those that were given up or have expired are left out."""
        live: list[_Waiting[QueryT, AnswerT]] = []
        now = self._clock()
        while self._waiting and len(live) < self._maximum_batch:
            waiting = self._waiting.pop(0)
            if waiting.answer.done():
                continue
            if waiting.expires_at <= now:
                waiting.answer.set_exception(ExpiredError())
            else:
                live.append(waiting)
        return live


class _Waiting(NamedTuple, Generic[QueryT, AnswerT]):
    query: QueryT
    expires_at: float
    answer: asyncio.Future[AnswerT]
