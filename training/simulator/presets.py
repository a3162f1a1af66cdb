"""Edge-cloud systems to simulate: the testbeds of the KaiS paper, and any other size by configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

import numpy as np

from policy_server.cluster.snapshot import (
    AccessPoints,
    Float64Array,
    Int32Array,
    Links,
    Nodes,
    Replicas,
    Services,
    Topology,
)
from training.simulator.placement import place_edge_replicas
from training.workloads.services import ServiceCatalogue

GIBIBYTE = 1024.0**3
BYTES_PER_SECOND_PER_MEGABIT = 125_000.0

_TOPOLOGY_STREAM = 0x7090


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemConfig:
    """An edge-cloud system, up to the random draws that :func:`build_topology` makes from a seed.

    Figures of machines and counts are those of the KaiS testbeds; the paper does not publish its delays and
    bandwidths.

    Attributes:
        access_points: number of access points (edge cluster partitions).
        edge_nodes: number of edge nodes in all.
        edge_nodes_per_access_point: least and most of them at one access point.
        edge_cpu_millicores: an edge node has one of these.
        edge_memory_bytes: an edge node has one of these.
        edge_speed: range of an edge node's execution speed.
        cloud_machines: machines of the cloud cluster, which is one node in the topology.
        cloud_machine_millicores: CPU of each.
        cloud_machine_memory_bytes: memory of each.
        cloud_speed: execution speed of the cloud.
        services: number of services.
        edge_memory_share: share of edge memory that the initial replicas fill.
        edge_replicas_per_service: initial replicas of each service on the edge; None fills ``edge_memory_share``.
        chords_per_access_point: links between access points beyond a ring, per access point and at random; None
            joins every pair.
        edge_delay_seconds: range of the one-way delay between access points.
        edge_megabits_per_second: range of the bandwidth between access points.
        cloud_delay_seconds: range of the one-way delay between access point and cloud.
        cloud_megabits_per_second: range of the bandwidth between access point and cloud.
        local_delay_seconds: one-way delay between an access point and its own nodes.
        reference_rate_per_second: requests per second, of all access points together, at which the system is loaded
            but not lost: the least-utilisation greedy then answers between 0.6 and 0.9 of the default services'
            requests in time.

    Raises:
        ValueError: naming the field, the value and what it must be.
    """

    access_points: int
    edge_nodes: int
    edge_nodes_per_access_point: tuple[int, int]
    edge_cpu_millicores: tuple[float, ...] = (1000.0, 2000.0)
    edge_memory_bytes: tuple[float, ...] = (2 * GIBIBYTE, 3 * GIBIBYTE, 4 * GIBIBYTE)
    edge_speed: tuple[float, float] = (0.8, 1.2)
    cloud_machines: int = 15
    cloud_machine_millicores: float = 4000.0
    cloud_machine_memory_bytes: float = 16 * GIBIBYTE
    cloud_speed: float = 1.0
    services: int = 30
    edge_memory_share: float = 0.7
    edge_replicas_per_service: int | None = None
    chords_per_access_point: float | None = None
    edge_delay_seconds: tuple[float, float] = (0.005, 0.020)
    edge_megabits_per_second: tuple[float, float] = (30.0, 100.0)
    cloud_delay_seconds: tuple[float, float] = (0.030, 0.060)
    cloud_megabits_per_second: tuple[float, float] = (50.0, 100.0)
    local_delay_seconds: float = 0.001
    reference_rate_per_second: float

    def __post_init__(self) -> None:
        for name in ("access_points", "edge_nodes", "cloud_machines", "services"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)}; must be one or more")
        least, most = self.edge_nodes_per_access_point
        if (
            not 0 <= least <= most
            or not self.access_points * least <= self.edge_nodes <= self.access_points * most
        ):
            raise ValueError(
                f"edge_nodes_per_access_point: {least} to {most}; {self.access_points} access points can't hold "
                f"{self.edge_nodes} edge nodes that way"
            )
        for name in ("edge_cpu_millicores", "edge_memory_bytes"):
            values = getattr(self, name)
            if not values or not all(0 < value < math.inf for value in values):
                raise ValueError(f"{name}: {values}; must be finite numbers above zero")
        for name in (
            "edge_speed",
            "edge_delay_seconds",
            "edge_megabits_per_second",
            "cloud_delay_seconds",
            "cloud_megabits_per_second",
        ):
            low, high = getattr(self, name)
            if not 0 < low <= high < math.inf:
                raise ValueError(f"{name}: {low} to {high}; must be a range of finite numbers above zero")
        for name in (
            "cloud_machine_millicores",
            "cloud_machine_memory_bytes",
            "cloud_speed",
            "edge_memory_share",
            "local_delay_seconds",
            "reference_rate_per_second",
        ):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: {getattr(self, name)}; must be a finite number above zero")
        if self.edge_memory_share > 1:
            raise ValueError(f"edge_memory_share: {self.edge_memory_share}; must be at most 1")
        if self.edge_replicas_per_service is not None and self.edge_replicas_per_service < 1:
            raise ValueError(
                f"edge_replicas_per_service: {self.edge_replicas_per_service}; must be one or more"
            )
        if self.chords_per_access_point is not None and not 0 <= self.chords_per_access_point < math.inf:
            raise ValueError(f"chords_per_access_point: {self.chords_per_access_point}; must be zero or more")


PRESETS: Mapping[str, SystemConfig] = MappingProxyType(
    {
        "testbed-40": SystemConfig(
            access_points=5,
            edge_nodes=40,
            edge_nodes_per_access_point=(8, 8),
            reference_rate_per_second=1000.0,
        ),
        "testbed-100": SystemConfig(
            access_points=10,
            edge_nodes=100,
            edge_nodes_per_access_point=(3, 15),
            chords_per_access_point=1.0,
            reference_rate_per_second=2500.0,
        ),
    }
)


def preset(name: str) -> SystemConfig:
    """The preset of that name.

    Raises:
        ValueError: there is none; the message lists those there are.
    """
    if name not in PRESETS:
        raise ValueError(f"preset: {name!r} is unknown; choose one of {', '.join(PRESETS)}")
    return PRESETS[name]


def build_topology(config: SystemConfig, services: ServiceCatalogue, seed: int) -> Topology:
    """Draws a system: machines, links and initial replicas. The same arguments give the same topology.

    Access point rows come first, the cloud is the last row; it has one node, which hosts a replica of every service
    with as much concurrency as its CPU allows.

    Args:
        config: the kind of system.
        services: ``config.services`` services.
        seed: of all random draws.

    Raises:
        ValueError: the number of services differs from ``config.services``.
    """
    if len(services.names) != config.services:
        raise ValueError(f"services: {len(services.names)} given; the configuration has {config.services}")
    machines_rng, links_rng, placement_rng = (
        np.random.default_rng(stream)
        for stream in np.random.SeedSequence(seed, spawn_key=(_TOPOLOGY_STREAM,)).spawn(3)
    )
    cloud = config.access_points
    nodes = _draw_nodes(config, cloud, machines_rng)
    columns = topology_services(services)
    edge_count = config.edge_nodes
    node, service = place_edge_replicas(
        cpu_millicores=nodes.cpu_millicores[:edge_count].astype(np.float64),
        memory_bytes=nodes.memory_bytes[:edge_count].astype(np.float64),
        services=columns,
        popularity=services.popularity,
        memory_share=config.edge_memory_share,
        rng=placement_rng,
        replicas_per_service=config.edge_replicas_per_service,
    )
    every_service = np.arange(config.services, dtype=np.int32)
    cloud_concurrency = np.maximum(nodes.cpu_millicores[edge_count] // services.cpu_millicores, 1)
    replica_service = np.concatenate([service, every_service])
    replica_node = np.concatenate([node, np.full(config.services, edge_count, np.int32)])
    return Topology(
        access_points=AccessPoints(
            names=(*(f"ap-{row}" for row in range(cloud)), "cloud"),
            is_cloud=np.arange(cloud + 1) == cloud,
            system=np.zeros(cloud + 1, np.int32),
        ),
        nodes=nodes,
        services=columns,
        replicas=Replicas(
            endpoints=tuple(
                replica_endpoint(services.names[w], nodes.names[n], 0)
                for w, n in zip(replica_service, replica_node, strict=True)
            ),
            service=replica_service,
            node=replica_node,
            concurrency=np.concatenate([services.concurrency[service], cloud_concurrency.astype(np.int32)]),
        ),
        links=_draw_links(config, cloud, links_rng),
        local_delay_seconds=config.local_delay_seconds,
    )


def topology_services(services: ServiceCatalogue) -> Services:
    """The part of a catalogue that a topology holds."""
    return Services(**{column.name: getattr(services, column.name) for column in fields(Services)})


def replica_endpoint(service: str, node: str, serial: int) -> str:
    """Name of the ``serial``-th replica of a service that a node has had."""
    return f"{service}-{serial}.{node}"


def _draw_nodes(config: SystemConfig, cloud: int, rng: np.random.Generator) -> Nodes:
    counts = _node_counts(config, rng)
    count = config.edge_nodes
    return Nodes(
        names=(*(f"edge-{a}-{i}" for a, held in enumerate(counts) for i in range(held)), "cloud-0"),
        access_point=np.append(np.repeat(np.arange(cloud), counts), cloud).astype(np.int32),
        cpu_millicores=np.append(
            rng.choice(config.edge_cpu_millicores, count),
            config.cloud_machines * config.cloud_machine_millicores,
        ).astype(np.float32),
        memory_bytes=np.append(
            rng.choice(config.edge_memory_bytes, count),
            config.cloud_machines * config.cloud_machine_memory_bytes,
        ).astype(np.float32),
        speed=np.append(rng.uniform(*config.edge_speed, count), config.cloud_speed).astype(np.float32),
    )


def _node_counts(config: SystemConfig, rng: np.random.Generator) -> Int32Array:
    """Random numbers of nodes per access point within the bounds that add up to the total."""
    least, most = config.edge_nodes_per_access_point
    counts = rng.integers(least, most + 1, config.access_points)
    while (surplus := int(counts.sum()) - config.edge_nodes) != 0:
        step = -1 if surplus > 0 else 1
        movable = np.flatnonzero(counts > least if step < 0 else counts < most)
        chosen = rng.permutation(movable)[: abs(surplus)]
        counts[chosen] += step
    return counts.astype(np.int32)


def _draw_links(config: SystemConfig, cloud: int, rng: np.random.Generator) -> Links:
    """Links in both directions, with the same delay and bandwidth."""
    pairs = _edge_pairs(cloud, config.chords_per_access_point, rng)
    uplinks = np.stack([np.arange(cloud), np.full(cloud, cloud)], axis=1)
    ends = np.concatenate([pairs, uplinks])

    def drawn(edge: tuple[float, float], to_cloud: tuple[float, float]) -> Float64Array:
        return np.concatenate([rng.uniform(*edge, len(pairs)), rng.uniform(*to_cloud, cloud)])

    delay = drawn(config.edge_delay_seconds, config.cloud_delay_seconds)
    megabits = drawn(config.edge_megabits_per_second, config.cloud_megabits_per_second)
    return Links(
        source=np.concatenate([ends[:, 0], ends[:, 1]]).astype(np.int32),
        target=np.concatenate([ends[:, 1], ends[:, 0]]).astype(np.int32),
        delay_seconds=np.tile(delay, 2).astype(np.float32),
        bandwidth_bytes_per_second=np.tile(megabits * BYTES_PER_SECOND_PER_MEGABIT, 2).astype(np.float32),
    )


def _edge_pairs(count: int, chords_per_access_point: float | None, rng: np.random.Generator) -> Int32Array:
    """Pairs (smaller row, larger row) of access points to join: all, or a ring and random chords."""
    if chords_per_access_point is None:
        return np.stack(np.triu_indices(count, 1), axis=1).astype(np.int32)
    pairs = {(min(a, b), max(a, b)) for a in range(count) if (b := (a + 1) % count) != a}
    wanted = min(len(pairs) + round(chords_per_access_point * count), count * (count - 1) // 2)
    while len(pairs) < wanted:
        a, b = rng.integers(0, count, 2)
        if a != b:
            pairs.add((int(min(a, b)), int(max(a, b))))
    return np.array(sorted(pairs), np.int32).reshape(-1, 2)
