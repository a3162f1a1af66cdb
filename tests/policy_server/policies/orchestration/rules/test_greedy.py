"""Greedy against its text, one number at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.cluster.actions import AddReplica, DeleteReplica
from policy_server.cluster.snapshot import ReplicaState, Snapshot
from policy_server.policies.orchestration.plan import FramePlan, OrchestrationOptions
from policy_server.policies.orchestration.rules import Greedy
from tests.support.orchestrating import crowded_snapshots, query_of
from tests.support.systems import Endpoint, one_service_snapshot


def plain_greedy(snapshot: Snapshot, steps: int) -> FramePlan:
    """The rule as its docstring says it; the plan is used for what is feasible."""
    plan = FramePlan(query_of(snapshot, OrchestrationOptions(maximum_actions=steps)))
    topology, load = snapshot.topology, snapshot.load
    nodes, services, replicas = topology.nodes, topology.services, topology.replicas
    rows = range(len(replicas.endpoints))

    def live(row: int) -> bool:
        return bool(load.replica_state[row] != ReplicaState.DRAINING)

    def free(node: int) -> float:
        (memory,), (cpu,) = plan.free_memory_share(np.array([node])), plan.free_cpu_share(np.array([node]))
        return min(float(memory), float(cpu))

    need: dict[tuple[int, int], float] = {}
    for access_point in range(len(topology.access_points.names)):
        cpu_there = max(
            1.0,
            sum(
                float(c)
                for c, ap in zip(nodes.cpu_millicores, nodes.access_point, strict=True)
                if ap == access_point
            ),
        )
        for service in range(len(services.names)):
            seconds = float(services.cpu_millicores[service]) * float(services.execution_seconds[service])
            here = [
                r
                for r in rows
                if replicas.service[r] == service and nodes.access_point[replicas.node[r]] == access_point
            ]
            work = sum(float(load.replica_queued[r]) for r in here) * seconds
            if not any(map(live, here)):
                work += float(load.arrival_rate_per_second[access_point, service]) * seconds
            need[access_point, service] = work / cpu_there
    taken = 0
    while taken < steps and max(need.values()) > 0:
        (access_point, service), largest = max(need.items(), key=lambda entry: entry[1])
        there = [n for n in range(len(nodes.names)) if nodes.access_point[n] == access_point]
        feasible = [n for n in there if plan.additions(np.array([n]))[0, service]]
        if not feasible:
            need[access_point, service] = 0.0
            continue
        plan.add(
            max(feasible, key=lambda n: (free(n), float(nodes.cpu_millicores[n]) * float(nodes.speed[n]))),
            service,
            largest,
        )
        before = sum(live(r) for r in rows if replicas.service[r] == service and replicas.node[r] in there)
        need[access_point, service] *= before / (before + 1)
        taken += 1
    unused = [
        r
        for r in rows
        if live(r)
        and load.replica_queued[r] + load.replica_running[r] == 0
        and load.arrival_rate_per_second[nodes.access_point[replicas.node[r]], replicas.service[r]] == 0
    ]
    for row in sorted(unused, key=lambda r: free(int(replicas.node[r]))):
        if taken < steps:
            taken += plan.delete(row)
    return plan


@given(crowded_snapshots(), st.sampled_from([1, 2, 5]))
def test_it_does_what_it_says(snapshot: Snapshot, steps: int) -> None:
    options = OrchestrationOptions(maximum_actions=steps)
    (decision,) = Greedy().decide([query_of(snapshot, options)], np.random.default_rng(0))
    expected = plain_greedy(snapshot, steps)
    assert [planned.action for planned in decision.plan.actions] == [
        planned.action for planned in expected.actions
    ]
    for planned, other in zip(decision.plan.actions, expected.actions, strict=True):
        if isinstance(planned.action, AddReplica):
            assert planned.score == pytest.approx(other.score, rel=1e-5)


def decided(snapshot: Snapshot, steps: int | None = None) -> list[object]:
    options = OrchestrationOptions(maximum_actions=steps)
    (decision,) = Greedy().decide([query_of(snapshot, options)], np.random.default_rng(0))
    return [planned.action for planned in decision.plan.actions]


def test_it_takes_two_steps_by_itself() -> None:
    busy = one_service_snapshot([Endpoint(queued=9)] * 2 + [Endpoint("ap-1", queued=9)] * 2)
    assert len(decided(busy)) == 2
    assert len(decided(busy, 3)) == 3


def test_it_answers_a_queue_with_the_emptiest_node() -> None:
    snapshot = one_service_snapshot([Endpoint(queued=5, running=1), Endpoint(running=2), Endpoint()])
    assert decided(snapshot, 1) == [AddReplica(service=0, node=2)]


def test_demand_without_any_replica_there_is_a_need() -> None:
    snapshot = one_service_snapshot(
        [Endpoint(), Endpoint("ap-1", state=ReplicaState.DRAINING)], arrival_rates_per_second=(0, 3)
    )
    assert decided(snapshot, 1) == [AddReplica(service=0, node=1)]


def test_without_need_it_deletes_what_nobody_asks_for() -> None:
    snapshot = one_service_snapshot(
        [Endpoint(), Endpoint("ap-1"), Endpoint("ap-1")], arrival_rates_per_second=(3, 0)
    )
    assert decided(snapshot) == [DeleteReplica(1), DeleteReplica(2)]


def test_in_balance_it_does_nothing() -> None:
    snapshot = one_service_snapshot(
        [Endpoint(running=1), Endpoint("ap-1", running=1)], arrival_rates_per_second=(3, 3)
    )
    assert decided(snapshot) == []
    full = replace(
        snapshot, load=replace(snapshot.load, node_cpu_used_millicores=snapshot.topology.nodes.cpu_millicores)
    )
    assert decided(full) == []
