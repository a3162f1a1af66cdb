"""Health on the picker's port, and how the picker stops."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from tests.support.ext_proc import DataPlane, data_plane, response_headers
from tests.support.serving import equal_endpoints, error_of, running_server

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
EXTERNAL_PROCESSOR = "envoy.service.ext_proc.v3.ExternalProcessor"
AUTHORIZATION = "envoy.service.auth.v3.Authorization"
FOLLOW_READINESS = ("", "readiness", EXTERNAL_PROCESSOR, AUTHORIZATION)


async def assert_table(plane: DataPlane, followers: HealthCheckResponse.ServingStatus.ValueType) -> None:
    stub = HealthStub(plane.channel)
    for name, expected in (("liveness", SERVING), *((name, followers) for name in FOLLOW_READINESS)):
        response = await stub.Check(HealthCheckRequest(service=name))
        assert response.status == expected, name
    error = await error_of(stub.Check(HealthCheckRequest(service="stranger")))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    watch = stub.Watch(HealthCheckRequest(service="stranger"))
    assert (await watch.read()).status == HealthCheckResponse.SERVICE_UNKNOWN
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(watch.read(), 0.1)


async def test_ready_from_the_first_state_on_until_the_drain() -> None:
    async with data_plane(drain_seconds=2.0) as plane:
        await assert_table(plane, NOT_SERVING)
        watch = HealthStub(plane.channel).Watch(HealthCheckRequest(service="readiness"))
        assert (await watch.read()).status == NOT_SERVING
        await plane.serving.report(equal_endpoints(2))
        assert (await watch.read()).status == SERVING
        await assert_table(plane, SERVING)
        stopping = asyncio.ensure_future(plane.serving.server.shutdown())
        assert (await watch.read()).status == NOT_SERVING
        await assert_table(plane, NOT_SERVING)
        await stopping


async def test_open_streams_end_with_ok() -> None:
    async with data_plane(equal_endpoints(2), grace_seconds=5.0) as plane:
        streams, _ = await plane.picks_in_flight(3)
        await streams[1].ask(response_headers())
        await asyncio.gather(
            plane.serving.server.shutdown(drain=False), *(_ends_in_order(stream.call) for stream in streams)
        )
        assert plane.in_flight == sum(plane.pending) == 0


async def _ends_in_order(call: grpc.aio.StreamStreamCall) -> None:
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_a_port_in_use_is_said_so() -> None:
    async with data_plane(equal_endpoints(2)) as plane:
        picker = plane.serving.server.picker
        assert picker is not None
        port = int(picker.address.rpartition(":")[2])
        with pytest.raises(OSError, match=rf"cannot listen on 127.0.0.1:{port}: .* --envoy-port"):
            async with data_plane(envoy_port=port):
                pass


async def test_without_the_setting_nothing_listens_and_nothing_is_loaded() -> None:
    async with running_server(equal_endpoints(2)) as serving:
        assert serving.server.picker is None
        assert (await serving.dispatch()).endpoint
