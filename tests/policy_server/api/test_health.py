"""Health over gRPC: before the server is ready, after, and while it drains."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from policy_server.cluster import state_source
from policy_server.cluster.snapshot import Snapshot
from tests.support.serving import Serving, equal_endpoints, error_of, running_server

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
FOLLOW_READINESS = (
    "",
    "readiness",
    "policy.v1.DispatchService",
    "policy.v1.OrchestrationService",
    "policy.v1.StateService",
)
open_gate = threading.Event()


class GatedSource:
    """A state source whose first snapshot waits until the test wants it."""

    def run(self, publish: Callable[[Snapshot], None], stopped: threading.Event) -> None:
        open_gate.wait(30)
        publish(equal_endpoints(2))
        stopped.wait(30)


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("gated", f"{__name__}:GatedSource", state_source.ENTRY_POINT_GROUP)
    monkeypatch.setattr(EntryPoint, "load", lambda _: GatedSource)
    monkeypatch.setattr(state_source, "entry_points", lambda group: EntryPoints([entry]))
    open_gate.clear()


async def check(serving: Serving, name: str) -> Any:
    response = await HealthStub(serving.channel).Check(HealthCheckRequest(service=name))
    return response.status


async def assert_table(serving: Serving, followers: Any) -> None:
    assert await check(serving, "liveness") == SERVING
    assert [await check(serving, name) for name in FOLLOW_READINESS] == [followers] * len(FOLLOW_READINESS)
    error = await error_of(HealthStub(serving.channel).Check(HealthCheckRequest(service="stranger")))
    assert error.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.usefixtures("gated")
async def test_before_and_after_the_first_state_of_a_source() -> None:
    async with running_server(state_source="gated") as serving:
        await assert_table(serving, NOT_SERVING)
        watch = HealthStub(serving.channel).Watch(HealthCheckRequest(service="readiness"))
        assert (await watch.read()).status == NOT_SERVING
        open_gate.set()
        assert (await watch.read()).status == SERVING
        await assert_table(serving, SERVING)
        assert (await serving.dispatch()).provenance.snapshot_version == 1
        watch.cancel()


async def test_ready_at_once_where_state_is_reported() -> None:
    async with running_server() as serving:
        await assert_table(serving, SERVING)


async def test_draining() -> None:
    async with running_server(equal_endpoints(2), drain_seconds=1.0, grace_seconds=5.0) as serving:
        watches = {
            name: HealthStub(serving.channel).Watch(HealthCheckRequest(service=name))
            for name in ("readiness", "liveness")
        }
        for watch in watches.values():
            assert (await watch.read()).status == SERVING
        stopping = asyncio.ensure_future(serving.server.shutdown())
        assert (await watches["readiness"].read()).status == NOT_SERVING
        await assert_table(serving, NOT_SERVING)
        assert (await serving.dispatch()).endpoint
        for watch in watches.values():
            # Nobody is left to watch for: the stream ends in order, and liveness never failed.
            assert await watch.read() is grpc.aio.EOF
            assert await watch.code() is grpc.StatusCode.OK
        await stopping


async def test_watching_an_unknown_service() -> None:
    async with running_server() as serving:
        watch = HealthStub(serving.channel).Watch(HealthCheckRequest(service="stranger"))
        assert (await watch.read()).status == HealthCheckResponse.SERVICE_UNKNOWN
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(watch.read(), 0.2)


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_lists_the_services(version: str) -> None:
    async with running_server() as serving:
        response = await reflect(serving, version)
    listed = {service.name for service in response.list_services_response.service}
    assert {*FOLLOW_READINESS[2:], "grpc.health.v1.Health"} <= listed


async def test_reflection_can_be_turned_off() -> None:
    async with running_server(reflection=False) as serving:
        error = await error_of(reflect(serving, "v1"))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


async def reflect(serving: Serving, version: str) -> ServerReflectionResponse:
    call = serving.channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=ServerReflectionRequest.SerializeToString,
        response_deserializer=ServerReflectionResponse.FromString,
    )(iter([ServerReflectionRequest(list_services="")]))
    response = await call.read()
    assert isinstance(response, ServerReflectionResponse)
    return response
