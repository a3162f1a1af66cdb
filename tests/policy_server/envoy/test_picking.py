"""Which endpoints are named, in which order, and how shares and faults of models come out."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policy_server.policies.onnx_dispatch import OnnxDispatch
from tests.support.ext_proc import OK, DataPlane, data_plane, picked, request_headers, response_headers
from tests.support.models import write_example_bundle
from tests.support.serving import equal_endpoints, graded_endpoints

SERVED = "x-gateway-destination-endpoint-served"


async def test_a_list_is_best_first_and_distinct() -> None:
    async with data_plane(graded_endpoints(5), envoy_max_endpoints=3) as plane:
        assert await plane.pick() == ["10.0.0.0:8080", "10.0.0.1:8080", "10.0.0.2:8080"]


@pytest.mark.parametrize(("wanted", "listed"), [(1, 1), (3, 3), (17, 4)])
async def test_length_of_the_list(wanted: int, listed: int) -> None:
    async with data_plane(graded_endpoints(4), envoy_max_endpoints=wanted) as plane:
        endpoints = await plane.pick()
    assert len(endpoints) == len(set(endpoints)) == listed


@pytest.mark.parametrize("cleared", [True, False])
async def test_the_route_is_chosen_again_where_wanted(cleared: bool) -> None:
    async with data_plane(graded_endpoints(2), envoy_clear_route_cache=cleared) as plane:
        (answer,) = await plane.exchange(request_headers())
    assert answer.request_headers.response.clear_route_cache == cleared


async def test_equal_endpoints_get_equal_shares() -> None:
    async with data_plane(equal_endpoints(4), envoy_max_endpoints=1) as plane:
        shares = Counter([(await plane.pick())[0] for _ in range(400)])
    assert len(shares) == 4
    # 100 each on average; beyond six standard deviations it is no accident.
    assert all(abs(share - 100) < 6 * math.sqrt(400 * 0.25 * 0.75) for share in shares.values())


async def test_own_requests_in_flight_prevent_a_herd() -> None:
    async with data_plane(equal_endpoints(4)) as plane:
        streams, endpoints = await plane.picks_in_flight(100)
        shares = Counter(endpoints)
        assert max(shares.values()) <= 35
        assert sum(plane.pending) == plane.in_flight == 100
        for stream in streams:
            await stream.finish()
        assert plane.in_flight == sum(plane.pending) == 0


@pytest.mark.parametrize(
    "faults",
    [
        [1.0, math.nan, 2.0, 0.0],
        [math.nan] * 4,
        [math.inf, math.inf, 1.0, 0.0],
        [-math.inf] * 4,
    ],
    ids=["one NaN", "all NaN", "two infinities", "all minus infinity"],
)
async def test_nonfinite_scores_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: list[float]
) -> None:
    def score(policy: object, candidates: Any, *_: object) -> Any:
        return np.array(faults, np.float32)[: len(candidates)]

    write_example_bundle(tmp_path)
    monkeypatch.setattr(OnnxDispatch, "score", score)
    async with data_plane(graded_endpoints(4), models=tmp_path, policy="kais") as plane:
        assert (await plane.pick())[0] == "10.0.0.0:8080"
        metrics = plane.serving.server.metrics
        assert metrics._non_finite_outputs == {"kais": 1}
        (origin,) = plane.origins
        assert (origin.source.name, origin.reason.name) == ("FALLBACK", "NON_FINITE_OUTPUT")


def outcomes(plane: DataPlane) -> Counter[str]:
    return plane.serving.server.metrics._outcomes


def latency(plane: DataPlane, row: int) -> float:
    held = plane.serving.server.store.held
    assert held is not None
    return float(held.snapshot.load.replica_latency_seconds[row])


@pytest.mark.parametrize(
    "told",
    [
        {"served": "10.0.0.1:8080"},
        {"values": {**OK, SERVED: "10.0.0.1:8080"}},
        {"attribute": "10.0.0.1:8080"},
        {"served": "10.0.0.1:8080", "values": {**OK, SERVED: "10.0.0.0:8080"}},
    ],
    ids=["metadata", "header", "attribute", "metadata before header"],
)
async def test_who_served_is_told_by(told: dict[str, Any]) -> None:
    told = dict(told)
    attribute = told.pop("attribute", None)
    async with data_plane(graded_endpoints(3)) as plane:
        stream = plane.open()
        assert picked(await stream.ask(request_headers()))[0] == "10.0.0.0:8080"
        message = response_headers(**told)
        if attribute is not None:
            message.attributes["envoy.filters.http.ext_proc"].update({"upstream.address": attribute})
        assert (await stream.ask(message)).WhichOneof("response") == "response_headers"
        assert plane.pending == [0, 1, 0]
        assert latency(plane, 1) > 0
        assert math.isnan(latency(plane, 0))
        assert outcomes(plane) == {"rerouted": 1}
        await stream.finish()
        assert plane.pending == [0, 0, 0]


async def test_response_times_are_learned() -> None:
    async with data_plane(graded_endpoints(3)) as plane:
        await plane.exchange(request_headers(), response_headers(served="10.0.0.0:8080", end_of_stream=True))
        assert latency(plane, 0) > 0
        assert math.isnan(latency(plane, 1))
        assert outcomes(plane) == {"served": 1}


@pytest.mark.parametrize("served", [None, "10.9.9.9:1"], ids=["nobody tells", "a stranger"])
async def test_without_a_known_endpoint_a_response_is_unattributed(served: str | None) -> None:
    async with data_plane(graded_endpoints(3)) as plane:
        stream = plane.open()
        await stream.ask(request_headers())
        await stream.ask(response_headers(served=served))
        assert all(math.isnan(latency(plane, row)) for row in range(3))
        assert outcomes(plane) == {"unattributed": 1}
        await stream.finish()
        assert plane.in_flight == sum(plane.pending) == 0


async def test_failures_say_nothing_about_speed() -> None:
    async with data_plane(graded_endpoints(3)) as plane:
        await plane.exchange(
            request_headers(),
            response_headers({":status": "503"}, served="10.0.0.0:8080", end_of_stream=True),
        )
        assert math.isnan(latency(plane, 0))
        assert outcomes(plane) == {"failed": 1}
        await plane.exchange(
            request_headers(),
            response_headers({":status": "404"}, served="10.0.0.0:8080", end_of_stream=True),
        )
        assert latency(plane, 0) > 0
        assert outcomes(plane) == {"failed": 1, "served": 1}


@pytest.mark.parametrize(
    ("status", "outcome"), [("14", "failed"), ("13", "failed"), ("5", "served"), ("0", "served")]
)
async def test_grpc_calls_fail_by_their_own_status(status: str, outcome: str) -> None:
    ended = response_headers(
        {":status": "200", "content-type": "application/grpc", "grpc-status": status},
        served="10.0.0.0:8080",
        end_of_stream=True,
    )
    async with data_plane(graded_endpoints(3)) as plane:
        await plane.exchange(request_headers(), ended)
        assert outcomes(plane) == {outcome: 1}


async def test_a_request_without_a_response_is_counted_as_such() -> None:
    async with data_plane(graded_endpoints(3)) as plane:
        await plane.pick()
        assert outcomes(plane) == {"no_response": 1}
