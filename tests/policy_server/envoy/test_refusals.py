"""What a request is told that gets no endpoint: 503 where nothing can serve, 429 where endpoints are busy."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from policy_server.api.dispatch_logic import DispatchLogic
from policy_server.cluster.snapshot import ReplicaState, Snapshot
from policy_server.policies.onnx_dispatch import OnnxDispatch
from tests.support.ext_proc import (
    GET,
    DataPlane,
    data_plane,
    picked,
    request_body,
    request_headers,
    response_headers,
    status_and_reason,
)
from tests.support.models import write_example_bundle
from tests.support.serving import equal_endpoints, graded_endpoints
from tests.support.systems import Endpoint, one_service_snapshot

NOTHING = (503, "endpoint_picker_nothing_can_serve")
SHED = (429, "endpoint_picker_shed")


def sources(plane: DataPlane) -> set[tuple[str, str]]:
    """Source and reason of all decisions so far."""
    return {(origin.source.name, origin.reason.name) for origin in plane.origins}


async def answer_to(plane: DataPlane, values: dict[str, str] | None = None, **fields: Any) -> Any:
    (answer,) = await plane.exchange(request_headers({**GET, **(values or {})}, **fields))
    return answer


@pytest.mark.parametrize("state", [ReplicaState.STARTING, ReplicaState.DRAINING], ids=lambda s: s.name)
async def test_no_ready_endpoint(state: ReplicaState) -> None:
    async with data_plane(one_service_snapshot([Endpoint(state=state)] * 3)) as plane:
        answer = await answer_to(plane)
        assert status_and_reason(answer) == NOTHING
        assert b"0 of them are ready" in answer.immediate_response.body


def without_replicas() -> Snapshot:
    snapshot = equal_endpoints(2)
    return replace(
        snapshot,
        load=replace(snapshot.load, replica_state=np.full(2, ReplicaState.STARTING, np.uint8)),
    )


async def test_endpoints_come_up_after_a_refusal() -> None:
    async with data_plane(without_replicas()) as plane:
        assert status_and_reason(await answer_to(plane)) == NOTHING
        await plane.serving.report(equal_endpoints(2))
        assert await plane.pick()


async def test_no_state_yet() -> None:
    async with data_plane() as plane:
        assert status_and_reason(await answer_to(plane)) == NOTHING


async def test_endpoints_that_are_names_are_no_use_to_a_proxy() -> None:
    snapshot = equal_endpoints(2)
    topology = snapshot.topology
    named = replace(topology, replicas=replace(topology.replicas, endpoints=("web-0.edge-1", "web-1.edge-2")))
    async with data_plane(replace(snapshot, topology=named)) as plane:
        answer = await answer_to(plane)
        assert status_and_reason(answer) == NOTHING
        assert (
            b"is an address, such as 10.0.0.1:8080: 'web-0.edge-1'; report" in answer.immediate_response.body
        )


async def test_unknown_service() -> None:
    async with data_plane(equal_endpoints(2)) as plane:
        answer = await answer_to(plane, {":authority": "stranger"})
        assert status_and_reason(answer) == NOTHING
        assert b"'stranger'" in answer.immediate_response.body


async def test_a_refusal_says_when_to_try_again_to_grpc_clients_too() -> None:
    async with data_plane(without_replicas()) as plane:
        immediate = (await answer_to(plane)).immediate_response
    headers = {option.header.key: option.header.raw_value for option in immediate.headers.set_headers}
    assert headers == {"retry-after": b"1", "grpc-retry-pushback-ms": b"100"}
    assert immediate.grpc_status.status == grpc.StatusCode.UNAVAILABLE.value[0]


async def test_too_many_in_flight_are_shed() -> None:
    async with data_plane(
        equal_endpoints(2), envoy_max_in_flight=3, retry_pushback_milliseconds=1500
    ) as plane:
        streams, _ = await plane.picks_in_flight(3)
        answer = await answer_to(plane)
        assert status_and_reason(answer) == SHED
        immediate = answer.immediate_response
        headers = {option.header.key: option.header.raw_value for option in immediate.headers.set_headers}
        assert headers == {"retry-after": b"2", "grpc-retry-pushback-ms": b"1500"}
        assert immediate.grpc_status.status == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        await streams[0].finish()
        assert await plane.pick()
        for stream in streams[1:]:
            await stream.finish()


async def test_low_priority_is_shed_when_endpoints_are_saturated() -> None:
    low = {"x-policy-priority": "-1"}
    snapshot = one_service_snapshot([Endpoint(concurrency=2), Endpoint(concurrency=2, running=1)])
    async with data_plane(snapshot, envoy_saturation=1.0) as plane:
        assert picked(await answer_to(plane, low))
        streams, _ = await plane.picks_in_flight(3)
        answer = await answer_to(plane, low)
        assert status_and_reason(answer) == SHED
        assert b"1 requests per slot are outstanding" in answer.immediate_response.body
        assert picked(await answer_to(plane, {"x-policy-priority": "0"}))
        for stream in streams:
            await stream.finish()
        assert picked(await answer_to(plane, low))


async def test_low_priority_without_an_endpoint_is_no_question_of_load() -> None:
    async with data_plane(without_replicas()) as plane:
        assert status_and_reason(await answer_to(plane, {"x-policy-priority": "-1"})) == NOTHING


@pytest.mark.parametrize(
    "malformed",
    [
        {"x-envoy-expected-rq-timeout-ms": "soon"},
        {"x-envoy-expected-rq-timeout-ms": "-5"},
        {"grpc-timeout": "1x"},
        {"content-length": "1e3"},
        {"x-policy-access-point": "nowhere"},
        {"x-policy-priority": "high"},
    ],
    ids=lambda headers: next(iter(headers)),
)
async def test_malformed_headers_leave_the_decision_to_the_fallback(malformed: dict[str, str]) -> None:
    async with data_plane(graded_endpoints(3), policy="least-loaded") as plane:
        assert picked(await answer_to(plane, malformed))
        assert sources(plane) == {("FALLBACK", "MALFORMED_REQUEST")}
        assert picked(await answer_to(plane))
        assert ("HEURISTIC", "UNSPECIFIED") in sources(plane)


async def test_a_model_that_raises_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def score(*_: object) -> None:
        raise RuntimeError("out of order")

    write_example_bundle(tmp_path)
    monkeypatch.setattr(OnnxDispatch, "score", score)
    async with data_plane(graded_endpoints(3), models=tmp_path, policy="kais") as plane:
        assert len(await plane.pick()) == 3
        assert sources(plane) == {("FALLBACK", "MODEL_ERROR")}


async def test_a_bug_is_no_500(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    async with data_plane(graded_endpoints(3)) as plane:
        monkeypatch.setattr(DispatchLogic, "dispatch_leased", broken)
        answer = await answer_to(plane)
        assert status_and_reason(answer) == (503, "endpoint_picker_fault")
        assert b"a bug" not in answer.immediate_response.body
        assert "a bug" in caplog.text
        assert plane.in_flight == 0


async def test_after_a_refusal_nothing_more_is_said() -> None:
    async with data_plane() as plane:
        answers = await plane.exchange(
            request_headers(end_of_stream=False),
            request_body(b"content", end_of_stream=True),
            response_headers(),
        )
        assert [status_and_reason(answer) for answer in answers] == [NOTHING]


async def test_draining_server_goes_on_picking_until_balancers_know() -> None:
    async with data_plane(equal_endpoints(2), drain_seconds=1.0) as plane:
        stopping = asyncio.ensure_future(plane.serving.server.shutdown())
        await asyncio.sleep(0.1)
        assert await plane.pick()
        await stopping
