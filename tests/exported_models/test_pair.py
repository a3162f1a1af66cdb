"""The pair that ships, kais-joint and kais-orchestration: loads, serves systems of any size, is worth serving."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policy_server.cluster.actions import AddReplica
from policy_server.cluster.snapshot import Snapshot
from policy_server.features.graph import OrchestrationGraph
from policy_server.policies.onnx_dispatch import OnnxDispatch
from policy_server.policies.orchestration.onnx import OnnxOrchestration
from policy_server.policies.orchestration.plan import OrchestrationQuery
from policy_server.runtime.bundle import find_bundles
from policy_server.runtime.manifest import Manifest
from tests.support.systems import example_snapshot, example_topology, random_order, reordered
from training.evaluation import joint
from training.orchestration_scenarios import DEFAULT_SETTING
from training.workloads.patterns import Pattern


@pytest.fixture(scope="module")
def orchestration() -> OnnxOrchestration:
    return OnnxOrchestration(find_bundles()["kais-orchestration"][0].load())


@pytest.fixture(scope="module")
def manifests(orchestration: OnnxOrchestration) -> tuple[Manifest, Manifest]:
    dispatch = OnnxDispatch(find_bundles()["kais-joint"][0].load())
    return dispatch.bundle.manifest, orchestration.bundle.manifest


def chosen(policy: OnnxOrchestration, snapshot: Snapshot) -> list[tuple[str, str, str]]:
    query = OrchestrationQuery(OrchestrationGraph.of(snapshot))
    (decision,) = policy.decide([query], np.random.default_rng(0))
    topology = snapshot.topology
    return [
        (
            "add" if isinstance(planned.action, AddReplica) else "delete",
            topology.nodes.names[planned.node],
            topology.services.names[planned.service],
        )
        for planned in decision.plan.actions
    ]


@pytest.mark.parametrize("nodes", [3, 40, 100, 1000])
def test_serves_any_number_of_nodes_in_any_order(orchestration: OnnxOrchestration, nodes: int) -> None:
    topology = example_topology(
        nodes=nodes, access_points=max(1, nodes // 8), services=6, replicas_per_service=min(nodes, 12)
    )
    snapshot = example_snapshot(topology)
    first = chosen(orchestration, snapshot)
    assert (nodes > 3) <= len(first) <= 8
    assert chosen(orchestration, reordered(snapshot, random_order(topology, 1))) == first


def test_both_say_where_they_come_from_and_how_good_they_are(manifests: tuple[Manifest, Manifest]) -> None:
    dispatch, orchestration = manifests
    assert (dispatch.maximum_actions, orchestration.maximum_actions) == (None, 8)
    assert dispatch.training.command == orchestration.training.command
    assert dispatch.training.command.startswith("policy-train joint --run RUN --orchestration-run ")
    assert dispatch.evaluation == orchestration.evaluation
    for system in (
        *(f"{preset}-{pattern}" for preset in ("testbed-40", "testbed-100") for pattern in Pattern),
        "testbed-40-alibaba-batch-a",
    ):
        policies = dispatch.evaluation[system]["policies"]
        for baseline in ("greedy+greedy", "native+native"):
            assert policies[baseline]["kais_advantage"]["ci95"][0] > 0, (system, baseline)
            assert policies[baseline]["kais_cost_ratio"]["ci95"][1] < 0.9, (system, baseline)
        # Which is given the rates to come: no worse, at a fifth less cost.
        assert policies["gsp-ss+gsp-ss"]["kais_advantage"]["ci95"][1] > 0, system
        assert policies["gsp-ss+gsp-ss"]["kais_cost_ratio"]["ci95"][1] < 0.9, system


def test_more_requests_in_time_for_fewer_bytes_than_the_rules() -> None:
    brief = joint.JointEvaluation(
        preset="testbed-40", seeds=3, setting=replace(DEFAULT_SETTING, frames=3), workload=Pattern.P1
    )
    rates, costs = {}, {}
    for name in (joint.OURS, "native+native", "greedy+greedy"):
        (outcome,) = joint.run_combination([brief], name)
        rates[name], costs[name] = outcome.throughput_rate.mean(), outcome.cost_bytes.mean()
    for name in ("native+native", "greedy+greedy"):
        assert rates[joint.OURS] > rates[name] + 0.05, name
        assert costs[joint.OURS] < 0.9 * costs[name], name
