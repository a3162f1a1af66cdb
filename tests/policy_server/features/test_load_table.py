"""Every feature of nodes, access points, links and replicas against a loop over the documented formula."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from policy_server.cluster.snapshot import (
    Nodes,
    Replicas,
    ReplicaState,
    Snapshot,
    Topology,
    disjoint_union,
    idle_load,
)
from policy_server.features.load_table import LoadTable, TopologyTable
from policy_server.features.schema import SCHEMA
from tests.support.systems import (
    GIBIBYTE,
    example_snapshot,
    example_topology,
    random_order,
    reordered,
    snapshots,
    systems_of_same_services,
)


def without_nodes(topology: Topology) -> Snapshot:
    rows, figures = np.zeros(0, np.int32), np.zeros(0, np.float32)
    empty = replace(
        topology,
        nodes=Nodes((), rows, figures, figures, figures),
        replicas=Replicas((), rows, rows, rows),
    )
    return Snapshot(empty, idle_load(empty))


def table_of(snapshot: Snapshot) -> LoadTable:
    return LoadTable(snapshot, TopologyTable(snapshot.topology))


class Reference:
    """The formulas, one replica at a time."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.topology, self.load = snapshot.topology, snapshot.load
        self.replicas = range(len(self.topology.replicas.endpoints))

    def node_of(self, replica: int) -> int:
        return int(self.topology.replicas.node[replica])

    def service_of(self, replica: int) -> int:
        return int(self.topology.replicas.service[replica])

    def system_of_node(self, node: int) -> int:
        return int(self.topology.access_points.system[self.topology.nodes.access_point[node]])

    def execution_seconds(self, replica: int) -> float:
        execution = self.topology.services.execution_seconds[self.service_of(replica)]
        return float(execution) / float(self.topology.nodes.speed[self.node_of(replica)])

    def cpu_fraction(self, replica: int) -> float:
        cpu = self.topology.services.cpu_millicores[self.service_of(replica)]
        return float(cpu) / float(self.topology.nodes.cpu_millicores[self.node_of(replica)])

    def outstanding(self, replica: int) -> float:
        return float(self.load.replica_queued[replica] + self.load.replica_running[replica])

    def on_node(self, node: int) -> list[int]:
        return [replica for replica in self.replicas if self.node_of(replica) == node]

    def committed(self, node: int) -> float:
        return sum(self.outstanding(r) * self.cpu_fraction(r) for r in self.on_node(node))

    def mean_execution_seconds(self, node: int) -> float:
        weights = [self.outstanding(r) * self.cpu_fraction(r) for r in self.on_node(node)]
        times = [self.execution_seconds(r) for r in self.on_node(node)]
        if sum(weights) == 0:
            return 0.0
        return sum(w * t for w, t in zip(weights, times, strict=True)) / sum(weights)

    def demand_millicores(self, system: int, service: int) -> float:
        entered = self.topology.access_points.system == system
        rate = float(self.load.arrival_rate_per_second[entered, service].sum())
        services = self.topology.services
        return rate * float(services.cpu_millicores[service]) * float(services.execution_seconds[service])

    def ready_replicas(self, system: int, service: int, *, edge_only: bool = False) -> list[int]:
        return [
            r
            for r in self.replicas
            if self.load.replica_state[r] == ReplicaState.READY
            and self.service_of(r) == service
            and self.system_of_node(self.node_of(r)) == system
            and not (edge_only and self.is_cloud(self.node_of(r)))
        ]

    def is_cloud(self, node: int) -> bool:
        return bool(self.topology.access_points.is_cloud[self.topology.nodes.access_point[node]])

    def expected_utilisation(self, node: int) -> float:
        demand = 0.0
        for replica in self.on_node(node):
            key = self.system_of_node(node), self.service_of(replica)
            if replica in self.ready_replicas(*key):
                demand += self.demand_millicores(*key) / len(self.ready_replicas(*key))
        return demand / float(self.topology.nodes.cpu_millicores[node])

    def node_features(self, node: int) -> list[float]:
        nodes, load = self.topology.nodes, self.load
        return [
            nodes.cpu_millicores[node] / 1000,
            nodes.memory_bytes[node] / GIBIBYTE,
            nodes.speed[node],
            load.node_cpu_used_millicores[node] / nodes.cpu_millicores[node],
            load.node_memory_used_bytes[node] / nodes.memory_bytes[node],
            self.committed(node),
            sum(load.replica_queued[r] * self.cpu_fraction(r) for r in self.on_node(node)),
            self.expected_utilisation(node),
            self.mean_execution_seconds(node),
            self.is_cloud(node),
        ]

    def access_point_features(self, access_point: int) -> list[float]:
        topology, load = self.topology, self.load
        own = np.flatnonzero(topology.nodes.access_point == access_point)
        capacity = float(topology.nodes.cpu_millicores[own].sum())
        services = topology.services
        demand = sum(
            float(load.arrival_rate_per_second[access_point, w])
            * float(services.cpu_millicores[w])
            * float(services.execution_seconds[w])
            for w in range(len(services.names))
        )
        to_cloud = [
            link
            for link in range(len(topology.links.source))
            if topology.links.source[link] == access_point
            and topology.access_points.is_cloud[topology.links.target[link]]
        ]
        return [
            load.access_point_queued[access_point],
            demand / capacity if capacity else 0.0,
            np.log1p(len(own)),
            sum(topology.links.delay_seconds[link] for link in to_cloud),
            sum(load.link_backlog_bytes[k] / topology.links.bandwidth_bytes_per_second[k] for k in to_cloud),
            topology.access_points.is_cloud[access_point],
        ]

    def link_features(self, link: int) -> list[float]:
        bandwidth = float(self.topology.links.bandwidth_bytes_per_second[link])
        delay = float(self.topology.links.delay_seconds[link])
        return [delay, 1e6 / bandwidth, float(self.load.link_backlog_bytes[link]) / bandwidth]

    def replica_features(self, replica: int) -> list[float]:
        system, service = self.system_of_node(self.node_of(replica)), self.service_of(replica)
        concurrency = int(self.topology.replicas.concurrency[replica])
        latency = float(self.load.replica_latency_seconds[replica])
        cpu_of_system = sum(
            float(self.topology.nodes.cpu_millicores[node])
            for node in range(len(self.topology.nodes.names))
            if self.system_of_node(node) == system
        )
        return [
            self.execution_seconds(replica),
            self.cpu_fraction(replica),
            self.outstanding(replica) / concurrency,
            np.log1p(concurrency),
            0.0 if np.isnan(latency) else latency,
            not np.isnan(latency),
            self.demand_millicores(system, service) / cpu_of_system,
            np.log1p(len(self.ready_replicas(system, service, edge_only=True))),
        ]


@given(snapshots())
def test_features_follow_their_formulas(snapshot: Snapshot) -> None:
    table, reference, topology = table_of(snapshot), Reference(snapshot), snapshot.topology
    for features, count, expected in (
        (table.node_features, len(topology.nodes.names), reference.node_features),
        (table.access_point_features, len(topology.access_points.names), reference.access_point_features),
        (table.link_features, len(topology.links.source), reference.link_features),
        (table.replica_features, len(topology.replicas.endpoints), reference.replica_features),
    ):
        assert len(features) == count
        for row in range(count):
            np.testing.assert_allclose(features[row], expected(row), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("group", ["node", "access_point", "link", "replica"])
def test_arrays_match_the_schema(group: str) -> None:
    features = getattr(table_of(example_snapshot(example_topology())), f"{group}_features")
    assert features.dtype == np.float32
    assert features.shape[1] == len(getattr(SCHEMA, group))


@given(snapshots())
def test_features_are_finite(snapshot: Snapshot) -> None:
    table = table_of(snapshot)
    for group in ("node", "access_point", "link", "replica"):
        assert np.isfinite(getattr(table, f"{group}_features")).all()


def test_an_idle_system_has_finite_features() -> None:
    topology = example_topology()
    table = table_of(Snapshot(topology, idle_load(topology, ready=False)))
    for group in ("node", "access_point", "link", "replica"):
        assert np.isfinite(getattr(table, f"{group}_features")).all()


@given(snapshots())
def test_features_move_with_their_rows(snapshot: Snapshot) -> None:
    order = random_order(snapshot.topology, seed=1)
    before, after = table_of(snapshot), table_of(reordered(snapshot, order))
    for group, permutation in (
        ("node", order.nodes),
        ("access_point", order.access_points),
        ("link", order.links),
        ("replica", order.replicas),
    ):
        name = f"{group}_features"
        np.testing.assert_allclose(getattr(after, name), getattr(before, name)[permutation], rtol=1e-5)


@given(systems_of_same_services())
def test_features_of_a_union_are_those_of_its_systems(systems: list[Snapshot]) -> None:
    union = table_of(disjoint_union(systems))
    for group in ("node", "access_point", "link", "replica"):
        name = f"{group}_features"
        separate = np.concatenate([getattr(table_of(system), name) for system in systems])
        np.testing.assert_allclose(getattr(union, name), separate, rtol=1e-5)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_system_without_nodes_harms_no_other(position: int) -> None:
    topology = example_topology()
    full = example_snapshot(topology)
    systems = [full, full]
    systems.insert(position, without_nodes(topology))
    features = table_of(disjoint_union(systems)).replica_features
    np.testing.assert_allclose(features, np.tile(table_of(full).replica_features, (2, 1)), rtol=1e-6)


def test_a_system_without_nodes_alone() -> None:
    table = table_of(without_nodes(example_topology()))
    assert table.node_features.shape == (0, len(SCHEMA.node))
    assert table.replica_features.shape == (0, len(SCHEMA.replica))
