"""Systems have the figures of the paper's testbeds, and every draw stays within its range."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy_server.cluster.snapshot import NO_LINK, Topology
from training.simulator.presets import (
    BYTES_PER_SECOND_PER_MEGABIT,
    GIBIBYTE,
    PRESETS,
    SystemConfig,
    build_topology,
    preset,
)
from training.workloads.services import ServiceCatalogue, default_services

seeds = st.integers(0, 2**32)
names = st.sampled_from(sorted(PRESETS))


@cache
def services(count: int = 30) -> ServiceCatalogue:
    return default_services(count)


def topology_of(name: str, seed: int = 0) -> Topology:
    return build_topology(preset(name), services(), seed)


@pytest.mark.parametrize(
    ("name", "access_points", "edge_nodes", "nodes_per_access_point"),
    [("testbed-40", 5, 40, (8, 8)), ("testbed-100", 10, 100, (3, 15))],
)
def test_counts_are_those_of_the_paper(
    name: str, access_points: int, edge_nodes: int, nodes_per_access_point: tuple[int, int]
) -> None:
    topology = topology_of(name)
    assert topology.access_points.is_cloud.tolist() == [False] * access_points + [True]
    assert len(topology.nodes.names) == edge_nodes + 1
    counts = np.bincount(topology.nodes.access_point)[:access_points]
    assert counts.min() >= nodes_per_access_point[0]
    assert counts.max() <= nodes_per_access_point[1]
    assert len(topology.services.names) == 30
    assert topology.nodes.cpu_millicores[-1] == 15 * 4000
    assert topology.nodes.memory_bytes[-1] == 15 * 16 * GIBIBYTE


@given(names, seeds)
@settings(max_examples=40)
def test_every_draw_lies_within_its_range(name: str, seed: int) -> None:
    config, topology = preset(name), topology_of(name, seed)
    nodes, links = topology.nodes, topology.links
    edge = slice(0, config.edge_nodes)
    assert set(nodes.cpu_millicores[edge].tolist()) <= {1000.0, 2000.0}
    assert set((nodes.memory_bytes[edge] / GIBIBYTE).tolist()) <= {2.0, 3.0, 4.0}
    _check_range(nodes.speed[edge], config.edge_speed)
    to_cloud = topology.access_points.is_cloud[links.source] | topology.access_points.is_cloud[links.target]
    megabits = links.bandwidth_bytes_per_second / BYTES_PER_SECOND_PER_MEGABIT
    _check_range(links.delay_seconds[to_cloud], config.cloud_delay_seconds)
    _check_range(links.delay_seconds[~to_cloud], config.edge_delay_seconds)
    _check_range(megabits[to_cloud], config.cloud_megabits_per_second)
    _check_range(megabits[~to_cloud], config.edge_megabits_per_second)


@given(names, seeds)
@settings(max_examples=40)
def test_links_go_both_ways_alike_and_reach_everywhere(name: str, seed: int) -> None:
    topology = topology_of(name, seed)
    table, links = topology.link_row, topology.links
    cloud = len(table) - 1
    assert (table[:cloud, cloud] != NO_LINK).all()
    back = table[links.target, links.source]
    np.testing.assert_array_equal(links.delay_seconds, links.delay_seconds[back])
    np.testing.assert_array_equal(links.bandwidth_bytes_per_second, links.bandwidth_bytes_per_second[back])
    edge = (table[:cloud, :cloud] != NO_LINK).astype(int)
    assert (np.linalg.matrix_power(edge + np.eye(cloud, dtype=int), cloud) > 0).all()
    chords = preset(name).chords_per_access_point
    if chords is None:
        assert edge.sum() == cloud * (cloud - 1)
    else:
        assert edge.sum() == 2 * (cloud + round(chords * cloud))


@given(names, seeds)
@settings(max_examples=40)
def test_every_service_has_edge_replicas_within_memory_and_one_in_the_cloud(name: str, seed: int) -> None:
    config, topology = preset(name), topology_of(name, seed)
    replicas, nodes = topology.replicas, topology.nodes
    memory = np.bincount(replicas.node, weights=topology.services.memory_bytes[replicas.service])
    filled = memory[: config.edge_nodes] / nodes.memory_bytes[: config.edge_nodes]
    assert filled.max() <= config.edge_memory_share
    assert memory[-1] <= nodes.memory_bytes[-1]
    pairs = list(zip(replicas.node.tolist(), replicas.service.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    edge_counts = np.bincount(replicas.service[replicas.node < config.edge_nodes], minlength=30)
    assert edge_counts.min() >= 2
    in_cloud = replicas.node == config.edge_nodes
    assert replicas.service[in_cloud].tolist() == list(range(30))
    needed = topology.services.cpu_millicores[replicas.service]
    assert (needed <= nodes.cpu_millicores[replicas.node]).all()
    cloud_cpu = replicas.concurrency[in_cloud] * topology.services.cpu_millicores
    assert (cloud_cpu <= nodes.cpu_millicores[-1]).all()
    np.testing.assert_array_equal(
        replicas.concurrency[~in_cloud], services().concurrency[replicas.service[~in_cloud]]
    )


def test_the_same_seed_gives_the_same_system() -> None:
    one, same, other = (topology_of("testbed-100", seed) for seed in (5, 5, 6))
    for group in ("access_points", "nodes", "replicas", "links"):
        for column in fields(getattr(one, group)):
            values = [getattr(getattr(topology, group), column.name) for topology in (one, same)]
            np.testing.assert_array_equal(*values)
    assert not np.array_equal(one.nodes.speed, other.nodes.speed)
    assert not np.array_equal(one.links.delay_seconds, other.links.delay_seconds)


@given(st.integers(1, 6), st.integers(1, 30), st.integers(1, 12), seeds)
@settings(max_examples=40)
def test_other_sizes_by_configuration(access_points: int, edge_nodes: int, count: int, seed: int) -> None:
    config = SystemConfig(
        access_points=access_points,
        edge_nodes=edge_nodes,
        edge_nodes_per_access_point=(0, edge_nodes),
        services=count,
        chords_per_access_point=0.5,
        reference_rate_per_second=10.0,
    )
    topology = build_topology(config, services(count), seed)
    assert len(topology.nodes.names) == edge_nodes + 1
    assert len(topology.access_points.names) == access_points + 1


def test_unknown_presets_are_named() -> None:
    with pytest.raises(
        ValueError, match="preset: 'testbed-1' is unknown; choose one of testbed-40, testbed-100"
    ):
        preset("testbed-1")


def test_the_services_must_be_as_many_as_configured() -> None:
    with pytest.raises(ValueError, match="services: 4 given; the configuration has 30"):
        build_topology(preset("testbed-40"), services(4), 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("access_points", 0),
        ("edge_nodes", 0),
        ("services", -1),
        ("cloud_machines", 0),
        ("edge_nodes_per_access_point", (9, 9)),
        ("edge_nodes_per_access_point", (9, 8)),
        ("edge_cpu_millicores", ()),
        ("edge_memory_bytes", (0.0,)),
        ("edge_speed", (1.2, 0.8)),
        ("cloud_delay_seconds", (0.0, 1.0)),
        ("edge_megabits_per_second", (1.0, float("inf"))),
        ("edge_memory_share", 1.5),
        ("edge_memory_share", 0.0),
        ("local_delay_seconds", float("nan")),
        ("chords_per_access_point", -1.0),
        ("reference_rate_per_second", 0.0),
    ],
)
def test_configurations_are_checked(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{field}: "):
        replace(preset("testbed-40"), **{field: value})  # type: ignore[arg-type]


def _check_range(values: np.ndarray[tuple[int], np.dtype[np.float32]], bounds: tuple[float, float]) -> None:
    assert values.min() >= np.float32(bounds[0]) * (1 - 1e-6)
    assert values.max() <= np.float32(bounds[1]) * (1 + 1e-6)
