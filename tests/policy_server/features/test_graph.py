"""Features of orchestration against plain loops, in any order of rows and in any company."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.cluster.snapshot import (
    Links,
    Replicas,
    ReplicaState,
    Snapshot,
    disjoint_union,
    idle_load,
)
from policy_server.features.graph import OrchestrationGraph, encoder_inputs
from policy_server.features.orchestration_schema import ORCHESTRATION_SCHEMA
from policy_server.runtime.graph_contract import ENCODER, HEAD, orchestration_signatures
from tests.support.systems import (
    GIBIBYTE,
    example_snapshot,
    example_topology,
    random_order,
    reordered,
    snapshots,
    systems_of_same_services,
)

DEMAND, PAIR = len(ORCHESTRATION_SCHEMA.demand), len(ORCHESTRATION_SCHEMA.pair)


class Reference:
    """The formulas of the module, one row at a time, of a single system."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.topology, self.load = snapshot.topology, snapshot.load
        self.replicas = range(len(self.topology.replicas.endpoints))
        self.nodes = range(len(self.topology.nodes.names))
        self.access_points = range(len(self.topology.access_points.names))

    def is_edge(self, node: int) -> bool:
        return not self.topology.access_points.is_cloud[self.topology.nodes.access_point[node]]

    def node_of(self, replica: int) -> int:
        return int(self.topology.replicas.node[replica])

    def live(self, replica: int) -> bool:
        return bool(self.load.replica_state[replica] != ReplicaState.DRAINING)

    def ready(self, replica: int) -> bool:
        return bool(self.load.replica_state[replica] == ReplicaState.READY)

    def starting(self, replica: int) -> bool:
        return bool(self.load.replica_state[replica] == ReplicaState.STARTING)

    def idle(self, replica: int) -> bool:
        return (
            self.live(replica) and self.load.replica_queued[replica] + self.load.replica_running[replica] == 0
        )

    def cpu_seconds(self, service: int) -> float:
        services = self.topology.services
        return float(services.cpu_millicores[service]) * float(services.execution_seconds[service])

    def demand(self, access_point: int, service: int) -> float:
        return float(self.load.arrival_rate_per_second[access_point, service]) * self.cpu_seconds(service)

    def at(self, access_point: int | None, service: int) -> list[int]:
        """Replicas of a service at an access point, or of the whole system."""
        replicas = self.topology.replicas
        return [
            row
            for row in self.replicas
            if replicas.service[row] == service
            and access_point in (None, self.topology.nodes.access_point[self.node_of(row)])
        ]

    def capacity(self, replica: int) -> float:
        nodes, node = self.topology.nodes, self.node_of(replica)
        sharing = sum(self.live(other) for other in self.replicas if self.node_of(other) == node)
        return float(nodes.cpu_millicores[node]) * float(nodes.speed[node]) / sharing

    def waiting(self, rows: list[int]) -> float:
        services = self.topology.replicas.service
        return sum(
            float(self.load.replica_queued[row]) * self.cpu_seconds(int(services[row])) for row in rows
        )

    def cpu_of(self, access_point: int | None) -> float:
        """Of an access point's nodes, or of the edge."""
        nodes = self.topology.nodes
        chosen = [
            n
            for n in self.nodes
            if (self.is_edge(n) if access_point is None else nodes.access_point[n] == access_point)
        ]
        return max(1.0, sum(float(nodes.cpu_millicores[n]) for n in chosen))

    def cloud_slack(self, access_point: int, service: int) -> float:
        services, links = self.topology.services, self.topology.links
        execution, deadline = (
            float(services.execution_seconds[service]),
            float(services.deadline_seconds[service]),
        )
        if self.topology.access_points.is_cloud[access_point]:
            return max(-1.0, 1 - execution / deadline)
        for source, target, delay in zip(links.source, links.target, links.delay_seconds, strict=True):
            if source == access_point and self.topology.access_points.is_cloud[target]:
                return max(-1.0, 1 - (2 * float(delay) + execution) / deadline)
        return -1.0

    def demand_row(self, access_point: int, service: int) -> list[float]:
        here, everywhere = self.at(access_point, service), self.at(None, service)
        edge = [row for row in everywhere if self.is_edge(self.node_of(row))]
        own_demand = self.demand(access_point, service)
        all_demand = sum(self.demand(other, service) for other in self.access_points)
        services = self.topology.services
        return [
            own_demand / self.cpu_of(access_point),
            pressure(own_demand, sum(self.capacity(row) for row in here if self.ready(row))),
            all_demand / self.cpu_of(None),
            pressure(all_demand, sum(self.capacity(row) for row in edge if self.ready(row))),
            self.waiting(here) / self.cpu_of(access_point),
            self.waiting(everywhere) / self.cpu_of(None),
            math.log1p(sum(map(self.ready, here))),
            math.log1p(sum(map(self.starting, here))),
            math.log1p(sum(map(self.ready, edge))),
            math.log1p(sum(self.ready(row) for row in everywhere if row not in edge)),
            float(services.cpu_millicores[service]) / 1000,
            float(services.memory_bytes[service]) / GIBIBYTE,
            float(services.execution_seconds[service]),
            float(services.deadline_seconds[service]),
            self.cloud_slack(access_point, service),
        ]

    def pull_seconds(self, node: int, service: int) -> float:
        links = self.topology.links
        for row, (source, target) in enumerate(zip(links.source, links.target, strict=True)):
            if (
                target == self.topology.nodes.access_point[node]
                and self.topology.access_points.is_cloud[source]
            ):
                image = float(self.topology.services.image_bytes[service]) + float(
                    self.load.link_backlog_bytes[row]
                )
                return image / float(links.bandwidth_bytes_per_second[row]) + float(links.delay_seconds[row])
        return 0.0

    def pair_row(self, node: int, service: int) -> list[float]:
        here = [row for row in self.at(None, service) if self.node_of(row) == node]
        nodes, services = self.topology.nodes, self.topology.services
        cpu, memory = float(nodes.cpu_millicores[node]), float(nodes.memory_bytes[node])
        needed = float(services.memory_bytes[service])
        hosted = sum(map(self.live, here))
        execution = float(services.execution_seconds[service]) / float(nodes.speed[node])
        start = float(services.cold_start_seconds[service])
        return [
            *self.demand_row(int(nodes.access_point[node]), service),
            math.log1p(hosted),
            math.log1p(sum(map(self.starting, here))),
            math.log1p(sum(map(self.idle, here))),
            self.waiting(here) / cpu,
            float(services.cpu_millicores[service]) / cpu,
            needed / memory,
            max(-1.0, (memory - float(self.load.node_memory_used_bytes[node]) - needed) / memory),
            min(10.0, execution / float(services.deadline_seconds[service])),
            math.log1p(start if hosted else start + self.pull_seconds(node, service)),
        ]


def pressure(demand: float, capacity: float) -> float:
    return demand / (demand + capacity) if demand else 0.0


@given(snapshots())
def test_demand_features_follow_the_formulas(snapshot: Snapshot) -> None:
    reference = Reference(snapshot)
    expected = [
        reference.demand_row(access_point, service)
        for access_point in reference.access_points
        for service in range(len(snapshot.topology.services.names))
    ]
    features = OrchestrationGraph.of(snapshot).demand_features
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, expected, rtol=2e-5, atol=1e-6)


@given(snapshots(), st.data())
def test_pair_features_follow_the_formulas(snapshot: Snapshot, data: st.DataObject) -> None:
    reference = Reference(snapshot)
    nodes = data.draw(st.lists(st.sampled_from(list(reference.nodes)), min_size=1, max_size=4, unique=True))
    expected = [
        reference.pair_row(node, service)
        for node in nodes
        for service in range(len(snapshot.topology.services.names))
    ]
    features = OrchestrationGraph.of(snapshot).pair_features(np.array(nodes, np.int64))
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, expected, rtol=2e-5, atol=1e-6)


@given(snapshots())
def test_node_features_add_counts_to_those_of_dispatch(snapshot: Snapshot) -> None:
    reference = Reference(snapshot)
    graph = OrchestrationGraph.of(snapshot)
    draining = [row for row in reference.replicas if not reference.live(row)]
    for node in reference.nodes:
        here = [row for row in reference.replicas if reference.node_of(row) == node]
        left = snapshot.topology.nodes.memory_bytes[node] - snapshot.load.node_memory_used_bytes[node]
        expected = [
            left / GIBIBYTE,
            math.log1p(sum(map(reference.live, here))),
            math.log1p(sum(map(reference.starting, here))),
            math.log1p(sum(row in draining for row in here)),
            math.log1p(sum(map(reference.idle, here))),
        ]
        row = graph.node_features[node]
        np.testing.assert_array_equal(row[: -len(expected)], graph.table.node_features[node])
        np.testing.assert_allclose(row[-len(expected) :], expected, rtol=1e-5, atol=1e-6)


@given(snapshots(), st.integers(0, 2**16))
def test_features_move_with_their_rows(snapshot: Snapshot, seed: int) -> None:
    order = random_order(snapshot.topology, seed)
    graph, other = OrchestrationGraph.of(snapshot), OrchestrationGraph.of(reordered(snapshot, order))
    services = len(order.services)
    np.testing.assert_allclose(other.node_features, graph.node_features[order.nodes], rtol=1e-5, atol=1e-6)
    demand = graph.demand_features.reshape(-1, services, DEMAND)[order.access_points][:, order.services]
    np.testing.assert_allclose(other.demand_features, demand.reshape(-1, DEMAND), rtol=1e-5, atol=1e-6)
    nodes = np.arange(len(order.nodes))
    pairs = graph.pair_features(order.nodes).reshape(-1, services, DEMAND + PAIR)[:, order.services]
    np.testing.assert_allclose(
        other.pair_features(nodes), pairs.reshape(-1, DEMAND + PAIR), rtol=1e-5, atol=1e-6
    )


@given(systems_of_same_services())
def test_a_union_is_its_members(systems: list[Snapshot]) -> None:
    graphs = [OrchestrationGraph.of(system) for system in systems]
    united = encoder_inputs([OrchestrationGraph.of(disjoint_union(systems))])
    batched = encoder_inputs(graphs)
    assert united.keys() == batched.keys()
    for name, rows in batched.items():
        np.testing.assert_allclose(united[name], rows, rtol=1e-6, atol=1e-7, err_msg=name)


def test_systems_of_different_services_form_one_batch() -> None:
    systems = [example_snapshot(example_topology(services=count, seed=count)) for count in (2, 5)]
    inputs = encoder_inputs([OrchestrationGraph.of(system) for system in systems])
    orchestration_signatures(8)[ENCODER].check_inputs(inputs)
    access_points = [len(system.topology.access_points.names) for system in systems]
    assert len(inputs["demand_features"]) == 2 * access_points[0] + 5 * access_points[1]
    assert inputs["demand_access_point"].max() == sum(access_points) - 1
    assert inputs["access_point_system"].tolist() == [0] * access_points[0] + [1] * access_points[1]


def test_widths_are_those_of_the_graph_contract() -> None:
    graph = OrchestrationGraph.of(example_snapshot(example_topology()))
    orchestration_signatures(8)[ENCODER].check_inputs(encoder_inputs([graph]))
    pairs = next(t for t in orchestration_signatures(8)[HEAD].inputs if t.name == "pair_features")
    assert graph.pair_features(np.array([0, 2])).shape == (2 * graph.services, pairs.shape[1])


@pytest.mark.parametrize("part", ["links", "replicas", "load", "everything"])
def test_what_is_missing_leaves_finite_features(part: str) -> None:
    topology = example_topology(nodes=1, access_points=1, services=2)
    no_rows, no_figures = np.zeros(0, np.int32), np.zeros(0, np.float32)
    if part in ("links", "everything"):
        topology = replace(topology, links=Links(no_rows, no_rows, no_figures, no_figures))
    if part in ("replicas", "everything"):
        topology = replace(topology, replicas=Replicas((), no_rows, no_rows, no_rows))
    graph = OrchestrationGraph.of(Snapshot(topology, idle_load(topology)))
    inputs = encoder_inputs([graph])
    assert all(np.isfinite(rows).all() for rows in inputs.values())
    assert np.isfinite(graph.pair_features(np.array([0, 1]))).all()


def test_a_load_report_reuses_what_the_topology_decides() -> None:
    topology = example_topology()
    first = OrchestrationGraph.of(example_snapshot(topology, 1))
    second = OrchestrationGraph.of(example_snapshot(topology, 2), first)
    assert second.topology is first.topology
    assert (
        OrchestrationGraph.of(example_snapshot(example_topology(), 2), first).topology is not first.topology
    )
