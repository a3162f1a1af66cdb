"""Dispatch on simulated systems, many systems stepped as one batch, with the semantics of real access points.

Within a slot every access point decides its requests one after another, knowing the snapshot of the slot's start
(or an older one: staleness) and its own picks, not those of the other access points. Access points act in
parallel, so the k-th requests of all access points of all systems form one batch: a *round*.

Responses that arrive within a slot are seen at the next snapshot only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from policy_server.cluster.ledger import Ledger
from policy_server.cluster.queries import DispatchQueries
from policy_server.cluster.snapshot import Int32Array, Int64Array
from policy_server.features.candidates import Candidates
from policy_server.policies.dispatch import DispatchPolicy, DispatchView, no_decisions, pick, record_picks
from training.simulator.metrics import SlotOutcome
from training.simulator.simulator import REJECT, SlotRequests, VectorSimulator


@dataclass(frozen=True)
class OpenRound:
    """One batch of requests to decide, at most one per dispatcher.

    Attributes:
        view: of the snapshot to decide on.
        candidates: of the round's queries.
        request: int64 [Q], position of each query among the slot's arrivals.
        at_seconds: when the round is decided.
    """

    view: DispatchView
    candidates: Candidates
    request: Int64Array
    at_seconds: float


@dataclass(frozen=True)
class Round:
    """One batch of decisions, at most one per dispatcher.

    Attributes:
        view: of the snapshot decided on.
        candidates: of the round's queries.
        request: int64 [Q], position of each query among the slot's arrivals.
        position: int64 [Q], choice on the candidate axis, -1 where there was no candidate.
    """

    view: DispatchView
    candidates: Candidates
    request: Int64Array
    position: Int64Array


class RoundObserver(Protocol):
    """Sees every round, for example to record training data."""

    def __call__(self, made: Round, /) -> None: ...  # noqa: D102


class DispatchEnvironment:
    """Runs a dispatch policy on a simulator.

    Args:
        simulator: the systems; its slot is the decision interval.
        staleness_slots: how many slots old the snapshot is that decisions are based on, per slot drawn uniformly
            from 0 to this number (a report that comes late, for all systems alike).
        random: draws the staleness, breaks ties and samples.
    """

    def __init__(
        self, simulator: VectorSimulator, *, random: np.random.Generator, staleness_slots: int = 0
    ) -> None:
        self.simulator = simulator
        self._random = random
        self._staleness_slots = staleness_slots
        self._age = 0
        self._views: deque[DispatchView] = deque(maxlen=staleness_slots + 1)
        self._ledger: Ledger | None = None
        self._dispatcher_row: Int32Array = np.zeros(0, np.int32)
        self._chosen: Int32Array = np.zeros(0, np.int32)

    def step(self, policy: DispatchPolicy, observer: RoundObserver | None = None) -> SlotOutcome:
        """Decides all requests of the current slot and simulates it."""
        for asked in self.rounds(shares_picks=policy.shares_picks):
            candidates = asked.candidates
            if len(candidates):
                scores = policy.score(candidates, asked.view.prepared(policy), self._random)
                _, position = pick(
                    scores, candidates, self._random, sampling_temperature=policy.sampling_temperature
                )
            else:
                _, position = no_decisions(candidates, 0)
            self.decide(asked, position)
            if observer is not None:
                observer(Round(asked.view, candidates, asked.request, position))
        return self.finish_slot()

    def rounds(self, *, shares_picks: bool) -> Iterator[OpenRound]:
        """The rounds of the current slot, one after another; :meth:`decide` each before taking the next.

        Args:
            shares_picks: whether all access points of a system decide as one (one request per system and round), or
                each knows its own picks only (one per access point and round).
        """
        arrivals = self.simulator.arrivals()
        view = self._observe()
        ledger = self._bound_ledger(view)
        self._chosen = np.full(len(arrivals), REJECT, np.int32)
        now_seconds = self.simulator.now_seconds
        for rows in rounds_of(arrivals, shares_picks):
            access_point = arrivals.access_point[rows]
            queries = DispatchQueries(
                service=arrivals.service[rows],
                access_point=access_point,
                deadline_seconds=arrivals.deadline_seconds[rows],
                payload_bytes=arrivals.payload_bytes[rows],
                dispatcher=np.zeros(len(rows), np.int32)
                if shares_picks
                else self._dispatcher_row[access_point],
            )
            at_seconds = max(now_seconds, float(arrivals.arrival_seconds[rows].mean()))
            yield OpenRound(view, view.candidates(queries, ledger, at_seconds), rows, at_seconds)

    def decide(self, asked: OpenRound, position: Int64Array) -> None:
        """Settles a round.

        Args:
            asked: the latest round of :meth:`rounds`.
            position: int64 [Q], choice of each query on the candidate axis, -1 rejects the request.
        """
        candidates = asked.candidates
        if len(candidates):
            record_picks(candidates, position, candidates.ledger, asked.at_seconds)
        made = position >= 0
        self._chosen[asked.request[made]] = candidates.replica[position[made]]

    def finish_slot(self) -> SlotOutcome:
        """Simulates the slot as decided; a request that no round decided is rejected."""
        return self.simulator.advance(self._chosen)

    @property
    def view(self) -> DispatchView:
        """The view that the decisions of the last step were based on."""
        return self._views[-1 - self._age]

    def _observe(self) -> DispatchView:
        newest = self._views[-1] if self._views else None
        snapshot = self.simulator.snapshot()
        if newest is not None and newest.snapshot.topology is not snapshot.topology:
            # Rows of an older topology name other replicas; a report after a change is always delivered.
            self._views.clear()
        self._views.append(DispatchView(snapshot, newest))
        age = int(self._random.integers(self._staleness_slots + 1)) if self._staleness_slots else 0
        # Reports are late but never arrive out of order: the view in use does not go back in time.
        self._age = min(age, self._age + 1, len(self._views) - 1)
        return self.view

    def _bound_ledger(self, view: DispatchView) -> Ledger:
        topology = view.snapshot.topology
        if self._ledger is None or self._ledger.topology is not topology:
            system = topology.access_points.system
            first = np.searchsorted(system, np.arange(topology.system_count))
            self._dispatcher_row = (np.arange(len(system)) - first[system]).astype(np.int32)
            if self._ledger is None:
                self._ledger = Ledger(topology, int(self._dispatcher_row.max()) + 1)
            self._ledger.bind(topology)
        self._ledger.refresh(view.snapshot.taken_at_seconds)
        return self._ledger


def rounds_of(arrivals: SlotRequests, shares_picks: bool) -> Iterator[Int64Array]:
    """Positions of the arrivals of each round: the k-th of every dispatcher, in order of arrival."""
    dispatcher = arrivals.system if shares_picks else arrivals.access_point
    if not len(dispatcher):
        return
    order = np.argsort(dispatcher, kind="stable")
    ordered = dispatcher[order]
    first = np.searchsorted(ordered, ordered)
    rank = np.empty(len(ordered), np.int64)
    rank[order] = np.arange(len(ordered)) - first
    by_rank = np.argsort(rank, kind="stable")
    bounds = np.searchsorted(rank[by_rank], np.arange(int(rank.max()) + 2))
    for start, stop in pairwise(bounds.tolist()):
        yield by_rank[start:stop]
