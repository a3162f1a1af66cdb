"""Figures age replica by replica: reports of some leave those of others as old as they are."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from policy_server.cluster.snapshot import Float64Array, Snapshot
from policy_server.proto.policy.v1.dispatch_service_pb2 import DispatchBatchRequest
from policy_server.proto.policy.v1.state_pb2 import Load, ReplicaLoad
from policy_server.proto.policy.v1.state_service_pb2 import (
    FullState,
    GetStateRequest,
    LoadDelta,
    ReportStateRequest,
)
from tests.support.serving import Serving, equal_endpoints, error_of, full_report, running_server


def endpoint(row: int) -> str:
    return f"10.0.0.{row}:8080"


def ages(serving: Serving) -> list[float]:
    """Of each replica's figures, rounded to seconds; infinity where there are none."""
    held = serving.server.store.held
    assert held is not None
    snapshot, now = held.snapshot, time.monotonic()
    sampled_at: Float64Array | None = snapshot.sampled_at_seconds
    if sampled_at is None:
        return [round(now - snapshot.taken_at_seconds)] * len(snapshot.topology.replicas.endpoints)
    return [age if math.isinf(age) else round(age) for age in (now - sampled_at).tolist()]


def report_of(snapshot: Snapshot, row_ages: dict[int, float], age_seconds: float = 0.0) -> ReportStateRequest:
    """A full report that lists the replicas of some rows, each that much older than the report."""
    request = full_report(snapshot, listed=False, age_seconds=age_seconds)
    request.full.load.CopyFrom(load_of(row_ages))
    return request


def load_of(row_ages: dict[int, float]) -> Load:
    return Load(
        replicas=[ReplicaLoad(endpoint=endpoint(row), age_seconds=age) for row, age in row_ages.items()]
    )


async def delta(serving: Serving, row_ages: dict[int, float], age_seconds: float = 0.0) -> None:
    report = LoadDelta(base_version=serving.server.store.version, load=load_of(row_ages))
    await serving.state.ReportState(ReportStateRequest(delta=report, age_seconds=age_seconds))


async def shares(serving: Serving, count: int = 30) -> Counter[str]:
    return Counter([(await serving.dispatch()).endpoint for _ in range(count)])


async def test_ages_of_a_full_report() -> None:
    snapshot = equal_endpoints(3)
    async with running_server() as serving:
        await serving.report(snapshot, age_seconds=7)
        assert ages(serving) == [7, 7, 7]
        await serving.state.ReportState(report_of(snapshot, {0: 0, 2: 100}, age_seconds=7))
        assert ages(serving) == [7, math.inf, 107]


async def test_a_delta_renews_what_it_lists() -> None:
    async with running_server() as serving:
        await serving.report(equal_endpoints(3), age_seconds=50)
        await delta(serving, {1: 0}, age_seconds=3)
        assert ages(serving) == [50, 3, 50]
        await delta(serving, {2: 10})
        assert ages(serving) == [50, 3, 10]
        await delta(serving, {0: 0, 1: 0, 2: 0})
        assert ages(serving) == [0, 0, 0]


async def test_stale_endpoints_serve_only_where_no_other_can() -> None:
    async with running_server(stale_after_seconds=1000) as serving:
        await serving.state.ReportState(report_of(equal_endpoints(4), {0: 5000, 1: 0, 2: 0, 3: 5000}))
        assert set(await shares(serving)) == {endpoint(1), endpoint(2)}
        assert serving.server._stale_endpoints() == 2
        await delta(serving, {1: 5000, 2: 5000})
        # The picks so far still count: figures that old do not show them.
        assert set(await shares(serving)) == {endpoint(0), endpoint(3)}
        assert len(await shares(serving)) == 4
        assert serving.server._stale_endpoints() == 4


async def test_an_endpoint_without_figures_is_as_good_as_fresh() -> None:
    async with running_server(stale_after_seconds=1000) as serving:
        await serving.state.ReportState(report_of(equal_endpoints(3), {0: 0, 1: 5000}))
        found = await shares(serving)
        assert set(found) == {endpoint(0), endpoint(2)}
        assert abs(found[endpoint(0)] - found[endpoint(2)]) <= 1
        assert serving.server._stale_endpoints() == 1


async def test_batches_choose_alike() -> None:
    batch = DispatchBatchRequest(
        services=["service"], access_points=["ap-0", "ap-1"], service=[0] * 64, access_point=[0, 1] * 32
    )
    async with running_server(stale_after_seconds=1000) as serving:
        await serving.state.ReportState(report_of(equal_endpoints(3), {0: 0, 1: 5000, 2: 0}))
        response = await serving.dispatching.DispatchBatch(batch)
        assert set(response.endpoints) == {endpoint(0), endpoint(2)}
        await serving.state.ReportState(report_of(equal_endpoints(3), {0: 5001, 1: 5000, 2: 5000}))
        response = await serving.dispatching.DispatchBatch(batch)
        assert len(response.endpoints) == 3


async def test_figures_become_stale_while_the_state_is_held() -> None:
    async with running_server(stale_after_seconds=1000) as serving:
        await serving.state.ReportState(report_of(equal_endpoints(3), {0: 999.9, 1: 0, 2: 0}))
        deadline = time.monotonic() + 20
        while serving.server._stale_endpoints() == 0:
            assert time.monotonic() < deadline
            await serving.dispatch()
        assert endpoint(0) not in await shares(serving)


async def test_state_shown_is_state_reported() -> None:
    snapshot = equal_endpoints(3)
    async with running_server() as serving:
        await serving.state.ReportState(report_of(snapshot, {0: 0, 2: 100}))
        shown = await serving.state.GetState(GetStateRequest())
        assert {row.endpoint: round(row.age_seconds) for row in shown.load.replicas} == {
            endpoint(0): 0,
            endpoint(2): 100,
        }
        full = FullState(topology=shown.topology, load=shown.load)
        await serving.state.ReportState(ReportStateRequest(full=full))
        assert ages(serving) == [0, math.inf, 100]


@pytest.mark.parametrize("age", [-1.0, math.nan, math.inf, 1e7])
async def test_impossible_ages_are_refused(age: float) -> None:
    async with running_server() as serving:
        error = await error_of(serving.state.ReportState(report_of(equal_endpoints(2), {1: age})))
    assert "full.load.replicas[0].age_seconds" in (error.details() or "")


async def test_a_state_source_may_tell_ages() -> None:
    async with running_server() as serving:
        snapshot, now = equal_endpoints(2), time.monotonic()
        aged = replace(snapshot, taken_at_seconds=now, sampled_at_seconds=now - np.array([0.0, 60.0]))
        serving.server._take_in(aged)
        assert ages(serving) == [0, 60]
