"""StateService and ReportOutcome over gRPC."""

from __future__ import annotations

import grpc
import pytest

from policy_server.proto.policy.v1 import state_pb2
from policy_server.proto.policy.v1.dispatch_service_pb2 import Outcome, ReportOutcomeRequest
from policy_server.proto.policy.v1.state_pb2 import Load, ReplicaLoad
from policy_server.proto.policy.v1.state_service_pb2 import GetStateRequest, LoadDelta, ReportStateRequest
from tests.support.serving import (
    Serving,
    equal_endpoints,
    error_of,
    full_report,
    graded_endpoints,
    running_server,
)
from tests.support.systems import example_snapshot, example_topology

CONFLICT = grpc.StatusCode.FAILED_PRECONDITION


def delta(base_version: int, *replicas: ReplicaLoad, **fields: float) -> ReportStateRequest:
    return ReportStateRequest(
        delta=LoadDelta(base_version=base_version, load=Load(replicas=replicas)),
        **fields,  # type: ignore[arg-type]
    )


async def report(serving: Serving, request: ReportStateRequest) -> int:
    response = await serving.state.ReportState(request)
    return response.version


async def test_state_is_shown_as_reported() -> None:
    request = full_report(example_snapshot(example_topology(), seed=4), version=17, age_seconds=2.0)
    async with running_server() as serving:
        error = await error_of(serving.state.GetState(GetStateRequest()))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert await report(serving, request) == 17
        shown = await serving.state.GetState(GetStateRequest())
    assert shown.topology == request.full.topology
    assert shown.load == request.full.load
    assert shown.version == 17
    assert 2.0 <= shown.age_seconds < 60
    assert not shown.pending_requests


async def test_versions_grow() -> None:
    full = full_report(equal_endpoints(2))
    async with running_server() as serving:
        assert await report(serving, full) == 1
        assert await report(serving, full) == 2
        full.version = 10
        assert await report(serving, full) == 10
        for version in (10, 9):
            full.version = version
            error = await error_of(serving.state.ReportState(full))
            assert error.code() is CONFLICT
            assert f"version: {version}; version 10 is held already" in error.details()
        assert await report(serving, delta(10)) == 11
        assert await report(serving, delta(11, version=20)) == 20
        assert (await serving.dispatch()).provenance.snapshot_version == 20


async def test_delta_needs_the_version_it_builds_on() -> None:
    async with running_server() as serving:
        error = await error_of(serving.state.ReportState(delta(0)))
        assert error.code() is CONFLICT
        assert "no state is held" in error.details()
        await serving.report(equal_endpoints(2))
        for base in (0, 2):
            error = await error_of(serving.state.ReportState(delta(base)))
            assert error.code() is CONFLICT
            assert f"base_version: {base}; version 1 is held" in error.details()
        error = await error_of(serving.state.ReportState(delta(1, version=1)))
        assert error.code() is CONFLICT


async def test_delta_changes_decisions() -> None:
    drained = ReplicaLoad(endpoint="10.0.0.0:8080", state=state_pb2.REPLICA_STATE_DRAINING)
    busy = ReplicaLoad(endpoint="10.0.0.1:8080", running=100, queued=50)
    async with running_server(graded_endpoints(3)) as serving:
        assert (await serving.dispatch()).endpoint == "10.0.0.0:8080"
        await report(serving, delta(1, drained))
        answer = await serving.dispatch()
        assert (answer.endpoint, answer.candidate_count) == ("10.0.0.1:8080", 2)
        await report(serving, delta(2, busy))
        assert (await serving.dispatch()).endpoint == "10.0.0.2:8080"


async def test_refused_report_changes_nothing() -> None:
    async with running_server(graded_endpoints(3)) as serving:
        before = await serving.state.GetState(GetStateRequest())
        drained = ReplicaLoad(endpoint="10.0.0.0:8080", state=state_pb2.REPLICA_STATE_DRAINING)
        await error_of(serving.state.ReportState(delta(1, drained, ReplicaLoad(endpoint="unknown"))))
        after = await serving.state.GetState(GetStateRequest())
    assert after.version == before.version
    assert after.load == before.load


async def test_own_picks_are_pending_until_their_outcome_is_known() -> None:
    async with running_server(graded_endpoints(2)) as serving:
        picked = [(await serving.dispatch()).endpoint for _ in range(3)]
        shown = await serving.state.GetState(GetStateRequest())
        assert sum(shown.pending_requests.values()) == 3
        for endpoint in picked:
            await serving.settle(endpoint)
        shown = await serving.state.GetState(GetStateRequest())
        assert not shown.pending_requests


async def test_outcomes_teach_latencies() -> None:
    def outcome(latency_seconds: float | None, endpoint: str = "10.0.0.0:8080") -> Outcome:
        return Outcome(
            endpoint=endpoint,
            access_point="ap-0",
            latency_seconds=latency_seconds,
            success=latency_seconds is not None,
        )

    async def known(serving: Serving) -> list[float | None]:
        shown = await serving.state.GetState(GetStateRequest())
        return [
            row.latency_seconds if row.HasField("latency_seconds") else None for row in shown.load.replicas
        ]

    async with running_server(graded_endpoints(2)) as serving:
        response = await serving.dispatching.ReportOutcome(
            ReportOutcomeRequest(outcomes=[outcome(1.0), outcome(None), outcome(0.5, "gone:1")])
        )
        assert (response.accepted, response.unknown) == (2, 1)
        assert await known(serving) == [1.0, None]
        await serving.dispatching.ReportOutcome(ReportOutcomeRequest(outcomes=[outcome(2.0)]))
        assert await known(serving) == [pytest.approx(1.2), None]
        await report(serving, delta(1))
        assert await known(serving) == [pytest.approx(1.2), None]
        await report(serving, delta(2, ReplicaLoad(endpoint="10.0.0.0:8080", latency_seconds=0.3)))
        assert await known(serving) == [pytest.approx(0.3), None]


async def test_outcome_of_an_unknown_access_point_is_unknown() -> None:
    outcome = Outcome(endpoint="10.0.0.0:8080", access_point="nowhere", success=True)
    async with running_server(graded_endpoints(1)) as serving:
        response = await serving.dispatching.ReportOutcome(ReportOutcomeRequest(outcomes=[outcome]))
    assert (response.accepted, response.unknown) == (0, 1)
