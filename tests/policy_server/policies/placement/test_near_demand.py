from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from policy_server.cluster.snapshot import ReplicaState, Snapshot
from policy_server.policies.placement import NearDemand, PlacementQuery
from tests.support.placing import placement_query, placements
from tests.support.systems import Endpoint, one_service_snapshot


def plainly(policy: NearDemand, snapshot: Snapshot, query: PlacementQuery) -> list[float]:
    """The formula of the docstring, node by node."""
    topology, load = snapshot.topology, snapshot.load
    access_points = range(len(topology.access_points.names))
    service = query.service
    rates = [float(load.arrival_rate_per_second[a, service]) for a in access_points]
    if sum(rates) == 0:
        rates = [0.0 if topology.access_points.is_cloud[a] else 1.0 for a in access_points]
    on_node = [float(query.pending_replicas[n]) for n in range(len(topology.nodes.names))]
    for row, node in enumerate(topology.replicas.node.tolist()):
        if topology.replicas.service[row] == service and load.replica_state[row] != ReplicaState.DRAINING:
            on_node[node] += 1
    replicas = [
        sum(on_node[n] for n in range(len(on_node)) if topology.nodes.access_point[n] == a)
        for a in access_points
    ]
    delay = {(a, a): topology.local_delay_seconds for a in access_points}
    for row in range(len(topology.links.source)):
        ends = int(topology.links.source[row]), int(topology.links.target[row])
        delay[ends] = float(topology.links.delay_seconds[row])
    deadline = float(topology.services.deadline_seconds[service])
    home = [int(topology.nodes.access_point[n]) for n in query.nodes]
    most = max(rates[a] / (replicas[a] + 1) for a in home)
    scores = []
    for position, node in enumerate(query.nodes.tolist()):
        a = home[position]
        spread = rates[a] / (replicas[a] + 1) / most if most > 0 else 1.0
        round_trip = sum(
            rates[b] / sum(rates) * min(2 * delay.get((b, a), np.inf), deadline) for b in access_points
        ) if sum(rates) else deadline  # fmt: skip
        execution = float(topology.services.execution_seconds[service]) / float(topology.nodes.speed[node])
        replica_count = 1 + query.pending_replicas[node]
        cpu = load.node_cpu_used_millicores[node] + query.cpu_millicores * replica_count
        memory = load.node_memory_used_bytes[node] + query.memory_bytes * replica_count
        x, y = cpu / query.node_cpu_millicores[position], memory / query.node_memory_bytes[position]
        scores.append(
            policy.spread_weight * spread / (1 + on_node[node])
            + policy.slack_weight * max(1 - (round_trip + execution) / deadline, 0)
            + policy.room_weight * max(1 - max(x, y), 0)
            + policy.balance_weight * max(1 - abs(x - y), 0)
            + policy.image_weight * bool(query.has_image[position])
        )
    return scores


@given(placements())
def test_formula(case: tuple[Snapshot, PlacementQuery]) -> None:
    snapshot, query = case
    policy = NearDemand()
    scores = policy.score(snapshot, query)
    # Delays and speeds are kept in single precision.
    np.testing.assert_allclose(scores, plainly(policy, snapshot, query), rtol=1e-5, atol=1e-6)
    assert ((scores >= 0) & (scores <= 1 + 1e-9)).all()


def test_replicas_divide_in_proportion_to_arrivals() -> None:
    """Nine replicas one after another, for rates of 60 and 30."""
    snapshot = one_service_snapshot(
        [*[Endpoint(access_point="ap-0")] * 12, *[Endpoint(access_point="ap-1")] * 12],
        arrival_rates_per_second=(60, 30),
    )
    replicas = replace(
        snapshot.topology.replicas,
        endpoints=(),
        service=np.zeros(0, np.int32),
        node=np.zeros(0, np.int32),
        concurrency=np.zeros(0, np.int32),
    )
    topology = replace(snapshot.topology, replicas=replicas)
    empty = np.zeros(0, np.float32)
    load = replace(
        snapshot.load,
        node_memory_used_bytes=np.zeros(24, np.float32),
        replica_state=np.zeros(0, np.uint8),
        replica_queued=empty,
        replica_running=empty,
        replica_latency_seconds=empty,
    )
    snapshot = Snapshot(topology, load)
    pending = np.zeros(24)
    for _ in range(9):
        scores = NearDemand().score(snapshot, placement_query(snapshot, pending_replicas=pending.copy()))
        pending[np.argmax(scores)] += 1
    assert pending.max() == 1
    assert Counter({"ap-0": pending[:12].sum(), "ap-1": pending[12:].sum()}) == {"ap-0": 6, "ap-1": 3}


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (Endpoint(access_point="ap-0"), Endpoint(access_point="ap-1")),
        (Endpoint(access_point="ap-1"), Endpoint(access_point="cloud")),
        (Endpoint(), Endpoint(running=3)),
        (Endpoint(speed=1.2), Endpoint(speed=0.8)),
        (Endpoint(cpu_millicores=2000), Endpoint(cpu_millicores=1000)),
        (Endpoint(state=ReplicaState.DRAINING), Endpoint()),
    ],
    ids=["demand", "distance", "load", "speed", "size", "replica on its way out"],
)
def test_preferences(better: Endpoint, worse: Endpoint) -> None:
    snapshot = one_service_snapshot([worse, better], arrival_rates_per_second=(20, 5))
    first, second = NearDemand().score(snapshot, placement_query(snapshot))
    assert second > first


def test_image_at_hand() -> None:
    snapshot = one_service_snapshot([Endpoint(), Endpoint()])
    first, second = NearDemand().score(snapshot, placement_query(snapshot, has_image=np.array([False, True])))
    assert second > first
