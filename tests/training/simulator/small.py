"""The smallest systems: one access point with one node, and a cloud behind a link."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policy_server.cluster.snapshot import AccessPoints, Links, Nodes, Replicas, Services, Topology
from training.simulator.simulator import VectorSimulator
from training.workloads.requests import RequestSequence

MEGABYTE = 1e6
LOCAL_DELAY_SECONDS = 0.001
CLOUD_DELAY_SECONDS = 0.03125
CLOUD_BYTES_PER_SECOND = 8e6
IMAGE_BYTES = 16e6
COLD_START_SECONDS = 1.0
REPLICA_BYTES = 1e8

EDGE_REPLICA, CLOUD_REPLICA = 0, 1
EDGE_NODE, CLOUD_NODE = 0, 1


def small_topology(
    *,
    services: int = 1,
    node_millicores: float = 1000.0,
    request_millicores: float = 500.0,
    execution_seconds: float = 0.125,
    concurrency: int = 1,
    hosted: Sequence[int] = (0,),
) -> Topology:
    """One edge node that hosts the services of ``hosted``, and a cloud node that hosts all."""
    every = range(services)
    return Topology(
        access_points=AccessPoints(
            names=("ap-0", "cloud"), is_cloud=np.array([False, True]), system=np.zeros(2, np.int32)
        ),
        nodes=Nodes(
            names=("edge-0-0", "cloud-0"),
            access_point=np.array([0, 1], np.int32),
            cpu_millicores=np.array([node_millicores, 64_000], np.float32),
            memory_bytes=np.array([4 * REPLICA_BYTES, 1000 * REPLICA_BYTES], np.float32),
            speed=np.ones(2, np.float32),
        ),
        services=Services(
            names=tuple(f"service-{row}" for row in every),
            cpu_millicores=np.full(services, request_millicores, np.float32),
            execution_seconds=np.full(services, execution_seconds, np.float32),
            memory_bytes=np.full(services, REPLICA_BYTES, np.float32),
            image_bytes=np.full(services, IMAGE_BYTES, np.float32),
            cold_start_seconds=np.full(services, COLD_START_SECONDS, np.float32),
            deadline_seconds=np.ones(services, np.float32),
        ),
        replicas=Replicas(
            endpoints=(*(f"edge-{row}" for row in range(len(hosted))), *(f"cloud-{row}" for row in every)),
            service=np.array([*hosted, *every], np.int32),
            node=np.array([EDGE_NODE] * len(hosted) + [CLOUD_NODE] * services, np.int32),
            concurrency=np.array([concurrency] * len(hosted) + [64] * services, np.int32),
        ),
        links=Links(
            source=np.array([0, 1], np.int32),
            target=np.array([1, 0], np.int32),
            delay_seconds=np.full(2, CLOUD_DELAY_SECONDS, np.float32),
            bandwidth_bytes_per_second=np.full(2, CLOUD_BYTES_PER_SECOND, np.float32),
        ),
        local_delay_seconds=LOCAL_DELAY_SECONDS,
    )


def requests_at(
    arrival_seconds: Sequence[float],
    *,
    service: int = 0,
    deadline_seconds: float | Sequence[float] = 1000.0,
    payload_bytes: float = MEGABYTE,
    work_factor: float | Sequence[float] = 1.0,
    duration_seconds: float | None = None,
) -> RequestSequence:
    """Requests at the one access point."""
    count = len(arrival_seconds)
    arrival = np.asarray(arrival_seconds, np.float64)
    return RequestSequence(
        arrival_seconds=arrival,
        access_point=np.zeros(count, np.int32),
        service=np.full(count, service, np.int32),
        deadline_seconds=np.broadcast_to(np.asarray(deadline_seconds, np.float32), count).copy(),
        payload_bytes=np.full(count, payload_bytes, np.float32),
        work_factor=np.broadcast_to(np.asarray(work_factor, np.float32), count).copy(),
        duration_seconds=float(np.ceil(arrival.max(initial=0.0)) + 1)
        if duration_seconds is None
        else duration_seconds,
    )


def run_to_the_end(simulator: VectorSimulator, replica: int = EDGE_REPLICA) -> None:
    """Sends every request to one replica."""
    while not simulator.done:
        simulator.advance(np.full(len(simulator.arrivals()), replica, np.int32))
