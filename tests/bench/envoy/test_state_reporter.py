from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import pytest

from bench.envoy.back_ends import BackEnds, BackEndStats
from bench.envoy.state_reporter import ACCESS_POINT, SERVICE, StateReporter
from bench.load.errors import LoadError
from bench.server_process import free_port
from policy_server.proto.policy.v1.state_service_pb2 import GetStateRequest, GetStateResponse
from tests.support.serving import Serving, running_server

SPEEDS = (1.0, 0.5)
EXECUTION_SECONDS = 0.1


class Told:
    """Back ends that tell what they are told to tell."""

    def __init__(self) -> None:
        self.addresses = ["127.0.0.1:8001", "127.0.0.1:8002"]
        self.now = [BackEndStats(0, 0, 0.0, 0), BackEndStats(0, 0, 0.0, 0)]

    def stats(self) -> Sequence[BackEndStats]:
        return [replace(row, asked_at_seconds=time.monotonic()) for row in self.now]


def reporter(server: str, told: Told) -> StateReporter:
    return StateReporter(
        server,
        cast(BackEnds, told),
        SPEEDS,
        execution_seconds=EXECUTION_SECONDS,
        workers=4,
        period_seconds=0.02,
    )


@asynccontextmanager
async def reporting_to(serving: Serving, told: Told) -> AsyncIterator[StateReporter]:
    """A reporter, entered and left on a thread, so that the server of this one can answer it."""
    reporting = reporter(serving.server.address, told)
    await asyncio.to_thread(reporting.__enter__)
    try:
        yield reporting
    finally:
        await asyncio.to_thread(reporting.__exit__, None, None, None)


async def until(serving: Serving, holds: Callable[[GetStateResponse], bool]) -> GetStateResponse:
    """The state once ``holds`` is true of it."""
    async with asyncio.timeout(30):
        while not holds(state := await serving.state.GetState(GetStateRequest())):
            await asyncio.sleep(0.01)
    return state


async def test_the_server_learns_load_and_speed() -> None:
    told = Told()
    async with running_server() as serving, reporting_to(serving, told) as reporting:
        state = await serving.state.GetState(GetStateRequest())
        assert [replica.endpoint for replica in state.topology.replicas] == told.addresses
        assert [node.speed for node in state.topology.nodes] == pytest.approx(SPEEDS)
        assert (
            await serving.dispatch(service=SERVICE, access_point=ACCESS_POINT)
        ).endpoint == told.addresses[0]
        told.now[0] = BackEndStats(queued=7, running=4, busy_seconds_total=0.0, completed_total=0)
        await until(serving, lambda state: state.load.replicas[0].queued == 7)
        # Ten requests took half a second each, five times as long as declared.
        told.now[0] = BackEndStats(queued=0, running=0, busy_seconds_total=5.0, completed_total=10)
        state = await until(serving, lambda state: state.topology.nodes[0].speed < 0.9)
        assert state.topology.nodes[0].speed == pytest.approx(EXECUTION_SECONDS * 12 / 5.2)
        # What is not repeated is forgotten.
        await until(serving, lambda state: abs(state.topology.nodes[0].speed - 1.0) < 1e-6)
        reporting.check()


async def test_a_request_that_does_not_end_makes_a_machine_slow() -> None:
    told = Told()
    async with running_server() as serving, reporting_to(serving, told):
        told.now[0] = BackEndStats(queued=0, running=4, busy_seconds_total=1.6, completed_total=0)
        await until(serving, lambda state: state.topology.nodes[0].speed < 0.2)


def test_a_server_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(LoadError, match="ReportState failed"):
        reporter(f"127.0.0.1:{free_port()}", Told()).__enter__()


async def test_reports_that_end_early_are_noticed() -> None:
    told = Told()
    async with running_server() as serving, reporting_to(serving, told) as reporting:
        await serving.server.shutdown(drain=False)
        while reporting.running:
            await asyncio.sleep(0.01)
        with pytest.raises(LoadError, match="ReportState failed"):
            reporting.check()
