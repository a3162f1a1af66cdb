"""Systems of any size to orchestrate, as generated reports.

Edge nodes hang on access points, eight on each; an access point is linked with its four nearest neighbours on a ring
and with the cloud, so nodes, links and replicas all grow alike. All figures are fixed.
"""

from __future__ import annotations

from policy_server.proto.policy.v1.state_pb2 import (
    AccessPoint,
    AccessPointLoad,
    Link,
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

SERVICES = 30
REPLICAS_PER_NODE = 5
_NODES_PER_ACCESS_POINT = 8
_NEIGHBOURS = (1, 2)
_CLOUD = "cloud"
_MEBIBYTE = 2**20
_GIBIBYTE = 2**30


def generate_system(nodes: int) -> FullState:
    """Returns a system of that many edge nodes and one of the cloud."""
    edges = [f"edge-{number}" for number in range((nodes - 1) // _NODES_PER_ACCESS_POINT + 1)]
    services = [_service(number) for number in range(SERVICES)]
    edge_nodes = [_edge_node(row, edges[row // _NODES_PER_ACCESS_POINT]) for row in range(nodes)]
    cloud_node = Node(
        name="cloud-0", access_point=_CLOUD, cpu_millicores=64_000, memory_bytes=256 * _GIBIBYTE, speed=1.5
    )
    placed = [
        (node, services[(row * REPLICAS_PER_NODE + 7 * copy) % SERVICES])
        for row, node in enumerate(edge_nodes)
        for copy in range(REPLICAS_PER_NODE)
    ]
    placed += [(cloud_node, service) for service in services]
    topology = Topology(
        access_points=[*(AccessPoint(name=edge) for edge in edges), AccessPoint(name=_CLOUD, cloud=True)],
        nodes=[*edge_nodes, cloud_node],
        services=services,
        replicas=[
            Replica(
                endpoint=f"10.{row >> 16}.{row >> 8 & 255}.{row & 255}:8080",
                service=service.name,
                node=node.name,
                concurrency=2,
            )
            for row, (node, service) in enumerate(placed)
        ],
        links=_links(edges),
    )
    return FullState(topology=topology, load=_load(topology))


def _edge_node(row: int, edge: str) -> Node:
    cores = 1 + row % 2
    return Node(
        name=f"node-{row}",
        access_point=edge,
        cpu_millicores=1000.0 * cores,
        memory_bytes=2.0 * cores * _GIBIBYTE,
        speed=1.0 - 0.05 * (row % 3),
    )


def _service(number: int) -> Service:
    return Service(
        name=f"service-{number:02}",
        cpu_millicores=100.0 + 50 * (number % 5),
        execution_seconds=0.05 + 0.05 * (number % 4),
        memory_bytes=(64.0 + 32 * (number % 6)) * _MEBIBYTE,
        image_bytes=200.0 * _MEBIBYTE,
        cold_start_seconds=2.0,
        deadline_seconds=1.0,
    )


def _links(edges: list[str]) -> list[Link]:
    ends = {
        (edge, edges[(row + sign * step) % len(edges)])
        for row, edge in enumerate(edges)
        for step in _NEIGHBOURS
        for sign in (1, -1)
    }
    near = [
        Link(source=source, target=target, delay_seconds=0.005, bandwidth_bytes_per_second=50e6)
        for source, target in sorted(ends)
        if source != target
    ]
    far = [
        Link(source=source, target=target, delay_seconds=0.05, bandwidth_bytes_per_second=5e6)
        for edge in edges
        for source, target in ((edge, _CLOUD), (_CLOUD, edge))
    ]
    return [*near, *far]


def _load(topology: Topology) -> Load:
    replicas = [
        ReplicaLoad(
            endpoint=replica.endpoint,
            state=ReplicaState.REPLICA_STATE_READY,
            queued=float(row % 7 == 0),
            running=float(row % 3),
            latency_seconds=0.1 + 0.02 * (row % 7),
        )
        for row, replica in enumerate(topology.replicas)
    ]
    access_points = [
        AccessPointLoad(
            name=access_point.name,
            queued=float(row % 4),
            arrival_rates=[
                ServiceRate(service=service.name, requests_per_second=0.25 * ((row + number) % 8))
                for number, service in enumerate(topology.services)
            ],
        )
        for row, access_point in enumerate(topology.access_points)
        if not access_point.cloud
    ]
    nodes = [
        NodeLoad(
            name=node.name,
            cpu_used_millicores=node.cpu_millicores * 0.1 * (2 + row % 8),
            memory_used_bytes=node.memory_bytes * 0.1 * (5 + row % 5),
        )
        for row, node in enumerate(topology.nodes)
    ]
    return Load(access_points=access_points, nodes=nodes, replicas=replicas)
