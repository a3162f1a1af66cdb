"""External authorization: the same picks, and requests that nobody sees the end of."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from policy_server.envoy.expiry import Expiry
from policy_server.envoy.picker import PickedRequest
from policy_server.proto.envoy.service.auth.v3.external_auth_pb2 import CheckRequest, CheckResponse
from policy_server.proto.envoy.service.auth.v3.external_auth_pb2_grpc import AuthorizationStub
from tests.support.ext_proc import DESTINATION, SUBSET, DataPlane, data_plane
from tests.support.serving import equal_endpoints, graded_endpoints
from tests.support.systems import Endpoint, example_snapshot, example_topology, one_service_snapshot


def check(
    host: str = "service", headers: dict[str, str] | None = None, *, subset: Any = None
) -> CheckRequest:
    request = CheckRequest()
    http = request.attributes.request.http
    http.host, http.path, http.method = host, "/", "GET"
    http.headers.update(headers or {})
    if subset is not None:
        metadata = request.attributes.metadata_context.filter_metadata
        metadata["envoy.lb.subset_hint"].update({SUBSET: subset})
    return request


async def ask(plane: DataPlane, request: CheckRequest) -> CheckResponse:
    stub: Any = AuthorizationStub(plane.channel)
    response = await stub.Check(request, timeout=20)
    assert isinstance(response, CheckResponse)
    return response


def allowed(response: CheckResponse) -> list[str]:
    assert response.status.code == 0
    assert response.WhichOneof("http_response") == "ok_response"
    (option,) = response.ok_response.headers
    assert option.header.key == DESTINATION
    assert option.append_action == option.OVERWRITE_IF_EXISTS_OR_ADD
    assert response.dynamic_metadata.fields[DESTINATION].string_value == option.header.value
    return option.header.value.split(",")


def denied(response: CheckResponse) -> tuple[int, int]:
    assert response.WhichOneof("http_response") == "denied_response"
    assert response.denied_response.body == response.status.message
    names = [option.header.key for option in response.denied_response.headers]
    assert names == ["retry-after", "grpc-retry-pushback-ms"]
    return response.denied_response.status.code, response.status.code


async def test_the_same_picks_as_by_external_processing() -> None:
    async with data_plane(graded_endpoints(5)) as plane:
        by_stream = await plane.pick()
        assert allowed(await ask(plane, check())) == by_stream
        assert allowed(await ask(plane, check(subset="10.0.0.4:8080"))) == ["10.0.0.4:8080"]


async def test_requests_are_mapped_alike() -> None:
    settings = {"envoy_service": "header:x-service,attribute:service,path-prefix,authority"}
    async with data_plane(example_snapshot(example_topology()), **settings) as plane:
        by_header = check("shop", {"x-service": "service-1"})
        raw = check("shop")
        raw.attributes.request.http.header_map.headers.add(key="x-service", raw_value=b"service-1")
        by_extension = check("shop")
        by_extension.attributes.context_extensions["service"] = "service-1"
        by_path = check("shop")
        by_path.attributes.request.http.path = "/service-1/items"
        for request in (by_header, raw, by_extension, by_path):
            assert allowed(await ask(plane, request))
        assert denied(await ask(plane, check("shop")))[0] == 503


async def test_refusals() -> None:
    unavailable = (503, grpc.StatusCode.UNAVAILABLE.value[0])
    async with data_plane(equal_endpoints(2), envoy_max_in_flight=1) as plane:
        assert denied(await ask(plane, check("stranger"))) == unavailable
        assert denied(await ask(plane, check(subset=[]))) == unavailable
        streams, _ = await plane.picks_in_flight(1)
        assert denied(await ask(plane, check())) == (429, grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])
        await streams[0].finish()


async def test_requests_count_until_they_are_expected_to_have_ended() -> None:
    # That long is an execution, and the endpoints have answered nothing yet.
    async with data_plane(one_service_snapshot([Endpoint()] * 2, execution_seconds=0.7)) as plane:
        for _ in range(6):
            await ask(plane, check())
        assert plane.in_flight > 0
        await _until_idle(plane)
        assert sum(plane.pending) == 0
        assert plane.serving.server.metrics._outcomes == {"unattributed": 6}


async def test_what_responses_took_lately_is_what_is_expected() -> None:
    snapshot = one_service_snapshot([Endpoint(latency_seconds=0.5)], execution_seconds=1000)
    async with data_plane(snapshot) as plane:
        await ask(plane, check())
        assert plane.in_flight == 1
        await _until_idle(plane)


async def test_no_longer_than_the_client_waits() -> None:
    async with data_plane(one_service_snapshot([Endpoint()], execution_seconds=1000)) as plane:
        await ask(plane, check("service", {"x-envoy-expected-rq-timeout-ms": "500"}))
        assert plane.in_flight == 1
        await _until_idle(plane)


async def test_a_reported_outcome_ends_a_request_before() -> None:
    async with data_plane(one_service_snapshot([Endpoint()], execution_seconds=1000)) as plane:
        (endpoint,) = allowed(await ask(plane, check()))
        assert plane.pending == [1]
        await plane.serving.settle(endpoint)
        assert plane.pending == [0]
        await plane.serving.settle(endpoint)
        assert plane.pending == [0]


async def test_stopping_ends_them_all() -> None:
    async with data_plane(one_service_snapshot([Endpoint()], execution_seconds=1000)) as plane:
        await ask(plane, check())
        await plane.serving.server.shutdown(drain=False)
        assert plane.in_flight == sum(plane.pending) == 0


async def _until_idle(plane: DataPlane) -> None:
    for _ in range(1000):
        if not plane.in_flight:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("did not end in time")


class Recorded(PickedRequest):
    """Notes its end in a list."""

    __slots__ = ("name", "names")

    def __init__(self, name: str, names: list[str]) -> None:
        self.name = name
        self.names = names

    def respond(self, served: str | None, *, failed: bool) -> None:
        assert served is None

    def end(self) -> None:
        self.names.append(self.name)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)], ids=str)
async def test_expiry_goes_by_expected_end(order: tuple[int, ...]) -> None:
    ended: list[str] = []
    expiry = Expiry()
    for position in order:
        expiry.end_after(0.02 + 0.05 * position, Recorded(str(position), ended))
    expiry.end_after(1000.0, Recorded("late", ended))
    while len(ended) < 3:
        await asyncio.sleep(0.01)
    assert ended == ["0", "1", "2"]
    assert len(expiry) == 1
    expiry.end_all()
    assert ended[3:] == ["late"]
