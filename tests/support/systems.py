"""Edge-cloud systems for tests: random ones of any size, hand-made ones, and the same system in another order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

from policy_server.cluster.queries import DispatchQueries, concatenate_queries
from policy_server.cluster.snapshot import (
    AccessPoints,
    Float32Array,
    Int64Array,
    Links,
    Load,
    Nodes,
    Replicas,
    ReplicaState,
    Services,
    Snapshot,
    Topology,
    idle_load,
)

GIBIBYTE = 2.0**30

_Rows = TypeVar("_Rows", AccessPoints, Nodes, Services, Replicas, Links)


def example_topology(
    nodes: int = 8,
    access_points: int = 3,
    services: int = 4,
    replicas_per_service: int = 4,
    seed: int = 0,
    *,
    link_probability: float = 1.0,
) -> Topology:
    """A random system with a cloud.

    Args:
        nodes: edge nodes, spread over the access points at random; the cloud's one node comes on top.
        access_points: those that receive requests; the cloud is one more row, the last.
        services: each has one replica in the cloud beside the ``replicas_per_service`` on random edge nodes.
        replicas_per_service: see above.
        seed: of all draws.
        link_probability: of each directed link between access points, the cloud included.
    """
    random = np.random.default_rng(seed)
    cloud = access_points
    pairs = [
        (source, target)
        for source in range(access_points + 1)
        for target in range(access_points + 1)
        if source != target and random.random() < link_probability
    ]
    ends = np.array(pairs, np.int32).reshape(-1, 2)
    to_cloud = (ends == cloud).any(axis=1)
    replica_service = np.repeat(np.arange(services, dtype=np.int32), replicas_per_service + 1)
    replica_node = random.integers(nodes, size=len(replica_service)).astype(np.int32)
    replica_node[replicas_per_service :: replicas_per_service + 1] = nodes
    concurrency = random.integers(1, 9, len(replica_service)).astype(np.int32)
    concurrency[replica_node == nodes] = 64
    return Topology(
        access_points=AccessPoints(
            names=(*(f"ap-{row}" for row in range(access_points)), "cloud"),
            is_cloud=np.arange(access_points + 1) == cloud,
            system=np.zeros(access_points + 1, np.int32),
        ),
        nodes=Nodes(
            names=(*(f"node-{row}" for row in range(nodes)), "cloud-node"),
            access_point=np.append(random.integers(access_points, size=nodes), cloud).astype(np.int32),
            cpu_millicores=np.append(random.choice([1000, 2000], nodes), 60_000).astype(np.float32),
            memory_bytes=np.append(random.uniform(2, 4, nodes), 240).astype(np.float32)
            * np.float32(GIBIBYTE),
            speed=np.append(random.uniform(0.8, 1.2, nodes), 1).astype(np.float32),
        ),
        services=Services(
            names=tuple(f"service-{row}" for row in range(services)),
            cpu_millicores=random.uniform(50, 500, services).astype(np.float32),
            execution_seconds=random.uniform(0.02, 0.3, services).astype(np.float32),
            memory_bytes=random.uniform(5e7, 3e8, services).astype(np.float32),
            image_bytes=random.uniform(5e7, 5e8, services).astype(np.float32),
            cold_start_seconds=random.uniform(0.5, 3, services).astype(np.float32),
            deadline_seconds=random.uniform(0.3, 1, services).astype(np.float32),
        ),
        replicas=Replicas(
            endpoints=tuple(f"10.0.0.{row}:8080" for row in range(len(replica_service))),
            service=replica_service,
            node=replica_node,
            concurrency=concurrency,
        ),
        links=Links(
            source=ends[:, 0],
            target=ends[:, 1],
            delay_seconds=np.where(
                to_cloud, random.uniform(0.03, 0.06, len(ends)), random.uniform(0.005, 0.02, len(ends))
            ).astype(np.float32),
            bandwidth_bytes_per_second=random.uniform(4e6, 1.2e7, len(ends)).astype(np.float32),
        ),
    )


def example_load(topology: Topology, seed: int = 0, *, ready_probability: float = 1.0) -> Load:
    """A random load: some replicas overloaded, some idle, response times known for some."""
    random = np.random.default_rng(seed)
    idle = idle_load(topology)
    replicas = len(topology.replicas.endpoints)
    running = random.integers(0, topology.replicas.concurrency + 1)
    queued = random.poisson(2, replicas) * (running == topology.replicas.concurrency)
    ready = random.random(replicas) < ready_probability
    cpu_used = np.bincount(
        topology.replicas.node,
        weights=running * topology.services.cpu_millicores[topology.replicas.service],
        minlength=len(topology.nodes.names),
    )
    return replace(
        idle,
        access_point_queued=random.poisson(1, len(topology.access_points.names)).astype(np.float32),
        arrival_rate_per_second=(
            random.gamma(1, 4, idle.arrival_rate_per_second.shape) * ~topology.access_points.is_cloud[:, None]
        ).astype(np.float32),
        node_cpu_used_millicores=np.minimum(cpu_used, topology.nodes.cpu_millicores).astype(np.float32),
        replica_state=np.where(
            ready, ReplicaState.READY, random.choice([ReplicaState.STARTING, ReplicaState.DRAINING], replicas)
        ).astype(np.uint8),
        replica_queued=queued.astype(np.float32),
        replica_running=running.astype(np.float32),
        replica_latency_seconds=np.where(
            random.random(replicas) < 0.7, random.uniform(0.02, 0.8, replicas), np.nan
        ).astype(np.float32),
        link_backlog_bytes=(
            random.exponential(1e5, len(topology.links.source))
            * (random.random(len(topology.links.source)) < 0.5)
        ).astype(np.float32),
    )


def example_snapshot(topology: Topology, seed: int = 0, *, ready_probability: float = 1.0) -> Snapshot:
    """The topology under :func:`example_load`, taken at second 100."""
    return Snapshot(
        topology,
        example_load(topology, seed, ready_probability=ready_probability),
        version=seed,
        taken_at_seconds=100.0,
    )


def example_queries(
    topology: Topology, count: int, seed: int = 0, *, dispatchers: int = 1
) -> DispatchQueries:
    """Random requests at random access points, by random dispatchers."""
    random = np.random.default_rng(seed)
    service = random.integers(len(topology.services.names), size=count).astype(np.int32)
    return DispatchQueries(
        service=service,
        access_point=random.integers(len(topology.access_points.names), size=count).astype(np.int32),
        deadline_seconds=(
            topology.services.deadline_seconds[service] * random.uniform(0.5, 1.5, count)
        ).astype(np.float32),
        payload_bytes=random.exponential(2e4, count).astype(np.float32),
        dispatcher=random.integers(dispatchers, size=count).astype(np.int32) if dispatchers > 1 else None,
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Small random systems: missing links, replicas that are not ready, several replicas on a node, no replicas."""
    topology = example_topology(
        nodes=draw(st.integers(1, 6)),
        access_points=draw(st.integers(1, 4)),
        services=draw(st.integers(1, 3)),
        replicas_per_service=draw(st.integers(0, 5)),
        seed=draw(st.integers(0, 2**16)),
        link_probability=draw(st.sampled_from([0.0, 0.5, 1.0])),
    )
    return example_snapshot(
        topology,
        seed=draw(st.integers(0, 2**16)),
        ready_probability=draw(st.sampled_from([0.0, 0.6, 1.0])),
    )


@st.composite
def systems_of_same_services(draw: st.DrawFn) -> list[Snapshot]:
    """Two to four random systems to be united."""
    services = example_topology(services=3).services
    systems = []
    for _ in range(draw(st.integers(2, 4))):
        seed = draw(st.integers(0, 2**16))
        topology = example_topology(
            nodes=draw(st.integers(1, 5)),
            access_points=draw(st.integers(1, 3)),
            services=3,
            replicas_per_service=draw(st.integers(0, 3)),
            seed=seed,
            link_probability=draw(st.sampled_from([0.0, 0.6, 1.0])),
        )
        systems.append(example_snapshot(replace(topology, services=services), seed, ready_probability=0.8))
    return systems


def united_queries(systems: Sequence[Snapshot], parts: Sequence[DispatchQueries]) -> DispatchQueries:
    """The queries of each system, about the rows of the union of the systems."""
    counts = [len(system.topology.access_points.names) for system in systems]
    first = np.cumsum([0, *counts[:-1]])
    return concatenate_queries(
        [
            replace(part, access_point=(part.access_point + start).astype(np.int32))
            for part, start in zip(parts, first, strict=True)
        ]
    )


@dataclass(frozen=True)
class Endpoint:
    """A replica alone on its node, for :func:`one_service_snapshot`."""

    access_point: str = "ap-0"
    cpu_millicores: float = 1000.0
    concurrency: int = 4
    queued: float = 0.0
    running: float = 0.0
    latency_seconds: float = math.nan
    state: ReplicaState = ReplicaState.READY
    speed: float = 1.0


def one_service_snapshot(
    endpoints: Sequence[Endpoint],
    *,
    cpu_millicores: float = 250.0,
    execution_seconds: float = 0.1,
    arrival_rates_per_second: Sequence[float] = (0.0, 0.0),
) -> Snapshot:
    """One service at ``ap-0``, ``ap-1`` and ``cloud``: 10 ms from edge to edge, 50 ms to the cloud, wide links.

    Args:
        endpoints: row i of the replicas and of the nodes.
        cpu_millicores: of a request; a quarter of a default node.
        execution_seconds: of a request.
        arrival_rates_per_second: at ``ap-0`` and ``ap-1``.
    """
    names = ("ap-0", "ap-1", "cloud")
    count = len(endpoints)

    def column(name: str) -> Float32Array:
        return np.array([getattr(endpoint, name) for endpoint in endpoints], np.float32)

    source, target = np.array([(a, b) for a in range(3) for b in range(3) if a != b], np.int32).T
    topology = Topology(
        access_points=AccessPoints(
            names=names, is_cloud=np.array([False, False, True]), system=np.zeros(3, np.int32)
        ),
        nodes=Nodes(
            names=tuple(f"node-{row}" for row in range(count)),
            access_point=np.array([names.index(e.access_point) for e in endpoints], np.int32),
            cpu_millicores=column("cpu_millicores"),
            memory_bytes=np.full(count, 4 * GIBIBYTE, np.float32),
            speed=column("speed"),
        ),
        services=Services(
            names=("service",),
            cpu_millicores=np.array([cpu_millicores], np.float32),
            execution_seconds=np.array([execution_seconds], np.float32),
            memory_bytes=np.array([1e8], np.float32),
            image_bytes=np.array([1e8], np.float32),
            cold_start_seconds=np.array([1], np.float32),
            deadline_seconds=np.array([10 * execution_seconds], np.float32),
        ),
        replicas=Replicas(
            endpoints=tuple(f"10.0.0.{row}:8080" for row in range(count)),
            service=np.zeros(count, np.int32),
            node=np.arange(count, dtype=np.int32),
            concurrency=np.array([e.concurrency for e in endpoints], np.int32),
        ),
        links=Links(
            source=source,
            target=target,
            delay_seconds=np.where((source == 2) | (target == 2), 0.05, 0.01).astype(np.float32),
            bandwidth_bytes_per_second=np.full(len(source), 1e9, np.float32),
        ),
    )
    load = replace(
        idle_load(topology),
        arrival_rate_per_second=np.array([[rate] for rate in (*arrival_rates_per_second, 0)], np.float32),
        node_cpu_used_millicores=np.minimum(
            column("running") * np.float32(cpu_millicores), column("cpu_millicores")
        ),
        replica_state=np.array([endpoint.state for endpoint in endpoints], np.uint8),
        replica_queued=column("queued"),
        replica_running=column("running"),
        replica_latency_seconds=column("latency_seconds"),
    )
    return Snapshot(topology, load, taken_at_seconds=100.0)


@dataclass(frozen=True)
class RowOrder:
    """A new order of each kind of row: new row i is the old row ``order[i]``."""

    access_points: Int64Array
    nodes: Int64Array
    services: Int64Array
    replicas: Int64Array
    links: Int64Array


def random_order(topology: Topology, seed: int) -> RowOrder:
    """Shuffles all rows of a single system."""
    random = np.random.default_rng(seed)
    return RowOrder(
        access_points=random.permutation(len(topology.access_points.names)),
        nodes=random.permutation(len(topology.nodes.names)),
        services=random.permutation(len(topology.services.names)),
        replicas=random.permutation(len(topology.replicas.endpoints)),
        links=random.permutation(len(topology.links.source)),
    )


def reordered(snapshot: Snapshot, order: RowOrder) -> Snapshot:
    """The same system with its rows in another order."""
    topology, load = snapshot.topology, snapshot.load

    def rows(group: _Rows, kind: str, **references: str) -> _Rows:
        taken: dict[str, Any] = {}
        for column in fields(group):
            values = getattr(group, column.name)
            permutation = getattr(order, kind)
            if isinstance(values, tuple):
                taken[column.name] = tuple(values[row] for row in permutation.tolist())
            else:
                taken[column.name] = values[permutation]
            if column.name in references:
                new_row = np.argsort(getattr(order, references[column.name]))
                taken[column.name] = new_row[taken[column.name]].astype(np.int32)
        return type(group)(**taken)

    return replace(
        snapshot,
        topology=Topology(
            access_points=rows(topology.access_points, "access_points"),
            nodes=rows(topology.nodes, "nodes", access_point="access_points"),
            services=rows(topology.services, "services"),
            replicas=rows(topology.replicas, "replicas", service="services", node="nodes"),
            links=rows(topology.links, "links", source="access_points", target="access_points"),
            local_delay_seconds=topology.local_delay_seconds,
        ),
        load=Load(
            access_point_queued=load.access_point_queued[order.access_points],
            arrival_rate_per_second=load.arrival_rate_per_second[order.access_points][:, order.services],
            node_cpu_used_millicores=load.node_cpu_used_millicores[order.nodes],
            node_memory_used_bytes=load.node_memory_used_bytes[order.nodes],
            replica_state=load.replica_state[order.replicas],
            replica_queued=load.replica_queued[order.replicas],
            replica_running=load.replica_running[order.replicas],
            replica_latency_seconds=load.replica_latency_seconds[order.replicas],
            link_backlog_bytes=load.link_backlog_bytes[order.links],
        ),
    )


def reordered_queries(queries: DispatchQueries, order: RowOrder) -> DispatchQueries:
    """The same queries, about :func:`reordered` rows."""
    return replace(
        queries,
        service=np.argsort(order.services)[queries.service].astype(np.int32),
        access_point=np.argsort(order.access_points)[queries.access_point].astype(np.int32),
    )


def with_endpoints(snapshot: Snapshot, endpoints: Sequence[str]) -> Snapshot:
    """The same system, its replicas under other addresses."""
    topology = snapshot.topology
    replicas = replace(topology.replicas, endpoints=tuple(endpoints))
    return replace(snapshot, topology=replace(topology, replicas=replicas))
