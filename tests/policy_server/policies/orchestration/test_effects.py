"""Expected effects against counting everything anew after every action."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.cluster.actions import AddReplica
from policy_server.cluster.snapshot import ReplicaState, Snapshot
from policy_server.features.graph import OrchestrationGraph
from policy_server.policies.orchestration.effects import expected_effects
from policy_server.policies.orchestration.plan import FramePlan
from tests.support.orchestrating import crowded_snapshots, query_of
from tests.support.systems import Endpoint, one_service_snapshot


def loads(snapshot: Snapshot, hosted: list[tuple[int, int]]) -> list[float]:
    """Expected CPU demand of each node, of the replicas (node, service)."""
    services, rates = snapshot.topology.services, snapshot.load.arrival_rate_per_second
    per_node = [0.0] * len(snapshot.topology.nodes.names)
    for node, service in hosted:
        rate = float(rates[:, service].sum())
        demand = rate * float(services.cpu_millicores[service]) * float(services.execution_seconds[service])
        per_node[node] += demand / sum(other == service for _, other in hosted)
    return per_node


@given(crowded_snapshots(), st.integers(0, 2**16))
def test_effects_are_those_of_counting_anew(snapshot: Snapshot, seed: int) -> None:
    random = np.random.default_rng(seed)
    plan = FramePlan(query_of(snapshot))
    for _ in range(6):
        node = int(random.integers(len(snapshot.topology.nodes.names)))
        plan.choose(node, int(random.choice(np.flatnonzero(plan.mask(np.array([node]))[0]))))
    topology = snapshot.topology
    nodes, replicas = topology.nodes, topology.replicas
    capacity = [float(c) * float(s) for c, s in zip(nodes.cpu_millicores, nodes.speed, strict=True)]
    hosted = [
        (int(replicas.node[row]), int(replicas.service[row]))
        for row in range(len(replicas.endpoints))
        if snapshot.load.replica_state[row] != ReplicaState.DRAINING
    ]

    def excess(per_node: list[float]) -> float:
        return sum(max(0.0, load - most) for load, most in zip(per_node, capacity, strict=True))

    effects = expected_effects(plan.graph, plan.actions)
    assert len(effects) == len(plan.actions)
    for planned, effect in zip(plan.actions, effects, strict=True):
        place = planned.node, planned.service
        before = loads(snapshot, hosted)
        pulled = 0.0
        if isinstance(planned.action, AddReplica):
            if place not in hosted:
                pulled = float(topology.services.image_bytes[planned.service])
            hosted.append(place)
        else:
            hosted.remove(place)
        after = loads(snapshot, hosted)
        assert effect.utilisation_before == pytest.approx(
            before[planned.node] / capacity[planned.node], abs=1e-6
        )
        assert effect.utilisation_after == pytest.approx(
            after[planned.node] / capacity[planned.node], abs=1e-6
        )
        assert effect.excess_demand_change_millicores == pytest.approx(
            excess(after) - excess(before), abs=1e-2
        )
        assert effect.pulled_bytes == pulled
        assert planned.replicas == sum(service == planned.service for _, service in hosted)


def test_another_replica_relieves_a_crowded_node() -> None:
    # 80 requests per second of 25 millicores each: 2000 millicores for a node of 1000.
    snapshot = one_service_snapshot(
        [Endpoint(), Endpoint(state=ReplicaState.DRAINING)], arrival_rates_per_second=(80, 0)
    )
    plan = FramePlan(query_of(snapshot))
    assert plan.add(1, 0)
    (effect,) = expected_effects(plan.graph, plan.actions)
    assert effect.utilisation_before == 0
    assert effect.utilisation_after == pytest.approx(1.0)
    assert effect.excess_demand_change_millicores == pytest.approx(-1000)
    assert effect.pulled_bytes == np.float32(1e8)


def test_no_action_has_no_effect() -> None:
    assert expected_effects(OrchestrationGraph.of(one_service_snapshot([Endpoint()])), []) == []
