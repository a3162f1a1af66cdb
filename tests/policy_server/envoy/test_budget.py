"""A slow model: the fallback answers within the budget, and after a few of those the model is left alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from policy_server.policies.circuit_breaker import BreakerState
from policy_server.policies.onnx_dispatch import OnnxDispatch
from tests.support.ext_proc import DataPlane, data_plane
from tests.support.models import write_example_bundle
from tests.support.serving import graded_endpoints


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """A model that hangs until the test ends; the times of its calls."""
    release = threading.Event()
    calls: list[float] = []

    def score(policy: object, candidates: Any, *_: object) -> Any:
        calls.append(time.monotonic())
        release.wait(30)
        return np.zeros(len(candidates), np.float32)

    write_example_bundle(tmp_path)
    monkeypatch.setattr(OnnxDispatch, "score", score)
    yield calls
    release.set()


def reasons(plane: DataPlane) -> list[str]:
    return [origin.reason.name for origin in plane.origins]


async def test_the_fallback_answers_and_the_breaker_opens(hanging: list[float], tmp_path: Path) -> None:
    budget_seconds = 0.02
    async with data_plane(
        graded_endpoints(3), models=tmp_path, policy="kais", model_budget_seconds=budget_seconds
    ) as plane:
        started = time.monotonic()
        for _ in range(20):
            assert (await plane.pick())[0].startswith("10.0.0.")
        # Generous: what counts is that nobody waited for the model, which never answers.
        assert time.monotonic() - started < 10
        assert len(hanging) <= 5
        assert reasons(plane)[0] == "BUDGET_SPENT"
        assert plane.serving.server.registry.get("kais").breaker_state is BreakerState.OPEN
        assert "CIRCUIT_OPEN" in reasons(plane)
        assert plane.serving.server.metrics._breaker_openings == {"kais": 1}
        health = await HealthStub(plane.channel).Check(HealthCheckRequest(service="readiness"))
        assert health.status == HealthCheckResponse.SERVING


async def test_a_client_in_haste_is_not_kept_waiting(hanging: list[float], tmp_path: Path) -> None:
    haste = {":authority": "service", "x-envoy-expected-rq-timeout-ms": "5"}
    async with data_plane(
        graded_endpoints(3), models=tmp_path, policy="kais", model_budget_seconds=30.0
    ) as plane:
        assert await plane.pick(haste)
        assert reasons(plane) == ["BUDGET_SPENT"]
