"""Vertical scaling by a real server process: a model, a rule, a failing model, many containers, many callers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import yaml

from bench.scaling_scenario import generate_scale_request
from policy_server.client.scaling import ContainerRecommendation, recommendations
from policy_server.client.scaling_documents import example_document
from policy_server.proto.policy.v1.scaling_service_pb2 import ScaleRequest
from policy_server.proto.policy.v1.scaling_service_pb2_grpc import ScalingServiceStub
from policy_server.runtime.scaling_graph import ACTOR
from tests.support.models import actor_model, golden_of, write_scaling_bundle
from tests.support.scaling import assert_same, assert_sound
from tests.support.serving import ServerProcess, server_process

FAILING_ECONOMY = 1.0


@pytest.fixture(scope="module")
def metrics_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, metrics_port: int) -> Iterator[ServerProcess]:
    """Serves a model that has no answer where resources are as dear as can be."""
    folder = tmp_path_factory.mktemp("scaling")
    model = actor_model(fault=float("nan"), faulty_where=0.999)
    write_scaling_bundle(folder / "models", models={ACTOR: model}, goldens=[golden_of(ACTOR, model)])
    with server_process(
        folder / "log",
        f"--models={folder / 'models'}",
        "--drain-seconds=0",
        # The machine may be busy, and a model on probation late.
        "--model-budget-seconds=10",
        f"--metrics-port={metrics_port}",
    ) as process:
        yield process
        process.terminate()
        assert process.wait() == 0


def scale(server: ServerProcess, request: ScaleRequest) -> list[ContainerRecommendation]:
    with grpc.insecure_channel(server.address) as channel:
        return recommendations(request, ScalingServiceStub(channel).Scale(request, timeout=30))


@pytest.mark.parametrize(
    ("policy", "name", "source"), [("", "td3", "LEARNED"), ("autothrottle", "autothrottle", "HEURISTIC")]
)
def test_a_model_and_a_rule_decide_for_a_thousand_containers(
    server: ServerProcess, policy: str, name: str, source: str
) -> None:
    rows = scale(server, generate_scale_request(1000, policy))
    assert len(rows) == 1000
    assert {(row.policy, row.source) for row in rows} == {(name, source)}
    for row in rows:
        assert_sound(row)
    assert any(row.apply for row in rows)


def test_the_log_says_which_policies_scale(server: ServerProcess) -> None:
    assert re.search(r"^  scaling policy +td3 1\.0\.0$", server.log, re.MULTILINE)
    assert re.search(r"^  scaling fallback +threshold$", server.log, re.MULTILINE)


def test_a_failing_model_is_stood_in_for_and_metrics_tell(server: ServerProcess, metrics_port: int) -> None:
    request = generate_scale_request(50)
    request.economy = FAILING_ECONOMY
    rows = scale(server, request)
    assert {(row.policy, row.source, row.fallback_reason) for row in rows} == {
        ("threshold", "FALLBACK", "NON_FINITE_OUTPUT")
    }
    assert_same(
        [_without_origin(row) for row in rows],
        [_without_origin(row) for row in scale(server, generate_scale_request(50, "threshold"))],
    )
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics") as page:
        metrics = page.read().decode()
    counted = re.search(
        r'^policy_fallbacks_total\{[^}]*policy="td3"[^}]*reason="non_finite_output"[^}]*\} (\S+)$',
        metrics,
        re.MULTILINE,
    )
    assert counted, metrics
    assert float(counted[1]) == 50


def _without_origin(row: ContainerRecommendation) -> ContainerRecommendation:
    return ContainerRecommendation(
        row.container, row.apply, row.hold_reason, row.cpu, row.memory, "", "", "", ""
    )


async def test_concurrent_callers_get_what_each_would_get_alone(server: ServerProcess) -> None:
    random = np.random.default_rng(1)
    requests = []
    for count in random.integers(1, 60, 40).tolist():
        request = generate_scale_request(count, str(random.choice(["", "threshold", "percentile"])))
        request.economy = float(random.uniform(0, 0.9))
        requests.append(request)
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = ScalingServiceStub(channel)

        async def ask(request: ScaleRequest) -> Sequence[ContainerRecommendation]:
            return recommendations(request, await stub.Scale(request, timeout=60))  # type: ignore[misc]

        alone = [await ask(request) for request in requests]
        for _ in range(3):
            together = await asyncio.gather(*map(ask, requests))
            for here, there in zip(together, alone, strict=True):
                assert_same(here, there)


def test_the_shell_asks(server: ServerProcess, tmp_path: Path) -> None:
    file = tmp_path / "measurements.yaml"
    file.write_text(example_document())
    command = [sys.executable, "-m", "policy_server.cli", "query", "scale", str(file)]
    command += ["--address", server.address, "--policy", "threshold"]
    answer = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    rows = json.loads(answer.stdout)["containers"]
    assert [row["apply"] for row in rows] == [True, True, False]
    assert rows[1]["memory"]["reason"] == "OUT_OF_MEMORY"
    wide = {**os.environ, "COLUMNS": "160"}
    table = subprocess.run(command, capture_output=True, text=True, check=True, env=wide).stdout
    for part in ("recommendations", "resize", "out_of_memory", "threshold 1", "heuristic"):
        assert part in table


def test_the_documented_controller_resizes_what_is_to_be_resized(server: ServerProcess) -> None:
    page = Path(__file__).parents[2] / "docs" / "scaling-service.md"
    example = re.search(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert example
    names: dict[str, Any] = {}
    exec(example[1], names)
    document = yaml.safe_load(example_document())
    sent: dict[str, Any] = {}
    names["resize_once"](
        server.address,
        document["containers"],
        document["nodes"],
        document["applications"],
        sent.__setitem__,
    )
    carts = sent["/api/v1/namespaces/shop/pods/carts-5c4b/resize"]["spec"]["containers"]
    assert [entry["name"] for entry in carts] == ["server"]
    # A guaranteed pod, whose memory was too small.
    assert carts[0]["resources"]["requests"] == carts[0]["resources"]["limits"]
    assert carts[0]["resources"]["limits"] == {"cpu": "500m", "memory": "308Mi"}
    assert all(path.startswith("/api/v1/namespaces/shop/pods/") for path in sent)
