"""The autoscaler against the formula and defaults of Kubernetes' documentation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.cluster.actions import AddReplica, DeleteReplica, OrchestrationAction
from policy_server.cluster.snapshot import (
    AccessPoints,
    Links,
    Nodes,
    Replicas,
    ReplicaState,
    Services,
    Snapshot,
    Topology,
    disjoint_union,
    idle_load,
)
from policy_server.policies.heuristics import RoundRobin
from policy_server.policies.orchestration.autoscaler import AutoscalerConfig, HorizontalPodAutoscaler
from training.environments.dispatch import DispatchEnvironment
from training.scenarios import Scenario, build_simulator
from training.workloads.patterns import Pattern

SYNC_SECONDS = 15.0
TARGET = 0.5
"""Wanted usage; a power of two, so that the float32 usages below are exact multiples."""
REPLICA_BYTES = 100.0
READY, STARTING, DRAINING = ReplicaState.READY, ReplicaState.STARTING, ReplicaState.DRAINING


def snapshot_of(
    running: Sequence[float],
    *,
    nodes: Sequence[int] | None = None,
    service: Sequence[int] | None = None,
    state: Sequence[ReplicaState] | None = None,
    node_memory_bytes: Sequence[float] = (10 * REPLICA_BYTES,) * 4,
    node_millicores: Sequence[float] = (2000.0,) * 4,
    services: int = 1,
    seconds: float = 0.0,
) -> Snapshot:
    """A system of four edge nodes and a cloud that hosts one replica of each service, in the last rows.

    Args:
        running: requests running at each edge replica.
        nodes: of the edge replicas; in turn by default.
        service: of the edge replicas; the first one by default.
        state: of the edge replicas; ready by default.
        node_memory_bytes: of the edge nodes.
        node_millicores: of the edge nodes; a request needs 200.
        services: how many.
        seconds: time of the snapshot.
    """
    count, edge_nodes = len(running), len(node_memory_bytes)
    placed = [row % edge_nodes for row in range(count)] if nodes is None else list(nodes)
    topology = Topology(
        access_points=AccessPoints(("ap", "cloud"), np.array([False, True]), np.zeros(2, np.int32)),
        nodes=Nodes(
            names=(*(f"edge-{row}" for row in range(edge_nodes)), "cloud-0"),
            access_point=np.array([0] * edge_nodes + [1], np.int32),
            cpu_millicores=np.array([*node_millicores, 64_000], np.float32),
            memory_bytes=np.array([*node_memory_bytes, 1e6], np.float32),
            speed=np.ones(edge_nodes + 1, np.float32),
        ),
        services=Services(
            names=tuple(f"service-{row}" for row in range(services)),
            cpu_millicores=np.full(services, 200, np.float32),
            execution_seconds=np.ones(services, np.float32),
            memory_bytes=np.full(services, REPLICA_BYTES, np.float32),
            image_bytes=np.ones(services, np.float32),
            cold_start_seconds=np.ones(services, np.float32),
            deadline_seconds=np.ones(services, np.float32),
        ),
        replicas=Replicas(
            endpoints=(*(f"replica-{row}" for row in range(count)), *(f"cloud-{w}" for w in range(services))),
            service=np.array([*([0] * count if service is None else service), *range(services)], np.int32),
            node=np.array([*placed, *[edge_nodes] * services], np.int32),
            concurrency=np.full(count + services, 100, np.int32),
        ),
        links=Links(
            source=np.zeros(0, np.int32),
            target=np.zeros(0, np.int32),
            delay_seconds=np.zeros(0, np.float32),
            bandwidth_bytes_per_second=np.zeros(0, np.float32),
        ),
    )
    load = replace(
        idle_load(topology),
        replica_running=np.array([*running, *[50.0] * services], np.float32),
        replica_state=np.array(
            [*([READY] * count if state is None else state), *[READY] * services], np.uint8
        ),
    )
    return Snapshot(topology, load, taken_at_seconds=seconds)


def change(actions: Sequence[OrchestrationAction]) -> int:
    added = sum(isinstance(action, AddReplica) for action in actions)
    deleted = sum(isinstance(action, DeleteReplica) for action in actions)
    assert not (added and deleted)
    return added - deleted


def immediate(**settings: float) -> HorizontalPodAutoscaler:
    """Without a window, and as many new replicas as wanted."""
    defaults = {"target_utilisation": TARGET, "scale_down_window_seconds": 0.0, "scale_up_factor": 1000.0}
    scaler = HorizontalPodAutoscaler(AutoscalerConfig(**{**defaults, **settings}))  # type: ignore[arg-type]
    # The number of replicas at the first decision counts as a recommendation of that instant.
    scaler.decide(snapshot_of([TARGET], seconds=-1.0))
    return scaler


@pytest.mark.parametrize(
    ("running", "wanted"),
    [
        ([0.5], 1),
        ([0.5, 0.5, 0.5], 3),
        ([1.0], 2),
        ([1.0, 1.0, 1.0], 6),
        ([0.625, 0.625], 3),
        ([1.5, 0.0], 3),
        ([0.25, 0.25, 0.25], 2),
        ([0.0625, 0.0625, 0.0625, 0.0625], 1),
        ([0.0, 0.0], 1),
    ],
)
def test_desired_is_the_ceiling_of_current_times_usage_over_target(running: list[float], wanted: int) -> None:
    actions = immediate().decide(snapshot_of(running))
    assert change(actions) == wanted - len(running)


@given(st.integers(1, 10), st.floats(0.0, 8.0), st.sampled_from([0.5, 0.8, 1.0, 2.0]))
def test_the_formula(current: int, usage: float, target: float) -> None:
    usage = float(np.float32(usage))
    ratio = usage / target
    if abs(abs(ratio - 1) - 0.1) < 1e-6 or abs(current * ratio - round(current * ratio)) < 1e-5:
        return
    wanted = current if abs(ratio - 1) <= 0.1 else max(1, int(np.ceil(current * ratio)))
    memory = (100 * REPLICA_BYTES,) * 4
    scaler = immediate(target_utilisation=target)
    assert change(scaler.decide(snapshot_of([usage] * current, node_memory_bytes=memory))) == wanted - current


@pytest.mark.parametrize("running", [0.456, 0.544])
def test_within_the_tolerance_nothing_changes(running: float) -> None:
    assert immediate().decide(snapshot_of([running] * 20)) == []


def test_a_service_without_an_edge_replica_gets_one() -> None:
    assert immediate().decide(snapshot_of([]))[0].service == 0  # type: ignore[union-attr]
    actions = immediate(minimum_replicas=3).decide(snapshot_of([0.5]))
    assert change(actions) == 2


def test_growth_is_limited_to_doubling_or_four_more() -> None:
    memory = (100 * REPLICA_BYTES,) * 4
    scaler = HorizontalPodAutoscaler(AutoscalerConfig(target_utilisation=TARGET))
    assert change(scaler.decide(snapshot_of([50.0] * 2, node_memory_bytes=memory))) == 4
    scaler = HorizontalPodAutoscaler(AutoscalerConfig(target_utilisation=TARGET))
    assert change(scaler.decide(snapshot_of([50.0] * 7, node_memory_bytes=memory))) == 7


def test_starting_replicas_damp_a_scale_up() -> None:
    """Ten running requests on one of four replicas; the three that start count as idle: five times the target."""
    running, state = [10.0, 0.0, 0.0, 0.0], [READY, STARTING, STARTING, STARTING]
    memory = (100 * REPLICA_BYTES,) * 4
    actions = immediate().decide(snapshot_of(running, state=state, node_memory_bytes=memory))
    assert change(actions) == 20 - 4
    assert immediate().decide(snapshot_of([1.0, 0.0], state=[READY, STARTING])) == []
    assert immediate().decide(snapshot_of([0.75, 0.0], state=[READY, STARTING])) == []


def test_nothing_is_known_while_no_replica_is_ready() -> None:
    assert immediate().decide(snapshot_of([0.0, 0.0], state=[STARTING, STARTING])) == []


def test_draining_replicas_do_not_count() -> None:
    actions = immediate().decide(snapshot_of([1.0, 9.0], state=[READY, DRAINING]))
    assert change(actions) == 1


def test_scale_down_waits_for_the_highest_recommendation_of_five_minutes() -> None:
    scaler = HorizontalPodAutoscaler(AutoscalerConfig(target_utilisation=TARGET))
    current = 4
    history: list[int] = []
    for step in range(50):
        usage = 0.5 if step < 3 else 0.25 if step < 12 else 0.01
        actions = scaler.decide(snapshot_of([usage] * current, seconds=step * SYNC_SECONDS))
        current += change(actions)
        history.append(current)
    # Four are wanted until step 2, two until step 11, then one; five minutes are 20 steps.
    assert history == [4] * 23 + [2] * 9 + [1] * 18


def test_a_scale_up_does_not_wait() -> None:
    scaler = HorizontalPodAutoscaler(AutoscalerConfig(target_utilisation=TARGET))
    scaler.decide(snapshot_of([0.0625]))
    assert change(scaler.decide(snapshot_of([1.5], seconds=SYNC_SECONDS))) == 2


def test_usage_is_an_average_over_the_samples_since_the_last_decision() -> None:
    scaler = immediate()
    scaler.observe(snapshot_of([3.75]))
    scaler.observe(snapshot_of([0.0]))
    assert change(scaler.decide(snapshot_of([0.0]))) == 2
    assert change(scaler.decide(snapshot_of([0.5]))) == 0


def test_starting_replicas_go_first_then_the_youngest() -> None:
    state = [READY, STARTING, READY, READY]
    actions = immediate().decide(snapshot_of([0.125, 0.0, 0.125, 0.125], state=state))
    assert actions == [DeleteReplica(1), DeleteReplica(3), DeleteReplica(2)]


def test_replicas_spread_over_nodes_before_they_share_one() -> None:
    actions = immediate().decide(snapshot_of([2.5], nodes=[2]))
    assert [action.node for action in actions if isinstance(action, AddReplica)] == [0, 1, 3, 0]


def test_the_least_allocated_node_is_chosen() -> None:
    """Memory and CPU weigh the same, as shares of the node."""
    memory = (10 * REPLICA_BYTES, 20 * REPLICA_BYTES, 10 * REPLICA_BYTES, 10 * REPLICA_BYTES)
    actions = immediate().decide(snapshot_of([1.0], nodes=[3], node_memory_bytes=memory))
    assert actions == [AddReplica(0, 1)]
    millicores = (2000.0, 2000.0, 4000.0, 2000.0)
    actions = immediate().decide(snapshot_of([1.0], nodes=[3], node_millicores=millicores))
    assert actions == [AddReplica(0, 2)]


def test_additions_of_one_decision_know_of_each_other() -> None:
    """Room for three replicas in all: what doesn't fit isn't asked for."""
    memory = (2 * REPLICA_BYTES, 1.5 * REPLICA_BYTES, 0.5 * REPLICA_BYTES, 0.5 * REPLICA_BYTES)
    empty = snapshot_of([], services=5, node_memory_bytes=memory)
    actions = immediate().decide(empty)
    assert sorted(action.node for action in actions if isinstance(action, AddReplica)) == [0, 0, 1]


def test_nodes_with_less_cpu_than_a_request_and_the_cloud_are_never_chosen() -> None:
    actions = immediate().decide(snapshot_of([5.0], node_millicores=(100.0, 2000.0, 100.0, 100.0)))
    assert {action.node for action in actions if isinstance(action, AddReplica)} == {1}


def test_services_and_systems_are_scaled_apart() -> None:
    one = snapshot_of([1.0, 0.5], service=[0, 1], services=2)
    other = snapshot_of([0.5, 1.0], service=[0, 1], services=2)
    scaler = HorizontalPodAutoscaler(AutoscalerConfig(target_utilisation=TARGET))
    actions = scaler.decide(disjoint_union([one, other]))
    assert [(action.service, action.node // 5) for action in actions if isinstance(action, AddReplica)] == [
        (0, 0),
        (1, 1),
    ]


def test_on_a_simulated_system_every_action_is_carried_out() -> None:
    simulator = build_simulator([Scenario(preset="testbed-40", seed=3, load=0.8, pattern=Pattern.P1)], 40.0)
    environment = DispatchEnvironment(simulator, random=np.random.default_rng(0))
    scaler = HorizontalPodAutoscaler(AutoscalerConfig(scale_down_window_seconds=15.0))
    added = deleted = 0
    while not simulator.done:
        snapshot = simulator.snapshot()
        if simulator.slot % 60 == 0:
            actions = scaler.decide(snapshot)
            assert all(result.accepted for result in simulator.apply(actions, snapshot.topology))
            added += sum(isinstance(action, AddReplica) for action in actions)
            deleted += sum(isinstance(action, DeleteReplica) for action in actions)
        else:
            scaler.observe(snapshot)
        environment.step(RoundRobin())
    assert added
    assert deleted
    topology = simulator.topology
    edge = ~topology.access_points.is_cloud[topology.nodes.access_point[topology.replicas.node]]
    assert set(topology.replicas.service[edge].tolist()) == set(range(30))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("target_utilisation", 0.0),
        ("tolerance", -0.1),
        ("minimum_replicas", -1),
        ("scale_down_window_seconds", float("nan")),
        ("scale_up_replicas", -1),
        ("scale_up_factor", 0.5),
    ],
)
def test_configuration_is_checked(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{field}: {value}; must be"):
        AutoscalerConfig(**{field: value})  # type: ignore[arg-type]
