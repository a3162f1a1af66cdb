"""The orchestration benchmark against a real server, on small systems."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.budgets import ORCHESTRATION_BUDGETS
from bench.cli import main
from bench.orchestration import OrchestrationReport, SizeFigures
from bench.orchestration_scenario import REPLICAS_PER_NODE, SERVICES, generate_system
from policy_server.api.orchestration_servicer import snapshot_of_state
from tests.support.models import write_orchestration_bundle


def figures(nodes: int, milliseconds: float, resident_mib: float = 100.0) -> SizeFigures:
    held = (milliseconds, milliseconds, 9 * milliseconds)
    return SizeFigures(nodes + 1, nodes, 5 * nodes, held, (), 1.0, resident_mib, 2)


def report(*sizes: SizeFigures) -> OrchestrationReport:
    return OrchestrationReport("gpg 1.0.0", {"cpu_model": "any"}, sizes)


@pytest.mark.parametrize("nodes", [1, 8, 100])
def test_the_scenario_is_a_sound_system_of_that_size(nodes: int) -> None:
    topology = snapshot_of_state(generate_system(nodes), limit=1000, taken_at_seconds=0.0).topology
    edge = ~topology.access_points.is_cloud[topology.nodes.access_point]
    assert edge.sum() == nodes
    assert len(topology.services.names) == SERVICES
    assert len(topology.replicas.endpoints) == nodes * REPLICAS_PER_NODE + SERVICES


def test_nodes_links_and_replicas_grow_alike() -> None:
    small, large = generate_system(80).topology, generate_system(800).topology
    for rows in ("nodes", "links", "replicas"):
        assert len(getattr(large, rows)) / len(getattr(small, rows)) == pytest.approx(10, rel=0.1)


def test_growth_is_the_exponent_of_the_two_largest() -> None:
    linear = report(figures(1000, 10.0), figures(10_000, 100.0), figures(10, 50.0))
    assert linear.growth_exponent == pytest.approx(1.0, abs=1e-3)
    assert report(figures(1000, 10.0), figures(10_000, 1000.0)).growth_exponent == pytest.approx(
        2.0, abs=1e-3
    )
    assert report(figures(10, 1.0)).growth_exponent is None


def test_budgets_are_judged_by_the_median() -> None:
    document = report(figures(100, 2.0), figures(1000, 30.0), figures(10_000, 100.0, 2000.0)).document()
    assert {figure: verdict["held"] for figure, verdict in document["budgets"].items()} == {
        "sizes.100.p50_ms": True,
        "sizes.1000.p50_ms": False,
        "sizes.10000.p50_ms": True,
        "sizes.10000.resident_mib": False,
        "growth_exponent": True,
    }
    assert set(document["budgets"]) == {budget.figure for budget in ORCHESTRATION_BUDGETS}


def test_it_measures_a_real_server(tmp_path: Path) -> None:
    write_orchestration_bundle(tmp_path / "models")
    plot = tmp_path / "cost.png"
    arguments = ["--nodes", "4", "--nodes", "40", "--repetitions", "2", "--inline-repetitions", "1"]
    result = CliRunner().invoke(
        main,
        ["orchestrate", "--json", "--models", str(tmp_path / "models"), "--plot", str(plot), *arguments],
    )
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["policy"] == "gpg 1.0.0"
    assert list(document["sizes"]) == ["4", "40"]
    for size in document["sizes"].values():
        assert len(size["held_ms"]) == 2
        assert len(size["inline_ms"]) == 1
        assert size["actions"] == 2
        assert size["resident_mib"] > 10
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_fallback_is_no_figure(tmp_path: Path) -> None:
    bundle = write_orchestration_bundle(tmp_path)
    (bundle / "head.onnx").write_bytes(b"garbage")
    result = CliRunner().invoke(
        main,
        ["orchestrate", "--models", str(tmp_path), "--policy", "gpg", "--nodes", "4", "--repetitions", "1"],
    )
    assert result.exit_code == 1
    assert "4 nodes: greedy answers in place of the policy" in result.stderr
