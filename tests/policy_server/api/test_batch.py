"""DispatchBatch over gRPC."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from policy_server.policies.guard import FallbackReason
from policy_server.policies.onnx_dispatch import OnnxDispatch
from policy_server.proto.policy.v1.decision_pb2 import DecisionSource
from policy_server.proto.policy.v1.dispatch_service_pb2 import DispatchBatchRequest, DispatchBatchResponse
from tests.support.models import write_example_bundle
from tests.support.serving import equal_endpoints, graded_endpoints, running_server
from tests.support.systems import Endpoint, example_snapshot, example_topology, one_service_snapshot

Choice = tuple[str | None, float, list[str]]


def choices(response: DispatchBatchResponse) -> list[Choice]:
    """Per request: endpoint, score, alternatives."""
    listed = []
    start = 0
    for chosen, score, count in zip(
        response.endpoint, response.score, response.alternative_count, strict=True
    ):
        others = [response.endpoints[row] for row in response.alternative[start : start + count]]
        listed.append((response.endpoints[chosen] if chosen >= 0 else None, score, others))
        start += count
    assert start == len(response.alternative)
    return listed


async def test_batch_decides_like_one_by_one() -> None:
    # So many nodes that no two replicas of a service share one: no ties.
    topology = example_topology(nodes=400, services=6, replicas_per_service=5, seed=3)
    snapshot = example_snapshot(topology, seed=3, ready_probability=0.8)
    services, access_points = topology.services.names, topology.access_points.names[:-1]
    pairs = [(s, a) for s in range(len(services)) for a in range(len(access_points))]
    random = np.random.default_rng(0)
    deadlines = random.uniform(0.1, 2, len(pairs)).astype(np.float32).tolist()
    payloads = random.uniform(0, 1e5, len(pairs)).astype(np.float32).tolist()
    request = DispatchBatchRequest(
        services=services,
        access_points=access_points,
        service=[s for s, _ in pairs],
        access_point=[a for _, a in pairs],
        deadline_seconds=deadlines,
        payload_bytes=payloads,
        max_alternatives=3,
    )
    async with running_server(snapshot) as serving:
        together = choices(await serving.dispatching.DispatchBatch(request))
    async with running_server(snapshot) as serving:
        for (service, access_point), deadline, payload, decided in zip(
            pairs, deadlines, payloads, together, strict=True
        ):
            alone = await serving.dispatch(
                service=services[service],
                access_point=access_points[access_point],
                deadline_seconds=deadline,
                payload_bytes=payload,
                max_alternatives=3,
            )
            await serving.settle(alone.endpoint, access_points[access_point])
            endpoint, score, others = decided
            assert endpoint == alone.endpoint
            assert others == [other.endpoint for other in alone.alternatives]
            assert score == pytest.approx(alone.score, abs=1e-6)


async def test_requests_of_one_batch_are_spread() -> None:
    request = DispatchBatchRequest(
        services=["service"], access_points=["ap-0"], service=[0] * 160, access_point=[0] * 160
    )
    async with running_server(graded_endpoints(4)) as serving:
        picked = Counter(
            endpoint for endpoint, _, _ in choices(await serving.dispatching.DispatchBatch(request))
        )
    assert len(picked) == 4
    assert max(picked.values()) <= 80


async def test_request_nobody_can_serve_does_not_spoil_the_batch() -> None:
    topology = example_topology(services=2, link_probability=0.0, replicas_per_service=1)
    cloud_only = [
        service
        for service in range(2)
        if not any(
            topology.nodes.access_point[topology.replicas.node[replica]] == 0
            for replica in range(len(topology.replicas.endpoints))
            if topology.replicas.service[replica] == service
        )
    ]
    request = DispatchBatchRequest(
        services=topology.services.names,
        access_points=["ap-0", "cloud"],
        service=[cloud_only[0], cloud_only[0]],
        access_point=[0, 1],
        max_alternatives=2,
    )
    async with running_server(example_snapshot(topology)) as serving:
        unserved, served = choices(await serving.dispatching.DispatchBatch(request))
    assert unserved == (None, 0.0, [])
    assert served[0] is not None


async def test_empty_batch() -> None:
    async with running_server(equal_endpoints(2)) as serving:
        response = await serving.dispatching.DispatchBatch(DispatchBatchRequest())
    assert choices(response) == []
    assert response.provenance.snapshot_version == 1


async def test_absent_deadline_is_the_typical_one_of_the_service() -> None:
    # The local endpoint answers in 0.5 s: in time for the typical deadline of 1 s, too late for a shorter one.
    snapshot = one_service_snapshot([Endpoint(speed=0.2), Endpoint("ap-1", speed=10.0)])
    columns = {"services": ["service"], "access_points": ["ap-0"], "service": [0], "access_point": [0]}
    async with running_server(snapshot) as serving:
        answers = []
        for deadlines in ([], [0.0], [1.0], [0.3]):
            request = DispatchBatchRequest(**columns, deadline_seconds=deadlines, policy="local-first")
            endpoint = choices(await serving.dispatching.DispatchBatch(request))[0][0]
            assert endpoint is not None
            answers.append(endpoint)
            await serving.settle(endpoint)
    assert answers == ["10.0.0.0:8080"] * 3 + ["10.0.0.1:8080"]


async def test_seed_repeats_the_batch() -> None:
    request = DispatchBatchRequest(
        services=["service"], access_points=["ap-0"], service=[0] * 10, access_point=[0] * 10, seed=5
    )
    async with running_server() as serving:
        repeated = []
        for _ in range(3):
            await serving.report(equal_endpoints(8))
            repeated.append(choices(await serving.dispatching.DispatchBatch(request)))
    assert repeated[0] == repeated[1] == repeated[2]


async def test_provenance_tells_of_a_fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_example_bundle(tmp_path)

    def score(policy: object, candidates: object, *_: object) -> object:
        return np.array([0, 0, 0, np.nan, 0, 0], np.float32)

    monkeypatch.setattr(OnnxDispatch, "score", score)
    request = DispatchBatchRequest(
        services=["service"], access_points=["ap-0", "ap-1"], service=[0, 0], access_point=[0, 1]
    )
    async with running_server(graded_endpoints(3), models=tmp_path) as serving:
        response = await serving.dispatching.DispatchBatch(request)
    assert response.provenance.source == DecisionSource.DECISION_SOURCE_FALLBACK
    assert response.provenance.fallback_reason == FallbackReason.NON_FINITE_OUTPUT
    assert response.provenance.policy == "earliest-completion"
