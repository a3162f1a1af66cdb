"""What Prometheus is shown, of a real server."""

from __future__ import annotations

import re
import socket
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from policy_server.policies.decision_origin import DecisionOrigin, DecisionSource
from policy_server.policies.onnx_dispatch import OnnxDispatch
from policy_server.policies.orchestration.onnx import OnnxOrchestration
from policy_server.proto.policy.v1.dispatch_service_pb2 import (
    Candidate,
    DispatchBatchRequest,
    InlineCandidates,
)
from policy_server.server import PolicyServer
from policy_server.settings import Settings
from policy_server.telemetry.durations import CALL_BOUNDS_SECONDS
from policy_server.telemetry.export import TelemetryError
from tests.support.models import write_example_bundle, write_orchestration_bundle
from tests.support.serving import STEADY, Serving, error_of, graded_endpoints, running_server

GOLDEN = Path(__file__).parent / "testdata" / "metrics.txt"
DISPATCH = "policy.v1.DispatchService/Dispatch"
Samples = dict[str, dict[frozenset[tuple[str, str]], float]]


def scrape(serving: Serving) -> str:
    port = serving.server.telemetry.prometheus_port
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        text: str = response.read().decode()
    return text


def samples(text: str) -> Samples:
    found: Samples = defaultdict(dict)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name][frozenset(sample.labels.items())] = sample.value
    return found


def value(text: str, name: str, **labels: str) -> float:
    """Of the one series with these labels among its own."""
    wanted = set(labels.items())
    (match,) = [v for key, v in samples(text)[name].items() if wanted <= key]
    return match


def shape(text: str) -> str:
    """Types, names and label names: what dashboards depend on."""
    lines = set()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(sorted(sample.labels))
            lines.add(f"{family.type} {sample.name}{{{labels}}}")
    return "\n".join(sorted(lines)) + "\n"


def make_model_return_nan(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def score(policy: object, candidates: Any, *_: object) -> object:
        return np.full(len(candidates), np.nan, np.float32)

    write_example_bundle(models)
    monkeypatch.setattr(OnnxDispatch, "score", score)


async def exercise(serving: Serving) -> None:
    for _ in range(5):
        await serving.dispatch(policy="earliest-completion")
    await serving.dispatch(policy="random")
    await error_of(serving.dispatch(service="nobody"))
    await error_of(serving.dispatch(policy="wishful"))
    batch = DispatchBatchRequest(
        services=["service"], access_points=["ap-0"], service=[0] * 7, access_point=[0] * 7, policy="random"
    )
    await serving.dispatching.DispatchBatch(batch)


async def test_counts_and_durations() -> None:
    async with running_server(graded_endpoints(3), metrics_port=0) as serving:
        await exercise(serving)
        text = scrape(serving)
    count = "rpc_server_call_duration_seconds_count"
    assert value(text, count, rpc_method=DISPATCH, rpc_response_status_code="OK") == 6
    assert value(text, count, rpc_method=DISPATCH, rpc_response_status_code="INVALID_ARGUMENT") == 1
    assert value(text, count, rpc_method=DISPATCH, rpc_response_status_code="NOT_FOUND") == 1
    assert value(text, "policy_decisions_total", policy="earliest-completion") == 5
    assert value(text, "policy_decisions_total", policy="random", source="heuristic", version="1") == 8
    assert value(text, "policy_decision_duration_seconds_count", policy="random") == 2
    assert value(text, "policy_state_pending") == 13
    assert 0 <= value(text, "policy_state_age_seconds") < 60
    assert value(text, "policy_build_info") == 1
    buckets = samples(text)["rpc_server_call_duration_seconds_bucket"]
    bounds = {float(dict(labels)["le"]) for labels in buckets}
    assert bounds == {*CALL_BOUNDS_SECONDS, float("inf")}


async def test_names_and_labels_are_those_dashboards_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model_return_nan(tmp_path, monkeypatch)
    async with running_server(graded_endpoints(3), metrics_port=0, models=tmp_path) as serving:
        await exercise(serving)
        await serving.dispatch(policy="kais")
        await serving.orchestrate()
        serving.server.metrics.withdrew(DecisionOrigin("greedy", "1", DecisionSource.HEURISTIC), 1)
        shown = shape(scrape(serving))
    assert shown == GOLDEN.read_text()


async def test_names_follow_the_rules() -> None:
    async with running_server(graded_endpoints(3), metrics_port=0) as serving:
        await exercise(serving)
        text = scrape(serving)
    suffix = re.compile(r"_(total|seconds|bytes|info|count|sum|bucket|created)$")
    for family in text_string_to_metric_families(text):
        assert re.fullmatch(r"[a-z][a-z0-9_]*", family.name)
        assert family.documentation
        for sample in family.samples:
            parts = sample.name.split("_")
            assert all(one != other for one, other in pairwise(parts)), sample.name
            assert sample.name.endswith("_total") == (family.type == "counter"), sample.name
            if family.type == "histogram":
                assert suffix.search(sample.name)


async def test_churn_of_endpoints_adds_no_series() -> None:
    async with running_server(metrics_port=0) as serving:

        async def ask(number: int) -> None:
            candidates = [Candidate(endpoint=f"10.1.{number}.{row}:80", node=f"n{row}") for row in range(2)]
            listed = InlineCandidates(candidates=candidates)
            await serving.dispatch(inline_candidates=listed, service=f"s{number}", access_point=f"a{number}")

        await ask(0)
        scrape(serving)
        before = shape(scrape(serving)), sum(map(len, samples(scrape(serving)).values()))
        for number in range(1000):
            await ask(number)
        text = scrape(serving)
        assert (shape(text), sum(map(len, samples(text).values()))) == before
        assert "10.1." not in text


async def test_non_finite_scores_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model_return_nan(tmp_path, monkeypatch)
    async with running_server(graded_endpoints(3), metrics_port=0, models=tmp_path) as serving:
        for _ in range(3):
            await serving.dispatch()
        text = scrape(serving)
    assert value(text, "policy_nonfinite_outputs_total", policy="kais") == 3
    assert value(text, "policy_fallbacks_total", policy="kais", reason="non_finite_output") == 3
    assert value(text, "policy_decisions_total", policy="earliest-completion", source="fallback") == 3
    code = value(text, "rpc_server_call_duration_seconds_count", rpc_method=DISPATCH)
    assert code == 3


async def test_orchestration_is_counted_by_itself() -> None:
    async with running_server(graded_endpoints(3), metrics_port=0) as serving:
        actions = 0
        for _ in range(3):
            actions += len((await serving.orchestrate()).actions)
        text = scrape(serving)
    assert actions > 0
    assert value(text, "policy_orchestration_duration_seconds_count", policy="greedy") == 3
    assert value(text, "policy_orchestration_actions_total", policy="greedy", kind="delete") == actions
    assert "policy_decisions_total" not in samples(text)


async def test_faults_of_orchestration_models_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    write_orchestration_bundle(tmp_path)
    monkeypatch.setattr(OnnxOrchestration, "decide", fail)
    async with running_server(graded_endpoints(3), metrics_port=0, models=tmp_path) as serving:
        for _ in range(6):
            await serving.orchestrate()
        text = scrape(serving)
    assert value(text, "policy_fallbacks_total", policy="gpg", reason="model_error") == 5
    assert value(text, "policy_fallbacks_total", policy="gpg", reason="circuit_open") == 1
    assert value(text, "policy_breaker_openings_total", policy="gpg") == 1
    assert value(text, "policy_orchestration_duration_seconds_count", source="fallback") == 6


async def test_state_age_is_absent_while_there_is_no_state() -> None:
    async with running_server(metrics_port=0) as serving:
        assert "policy_state_age_seconds" not in samples(scrape(serving))


async def test_taken_port_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = PolicyServer(Settings(**STEADY, metrics_port=port))
        with pytest.raises(TelemetryError, match=f"127.0.0.1:{port}.*choose a free one"):
            await server.startup()
