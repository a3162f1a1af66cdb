"""Decisions on a thread: what waits meanwhile is batched, whoever gave up is left out, errors go where they belong."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import pytest

from policy_server.runtime.background_batcher import BackgroundBatcher
from policy_server.runtime.batcher import ExpiredError


class Doubler:
    """Doubles numbers, in batches that a test can hold up. Negative ones are an error, zero breaks the batch."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.threads: set[str] = set()
        self.taken_back: list[int] = []
        self.entered, self.release = threading.Event(), threading.Event()
        self.release.set()

    def __call__(self, numbers: Sequence[int]) -> list[int | Exception]:
        self.batches.append(list(numbers))
        self.threads.add(threading.current_thread().name)
        self.entered.set()
        assert self.release.wait(30)
        if 0 in numbers:
            raise RuntimeError("zero")
        return [2 * number if number > 0 else ValueError(number) for number in numbers]

    def hold(self) -> None:
        self.entered.clear()
        self.release.clear()

    async def until_entered(self) -> None:
        while not self.entered.is_set():
            await asyncio.sleep(0.002)


@pytest.fixture
def doubler() -> Doubler:
    return Doubler()


@pytest.fixture
async def batcher(doubler: Doubler) -> AsyncIterator[BackgroundBatcher[int, int]]:
    made: BackgroundBatcher[int, int] = BackgroundBatcher(
        doubler, doubler.taken_back.append, name="doubling", maximum_batch=3
    )
    yield made
    doubler.release.set()
    made.close()


async def test_a_lone_query_is_decided_at_once_and_elsewhere(
    batcher: BackgroundBatcher[int, int], doubler: Doubler
) -> None:
    assert await batcher.decide(4) == 8
    assert doubler.batches == [[4]]
    assert threading.current_thread().name not in doubler.threads


async def test_queries_of_one_turn_are_a_batch(
    batcher: BackgroundBatcher[int, int], doubler: Doubler
) -> None:
    assert await asyncio.gather(*map(batcher.decide, (1, 2, 3))) == [2, 4, 6]
    assert doubler.batches == [[1, 2, 3]]


async def test_what_waits_is_the_next_batch_and_none_is_too_large(
    batcher: BackgroundBatcher[int, int], doubler: Doubler
) -> None:
    doubler.hold()
    first = asyncio.create_task(batcher.decide(1))
    await doubler.until_entered()
    others = [asyncio.create_task(batcher.decide(number)) for number in range(2, 7)]
    await asyncio.sleep(0)
    assert batcher.waiting == 5
    doubler.release.set()
    assert await asyncio.gather(first, *others) == [2, 4, 6, 8, 10, 12]
    assert doubler.batches == [[1], [2, 3, 4], [5, 6]]


async def test_whoever_gave_up_is_left_out(batcher: BackgroundBatcher[int, int], doubler: Doubler) -> None:
    doubler.hold()
    first = asyncio.create_task(batcher.decide(1))
    await doubler.until_entered()
    given_up, kept = asyncio.create_task(batcher.decide(2)), asyncio.create_task(batcher.decide(3))
    await asyncio.sleep(0)
    given_up.cancel()
    first.cancel()
    doubler.release.set()
    assert await kept == 6
    assert doubler.batches == [[1], [3]]
    # Made already, for a caller who did not wait for it.
    assert doubler.taken_back == [2]


async def test_whose_time_has_passed_is_told_so(
    batcher: BackgroundBatcher[int, int], doubler: Doubler
) -> None:
    doubler.hold()
    first = asyncio.create_task(batcher.decide(1))
    await doubler.until_entered()
    late = asyncio.create_task(batcher.decide(2, remaining_seconds=0.01))
    await asyncio.sleep(0.05)
    doubler.release.set()
    with pytest.raises(ExpiredError):
        await late
    assert await first == 2
    assert doubler.batches == [[1]]


async def test_an_error_belongs_to_its_query(batcher: BackgroundBatcher[int, int]) -> None:
    results = await asyncio.gather(*map(batcher.decide, (1, -2, 3)), return_exceptions=True)
    assert results[::2] == [2, 6]
    assert isinstance(results[1], ValueError)


async def test_a_batch_that_breaks_is_not_the_last(batcher: BackgroundBatcher[int, int]) -> None:
    results = await asyncio.gather(*map(batcher.decide, (0, 1)), return_exceptions=True)
    assert all(isinstance(result, RuntimeError) for result in results)
    assert await batcher.decide(2) == 4


async def test_other_work_takes_its_turn(batcher: BackgroundBatcher[int, int], doubler: Doubler) -> None:
    order: list[str] = []
    doubler.hold()
    first = asyncio.create_task(batcher.decide(1))
    await doubler.until_entered()
    batcher.post(lambda: order.append(threading.current_thread().name))
    assert order == []
    doubler.release.set()
    assert await first == 2
    assert await batcher.decide(2) == 4
    assert order == list(doubler.threads)


async def test_a_query_after_the_end_is_refused(batcher: BackgroundBatcher[int, int]) -> None:
    assert await batcher.decide(1) == 2
    batcher.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        await asyncio.wait_for(batcher.decide(2), 30)
