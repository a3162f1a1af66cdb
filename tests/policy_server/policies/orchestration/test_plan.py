"""The mask against a plain reading of its rules; the memory of a frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.cluster.actions import AddReplica, DeleteReplica
from policy_server.cluster.snapshot import (
    BoolArray,
    Replicas,
    ReplicaState,
    Snapshot,
    Topology,
    disjoint_union,
    idle_load,
)
from policy_server.policies.orchestration.memory import FrameMemory
from policy_server.policies.orchestration.plan import FramePlan, OrchestrationOptions, PlannedAction
from tests.support.orchestrating import assert_feasible, crowded_snapshots, option_sets, query_of
from tests.support.systems import (
    Endpoint,
    example_snapshot,
    example_topology,
    one_service_snapshot,
    systems_of_same_services,
)


def expected_mask(
    snapshot: Snapshot, options: OrchestrationOptions, actions: Sequence[PlannedAction] = ()
) -> BoolArray:
    """bool [N, 2W + 1] of a plan with some actions on one system, by the rules as they are written."""
    topology, load = snapshot.topology, snapshot.load
    nodes, services, replicas = topology.nodes, topology.services, topology.replicas
    width, rows = len(services.names), range(len(replicas.endpoints))
    mask = np.zeros((len(nodes.names), 2 * width + 1), bool)
    mask[:, width] = True
    if options.maximum_actions is not None and len(actions) >= options.maximum_actions:
        return mask
    added = [(done.node, done.service) for done in actions if isinstance(done.action, AddReplica)]
    gone = [done.action.replica for done in actions if isinstance(done.action, DeleteReplica)]
    touched = [(done.node, done.service) for done in actions]
    clouds = [row for row, cloud in enumerate(topology.access_points.is_cloud) if cloud]
    for node in range(len(nodes.names)):
        if nodes.access_point[node] in clouds:
            continue
        here = [row for row in rows if replicas.node[row] == node]
        held = max(
            float(load.node_memory_used_bytes[node]),
            sum(float(services.memory_bytes[replicas.service[row]]) for row in here),
        ) + sum(float(services.memory_bytes[service]) for where, service in added if where == node)
        cpu = float(load.node_cpu_used_millicores[node]) + sum(
            float(services.cpu_millicores[service]) for where, service in added if where == node
        )
        linked = any(
            source in clouds and target == nodes.access_point[node]
            for source, target in zip(topology.links.source, topology.links.target, strict=True)
        )
        for service in range(width):
            live = [
                row
                for row in rows
                if replicas.service[row] == service
                and load.replica_state[row] != ReplicaState.DRAINING
                and row not in gone
            ]
            ready = [row for row in live if load.replica_state[row] == ReplicaState.READY]
            own = [row for row in live if row in here]
            mask[node, width + 1 + service] = (
                held + float(services.memory_bytes[service]) <= float(nodes.memory_bytes[node])
                and cpu + float(services.cpu_millicores[service]) <= float(nodes.cpu_millicores[node])
                and bool(own or linked or not clouds)
                and (node, service) not in touched
            )
            mask[node, service] = (
                service not in options.protected_services
                and (node, service) not in added
                and len(live) >= 2
                and any(row not in ready or len(ready) >= 2 for row in own)
            )
    return mask


@given(crowded_snapshots(), st.data())
def test_mask_is_what_the_rules_say(snapshot: Snapshot, data: st.DataObject) -> None:
    options = data.draw(option_sets(len(snapshot.topology.services.names)))
    plan = FramePlan(query_of(snapshot, options))
    nodes = np.arange(len(snapshot.topology.nodes.names))
    expected = expected_mask(snapshot, options)
    np.testing.assert_array_equal(plan.mask(nodes), expected)
    width = len(snapshot.topology.services.names)
    np.testing.assert_array_equal(plan.actionable(), np.delete(expected, width, axis=1).any(axis=1))


@given(crowded_snapshots(), st.data())
def test_whatever_is_chosen_from_the_mask_is_feasible_together(
    snapshot: Snapshot, data: st.DataObject
) -> None:
    options = data.draw(option_sets(len(snapshot.topology.services.names)))
    plan = FramePlan(query_of(snapshot, options))
    random = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    for _ in range(12):
        node = int(random.integers(len(snapshot.topology.nodes.names)))
        choice = int(random.choice(np.flatnonzero(plan.mask(np.array([node]))[0])))
        assert plan.choose(node, choice)
    assert_feasible(snapshot, options, plan.actions)


@given(crowded_snapshots(), st.data())
def test_mask_after_actions_is_what_the_rules_say(snapshot: Snapshot, data: st.DataObject) -> None:
    options = data.draw(option_sets(len(snapshot.topology.services.names)))
    plan = FramePlan(query_of(snapshot, options))
    random = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    nodes = np.arange(len(snapshot.topology.nodes.names))
    for _ in range(8):
        node, width = int(random.choice(nodes)), plan.graph.services
        feasible = np.flatnonzero(plan.mask(np.array([node]))[0])
        something = feasible[feasible != width]
        if len(something):
            assert plan.choose(node, int(random.choice(something)))
        np.testing.assert_array_equal(plan.mask(nodes), expected_mask(snapshot, options, plan.actions))


@given(crowded_snapshots(), st.data())
def test_what_the_mask_forbids_is_refused(snapshot: Snapshot, data: st.DataObject) -> None:
    options = data.draw(option_sets(len(snapshot.topology.services.names)))
    plan = FramePlan(query_of(snapshot, options))
    random = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    for node in random.integers(len(snapshot.topology.nodes.names), size=3).tolist():
        plan.choose(node, int(random.choice(np.flatnonzero(plan.mask(np.array([node]))[0]))))
    before = list(plan.actions)
    node = data.draw(st.integers(0, len(snapshot.topology.nodes.names) - 1))
    for choice in np.flatnonzero(~plan.mask(np.array([node]))[0]).tolist():
        assert not plan.choose(node, choice)
    assert plan.actions == before


@given(crowded_snapshots(), st.integers(0, 2**16))
def test_answers_of_one_frame_are_feasible_together(snapshot: Snapshot, seed: int) -> None:
    random, memory, actions = np.random.default_rng(seed), FrameMemory(), []
    for _ in range(4):
        plan = FramePlan(query_of(snapshot, memory=memory))
        for _ in range(2):
            node = int(random.integers(len(snapshot.topology.nodes.names)))
            plan.choose(node, int(random.choice(np.flatnonzero(plan.mask(np.array([node]))[0]))))
        memory.record(plan.given_actions(100.0), 100.0)
        actions += plan.actions
    assert_feasible(snapshot, OrchestrationOptions(), actions)


@given(systems_of_same_services(), st.integers(0, 2**16))
def test_systems_of_a_union_do_not_share_replicas(systems: list[Snapshot], seed: int) -> None:
    united = FramePlan(query_of(disjoint_union(systems)))
    alone = [FramePlan(query_of(system)) for system in systems]
    first = 0
    for plan, system in zip(alone, systems, strict=True):
        count = len(system.topology.nodes.names)
        nodes = np.arange(count)
        np.testing.assert_array_equal(united.mask(first + nodes), plan.mask(nodes))
        first += count


def two_replicas(**second: object) -> Snapshot:
    return one_service_snapshot([Endpoint(), Endpoint(**second)])  # type: ignore[arg-type]


class TestDeletion:
    def test_the_last_replica_stays(self) -> None:
        plan = FramePlan(query_of(one_service_snapshot([Endpoint()])))
        assert not plan.delete(0)

    def test_one_of_two_may_go_and_then_none(self) -> None:
        plan = FramePlan(query_of(two_replicas()))
        assert plan.delete(1)
        assert not plan.delete(0)
        assert not plan.delete(1)
        assert plan.actions[0].replicas == 1

    def test_the_last_that_is_ready_stays_while_another_starts(self) -> None:
        plan = FramePlan(query_of(two_replicas(state=ReplicaState.STARTING)))
        assert not plan.delete(0)
        assert plan.delete(1)

    def test_one_that_drains_is_no_replica_that_remains(self) -> None:
        assert not FramePlan(query_of(two_replicas(state=ReplicaState.DRAINING))).delete(0)

    def test_a_busy_one_drains_first(self) -> None:
        plan = FramePlan(query_of(two_replicas(running=1.0)))
        assert plan.delete(1)
        assert plan.actions[0].drain_first

    def test_requests_on_their_way_make_it_busy(self) -> None:
        query = replace(query_of(two_replicas()), pending_requests=np.array([0, 1], np.float32))
        plan = FramePlan(query)
        assert plan.delete(1)
        assert plan.actions[0].drain_first

    def test_a_protected_service_loses_none(self) -> None:
        options = OrchestrationOptions(protected_services=np.array([0]))
        plan = FramePlan(query_of(two_replicas(), options))
        assert not plan.delete(1)
        assert not plan.delete_from(1, 0)

    def test_the_least_missed_goes(self) -> None:
        snapshot = one_service_snapshot(
            [Endpoint(running=2), Endpoint(), Endpoint(state=ReplicaState.STARTING), Endpoint(), Endpoint()]
        )
        replicas = snapshot.topology.replicas
        on_one_node = replace(replicas, node=np.array([0, 0, 0, 0, 1], np.int32))
        snapshot = replace(snapshot, topology=replace(snapshot.topology, replicas=on_one_node))
        plan = FramePlan(query_of(snapshot))
        while plan.delete_from(0, 0):
            pass
        rows = [action.action.replica for action in plan.actions if isinstance(action.action, DeleteReplica)]
        # Starting, then idle with the youngest first, then busy.
        assert rows == [2, 3, 1, 0]


class TestAddition:
    def test_an_image_that_cannot_be_pulled_is_no_replica(self) -> None:
        topology = example_topology(nodes=3, access_points=1, services=2, link_probability=0.0)
        assert not FramePlan(query_of(Snapshot(topology, idle_load(topology)))).additions(np.arange(3)).all()

    def test_a_system_without_a_cloud_gets_images_from_elsewhere(self) -> None:
        topology = example_topology(nodes=3, access_points=1, services=2, link_probability=0.0)
        access_points = replace(topology.access_points, is_cloud=np.zeros(2, bool))
        everywhere = replace(topology, access_points=access_points)
        assert FramePlan(query_of(Snapshot(everywhere, idle_load(everywhere)))).additions(np.arange(3)).all()

    def test_memory_of_replicas_counts_where_none_is_reported(self) -> None:
        snapshot = example_snapshot(example_topology())
        node = int(snapshot.topology.replicas.node[0])
        nothing = np.zeros_like(snapshot.load.node_memory_used_bytes)
        unreported = replace(snapshot, load=replace(snapshot.load, node_memory_used_bytes=nothing))
        assert FramePlan(query_of(unreported)).free_memory_share(np.array([node]))[0] < 1


class TestMemory:
    def given_twice(self, snapshot: Snapshot, then: Snapshot, **memory: float) -> FramePlan:
        """A plan for ``then``, in a frame in which a replica of service 0 was added to node 1 of ``snapshot``."""
        remembered = FrameMemory(**memory)
        plan = FramePlan(query_of(snapshot, memory=remembered))
        assert plan.add(1, 0)
        remembered.record(plan.given_actions(100.0), 100.0)
        return FramePlan(query_of(then, memory=remembered))

    def test_an_addition_is_not_repeated_and_its_room_is_taken(self) -> None:
        snapshot = two_replicas()
        plan = self.given_twice(snapshot, snapshot)
        assert not plan.add(1, 0)
        assert (
            plan.free_memory_share(np.array([1]))[0]
            < FramePlan(query_of(snapshot)).free_memory_share(np.array([1]))[0]
        )
        assert plan.pending.tolist() == [[1]]

    def test_an_addition_that_the_snapshot_shows_takes_no_room_twice(self) -> None:
        snapshot = two_replicas()
        shown = with_third_replica(snapshot, node=1)
        plan = self.given_twice(snapshot, shown)
        assert not plan.add(1, 0)
        assert plan.pending.tolist() == [[0]]
        np.testing.assert_array_equal(
            plan.free_memory_share(np.array([1])), FramePlan(query_of(shown)).free_memory_share(np.array([1]))
        )

    def test_what_was_added_in_this_frame_is_not_deleted(self) -> None:
        snapshot = two_replicas()
        assert not self.given_twice(snapshot, with_third_replica(snapshot, node=1)).delete_from(1, 0)

    def test_the_next_frame_starts_afresh(self) -> None:
        snapshot = two_replicas()
        later = replace(snapshot, taken_at_seconds=126.0)
        assert self.given_twice(snapshot, later, frame_seconds=25.0).add(1, 0)

    def test_a_deletion_counts_until_it_shows(self) -> None:
        memory = FrameMemory()
        snapshot = one_service_snapshot([Endpoint()] * 3)
        plan = FramePlan(query_of(snapshot, memory=memory))
        assert plan.delete(0)
        memory.record(plan.given_actions(100.0), 100.0)
        again = FramePlan(query_of(snapshot, memory=memory))
        assert again.pending.tolist() == [[-1]]
        assert not again.delete(0)
        assert again.delete(1)
        assert not again.delete(2)

    def test_names_that_are_gone_are_passed_over(self) -> None:
        snapshot = two_replicas()
        renamed = replace(
            snapshot.topology, nodes=replace(snapshot.topology.nodes, names=("other-0", "other-1"))
        )
        assert self.given_twice(snapshot, replace(snapshot, topology=renamed)).add(1, 0)

    def test_what_was_not_given_after_all_is_forgotten(self) -> None:
        memory = FrameMemory()
        plan = FramePlan(query_of(two_replicas(), memory=memory))
        assert plan.add(1, 0)
        given_actions = plan.given_actions(100.0)
        memory.record(given_actions, 100.0)
        memory.forget(given_actions)
        assert memory.given(100.0) == []

    def test_a_copy_is_written_to_alone(self) -> None:
        memory = FrameMemory()
        memory.of_rules["rule"] = [1]
        copied = memory.copy()
        copied.of_rules["rule"].append(2)
        plan = FramePlan(query_of(two_replicas(), memory=memory))
        assert plan.add(0, 0)
        copied.record(plan.given_actions(100.0), 100.0)
        assert memory.of_rules == {"rule": [1]}
        assert memory.given(100.0) == []


def with_third_replica(snapshot: Snapshot, node: int) -> Snapshot:
    """The same system after a replica was started on a node."""
    topology = snapshot.topology
    replicas = topology.replicas
    grown = Topology(
        topology.access_points,
        topology.nodes,
        topology.services,
        Replicas(
            endpoints=(*replicas.endpoints, "new:8080"),
            service=np.append(replicas.service, 0).astype(np.int32),
            node=np.append(replicas.node, node).astype(np.int32),
            concurrency=np.append(replicas.concurrency, 4).astype(np.int32),
        ),
        topology.links,
    )
    return Snapshot(grown, idle_load(grown), taken_at_seconds=snapshot.taken_at_seconds)


@pytest.mark.parametrize(
    ("options", "most"),
    [
        (OrchestrationOptions(maximum_actions=1), 1),
        (OrchestrationOptions(maximum_actions=3), 3),
        (OrchestrationOptions(ceiling=2), 2),
        (OrchestrationOptions(maximum_actions=3, ceiling=2), 2),
    ],
)
def test_no_system_gets_more_than_it_may(options: OrchestrationOptions, most: int) -> None:
    united = disjoint_union([example_snapshot(example_topology(seed=seed), seed) for seed in (1, 1)])
    plan = FramePlan(query_of(united, options))
    for node in range(len(united.topology.nodes.names)):
        for service in range(plan.graph.services):
            plan.add(node, service)
    per_system = np.bincount([plan.graph.topology.node_system[planned.node] for planned in plan.actions])
    assert per_system.tolist() == [most, most]
    assert not plan.may_act(0)
    assert all(isinstance(planned.action, AddReplica) for planned in plan.actions)
