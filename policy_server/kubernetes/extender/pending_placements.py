"""Replicas that were placed and that the state does not show yet.

Between two state reports the scheduler places pods one after another, a whole Deployment in a second. Without a memory
of its own answers the extender would send all of them to the node that looked best at report time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policy_server.cluster.snapshot import Float64Array, Int64Array, Snapshot

PENDING_SECONDS = 60.0
"""A placement that has not shown by then is taken for one that did not come about."""

MOST_PENDING = 1_000
"""Beyond this many the oldest are forgotten."""

MOST_EQUALS = 64
"""Among more equally good nodes a pod is not expected anywhere: there is no herd to prevent."""


@dataclass(frozen=True, slots=True)
class _Placement:
    service: str
    nodes: tuple[str, ...]
    seen_at_count: float
    placed_at_seconds: float


class PendingPlacements:
    """Remembers which nodes were best for each pod. For one thread.

    The scheduler has the last word and does not tell, so this is an estimate; it only ever shifts preferences. A pod
    for which several nodes were equally good counts as a part of a replica on each.
    """

    def __init__(self) -> None:
        self._placements: dict[str, _Placement] = {}

    def __len__(self) -> int:
        return len(self._placements)

    def place(
        self, pod: str, snapshot: Snapshot, service: int, nodes: Int64Array, now_seconds: float
    ) -> None:
        """The pod goes to one of the nodes.

        Args:
            pod: its UID.
            snapshot: decided on.
            service: row.
            nodes: int64, rows, all equally good.
            now_seconds: on the clock of the snapshot.
        """
        before = self.replicas(snapshot, service, now_seconds, without=pod)
        self._placements.pop(pod, None)
        if len(nodes) > MOST_EQUALS:
            return
        topology = snapshot.topology
        self._placements[pod] = _Placement(
            service=topology.services.names[service],
            nodes=tuple(topology.nodes.names[node] for node in nodes.tolist()),
            seen_at_count=float((_replica_counts(snapshot, service) + before)[nodes].sum()) + 1,
            placed_at_seconds=now_seconds,
        )
        if len(self._placements) > MOST_PENDING:
            del self._placements[next(iter(self._placements))]

    def replicas(self, snapshot: Snapshot, service: int, now_seconds: float, *, without: str) -> Float64Array:
        """float64 [N]: pending replicas of a service on each node.

        Args:
            snapshot: decided on; placements it shows are forgotten.
            service: row.
            now_seconds: on the clock of the snapshot.
            without: UID of the pod being placed, which may have been tried before.
        """
        topology = snapshot.topology
        name = topology.services.names[service]
        counts = _replica_counts(snapshot, service)
        pending = np.zeros(len(counts))
        for pod, placement in list(self._placements.items()):
            if now_seconds - placement.placed_at_seconds > PENDING_SECONDS:
                del self._placements[pod]
            elif placement.service == name and pod != without:
                rows = [topology.node_index[node] for node in placement.nodes if node in topology.node_index]
                if counts[rows].sum() >= placement.seen_at_count:
                    del self._placements[pod]
                else:
                    pending[rows] += 1 / len(placement.nodes)
        return pending


def _replica_counts(snapshot: Snapshot, service: int) -> Int64Array:
    """int64 [N]: replicas of the service on each node, in whatever state."""
    replicas = snapshot.topology.replicas
    return np.bincount(
        replicas.node[replicas.service == service], minlength=len(snapshot.topology.nodes.names)
    ).astype(np.int64)
