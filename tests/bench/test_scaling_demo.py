from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from click.testing import CliRunner, Result

from bench import scaling_demo
from bench.cli import main
from bench.commands import policy_server_command
from bench.scaling_demo import BASELINES, LEARNED, ScaleCaller, default_policies, known_policies
from bench.server_process import ServerProcess, free_port
from policy_server.policies.scaling import ScalingPolicy, rule_scaling
from policy_server.policies.scaling.onnx import onnx_scaling
from policy_server.policies.scaling.resize import CPU_QUANTUM_CORES, MEMORY_QUANTUM_BYTES
from policy_server.policies.scaling.safety import decide_scaling
from policy_server.runtime.bundle import find_bundles
from training.scaling.loop import ScalingLoop
from training.scaling.sock_shop import sock_shop


@pytest.fixture(scope="module")
def channel() -> Iterator[grpc.Channel]:
    port = free_port()
    with (
        ServerProcess("policy-server", policy_server_command(port), port) as server,
        grpc.insecure_channel(server.address) as opened,
    ):
        yield opened


def in_process(name: str) -> ScalingPolicy:
    bundles = find_bundles(kind="scaling")
    return onnx_scaling(bundles[name][0].load()) if name in bundles else rule_scaling(name)


@pytest.mark.parametrize("name", default_policies())
def test_served_decisions_are_those_made_in_process(channel: grpc.Channel, name: str) -> None:
    """To a millicore and a mebibyte, which is what the server rounds to."""
    caller, policy = ScaleCaller(channel, name), in_process(name)
    rates = np.linspace(60.0, 260.0, 150)[None]
    loop = ScalingLoop(sock_shop(), [5], rates)
    changed = 0
    while loop.intervals_left:
        cpu_cores, memory_bytes = caller(loop.fleet, loop.history)
        decisions = decide_scaling(policy, loop.fleet, loop.history)
        np.testing.assert_allclose(
            cpu_cores, decisions.cpu_cores.target, atol=1.01 * CPU_QUANTUM_CORES, rtol=1e-6
        )
        np.testing.assert_allclose(
            memory_bytes, decisions.memory_bytes.target, atol=1.01 * MEMORY_QUANTUM_BYTES, rtol=1e-6
        )
        changed += int((cpu_cores != loop.history.newest("cpu_limit_cores")).sum())
        loop.apply(cpu_cores, memory_bytes)
    assert changed > 20


def demo(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["demo-scale", *map(str, arguments)])


def test_the_hour_is_served_drawn_and_reported(tmp_path: Path) -> None:
    plot = tmp_path / "reports" / "hour.png"
    children = psutil.Process().children()
    result = demo("--plot", plot, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["plot"] == str(plot)
    assert plot.stat().st_size > 20_000
    assert tuple(document["policies"]) == default_policies()
    for name, figures in document["policies"].items():
        assert figures["calls"] == 719
        assert figures["fallback_share"] == 0.0
        assert figures["learned_share"] == (1.0 if name == LEARNED else 0.0)
        assert figures["latency_seconds"]["mean"] < figures["latency_seconds"]["p99"]
        assert 0 < figures["decision_seconds"]["p50"] <= figures["decision_seconds"]["p99"] < 10
    assert psutil.Process().children() == children


def test_a_table_for_people_and_the_path_of_the_picture(tmp_path: Path) -> None:
    plot = tmp_path / "hour.png"
    result = demo("--plot", plot, "--policies", "static", "--load", "normal")
    assert result.exit_code == 0, result.output
    assert "normal load" in result.stdout
    assert "static" in result.stdout
    assert result.stdout.rstrip().endswith(str(plot))


@pytest.mark.parametrize(
    ("listed", "complaint"), [("static,fastest", "'fastest' is unknown"), ("static,static", "listed twice")]
)
def test_wrong_policies_are_usage_errors(listed: str, complaint: str, tmp_path: Path) -> None:
    result = demo("--policies", listed, "--plot", tmp_path / "hour.png")
    assert result.exit_code == 2
    assert complaint in result.stderr


def test_a_refused_call_ends_the_demo_with_what_the_server_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(scaling_demo, "known_policies", lambda: ("nonsense",))
    result = demo("--policies", "nonsense", "--plot", tmp_path / "hour.png")
    assert result.exit_code == 1
    assert "NOT_FOUND" in result.stderr
    assert not list(tmp_path.iterdir())


def test_baselines_are_known() -> None:
    assert set(BASELINES) < set(known_policies())
