"""Replicas that were placed and that the state does not show yet.

Between two state reports the scheduler places pods one after another, a whole Deployment in a second. Without a memory
of its own answers the extender would send all of them to the node that looked best at report time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policy_server.cluster.snapshot import Int32Array, Int64Array, Snapshot

PENDING_SECONDS = 60.0
"""A placement that has not shown by then is taken for one that did not come about."""

MOST_PENDING = 10_000
"""Beyond this many the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class _Placement:
    service: str
    node: str
    seen_at_count: int
    placed_at_seconds: float


class PendingPlacements:
    """Remembers the preferred node of each pod. For one thread.

    The scheduler has the last word and does not tell, so this is an estimate; it only ever shifts preferences.
    """

    def __init__(self) -> None:
        self._placements: dict[str, _Placement] = {}

    def __len__(self) -> int:
        return len(self._placements)

    def place(self, pod: str, snapshot: Snapshot, service: int, node: int, now_seconds: float) -> None:
        """The pod prefers the node, as of now.

        Args:
            pod: its UID.
            snapshot: decided on.
            service: row.
            node: row.
            now_seconds: on the clock of the snapshot.
        """
        topology = snapshot.topology
        there = int(_replica_counts(snapshot, service)[node])
        expected = there + int(self.replicas(snapshot, service, now_seconds, without=pod)[node])
        self._placements.pop(pod, None)
        self._placements[pod] = _Placement(
            topology.services.names[service], topology.nodes.names[node], expected + 1, now_seconds
        )
        if len(self._placements) > MOST_PENDING:
            del self._placements[next(iter(self._placements))]

    def replicas(self, snapshot: Snapshot, service: int, now_seconds: float, *, without: str) -> Int32Array:
        """int32 [N]: pending replicas of a service on each node.

        Args:
            snapshot: decided on; placements it shows are forgotten.
            service: row.
            now_seconds: on the clock of the snapshot.
            without: UID of the pod being placed, which may have been tried before.
        """
        topology = snapshot.topology
        name = topology.services.names[service]
        counts = _replica_counts(snapshot, service)
        pending = np.zeros(len(counts), np.int32)
        for pod, placement in list(self._placements.items()):
            if now_seconds - placement.placed_at_seconds > PENDING_SECONDS:
                del self._placements[pod]
            elif placement.service == name:
                node = topology.node_index.get(placement.node)
                if node is None or counts[node] >= placement.seen_at_count:
                    del self._placements[pod]
                elif pod != without:
                    pending[node] += 1
        return pending


def _replica_counts(snapshot: Snapshot, service: int) -> Int64Array:
    """int64 [N]: replicas of the service on each node, in whatever state."""
    replicas = snapshot.topology.replicas
    return np.bincount(
        replicas.node[replicas.service == service], minlength=len(snapshot.topology.nodes.names)
    ).astype(np.int64)
