"""The dispatch policy that ships: loads, serves systems of any size, and is worth serving."""

from __future__ import annotations

import numpy as np
import pytest

from policy_server.cluster.ledger import Ledger
from policy_server.policies.dispatch import DispatchView, decide
from policy_server.policies.heuristics import heuristic_dispatch
from policy_server.policies.onnx_dispatch import OnnxDispatch
from policy_server.runtime.bundle import find_bundles
from tests.support.systems import (
    example_queries,
    example_snapshot,
    example_topology,
    random_order,
    reordered,
    reordered_queries,
)
from training.validation import Validation


@pytest.fixture(scope="module")
def policy() -> OnnxDispatch:
    return OnnxDispatch(find_bundles()["kais"][0].load())


def chosen(policy: OnnxDispatch, view: DispatchView, queries: object) -> list[str]:
    topology = view.snapshot.topology
    decisions = decide(
        policy,
        view,
        queries,  # type: ignore[arg-type]
        Ledger(topology),
        view.snapshot.taken_at_seconds,
        np.random.default_rng(0),
    )
    return [topology.replicas.endpoints[row] if row >= 0 else "" for row in decisions.replica]


@pytest.mark.parametrize("nodes", [3, 40, 100, 1000])
def test_serves_any_number_of_nodes_in_any_order(policy: OnnxDispatch, nodes: int) -> None:
    topology = example_topology(
        nodes=nodes, access_points=max(1, nodes // 8), replicas_per_service=min(nodes, 12)
    )
    snapshot = example_snapshot(topology)
    queries = example_queries(topology, 50)
    first = chosen(policy, DispatchView(snapshot), queries)
    order = random_order(topology, 1)
    second = chosen(policy, DispatchView(reordered(snapshot, order)), reordered_queries(queries, order))
    assert first == second
    assert all(first)


def test_manifest_records_its_evaluation(policy: OnnxDispatch) -> None:
    manifest = policy.bundle.manifest
    assert manifest.training.command.startswith("policy-train dispatch --run RUN")
    for workload in ("P1", "P2", "P3", "P4"):
        figures = manifest.evaluation[f"testbed-40-{workload}"]["policies"]
        assert figures["kais"]["throughput_rate"]["mean"] > 0.9
        for name, baseline in figures.items():
            if name != "kais":
                assert baseline["kais_advantage"]["ci95"][0] > 0, (workload, name)


def test_beats_the_baselines_on_validation_scenarios(policy: OnnxDispatch) -> None:
    validation = Validation(seeds_per_pattern=1, slots=40)
    learned = validation.throughput_rate(policy)
    for name in ("earliest-completion", "prequal", "greedy", "round-robin"):
        assert learned > validation.throughput_rate(heuristic_dispatch(name)) + 0.01, name
