"""The placement of GSP-SS against a plain loop over nodes and services."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.cluster.actions import AddReplica, DeleteReplica, OrchestrationAction
from policy_server.cluster.snapshot import Float64Array, ReplicaState, Snapshot
from policy_server.policies.orchestration.plan import FramePlan, OrchestrationOptions
from policy_server.policies.orchestration.rules import GspSs
from policy_server.policies.orchestration.rules.gsp_ss import schedule_rates
from tests.support.orchestrating import crowded_snapshots, query_of
from tests.support.systems import Endpoint, one_service_snapshot


def power(snapshot: Snapshot, node: int) -> float:
    nodes = snapshot.topology.nodes
    return float(nodes.cpu_millicores[node]) * float(nodes.speed[node])


def share(snapshot: Snapshot, node: int, service: int) -> float:
    services = snapshot.topology.services
    work = float(services.cpu_millicores[service]) * float(services.execution_seconds[service])
    return work / power(snapshot, node)


def parts(
    snapshot: Snapshot, room: Float64Array, far: Float64Array, unserved: Float64Array, node: int, service: int
) -> tuple[float, float, float]:
    """Near requests that a replica would take, how many of them nobody serves, and others that nobody serves."""
    access_point = int(snapshot.topology.nodes.access_point[node])
    served = max(0.0, room[node] / share(snapshot, node, service))
    near = min(served, far[access_point, service])
    near_unserved = min(near, unserved[0, service])
    return near, near_unserved, min(served - near, unserved[0, service] - near_unserved)


def plain_additions(snapshot: Snapshot, most: int) -> list[OrchestrationAction]:
    """Greedy service placement as the docstring says it; the schedule of what is there is taken as given."""
    plan = FramePlan(query_of(snapshot, OrchestrationOptions(maximum_actions=most)))
    schedule = schedule_rates(plan)
    room, far, unserved = schedule.room.copy(), schedule.far.copy(), schedule.unserved.copy()
    nodes, width = range(len(room)), far.shape[1]
    while True:
        gains: list[tuple[float, int, int]] = []
        for node in nodes:
            feasible = plan.additions(np.array([node]))[0]
            for service in range(width):
                near, near_unserved, elsewhere = parts(snapshot, room, far, unserved, node, service)
                gain = near_unserved + (near - near_unserved) / 2 + elsewhere / 2
                if feasible[service]:
                    gains.append((gain, node, service))
        largest = max(gains, default=(0.0, 0, 0))[0]
        if largest <= 1e-6:
            return [planned.action for planned in plan.actions]
        equal = [entry for entry in gains if entry[0] >= largest * (1 - 1e-9)]
        node = max((node for _, node, _ in equal), key=lambda node: room[node] * power(snapshot, node))
        gain, _, service = max((entry for entry in equal if entry[1] == node), key=lambda entry: entry[0])
        near, near_unserved, elsewhere = parts(snapshot, room, far, unserved, node, service)
        assert plan.add(node, service, gain)
        far[snapshot.topology.nodes.access_point[node], service] -= near
        unserved[0, service] -= near_unserved + elsewhere
        room[node] -= (near + elsewhere) * share(snapshot, node, service)


@given(crowded_snapshots(), st.sampled_from([1, 3, 50]))
def test_additions_are_those_of_the_plain_loop(snapshot: Snapshot, most: int) -> None:
    options = OrchestrationOptions(maximum_actions=most)
    (decision,) = GspSs().decide([query_of(snapshot, options)], np.random.default_rng(0))
    added = [p.action for p in decision.plan.actions if isinstance(p.action, AddReplica)]
    assert added == plain_additions(snapshot, most)
    gains = [p.score for p in decision.plan.actions if isinstance(p.action, AddReplica)]
    assert gains == pytest.approx(sorted(gains, reverse=True))


@given(crowded_snapshots())
def test_the_schedule_keeps_to_rates_and_capacities(snapshot: Snapshot) -> None:
    plan = FramePlan(query_of(snapshot))
    schedule = schedule_rates(plan)
    topology, load = snapshot.topology, snapshot.load
    rates = load.arrival_rate_per_second.astype(np.float64)
    assert (schedule.far <= rates + 1e-9).all()
    np.testing.assert_allclose(
        schedule.unserved[0] + np.bincount(topology.replicas.service, schedule.replica_rate, rates.shape[1]),
        rates.sum(axis=0),
        atol=1e-6,
    )
    for node in range(len(topology.nodes.names)):
        taken = sum(
            schedule.replica_rate[row] * share(snapshot, node, int(topology.replicas.service[row]))
            for row in np.flatnonzero(topology.replicas.node == node)
        )
        assert taken <= 0.9 + 1e-6
        assert schedule.room[node] == pytest.approx(0.9 - taken, abs=1e-5)
    for row in range(len(topology.replicas.endpoints)):
        node = topology.replicas.node[row]
        cloud = topology.access_points.is_cloud[topology.nodes.access_point[node]]
        if cloud or load.replica_state[row] == ReplicaState.DRAINING:
            assert schedule.replica_rate[row] == 0


def decided(snapshot: Snapshot) -> list[OrchestrationAction]:
    (decision,) = GspSs().decide([query_of(snapshot)], np.random.default_rng(0))
    return [planned.action for planned in decision.plan.actions]


DRAINING = Endpoint(state=ReplicaState.DRAINING)


def test_rates_that_are_served_where_they_come_in_need_nothing() -> None:
    assert decided(one_service_snapshot([Endpoint(), DRAINING], arrival_rates_per_second=(3, 0))) == []


def test_rates_beyond_the_capacity_get_another_replica() -> None:
    # A node serves 36 requests per second at 0.9 of its CPU.
    snapshot = one_service_snapshot([Endpoint(), DRAINING], arrival_rates_per_second=(50, 0))
    assert decided(snapshot) == [AddReplica(service=0, node=1)]


def test_rates_served_from_afar_are_brought_near() -> None:
    near = replace(DRAINING, access_point="ap-1")
    snapshot = one_service_snapshot([Endpoint(), near], arrival_rates_per_second=(0, 5))
    (decision,) = GspSs().decide([query_of(snapshot)], np.random.default_rng(0))
    assert [planned.action for planned in decision.plan.actions] == [AddReplica(service=0, node=1)]
    assert decision.plan.actions[0].score == pytest.approx(2.5)


def test_what_the_schedule_leaves_idle_makes_room_for_a_gain() -> None:
    snapshot = one_service_snapshot(
        [Endpoint(concurrency=1, cpu_millicores=1000), Endpoint(), Endpoint()],
        arrival_rates_per_second=(0, 0),
    )
    topology = snapshot.topology
    # A second service that nobody hosts, and no memory for it anywhere.
    services = topology.services
    two = replace(
        services,
        names=("service", "wanted"),
        **{
            column: np.repeat(getattr(services, column), 2)
            for column in (
                "cpu_millicores",
                "execution_seconds",
                "memory_bytes",
                "image_bytes",
                "cold_start_seconds",
                "deadline_seconds",
            )
        },
    )
    full = replace(topology.nodes, memory_bytes=np.full(3, 1.5e8, np.float32))
    rates = np.array([[0, 8], [0, 0], [0, 0]], np.float32)
    crowded = Snapshot(
        replace(topology, services=two, nodes=full),
        replace(snapshot.load, arrival_rate_per_second=rates),
        taken_at_seconds=100.0,
    )
    actions = decided(crowded)
    # The last replica of the service stays.
    assert actions == [DeleteReplica(0), DeleteReplica(1)]
