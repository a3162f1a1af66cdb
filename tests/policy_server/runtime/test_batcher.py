"""The micro-batcher: who is decided with whom, and when."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence

import pytest

from policy_server.runtime.batcher import BATCH_PAYS_FROM, ExpiredError, MicroBatcher


class Recorder:
    """Answers a number with its double, refuses negative ones, and remembers who was decided together."""

    def __init__(self) -> None:
        self.decided: list[list[int]] = []

    def one(self, query: int, remaining_seconds: float) -> int:
        if remaining_seconds <= 0:
            raise ExpiredError
        self.decided.append([query])
        return self._answer(query)

    def many(self, queries: Sequence[int]) -> list[int | Exception]:
        self.decided.append(list(queries))
        answers: list[int | Exception] = []
        for query in queries:
            try:
                answers.append(self._answer(query))
            except ValueError as error:
                answers.append(error)
        return answers

    def _answer(self, query: int) -> int:
        if query < 0:
            raise ValueError(f"query {query}")
        return 2 * query


def batcher_of(recorder: Recorder, **options: float) -> MicroBatcher[int, int]:
    return MicroBatcher(recorder.one, recorder.many, **options)  # type: ignore[arg-type]


def crowd(batcher: MicroBatcher[int, int], queries: Sequence[int]) -> list[asyncio.Task[int]]:
    return [asyncio.ensure_future(batcher.decide(query, alone=False)) for query in queries]


async def test_lone_query_is_decided_without_another_turn_of_the_loop() -> None:
    recorder = Recorder()
    decision = batcher_of(recorder).decide(21)
    with pytest.raises(StopIteration) as stopped:
        decision.send(None)  # a coroutine that never suspends ends at its first step
    assert stopped.value.value == 42


async def test_second_crowded_turn_is_decided_together() -> None:
    recorder = Recorder()
    batcher = batcher_of(recorder)
    many = 3 * BATCH_PAYS_FROM
    assert await asyncio.gather(*crowd(batcher, range(many))) == [2 * n for n in range(many)]
    assert recorder.decided == [[n] for n in range(many)]
    recorder.decided.clear()
    assert await asyncio.gather(*crowd(batcher, range(many))) == [2 * n for n in range(many)]
    assert recorder.decided == [list(range(many))]
    assert batcher.waiting == 0


async def test_few_per_turn_are_decided_one_by_one() -> None:
    recorder = Recorder()
    batcher = batcher_of(recorder)
    for _ in range(3):
        await asyncio.gather(*crowd(batcher, range(BATCH_PAYS_FROM - 1)))
    assert all(len(together) == 1 for together in recorder.decided)


async def test_lone_query_after_a_crowd_waits_one_turn_at_most() -> None:
    recorder = Recorder()
    batcher = batcher_of(recorder)
    await asyncio.gather(*crowd(batcher, range(20)))
    turns = 0
    lone = asyncio.ensure_future(batcher.decide(5))
    while not lone.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns <= 3
    assert recorder.decided[-1] == [5]
    decision = batcher.decide(6)
    with pytest.raises(StopIteration):
        decision.send(None)


async def test_batches_have_a_largest_size() -> None:
    recorder = Recorder()
    batcher = batcher_of(recorder, maximum_batch=8)
    await asyncio.gather(*crowd(batcher, range(20)))
    recorder.decided.clear()
    await asyncio.gather(*crowd(batcher, range(20)))
    assert [len(together) for together in recorder.decided[:2]] == [8, 8]
    assert sorted(query for together in recorder.decided for query in together) == list(range(20))


async def test_error_of_one_query_is_its_own() -> None:
    batcher = batcher_of(Recorder())
    queries = [1, -2, 3, 4, -5, 6]
    for _ in range(2):  # one by one, then together
        answers = await asyncio.gather(*crowd(batcher, queries), return_exceptions=True)
        assert [answer for answer in answers if isinstance(answer, int)] == [2, 6, 8, 12]
        assert [str(answer) for answer in answers if isinstance(answer, ValueError)] == [
            "query -2",
            "query -5",
        ]


async def test_failing_batch_fails_its_members_and_nobody_else() -> None:
    def fail(_: Sequence[int]) -> list[int | Exception]:
        raise RuntimeError("broken")

    recorder = Recorder()
    batcher = MicroBatcher(recorder.one, fail)
    await asyncio.gather(*crowd(batcher, range(10)))
    failed = await asyncio.gather(*crowd(batcher, range(10)), return_exceptions=True)
    assert all(isinstance(answer, RuntimeError) for answer in failed)
    assert batcher.waiting == 0
    await asyncio.sleep(0)
    assert await batcher.decide(1) == 2


async def test_cancelled_query_leaves_the_batch_before_it_is_built() -> None:
    recorder = Recorder()
    batcher = batcher_of(recorder, window_seconds=0.05)
    tasks = crowd(batcher, range(8))
    await asyncio.sleep(0)
    tasks[1].cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(answers.pop(1), asyncio.CancelledError)
    assert answers == [0, 4, 6, 8, 10, 12, 14]
    assert recorder.decided == [[0, 2, 3, 4, 5, 6, 7]]
    assert batcher.waiting == 0
    assert await batcher.decide(9) == 18


async def test_expired_query_leaves_the_batch_before_it_is_built() -> None:
    recorder = Recorder()
    batcher = batcher_of(recorder, window_seconds=0.05)
    hurried = asyncio.ensure_future(batcher.decide(100, 0.005, alone=False))
    patient = crowd(batcher, range(6))
    answers = await asyncio.gather(hurried, *patient, return_exceptions=True)
    assert isinstance(answers[0], ExpiredError)
    assert answers[1:] == [0, 2, 4, 6, 8, 10]
    assert recorder.decided == [list(range(6))]


async def test_window_does_not_hold_up_a_lone_query() -> None:
    recorder = Recorder()
    decision = batcher_of(recorder, window_seconds=60.0).decide(4, alone=True)
    with pytest.raises(StopIteration):
        decision.send(None)


async def test_window_runs_from_the_first_that_waits() -> None:
    recorder = Recorder()
    batcher = batcher_of(recorder, window_seconds=0.2)
    started = time.monotonic()
    tasks = []
    for number in range(6):
        tasks += crowd(batcher, [number])
        await asyncio.sleep(0.02)
    await asyncio.gather(*tasks)
    # Had each query started the window anew, it would have lasted 0.3 s at least.
    assert recorder.decided == [list(range(6))]
    assert time.monotonic() - started >= 0.2 - 0.01


async def test_full_window_ends_early() -> None:
    recorder = Recorder()
    batcher = batcher_of(recorder, window_seconds=3600.0, maximum_batch=5)
    assert await asyncio.gather(*crowd(batcher, range(5))) == [0, 2, 4, 6, 8]
    assert recorder.decided == [[0, 1, 2, 3, 4]]


async def test_remaining_time_reaches_the_decision() -> None:
    told = []

    def one(query: int, remaining_seconds: float) -> int:
        told.append(remaining_seconds)
        return query

    batcher: MicroBatcher[int, int] = MicroBatcher(one, lambda queries: list(queries))
    await batcher.decide(1)
    await batcher.decide(2, 0.5)
    assert told == [math.inf, 0.5]
