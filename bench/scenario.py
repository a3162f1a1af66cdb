"""The system that is benchmarked: the KaiS paper's testbed of 40 edge nodes and a cloud, as a generated report.

Every service has the same number of ready replicas, all of them reachable from everywhere, so that a request has
exactly that many candidates. All figures are fixed, so that every run sees the same system.
"""

from __future__ import annotations

from itertools import permutations

from policy_server.proto.policy.v1.dispatch_service_pb2 import DispatchRequest
from policy_server.proto.policy.v1.state_pb2 import (
    AccessPoint,
    AccessPointLoad,
    Link,
    LinkLoad,
    Load,
    Node,
    NodeLoad,
    Replica,
    ReplicaLoad,
    ReplicaState,
    Service,
    ServiceRate,
    Topology,
)
from policy_server.proto.policy.v1.state_service_pb2 import FullState

CANDIDATES = 10
_EDGE_ACCESS_POINTS = 5
_NODES_PER_EDGE = 8
_CLOUD_NODES = 15
_SERVICES = 30
_CLOUD = "cloud"
_MEBIBYTE = 2**20
_GIBIBYTE = 2**30


def generate_state(candidates: int = CANDIDATES) -> FullState:
    """Returns the system with ``candidates`` ready replicas of each service, a fifth of them in the cloud."""
    edges = [f"edge-{number}" for number in range(1, _EDGE_ACCESS_POINTS + 1)]
    edge_nodes = [_edge_node(edge, number) for number in range(1, _NODES_PER_EDGE + 1) for edge in edges]
    cloud_nodes = [_cloud_node(number) for number in range(1, _CLOUD_NODES + 1)]
    services = [_service(number) for number in range(1, _SERVICES + 1)]
    replicas = []
    for position, service in enumerate(services):
        in_cloud = candidates // 5
        for copy in range(candidates):
            nodes, spread = (cloud_nodes, 2) if copy < in_cloud else (edge_nodes, 7)
            node = nodes[(position * spread + copy) % len(nodes)]
            endpoint = f"10.{position + 1}.{copy // 250}.{copy % 250 + 1}:8080"
            replicas.append(Replica(endpoint=endpoint, service=service.name, node=node.name, concurrency=2))
    links = [_link(source, target) for source, target in permutations([*edges, _CLOUD], 2)]
    topology = Topology(
        access_points=[*(AccessPoint(name=edge) for edge in edges), AccessPoint(name=_CLOUD, cloud=True)],
        nodes=[*edge_nodes, *cloud_nodes],
        services=services,
        replicas=replicas,
        links=links,
    )
    return FullState(topology=topology, load=_load(topology))


def generate_request() -> DispatchRequest:
    """Returns one request of the system above, as small as a caller with server-held state sends it."""
    return DispatchRequest(
        service="service-07", access_point="edge-2", deadline_seconds=1.0, payload_bytes=20_000.0
    )


def _edge_node(edge: str, number: int) -> Node:
    cores = 1 + number % 2
    return Node(
        name=f"{edge}-node-{number}",
        access_point=edge,
        cpu_millicores=1000.0 * cores,
        memory_bytes=2.0 * cores * _GIBIBYTE,
        speed=1.0 - 0.05 * (number % 3),
    )


def _cloud_node(number: int) -> Node:
    return Node(
        name=f"{_CLOUD}-node-{number}",
        access_point=_CLOUD,
        cpu_millicores=4000.0,
        memory_bytes=16.0 * _GIBIBYTE,
        speed=1.5,
    )


def _service(number: int) -> Service:
    return Service(
        name=f"service-{number:02}",
        cpu_millicores=100.0 + 50 * (number % 5),
        execution_seconds=0.05 + 0.05 * (number % 4),
        memory_bytes=64.0 * _MEBIBYTE,
        image_bytes=200.0 * _MEBIBYTE,
        cold_start_seconds=2.0,
        deadline_seconds=1.0,
    )


def _link(source: str, target: str) -> Link:
    far = _CLOUD in (source, target)
    return Link(
        source=source,
        target=target,
        delay_seconds=0.05 if far else 0.005,
        bandwidth_bytes_per_second=5e6 if far else 50e6,
    )


def _load(topology: Topology) -> Load:
    replicas = [
        ReplicaLoad(
            endpoint=replica.endpoint,
            state=ReplicaState.REPLICA_STATE_READY,
            queued=float(row % 2),
            running=float(row % 3),
            latency_seconds=0.1 + 0.02 * (row % 7),
        )
        for row, replica in enumerate(topology.replicas)
    ]
    rates = [
        ServiceRate(service=service.name, requests_per_second=1.0 + row % 4)
        for row, service in enumerate(topology.services)
    ]
    return Load(
        access_points=[
            AccessPointLoad(name=access_point.name, queued=float(row), arrival_rates=rates)
            for row, access_point in enumerate(topology.access_points)
            if not access_point.cloud
        ],
        nodes=[
            NodeLoad(
                name=node.name,
                cpu_used_millicores=node.cpu_millicores * 0.1 * (2 + row % 4),
                memory_used_bytes=node.memory_bytes * 0.3,
            )
            for row, node in enumerate(topology.nodes)
        ],
        replicas=replicas,
        links=[
            LinkLoad(source=link.source, target=link.target, backlog_bytes=1000.0 * (row % 3))
            for row, link in enumerate(topology.links)
        ],
    )
