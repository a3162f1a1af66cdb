"""The contract of placement policies: on which node should one more replica of a service start?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from policy_server.cluster.snapshot import BoolArray, Float64Array, Int32Array, Snapshot


@dataclass(frozen=True)
class PlacementQuery:
    """One replica to place on one of M nodes.

    Attributes:
        service: row of the service.
        cpu_millicores: CPU the replica needs.
        memory_bytes: memory the replica will hold.
        nodes: int32 [M], rows of the candidate nodes, each once; the replica fits each of them.
        node_cpu_millicores: float64 [M], their allocatable CPU, above zero.
        node_memory_bytes: float64 [M], their allocatable memory, above zero.
        has_image: bool [M], whether the service's image is on the node already.
        pending_replicas: float64 [N], replicas of the service placed on each node of the snapshot that the snapshot
            does not show yet; a part of one where it is only known to go to one of several nodes.
    """

    service: int
    cpu_millicores: float
    memory_bytes: float
    nodes: Int32Array
    node_cpu_millicores: Float64Array
    node_memory_bytes: Float64Array
    has_image: BoolArray
    pending_replicas: Float64Array

    def __len__(self) -> int:
        return len(self.nodes)


@runtime_checkable
class PlacementPolicy(Protocol):
    """Scores nodes. A pure function of its arguments; what it remembers between calls is a cache.

    Called on a thread of its own, never twice at the same time.

    Attributes:
        name: what operators ask for, in lower case with hyphens.
        version: of the model or of the rule.
        learned: whether a model is behind it.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def version(self) -> str: ...  # noqa: D102

    @property
    def learned(self) -> bool: ...  # noqa: D102

    def score(self, snapshot: Snapshot, query: PlacementQuery) -> Float64Array:
        """float64 [M], finite, one score per candidate node; larger is better; comparable only within one query.

        Equal nodes get equal scores, whatever their order.
        """
        ...
