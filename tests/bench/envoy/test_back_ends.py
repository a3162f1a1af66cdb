from __future__ import annotations

import asyncio
import time

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.envoy.back_ends import BackEndPlan, BackEnds, Slowdown

QUICK = 0.02


@given(st.floats(0, 10), st.floats(0.1, 4), st.floats(0, 20))
def test_a_slowdown_counts_while_it_lasts(begin: float, length: float, now: float) -> None:
    plan = BackEndPlan(2.0, slowdowns=(Slowdown(begin, begin + length, 0.25),))
    assert plan.speed_at(now) == (0.5 if begin <= now < begin + length else 2.0)


def test_slowdowns_multiply() -> None:
    plan = BackEndPlan(1.0, slowdowns=(Slowdown(0, 2, 0.5), Slowdown(1, 3, 0.5)))
    assert [plan.speed_at(second) for second in (0, 1, 2, 3)] == [0.5, 0.25, 0.5, 1.0]


async def statuses(address: str, count: int) -> list[int]:
    async with httpx.AsyncClient(
        base_url=f"http://{address}", timeout=30, trust_env=False, limits=httpx.Limits(max_connections=None)
    ) as client:
        return [
            answer.status_code for answer in await asyncio.gather(*(client.get("/") for _ in range(count)))
        ]


async def test_counters_tell_how_long_a_request_holds_a_worker() -> None:
    plans = [BackEndPlan(speed, execution_seconds=QUICK) for speed in (1.0, 0.25)]
    with BackEnds(plans) as back_ends:
        for address in back_ends.addresses:
            assert await statuses(address, 40) == [200] * 40
        fast, slow = back_ends.stats()
    assert fast.completed_total == slow.completed_total == 40
    assert fast.running == fast.queued == 0
    # A busy machine makes requests longer, never shorter: Erlang means of 40 stay within 30 % of theirs.
    assert fast.busy_seconds_total / 40 > 0.7 * QUICK
    assert slow.busy_seconds_total / 40 > 0.7 * QUICK / 0.25


async def test_what_finds_no_place_in_the_queue_is_turned_away() -> None:
    with BackEnds([BackEndPlan(1.0, execution_seconds=1.0, workers=2, queue_limit=3)]) as back_ends:
        (address,) = back_ends.addresses
        answers = asyncio.create_task(statuses(address, 8))
        deadline = time.monotonic() + 30
        while (now := await asyncio.to_thread(back_ends.stats))[0].queued < 3:
            assert time.monotonic() < deadline
        assert now[0].running == 2
        assert sorted(await answers) == [200] * 5 + [503] * 3


def test_a_dead_back_end_is_noticed() -> None:
    with BackEnds([BackEndPlan(1.0)]) as back_ends:
        back_ends.kill()
        with pytest.raises(OSError, match="refused"):
            back_ends.stats()
