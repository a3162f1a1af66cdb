"""The state that decisions are based on: the latest snapshot, prepared for decisions, and the own picks since.

All methods run on one thread, the server's event loop, so nothing is locked: a report is built beside the held
state and then swapped in with one assignment.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Generic, TypeVar

import numpy as np

from policy_server.cluster.ledger import Ledger
from policy_server.cluster.snapshot import Float32Array, Float64Array, Load, Snapshot, Topology

ViewT = TypeVar("ViewT")

LATENCY_WEIGHT = 0.2
"""Weight of a new outcome in the moving average of a replica's latency."""

MAXIMUM_LEDGER_CELLS = 4_000_000
"""Largest access points x replicas for which every access point keeps picks of its own; beyond it they share."""


class StateConflictError(ValueError):
    """A report that does not follow the held state. The message names the field, the value and the remedy."""


@dataclass(frozen=True, slots=True)
class HeldState(Generic[ViewT]):
    """What the store holds between two reports.

    Attributes:
        snapshot: the latest one. Its latency column is the store's own: outcomes update it in place, so that
            rules reading it see them at once; nothing else of a snapshot ever changes.
        view: what the store's ``prepare`` made of the snapshot.
        ledger: own picks the snapshot does not show yet. One row per access point, or a single row for all.
        node_names: node of each replica.
    """

    snapshot: Snapshot
    view: ViewT
    ledger: Ledger
    node_names: tuple[str, ...]

    @property
    def ledger_row_per_access_point(self) -> bool:
        """Whether each access point counts its own picks."""
        return len(self.ledger.replica_pending) > 1


class StateStore(Generic[ViewT]):
    """Takes in reports and outcomes, and holds what they add up to.

    Args:
        prepare: makes a view of a snapshot; receives the view it replaces, to reuse what still holds.
        latency_lifetime_seconds: how long a latency learned from outcomes counts when no report brings one.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        prepare: Callable[[Snapshot, ViewT | None], ViewT],
        *,
        latency_lifetime_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prepare = prepare
        self._latency_lifetime_seconds = latency_lifetime_seconds
        self._clock = clock
        self._outcome_at: Float64Array = np.zeros(0)
        self.held: HeldState[ViewT] | None = None

    @property
    def version(self) -> int:
        """Version of the held state; 0 while there is none."""
        return 0 if self.held is None else self.held.snapshot.version

    def age_seconds(self) -> float:
        """Age of the held state; NaN while there is none."""
        return float("nan") if self.held is None else self.held.snapshot.age_seconds(self._clock())

    def replace(
        self,
        topology: Topology,
        load: Load,
        *,
        version: int = 0,
        age_seconds: float = 0.0,
        sample_age_seconds: Float64Array | None = None,
    ) -> int:
        """Takes in a full report and returns the version held now.

        Args:
            topology: what exists. Equal to the held one, it is taken for the same, and what was derived from it
                is kept.
            load: what is going on.
            version: larger than the held one; 0: one more than it.
            age_seconds: how old the load is already.
            sample_age_seconds: float64 [R], how old the figures of each replica are, infinity where it has none;
                None: all are as old as the load.

        Raises:
            StateConflictError: the version does not grow.
            SnapshotError: topology and load contradict each other.
        """
        version = self._next_version(version)
        held = self.held
        if held is not None and _equal(held.snapshot.topology, topology):
            topology = held.snapshot.topology
        now_seconds = self._clock()
        sampled_at = None if sample_age_seconds is None else now_seconds - sample_age_seconds
        self._swap(Snapshot(topology, load, version, now_seconds - age_seconds, sampled_at))
        return version

    def update(
        self,
        load: Load,
        *,
        base_version: int,
        version: int = 0,
        age_seconds: float = 0.0,
        sample_age_seconds: Float64Array | None = None,
    ) -> int:
        """Takes in the load of a delta report and returns the version held now.

        Args:
            load: the held load with the delta's changes; the latency is NaN where the delta brings none.
            base_version: the version the delta builds on.
            version: larger than the held one; 0: one more than it.
            age_seconds: how old the load is already.
            sample_age_seconds: float64 [R], how old the figures of each replica are, NaN where the delta brings
                none; None: it brings those of all, as old as the load.

        Raises:
            StateConflictError: nothing is held, another version is held, or the version does not grow.
            SnapshotError: topology and load contradict each other.
        """
        base = self.base(base_version)
        version = self._next_version(version)
        now_seconds, sampled_at = self._clock(), None
        if sample_age_seconds is not None:
            known = base.taken_at_seconds if base.sampled_at_seconds is None else base.sampled_at_seconds
            sampled_at = np.where(np.isnan(sample_age_seconds), known, now_seconds - sample_age_seconds)
        self._swap(Snapshot(base.topology, load, version, now_seconds - age_seconds, sampled_at))
        return version

    def base(self, base_version: int) -> Snapshot:
        """The held snapshot, for a delta that builds on it.

        Raises:
            StateConflictError: nothing is held, or another version.
        """
        if self.held is None:
            raise StateConflictError(
                f"base_version: {base_version}; no state is held; send a full report first"
            )
        snapshot = self.held.snapshot
        if base_version != snapshot.version:
            raise StateConflictError(
                f"base_version: {base_version}; version {snapshot.version} is held; "
                "build the delta on that version or send a full report"
            )
        return snapshot

    def settle(self, endpoint: str, access_point: str, latency_seconds: float | None) -> bool:
        """Takes in how one dispatched request ended; False if the state does not hold its endpoint.

        Args:
            endpoint: that was chosen.
            access_point: that dispatched the request.
            latency_seconds: from dispatch to response, or None if there was no response.
        """
        held = self.held
        if held is None:
            return False
        topology = held.snapshot.topology
        replica = topology.replica_index.get(endpoint)
        row = topology.access_point_index.get(access_point)
        if replica is None or row is None:
            return False
        if not held.ledger_row_per_access_point or not held.ledger.settle(row, replica):
            held.ledger.settle(0, replica)
        if latency_seconds is not None:
            self._average_latency(held.snapshot.load.replica_latency_seconds, replica, latency_seconds)
        return True

    def observe_latency(self, endpoint: str, latency_seconds: float) -> bool:
        """Takes in how long a response took; False if the state does not hold its endpoint."""
        held = self.held
        replica = None if held is None else held.snapshot.topology.replica_index.get(endpoint)
        if held is None or replica is None:
            return False
        self._average_latency(held.snapshot.load.replica_latency_seconds, replica, latency_seconds)
        return True

    def _average_latency(self, latency: Float32Array, replica: int, seconds: float) -> None:
        known = float(latency[replica])
        latency[replica] = seconds if known != known else known + LATENCY_WEIGHT * (seconds - known)
        self._outcome_at[replica] = self._clock()

    def _next_version(self, version: int) -> int:
        held = self.version
        if version == 0:
            return held + 1
        if version <= held:
            raise StateConflictError(
                f"version: {version}; version {held} is held already; send a larger one, or 0 to have it counted"
            )
        return version

    def _swap(self, snapshot: Snapshot) -> None:
        held = self.held
        snapshot = self._with_own_latencies(snapshot)
        topology = snapshot.topology
        if held is not None and _same_dispatchers(held.snapshot.topology, topology, held.ledger):
            ledger = held.ledger
            ledger.bind(topology)
        else:
            ledger = Ledger(topology, _dispatchers(topology))
        ledger.refresh(snapshot.taken_at_seconds, snapshot.sampled_at_seconds)
        if held is not None and held.snapshot.topology is topology:
            node_names = held.node_names
        else:
            names = topology.nodes.names
            node_names = tuple(names[row] for row in topology.replicas.node.tolist())
        view = self._prepare(snapshot, None if held is None else held.view)
        self.held = HeldState(snapshot, view, ledger, node_names)

    def _with_own_latencies(self, snapshot: Snapshot) -> Snapshot:
        """Fills the latencies the report leaves open with what is known, and makes the column the store's own."""
        latency = snapshot.load.replica_latency_seconds.copy()
        outcome_at = np.full(len(latency), -np.inf)
        if self.held is not None:
            known = self.held.snapshot.load.replica_latency_seconds
            since = self._outcome_at
            topology, previous = snapshot.topology, self.held.snapshot.topology
            if topology is not previous:
                index = previous.replica_index
                rows = np.array([index.get(e, -1) for e in topology.replicas.endpoints], np.int64)
                known = np.where(rows >= 0, np.append(known, np.nan)[rows], np.nan).astype(np.float32)
                since = np.where(rows >= 0, np.append(since, -np.inf)[rows], -np.inf)
            open_rows = np.isnan(latency)
            # A figure a report brought holds until the next one; one learned from outcomes fades.
            fresh = np.isinf(since) | (self._clock() - since <= self._latency_lifetime_seconds)
            latency[open_rows] = np.where(fresh, known, np.nan)[open_rows]
            outcome_at[open_rows] = np.where(fresh, since, -np.inf)[open_rows]
        self._outcome_at = outcome_at
        load = replace(snapshot.load, replica_latency_seconds=latency)
        return replace(snapshot, load=load, _validated=True)


def _dispatchers(topology: Topology) -> int:
    access_points = len(topology.access_points.names)
    cells = access_points * len(topology.replicas.endpoints)
    return access_points if cells <= MAXIMUM_LEDGER_CELLS else 1


def _same_dispatchers(held: Topology, topology: Topology, ledger: Ledger) -> bool:
    return held is topology or (
        held.access_points.names == topology.access_points.names
        and _dispatchers(topology) == len(ledger.replica_pending)
    )


def _equal(first: Topology, second: Topology) -> bool:
    if first is second:
        return True
    if first.local_delay_seconds != second.local_delay_seconds:
        return False
    for group in ("access_points", "nodes", "services", "replicas", "links"):
        ours, theirs = getattr(first, group), getattr(second, group)
        for column in fields(ours):
            one, other = getattr(ours, column.name), getattr(theirs, column.name)
            same = one == other if isinstance(one, tuple) else np.array_equal(one, other)
            if not same:
                return False
    return True
