"""A dispatcher's own picks that the state does not show yet.

Between two state reports every dispatcher sees the same old load. Without a memory of its own picks it sends
everything to the endpoint that looked best at report time (the herd of field reports on endpoint pickers). The
ledger is that memory: a pick counts from the moment it is made until a state report is new enough to show it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy_server.cluster.snapshot import (
    BoolArray,
    Float32Array,
    Float64Array,
    Int32Array,
    Int64Array,
    Topology,
)

MAXIMUM_ENTRIES = 65_536
"""Without state reports nothing settles; beyond this many picks the older half is taken for finished."""


class Ledger:
    """Own picks of K dispatchers over one topology.

    Attributes:
        replica_pending: float32 [K, R], picked requests the state does not show yet.
        node_pending_cpu: float32 [K, N], CPU those requests will hold, as a fraction of the node's CPU.
        link_pending_bytes: float32 [L], bytes those requests put on each link.
        replica_picks: int64 [K, R], picks ever made (for round robin).
    """

    def __init__(self, topology: Topology, dispatchers: int = 1) -> None:
        self._dispatchers = dispatchers
        self._entries = 0
        self._picked = False
        self._capacity = 256
        self._allocate_entries()
        self.bind(topology)

    def bind(self, topology: Topology) -> None:
        """Counts over ``topology`` from now on; picks of endpoints that are still there are kept."""
        if topology is getattr(self, "topology", None):
            return
        moved = self._moved_rows(topology) if self._entries or self._picked else None
        picks = self.replica_picks if moved is not None else None
        replicas, nodes = len(topology.replicas.endpoints), len(topology.nodes.names)
        self.topology = topology
        self.replica_pending: Float32Array = np.zeros((self._dispatchers, replicas), np.float32)
        self.node_pending_cpu: Float32Array = np.zeros((self._dispatchers, nodes), np.float32)
        self.link_pending_bytes: Float32Array = np.zeros(len(topology.links.source), np.float32)
        self.replica_picks: Int64Array = np.zeros((self._dispatchers, replicas), np.int64)
        self._node: Int32Array = topology.replicas.node
        self._cpu_share: Float32Array = (
            topology.services.cpu_millicores[topology.replicas.service]
            / topology.nodes.cpu_millicores[topology.replicas.node]
        )
        if moved is None or picks is None:
            return
        stays = moved >= 0
        self.replica_picks[:, moved[stays]] = picks[:, stays]
        replica = moved[self._replica[: self._entries]]
        self._replica[: self._entries] = replica
        # Links are renumbered too; their pending bytes are gone within one round trip, so they start afresh.
        self._link[: self._entries] = -1
        self._keep(replica >= 0)

    def record(
        self,
        dispatcher: NDArray[np.integer[Any]],
        replica: NDArray[np.integer[Any]],
        link: NDArray[np.integer[Any]],
        payload_bytes: Float32Array,
        visible_at_seconds: Float64Array,
    ) -> None:
        """Counts P picks.

        Args:
            dispatcher: integer [P], row of the dispatcher that picked.
            replica: integer [P], picked replica row.
            link: integer [P], row of the link taken; negative: none.
            payload_bytes: float32 [P], bytes put on the link.
            visible_at_seconds: float64 [P], when the request reaches the replica, on the clock of the snapshots.
        """
        rows = self._append(len(replica))
        self._dispatcher[rows] = dispatcher
        self._replica[rows] = replica
        self._link[rows] = link
        self._bytes[rows] = payload_bytes
        self._visible_at[rows] = visible_at_seconds
        flat = dispatcher.astype(np.int64) * self.replica_pending.shape[1] + replica
        np.add.at(self.replica_pending.reshape(-1), flat, np.float32(1))
        np.add.at(self.replica_picks.reshape(-1), flat, 1)
        nodes = self.topology.replicas.node[replica]
        flat = dispatcher.astype(np.int64) * self.node_pending_cpu.shape[1] + nodes
        np.add.at(self.node_pending_cpu.reshape(-1), flat, self._cpu_share[replica])
        forwarded = link >= 0
        np.add.at(self.link_pending_bytes, link[forwarded], payload_bytes[forwarded])

    def record_one(
        self, dispatcher: int, replica: int, link: int, payload_bytes: float, visible_at_seconds: float
    ) -> None:
        """Counts one pick; arguments as in :meth:`record`."""
        row = self._append(1).start
        self._dispatcher[row] = dispatcher
        self._replica[row] = replica
        self._link[row] = link
        self._bytes[row] = payload_bytes
        self._visible_at[row] = visible_at_seconds
        self.replica_pending[dispatcher, replica] += 1
        self.replica_picks[dispatcher, replica] += 1
        self.node_pending_cpu[dispatcher, self._node[replica]] += self._cpu_share[replica]
        if link >= 0:
            self.link_pending_bytes[link] += payload_bytes

    def settle(self, dispatcher: int, replica: int) -> bool:
        """Takes back the oldest pending pick of a replica because its outcome is known; False if there is none."""
        rows = np.flatnonzero(
            (self._replica[: self._entries] == replica) & (self._dispatcher[: self._entries] == dispatcher)
        )
        if not len(rows):
            return False
        keep = np.ones(self._entries, bool)
        keep[rows[0]] = False
        self._keep(keep)
        return True

    def refresh(self, taken_at_seconds: float) -> None:
        """Drops the picks that a state of that time shows."""
        self._keep(self._visible_at[: self._entries] > taken_at_seconds)

    @property
    def pending(self) -> int:
        """Number of picks the state does not show yet."""
        return self._entries

    def _moved_rows(self, topology: Topology) -> Int32Array:
        """int32 [old R]: new row of each old replica, -1 where it is gone."""
        index = topology.replica_index
        return np.array([index.get(endpoint, -1) for endpoint in self.topology.replicas.endpoints], np.int32)

    def _keep(self, keep: BoolArray) -> None:
        count = int(keep.sum())
        for column in self._columns():
            column[:count] = column[: self._entries][keep]
        self._entries = count
        dispatcher, replica, link = self._dispatcher[:count], self._replica[:count], self._link[:count]
        self.replica_pending[...] = _sums(self.replica_pending.shape, dispatcher, replica, None)
        self.node_pending_cpu[...] = _sums(
            self.node_pending_cpu.shape,
            dispatcher,
            self.topology.replicas.node[replica],
            self._cpu_share[replica],
        )
        forwarded = link >= 0
        self.link_pending_bytes[...] = np.bincount(
            link[forwarded], weights=self._bytes[:count][forwarded], minlength=len(self.link_pending_bytes)
        )

    def _append(self, count: int) -> slice:
        self._picked = True
        if self._entries >= MAXIMUM_ENTRIES:
            self._keep(np.arange(self._entries) >= self._entries // 2)
        start = self._entries
        self._entries = start + count
        if self._entries > self._capacity:
            self._grow(start)
        return slice(start, self._entries)

    def _grow(self, used: int) -> None:
        old = self._columns()
        self._capacity = max(self._entries, 2 * self._capacity)
        self._allocate_entries()
        for source, target in zip(old, self._columns(), strict=True):
            target[:used] = source[:used]

    def _columns(self) -> tuple[NDArray[Any], ...]:
        return self._dispatcher, self._replica, self._link, self._bytes, self._visible_at

    def _allocate_entries(self) -> None:
        self._dispatcher = np.zeros(self._capacity, np.int32)
        self._replica = np.zeros(self._capacity, np.int32)
        self._link = np.zeros(self._capacity, np.int32)
        self._bytes = np.zeros(self._capacity, np.float32)
        self._visible_at = np.zeros(self._capacity, np.float64)


def _sums(
    shape: tuple[int, ...], rows: Int32Array, columns: Int32Array, weights: Float32Array | None
) -> Float32Array:
    flat = np.bincount(
        rows.astype(np.int64) * shape[1] + columns, weights=weights, minlength=shape[0] * shape[1]
    )
    return flat.reshape(shape).astype(np.float32)
