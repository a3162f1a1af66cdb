"""Replicas that were placed and that the state does not show yet.

Between two state reports the scheduler places pods one after another, a whole Deployment in a second. Without a memory
of its own answers the extender would send all of them to the node that looked best at report time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policy_server.cluster.snapshot import Float64Array, Int64Array, Topology

PENDING_SECONDS = 60.0
"""A placement that has not shown by then is taken for one that did not come about."""

MOST_PENDING = 1_000
"""Beyond this many the oldest are forgotten."""

MOST_EQUALS = 64
"""Among more equally good nodes a pod is not expected anywhere: there is no herd to prevent."""


@dataclass(slots=True)
class _Placement:
    service: str
    nodes: tuple[str, ...]
    seen_at_count: float
    placed_at_seconds: float
    rows: list[int]


class PendingPlacements:
    """Remembers which nodes were best for each pod. For one thread.

    The scheduler has the last word and does not tell, so this is an estimate; it only ever shifts preferences. A pod
    for which several nodes were equally good counts as a part of a replica on each.
    """

    def __init__(self) -> None:
        # By pod, in the order of time.
        self._placements: dict[str, _Placement] = {}
        self._topology: Topology | None = None

    def __len__(self) -> int:
        return len(self._placements)

    def place(
        self, pod: str, topology: Topology, service: int, nodes: Int64Array, now_seconds: float
    ) -> None:
        """The pod goes to one of the nodes.

        Args:
            pod: its UID.
            topology: decided on.
            service: row.
            nodes: int64, rows, all equally good.
            now_seconds: monotonic.
        """
        before = self.replicas(topology, service, now_seconds, without=pod)
        self._placements.pop(pod, None)
        if len(nodes) > MOST_EQUALS:
            return
        self._placements[pod] = _Placement(
            service=topology.services.names[service],
            nodes=tuple(topology.nodes.names[node] for node in nodes.tolist()),
            seen_at_count=float((_replica_counts(topology, service) + before)[nodes].sum()) + 1,
            placed_at_seconds=now_seconds,
            rows=nodes.tolist(),
        )
        if len(self._placements) > MOST_PENDING:
            del self._placements[next(iter(self._placements))]

    def replicas(self, topology: Topology, service: int, now_seconds: float, *, without: str) -> Float64Array:
        """float64 [N]: pending replicas of a service on each node.

        Args:
            topology: decided on; placements it shows are forgotten.
            service: row.
            now_seconds: monotonic.
            without: UID of the pod being placed, which may have been tried before.
        """
        self._forget_old(now_seconds)
        self._bind(topology)
        name = topology.services.names[service]
        pending = [0.0] * len(topology.nodes.names)
        for pod, placement in self._placements.items():
            if placement.service == name and pod != without:
                for row in placement.rows:
                    pending[row] += 1 / len(placement.nodes)
        return np.array(pending)

    def _forget_old(self, now_seconds: float) -> None:
        while self._placements:
            oldest = next(iter(self._placements))
            if now_seconds - self._placements[oldest].placed_at_seconds <= PENDING_SECONDS:
                return
            del self._placements[oldest]

    def _bind(self, topology: Topology) -> None:
        if topology is self._topology:
            return
        self._topology = topology
        counts = {}
        for pod, placement in list(self._placements.items()):
            service = topology.service_index.get(placement.service)
            if service is None:
                continue
            if service not in counts:
                counts[service] = _replica_counts(topology, service)
            index = topology.node_index
            placement.rows = [index[node] for node in placement.nodes if node in index]
            if counts[service][placement.rows].sum() >= placement.seen_at_count:
                del self._placements[pod]


def _replica_counts(topology: Topology, service: int) -> Int64Array:
    """int64 [N]: replicas of the service on each node, in whatever state."""
    replicas = topology.replicas
    return np.bincount(
        replicas.node[replicas.service == service], minlength=len(topology.nodes.names)
    ).astype(np.int64)
