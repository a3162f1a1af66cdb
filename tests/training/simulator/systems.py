"""Small systems and workloads: random ones, coarse enough in time for many coincidences, and hand-made ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from policy_server.cluster.snapshot import (
    NO_LINK,
    AccessPoints,
    Float32Array,
    Float64Array,
    Int32Array,
    Links,
    Nodes,
    Replicas,
    Services,
    Topology,
)
from training.simulator.simulator import REJECT, SimulatorConfig, SlotRequests
from training.workloads.requests import RequestSequence

MEBIBYTE = 2.0**20


@dataclass(frozen=True)
class Scenario:
    """What to simulate; everything not named is drawn from ``seed``."""

    systems: int
    access_points: int
    nodes: int
    services: int
    slots: int
    requests_per_slot: int
    slack: float
    coarse: bool
    dispatch_seconds: float
    decision_delays: bool
    orchestrated: bool
    seed: int

    @property
    def config(self) -> SimulatorConfig:
        return SimulatorConfig(dispatch_seconds_per_request=self.dispatch_seconds, rate_window_seconds=1.0)


scenarios = st.builds(
    Scenario,
    systems=st.integers(1, 2),
    access_points=st.integers(1, 3),
    nodes=st.integers(1, 4),
    services=st.integers(1, 3),
    slots=st.integers(1, 8),
    requests_per_slot=st.integers(0, 40),
    slack=st.sampled_from([0.5, 2.0, 8.0]),
    coarse=st.booleans(),
    dispatch_seconds=st.sampled_from([0.0, 2.0**-12, 2.0**-6]),
    decision_delays=st.booleans(),
    orchestrated=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)


def draw_services(scenario: Scenario, rng: np.random.Generator) -> Services:
    count = scenario.services
    return Services(
        names=tuple(f"service-{w}" for w in range(count)),
        cpu_millicores=rng.choice([100.0, 250.0, 500.0, 600.0], count).astype(np.float32),
        execution_seconds=rng.choice([2.0**-5, 2.0**-4, 2.0**-2], count).astype(np.float32),
        memory_bytes=(rng.choice([64.0, 128.0, 256.0], count) * MEBIBYTE).astype(np.float32),
        image_bytes=(rng.choice([0.0, 2.0, 8.0], count) * MEBIBYTE).astype(np.float32),
        cold_start_seconds=rng.choice([0.0, 0.25, 0.5], count).astype(np.float32),
        deadline_seconds=np.full(count, scenario.slack / 8, np.float32),
    )


def draw_topology(scenario: Scenario, services: Services, rng: np.random.Generator) -> Topology:
    """Random machines, links and replicas; the cloud, if the draw has one, is the last access point."""
    edge_points = scenario.access_points
    with_cloud = bool(rng.random() < 0.8)
    points = edge_points + with_cloud
    access_point = rng.integers(0, edge_points, scenario.nodes)
    if with_cloud:
        access_point = np.append(access_point, edge_points)
    nodes = len(access_point)
    pairs = [(a, b) for a in range(points) for b in range(points) if a != b and rng.random() < 0.8]
    source, target = np.array(pairs, np.int32).reshape(-1, 2).T
    hosted = np.argwhere(rng.random((nodes, scenario.services)) < 0.6).astype(np.int32)
    memory = np.full(nodes, 512 * MEBIBYTE, np.float32)
    node, service = _within_memory(hosted, services, memory)
    return Topology(
        access_points=AccessPoints(
            names=tuple(f"ap-{a}" for a in range(points)),
            is_cloud=np.arange(points) >= edge_points,
            system=np.zeros(points, np.int32),
        ),
        nodes=Nodes(
            names=tuple(f"node-{n}" for n in range(nodes)),
            access_point=access_point.astype(np.int32),
            cpu_millicores=rng.choice([500.0, 1000.0], nodes).astype(np.float32),
            memory_bytes=memory,
            speed=_times(rng, scenario, [0.5, 1.0, 2.0], nodes),
        ),
        services=services,
        replicas=Replicas(
            endpoints=tuple(f"{w}@{n}" for n, w in zip(node, service, strict=True)),
            service=service,
            node=node,
            concurrency=rng.integers(1, 4, len(node)).astype(np.int32),
        ),
        links=Links(
            source=source,
            target=target,
            delay_seconds=_times(rng, scenario, [0.0, 2.0**-6, 2.0**-5], len(pairs)),
            bandwidth_bytes_per_second=(rng.choice([4.0, 16.0, 64.0], len(pairs)) * MEBIBYTE).astype(
                np.float32
            ),
        ),
        local_delay_seconds=2.0**-10,
    )


def draw_workload(scenario: Scenario, topology: Topology, rng: np.random.Generator) -> RequestSequence:
    duration = scenario.slots * scenario.config.slot_seconds
    count = scenario.slots * scenario.requests_per_slot
    arrival = np.sort(rng.random(count)) * duration
    if scenario.coarse:
        arrival = np.floor(arrival * 64) / 64
    service = rng.integers(0, scenario.services, count).astype(np.int32)
    return RequestSequence(
        arrival_seconds=arrival,
        access_point=rng.integers(0, scenario.access_points, count).astype(np.int32),
        service=service,
        deadline_seconds=_times(rng, scenario, [scenario.slack / 32, scenario.slack / 8], count),
        payload_bytes=(rng.choice([0.0625, 0.25, 1.0], count) * MEBIBYTE / 4).astype(np.float32),
        work_factor=_times(rng, scenario, [0.5, 1.0, 2.0], count),
        duration_seconds=duration,
    )


def _times(rng: np.random.Generator, scenario: Scenario, levels: list[float], count: int) -> Float32Array:
    values = rng.choice(levels, count)
    if not scenario.coarse:
        values *= rng.uniform(0.8, 1.2, count)
    return values.astype(np.float32)


def _within_memory(
    hosted: Int32Array, services: Services, memory: Float32Array
) -> tuple[Int32Array, Int32Array]:
    free = memory.astype(np.float64)
    kept = []
    for node, service in hosted:
        if services.memory_bytes[service] <= free[node]:
            free[node] -= services.memory_bytes[service]
            kept.append((node, service))
    node, service = np.array(kept, np.int32).reshape(-1, 2).T
    return node, service


def one_access_point(
    *,
    replicas_per_service: int = 1,
    concurrency: int = 1,
    cpu_millicores: tuple[float, ...] = (100.0,),
    execution_seconds: float = 0.0625,
    node_cpu_millicores: float = 100_000.0,
    node_memory_bytes: float = 1024 * MEBIBYTE,
    cloud_megabits_per_second: float = 80.0,
) -> Topology:
    """An access point with one node that hosts all services, 128 MiB a replica, and a cloud that hosts none.

    No local delay; 31.25 ms to the cloud; images of 10 MB, cold start of 0.5 s.
    """
    services = len(cpu_millicores)
    count = services * replicas_per_service
    return Topology(
        access_points=AccessPoints(("ap", "cloud"), np.array([False, True]), np.zeros(2, np.int32)),
        nodes=Nodes(
            names=("node", "cloud-node"),
            access_point=np.array([0, 1], np.int32),
            cpu_millicores=np.array([node_cpu_millicores, 60_000.0], np.float32),
            memory_bytes=np.array([node_memory_bytes, 1e12], np.float32),
            speed=np.ones(2, np.float32),
        ),
        services=Services(
            names=tuple(f"service-{w}" for w in range(services)),
            cpu_millicores=np.array(cpu_millicores, np.float32),
            execution_seconds=np.full(services, execution_seconds, np.float32),
            memory_bytes=np.full(services, 128 * MEBIBYTE, np.float32),
            image_bytes=np.full(services, 10e6, np.float32),
            cold_start_seconds=np.full(services, 0.5, np.float32),
            deadline_seconds=np.ones(services, np.float32),
        ),
        replicas=Replicas(
            endpoints=tuple(f"replica-{row}" for row in range(count)),
            service=(np.arange(count) % services).astype(np.int32),
            node=np.zeros(count, np.int32),
            concurrency=np.full(count, concurrency, np.int32),
        ),
        links=Links(
            source=np.array([0, 1], np.int32),
            target=np.array([1, 0], np.int32),
            delay_seconds=np.full(2, 2.0**-5, np.float32),
            bandwidth_bytes_per_second=np.full(2, cloud_megabits_per_second * 125_000, np.float32),
        ),
        local_delay_seconds=0.0,
    )


def requests_at(
    arrival_seconds: Sequence[float] | Float64Array,
    *,
    service: int | Sequence[int] = 0,
    deadline_seconds: float | Sequence[float] = 1.0,
    payload_bytes: float = 1000.0,
    work_factor: float | Float64Array = 1.0,
    duration_seconds: float | None = None,
) -> RequestSequence:
    """Requests of access point 0."""
    arrival = np.asarray(arrival_seconds, np.float64)
    count = len(arrival)
    return RequestSequence(
        arrival_seconds=arrival,
        access_point=np.zeros(count, np.int32),
        service=np.broadcast_to(np.asarray(service, np.int32), count).copy(),
        deadline_seconds=np.broadcast_to(np.asarray(deadline_seconds, np.float32), count).copy(),
        payload_bytes=np.full(count, payload_bytes, np.float32),
        work_factor=np.broadcast_to(np.asarray(work_factor, np.float32), count).copy(),
        duration_seconds=float(duration_seconds or (arrival[-1] if count else 0) or 0.25),
    )


def scattered_targets(requests: SlotRequests, topology: Topology) -> Int32Array:
    """A reachable replica for each request, by its position in its sequence alone."""
    key = topology.access_points.system[topology.nodes.access_point[topology.replicas.node]]
    destination = topology.nodes.access_point[topology.replicas.node]
    target = np.full(len(requests), REJECT, np.int32)
    for row in range(len(requests)):
        point = requests.access_point[row]
        candidates = np.flatnonzero(
            (key == requests.system[row])
            & (topology.replicas.service == requests.service[row])
            & ((destination == point) | (topology.link_row[point, destination] != NO_LINK))
        )
        if len(candidates):
            target[row] = candidates[requests.index[row] * 7919 % len(candidates)]
    return target
