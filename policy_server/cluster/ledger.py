"""A dispatcher's own picks that the state does not show yet.

Between two state reports every dispatcher sees the same old load. Without a memory of its own picks it sends
everything to the endpoint that looked best at report time (the herd of field reports on endpoint pickers). The
ledger is that memory: a pick counts from the moment it is made until a state report is new enough to show it.

A *leased* pick is one whose end will be told (:meth:`Ledger.release`). It counts until then, unless the endpoint's
own figures show it before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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

_MOST_RECENT = 4096
_RELEASED = -np.inf


def pending_positions(
    topology: Topology,
    node: NDArray[np.integer[Any]],
    replica: NDArray[np.integer[Any]],
    link: NDArray[np.integer[Any]],
) -> Int64Array:
    """Where :attr:`Ledger.pending_values` keeps what is pending on C candidates, for dispatcher 0.

    For dispatcher d, :attr:`Ledger.dispatcher_stride` x d is to be added to the first two rows.

    Args:
        topology: of the ledger.
        node: integer [C].
        replica: integer [C].
        link: integer [C]; negative: none, zero bytes are pending there.

    Returns:
        int64 [3, C]: positions of the pending CPU of the nodes, of the pending requests of the replicas, and of the
        pending bytes of the links.
    """
    positions = np.empty((3, len(replica)), np.int64)
    first = 1 + len(topology.links.source)
    np.add(node, first + len(topology.replicas.endpoints), out=positions[0])
    np.add(replica, first, out=positions[1])
    np.add(link, 1, out=positions[2])
    return np.maximum(positions, 0, out=positions)


class _Pick(NamedTuple):
    """One pick, in plain numbers; fields in the order of the ledger's columns."""

    dispatcher: int
    replica: int
    link: int
    payload_bytes: float
    visible_at_seconds: float
    ticket: int
    leased: bool


class Ledger:
    """Own picks of K dispatchers over one topology.

    Attributes:
        pending_values: float32 [1 + L + K * (R + N)], the next three in one array, so that one gather reads them all: a
            zero, the links, then of each dispatcher the replicas and the nodes. See :func:`pending_positions`.
        dispatcher_stride: R + N.
        replica_pending: float32 [K, R], picked requests the state does not show yet.
        node_pending_cpu: float32 [K, N], CPU those requests will hold, as a fraction of the node's CPU.
        link_pending_bytes: float32 [L], bytes those requests put on each link.
        replica_picks: int64 [K, R], picks ever made (for round robin).
    """

    def __init__(self, topology: Topology, dispatchers: int = 1) -> None:
        self._dispatchers = dispatchers
        self._entries = 0
        self._released_entries = 0
        self._picked = False
        self._next_ticket = 0
        # Single picks wait here in plain numbers until somebody reads the entries; None: released meanwhile.
        self._recent: list[_Pick | None] = []
        self._released_recent = 0
        self._capacity = 256
        self._allocate_entries()
        self.bind(topology)

    def bind(self, topology: Topology) -> None:
        """Counts over ``topology`` from now on; picks of endpoints that are still there are kept."""
        if topology is getattr(self, "topology", None):
            return
        self._take_in_recent()
        moved = self._moved_rows(topology) if self._entries or self._picked else None
        picks = self.replica_picks if moved is not None else None
        replicas, nodes = len(topology.replicas.endpoints), len(topology.nodes.names)
        self.topology = topology
        self._replicas = replicas
        self._first = 1 + len(topology.links.source)
        self.dispatcher_stride = replicas + nodes
        self.pending_values: Float32Array = np.zeros(
            self._first + self._dispatchers * self.dispatcher_stride, np.float32
        )
        of_dispatchers = self.pending_values[self._first :].reshape(self._dispatchers, -1)
        self.replica_pending: Float32Array = of_dispatchers[:, :replicas]
        self.node_pending_cpu: Float32Array = of_dispatchers[:, replicas:]
        self.link_pending_bytes: Float32Array = self.pending_values[1 : self._first]
        # Single picks read and write these one by one, which views and lists are faster at than arrays.
        self._value_at = self.pending_values.data.cast("B").cast("f")
        self.replica_picks: Int64Array = np.zeros((self._dispatchers, replicas), np.int64)
        self._node_picks: Int64Array = np.zeros((self._dispatchers, nodes), np.int64)
        self._nodes = nodes
        self._picks_at = self.replica_picks.reshape(-1).data.cast("B").cast("q")
        self._node_picks_at = self._node_picks.reshape(-1).data.cast("B").cast("q")
        self._node_position: Int64Array = topology.replicas.node.astype(np.int64) + replicas
        self._node_of: list[int] = topology.replicas.node.tolist()
        self._cpu_share: Float32Array = (
            topology.services.cpu_millicores[topology.replicas.service]
            / topology.nodes.cpu_millicores[topology.replicas.node]
        )
        self._cpu_share_of: list[float] = self._cpu_share.tolist()
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
        self._take_in_recent()
        self._forget_oldest()
        rows = self._append(len(replica))
        self._dispatcher[rows] = dispatcher
        self._replica[rows] = replica
        self._link[rows] = link
        self._bytes[rows] = payload_bytes
        self._visible_at[rows] = visible_at_seconds
        self._ticket[rows] = np.arange(self._next_ticket, self._next_ticket + len(replica))
        self._leased[rows] = False
        self._next_ticket += len(replica)
        dispatcher = dispatcher.astype(np.int64)
        np.add.at(self.replica_picks.reshape(-1), dispatcher * self.replica_picks.shape[1] + replica, 1)
        first = self._first + dispatcher * self.dispatcher_stride
        np.add.at(self.pending_values, first + replica, np.float32(1))
        np.add.at(self.pending_values, first + self._node_position[replica], self._cpu_share[replica])
        np.add.at(self._node_picks, (dispatcher, self.topology.replicas.node[replica]), 1)
        forwarded = link >= 0
        np.add.at(self.link_pending_bytes, link[forwarded], payload_bytes[forwarded])

    def record_one(
        self, dispatcher: int, replica: int, link: int, payload_bytes: float, visible_at_seconds: float
    ) -> None:
        """Counts one pick; arguments as in :meth:`record`."""
        recent = len(self._recent)
        if recent >= _MOST_RECENT or self._entries + recent >= MAXIMUM_ENTRIES:
            self._take_in_recent()
            self._forget_oldest()
        self._picked = True
        self._recent.append(
            _Pick(dispatcher, replica, link, payload_bytes, visible_at_seconds, self._next_ticket, False)
        )
        self._next_ticket += 1
        self._picks_at[dispatcher * self._replicas + replica] += 1
        value_at, first = self._value_at, self._first + dispatcher * self.dispatcher_stride
        value_at[first + replica] += 1.0
        node = self._node_of[replica]
        value_at[first + self._replicas + node] += self._cpu_share_of[replica]
        self._node_picks_at[dispatcher * self._nodes + node] += 1
        if link >= 0:
            value_at[1 + link] += payload_bytes

    def lease_latest(self) -> int:
        """Leases the pick that :meth:`record_one` counted last; returns its ticket for :meth:`release`."""
        latest = self._recent[-1]
        assert latest is not None
        self._recent[-1] = _Pick(*latest[:-1], True)
        return latest.ticket

    def release(self, ticket: int) -> bool:
        """Takes back a leased pick that has ended; False if it does not count any more."""
        return self._take_back(ticket) is not None

    def transfer(self, ticket: int, replica: int) -> int | None:
        """Moves a leased pick to another replica; returns its ticket there, None if it does not count any more."""
        pick = self._take_back(ticket)
        if pick is None:
            return None
        self.record_one(pick.dispatcher, replica, -1, 0.0, pick.visible_at_seconds)
        return self.lease_latest()

    def settle(self, dispatcher: int, replica: int) -> bool:
        """Takes back the oldest pending pick of a replica because its outcome is known; False if there is none."""
        self._take_in_recent()
        rows = np.flatnonzero(
            (self._replica[: self._entries] == replica)
            & (self._dispatcher[: self._entries] == dispatcher)
            & (self._visible_at[: self._entries] > _RELEASED)
        )
        if not len(rows):
            return False
        keep = np.ones(self._entries, bool)
        keep[rows[0]] = False
        self._keep(keep)
        return True

    def refresh(self, taken_at_seconds: float, sampled_at_seconds: Float64Array | None = None) -> None:
        """Drops the picks that the state shows.

        Args:
            taken_at_seconds: time of the state.
            sampled_at_seconds: float64 [R], time of each replica's own figures, minus infinity where it has none;
                None: all are of the time of the state. Without figures of its own a replica is taken to be idle, so
                its picks are dropped as well, but for leased ones, of which the end will be told.
        """
        self._take_in_recent()
        visible_at, shown_until = self._visible_at[: self._entries], taken_at_seconds
        if sampled_at_seconds is None:
            self._keep(visible_at > shown_until)
            return
        sampled_at = sampled_at_seconds[self._replica[: self._entries]]
        waiting_for_figures = np.isneginf(sampled_at) & ~self._leased[: self._entries]
        self._keep(visible_at > np.where(waiting_for_figures, shown_until, sampled_at))

    @property
    def pending(self) -> int:
        """Number of picks the state does not show yet."""
        return self._entries - self._released_entries + len(self._recent) - self._released_recent

    def _moved_rows(self, topology: Topology) -> Int32Array:
        """int32 [old R]: new row of each old replica, -1 where it is gone."""
        index = topology.replica_index
        return np.array([index.get(endpoint, -1) for endpoint in self.topology.replicas.endpoints], np.int32)

    def _take_back(self, ticket: int) -> _Pick | None:
        """Stops counting a pick; returns it, None if it does not count any more."""
        first_recent = self._next_ticket - len(self._recent)
        if ticket >= first_recent:
            pick = self._recent[ticket - first_recent]
            if pick is None:
                return None
            self._recent[ticket - first_recent] = None
            self._released_recent += 1
        else:
            row = int(self._ticket[: self._entries].searchsorted(ticket))
            if row == self._entries or self._ticket[row] != ticket or self._visible_at[row] == _RELEASED:
                return None
            pick = _Pick(*(column[row].item() for column in self._columns()))
            self._visible_at[row] = _RELEASED
            self._released_entries += 1
        dispatcher, replica, link = pick.dispatcher, pick.replica, pick.link
        value_at, first = self._value_at, self._first + dispatcher * self.dispatcher_stride
        value_at[first + replica] -= 1.0
        node = self._node_of[replica]
        left = self._node_picks_at[dispatcher * self._nodes + node] - 1
        self._node_picks_at[dispatcher * self._nodes + node] = left
        # An idle node is exactly idle: what rounding leaves behind would break ties among equals.
        if left:
            value_at[first + self._replicas + node] -= self._cpu_share_of[replica]
        else:
            value_at[first + self._replicas + node] = 0.0
        if link >= 0:
            value_at[1 + link] = max(0.0, value_at[1 + link] - pick.payload_bytes)
        return pick

    def _keep(self, keep: BoolArray) -> None:
        keep = keep & (self._visible_at[: self._entries] > _RELEASED)
        self._released_entries = 0
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
        self._node_picks[...] = _sums(
            self._node_picks.shape, dispatcher, self.topology.replicas.node[replica], None
        )
        forwarded = link >= 0
        self.link_pending_bytes[...] = np.bincount(
            link[forwarded], weights=self._bytes[:count][forwarded], minlength=len(self.link_pending_bytes)
        )

    def _drop_released(self) -> None:
        self._keep(np.ones(self._entries, bool))

    def _take_in_recent(self) -> None:
        """Moves the single picks, which are counted already, to the entries."""
        if self._recent:
            counting = [pick for pick in self._recent if pick is not None]
            self._recent.clear()
            self._released_recent = 0
            if counting:
                rows = self._append(len(counting))
                for column, values in zip(self._columns(), zip(*counting, strict=True), strict=True):
                    column[rows] = values
        if self._released_entries > _MOST_RECENT:
            self._drop_released()

    def _forget_oldest(self) -> None:
        if self._entries >= MAXIMUM_ENTRIES and self._released_entries:
            self._drop_released()
        if self._entries >= MAXIMUM_ENTRIES:
            self._keep(np.arange(self._entries) >= self._entries // 2)

    def _append(self, count: int) -> slice:
        self._picked = True
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
        return (
            self._dispatcher,
            self._replica,
            self._link,
            self._bytes,
            self._visible_at,
            self._ticket,
            self._leased,
        )

    def _allocate_entries(self) -> None:
        self._dispatcher = np.zeros(self._capacity, np.int32)
        self._replica = np.zeros(self._capacity, np.int32)
        self._link = np.zeros(self._capacity, np.int32)
        self._bytes = np.zeros(self._capacity, np.float32)
        self._visible_at = np.zeros(self._capacity, np.float64)
        self._ticket = np.zeros(self._capacity, np.int64)
        self._leased = np.zeros(self._capacity, bool)


def _sums(
    shape: tuple[int, ...], rows: Int32Array, columns: Int32Array, weights: Float32Array | None
) -> Float32Array:
    flat = np.bincount(
        rows.astype(np.int64) * shape[1] + columns, weights=weights, minlength=shape[0] * shape[1]
    )
    return flat.reshape(shape).astype(np.float32)
