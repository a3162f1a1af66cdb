from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given

from policy_server.cluster.snapshot import (
    NO_LINK,
    Load,
    Snapshot,
    SnapshotError,
    disjoint_union,
    disjoint_union_topology,
)
from tests.support.systems import example_snapshot, example_topology, systems_of_same_services


@given(systems_of_same_services())
def test_each_system_is_there_with_shifted_rows(systems: list[Snapshot]) -> None:
    union = disjoint_union(systems)
    topology = union.topology
    access_point = node = replica = link = 0
    for index, system in enumerate(systems):
        part = system.topology
        access_points = slice(access_point, access_point + len(part.access_points.names))
        nodes = slice(node, node + len(part.nodes.names))
        replicas = slice(replica, replica + len(part.replicas.endpoints))
        links = slice(link, link + len(part.links.source))
        assert topology.access_points.names[access_points] == tuple(
            f"{index}/{name}" for name in part.access_points.names
        )
        assert topology.nodes.names[nodes] == tuple(f"{index}/{name}" for name in part.nodes.names)
        assert topology.replicas.endpoints[replicas] == tuple(
            f"{index}/{endpoint}" for endpoint in part.replicas.endpoints
        )
        for joined, own in (
            (topology.access_points.is_cloud[access_points], part.access_points.is_cloud),
            (topology.access_points.system[access_points], np.full_like(part.access_points.system, index)),
            (topology.nodes.access_point[nodes] - access_point, part.nodes.access_point),
            (topology.nodes.cpu_millicores[nodes], part.nodes.cpu_millicores),
            (topology.nodes.memory_bytes[nodes], part.nodes.memory_bytes),
            (topology.nodes.speed[nodes], part.nodes.speed),
            (topology.replicas.service[replicas], part.replicas.service),
            (topology.replicas.node[replicas] - node, part.replicas.node),
            (topology.replicas.concurrency[replicas], part.replicas.concurrency),
            (topology.links.source[links] - access_point, part.links.source),
            (topology.links.target[links] - access_point, part.links.target),
            (topology.links.delay_seconds[links], part.links.delay_seconds),
            (topology.links.bandwidth_bytes_per_second[links], part.links.bandwidth_bytes_per_second),
        ):
            np.testing.assert_array_equal(joined, own)
            assert joined.dtype == own.dtype
        rows = {
            "access_point_queued": access_points,
            "arrival_rate_per_second": access_points,
            "node_cpu_used_millicores": nodes,
            "node_memory_used_bytes": nodes,
            "link_backlog_bytes": links,
        }
        for column in fields(Load):
            joined = getattr(union.load, column.name)[rows.get(column.name, replicas)]
            np.testing.assert_array_equal(joined, getattr(system.load, column.name))
        access_point, node = access_points.stop, nodes.stop
        replica, link = replicas.stop, links.stop
    assert topology.system_count == len(systems)
    assert len(topology.replicas.endpoints) == replica


@given(systems_of_same_services())
def test_nothing_links_one_system_to_another(systems: list[Snapshot]) -> None:
    topology = disjoint_union_topology([system.topology for system in systems])
    system = topology.access_points.system
    assert (topology.link_row[system[:, None] != system[None, :]] == NO_LINK).all()


def test_the_union_is_as_old_as_its_oldest_member() -> None:
    snapshot = example_snapshot(example_topology())
    union = disjoint_union(
        [
            replace(snapshot, version=7, taken_at_seconds=3.0),
            replace(snapshot, version=5, taken_at_seconds=4.0),
        ]
    )
    assert union.taken_at_seconds == 3.0
    assert union.version == 7


def test_a_union_of_one_is_the_topology_itself() -> None:
    topology = example_topology()
    assert disjoint_union_topology([topology]) is topology


def test_nothing_to_unite() -> None:
    with pytest.raises(SnapshotError, match="topologies: empty; give at least one"):
        disjoint_union([])


def test_services_must_be_the_same() -> None:
    first, second = example_topology(services=2), example_topology(services=3)
    with pytest.raises(
        SnapshotError, match=r"topologies\[1\]\.services: differ from topologies\[0\]\.services"
    ):
        disjoint_union_topology([first, second])


def test_systems_that_disagree_are_refused() -> None:
    topology = example_topology()
    slower = replace(topology.services, execution_seconds=topology.services.execution_seconds * 2)
    with pytest.raises(SnapshotError, match=r"topologies\[1\].services: differ"):
        disjoint_union_topology([topology, replace(topology, services=slower)])
    with pytest.raises(SnapshotError, match=r"topologies\[1\].local_delay_seconds: 0.5"):
        disjoint_union_topology([topology, replace(topology, local_delay_seconds=0.5)])
