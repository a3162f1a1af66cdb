"""What a decision about a pod rests on: what it needs, and what its candidate nodes have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policy_server.cluster.snapshot import BoolArray, Float32Array, Float64Array, Int32Array, Snapshot
from policy_server.kubernetes.extender.wire import CandidateNodes
from policy_server.kubernetes.objects import Pod
from policy_server.kubernetes.pod_resources import amount, pod_resources
from policy_server.policies.placement.policy import PlacementQuery

UNKNOWN_NODE = -1


@dataclass(frozen=True)
class PlacementFacts:
    """One pod and its M candidate nodes.

    Attributes:
        service: row of the pod's service.
        cpu_millicores: CPU needed: what the pod requests, or what one request of the service holds, if larger.
        memory_bytes: memory needed: what the pod requests, or what a replica holds, if larger.
        row: int32 [M], node rows; ``UNKNOWN_NODE`` where the snapshot does not hold the node.
        node_cpu_millicores: float64 [M], allocatable CPU: of the call, else of the snapshot, else infinite.
        node_memory_bytes: float64 [M], allocatable memory, likewise.
        node_memory_used_bytes: float64 [M], of the snapshot; 0 for unknown nodes.
    """

    service: int
    cpu_millicores: float
    memory_bytes: float
    row: Int32Array
    node_cpu_millicores: Float64Array
    node_memory_bytes: Float64Array
    node_memory_used_bytes: Float64Array

    @property
    def known(self) -> BoolArray:
        """bool [M]: whether the snapshot holds the node."""
        known: BoolArray = self.row != UNKNOWN_NODE
        return known

    @property
    def too_small(self) -> BoolArray:
        """bool [M]: whether the pod would not fit the node if it were empty, or the node has nothing to give."""
        too_small: BoolArray = (
            (self.cpu_millicores > self.node_cpu_millicores)
            | (self.memory_bytes > self.node_memory_bytes)
            | (self.node_memory_bytes <= 0)
        )
        return too_small

    @property
    def full(self) -> BoolArray:
        """bool [M]: whether too little of the node's memory is free.

        Memory that replicas hold does not come back. CPU in use does, within milliseconds, and it is short just when
        a replica is needed most: it is a matter of the score.
        """
        full: BoolArray = self.node_memory_used_bytes + self.memory_bytes > self.node_memory_bytes
        return full

    def query(
        self, positions: BoolArray, has_image: BoolArray, pending_replicas: Float64Array
    ) -> PlacementQuery:
        """The question to a policy.

        Args:
            positions: bool [M], which nodes it is about, all of them known.
            has_image: bool [M].
            pending_replicas: float64 [N].
        """
        return PlacementQuery(
            service=self.service,
            cpu_millicores=self.cpu_millicores,
            memory_bytes=self.memory_bytes,
            nodes=self.row[positions],
            node_cpu_millicores=self.node_cpu_millicores[positions],
            node_memory_bytes=self.node_memory_bytes[positions],
            has_image=has_image[positions],
            pending_replicas=pending_replicas,
        )


def placement_facts(pod: Pod, candidates: CandidateNodes, snapshot: Snapshot, service: int) -> PlacementFacts:
    """Gathers the facts.

    Raises:
        QuantityError: an amount of the pod or of a node is no quantity.
    """
    resources, services = pod_resources(pod), snapshot.topology.services
    index = snapshot.topology.node_index
    row = np.array([index.get(name, UNKNOWN_NODE) for name in candidates.names], np.int32)
    nodes, load = snapshot.topology.nodes, snapshot.load
    return PlacementFacts(
        service=service,
        cpu_millicores=max(resources.cpu_millicores, float(services.cpu_millicores[service])),
        memory_bytes=max(resources.memory_bytes, float(services.memory_bytes[service])),
        row=row,
        node_cpu_millicores=_allocatable(
            candidates, "cpu", 1000, _of_rows(nodes.cpu_millicores, row, np.inf)
        ),
        node_memory_bytes=_allocatable(candidates, "memory", 1, _of_rows(nodes.memory_bytes, row, np.inf)),
        node_memory_used_bytes=_of_rows(load.node_memory_used_bytes, row, 0),
    )


def image_names(pod: Pod) -> tuple[str, ...]:
    """The images of the pod's containers, as the kubelet lists them on nodes."""
    return tuple(_with_tag(container.image) for container in pod.spec.containers or () if container.image)


def _with_tag(image: str) -> str:
    # A colon before the last slash belongs to the registry's port.
    return image if ":" in image.rpartition("/")[2] else f"{image}:latest"


def _of_rows(column: Float32Array, row: Int32Array, otherwise: float) -> Float64Array:
    # The unknown row -1 picks what is appended.
    values: Float64Array = np.append(column.astype(np.float64), otherwise)[row]
    return values


def _allocatable(
    candidates: CandidateNodes, resource: str, factor: float, otherwise: Float64Array
) -> Float64Array:
    if candidates.objects is None:
        return otherwise
    values = otherwise.copy()
    for position, node in enumerate(candidates.objects):
        given = amount(node.status.allocatable, resource, f"Nodes.items[{position}].status.allocatable")
        if given is not None:
            values[position] = given * factor
    return values
