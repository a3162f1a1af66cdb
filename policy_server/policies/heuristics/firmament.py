"""Dispatch by minimum-cost flow, as Firmament does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy_server.cluster.snapshot import BoolArray, Float32Array, Float64Array, Int64Array
from policy_server.features.candidates import Candidates
from policy_server.policies.heuristics.base import HeuristicDispatch, candidate_counts, tiered_score
from policy_server.policies.heuristics.turns import occurrences_before

_Solver = Callable[[Float64Array], tuple[NDArray[Any], NDArray[Any]]]


@dataclass(frozen=True)
class Firmament(HeuristicDispatch):
    """Assigns the waiting requests together, at minimum total cost; a central scheduler.

    Gog, Schwarzkopf, Gleave, Watson and Hand, Firmament: Fast, Centralized Cluster Scheduling at Scale (OSDI 2016):
    requests are the sources of a flow network, nodes lead to its sink, and what a unit of flow costs on its way is
    policy. Ours:

    - The cost of a request is its estimated completion time, which contains the network. A request that would miss
      its deadline costs more than all others together, so as few as possible do.
    - Congestion is convex: the k-th of the requests that go to a node waits for the k - 1 before it, each of which
      takes the mean CPU of the requests that could come there, and a slot.

    Unit arcs node -> sink of rising cost turn the flow into an assignment of requests to node slots, solved exactly
    by :func:`scipy.optimize.linear_sum_assignment`. Slots are added until none that is missing could be used.
    Replicas of one service on one node take turns. Requests beyond ``wave_size`` are assigned after those before
    them, which bounds the time (the solver's grows with the cube). Systems of a disjoint union are solved one by one.

    Attributes:
        wave_size: most requests assigned together.

    Raises:
        ImportError: scipy is not installed; the message names the extra.
    """

    name: str = "firmament"
    shares_picks: bool = True
    wave_size: int = 256

    def __post_init__(self) -> None:
        _linear_sum_assignment()

    def score(self, candidates: Candidates, prepared: None, random: np.random.Generator) -> Float32Array:
        """The assigned candidate, then by cost, float32 [C]."""
        completion = candidates.completion_seconds
        score = tiered_score(completion, completion > candidates.deadline_seconds)
        if len(candidates.queries) > 1:
            solver = _linear_sum_assignment()
            for queries in _batches_of_one_system(candidates):
                score[_assigned(candidates, queries, self.wave_size, solver)] = 1.0
        return score


def _linear_sum_assignment() -> _Solver:
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        raise ImportError(
            "dispatch policy 'firmament': scipy is not installed; install policy-server[firmament]"
        ) from error
    return linear_sum_assignment


def _batches_of_one_system(candidates: Candidates) -> list[Int64Array]:
    """Rows of the queries with candidates, of each system that has several; a lone one simply takes its cheapest."""
    served = np.flatnonzero(candidate_counts(candidates))
    access_points = candidates.table.snapshot.topology.access_points
    system = access_points.system[candidates.queries.access_point[served]]
    order = np.argsort(system, kind="stable")
    batches = np.split(served[order], np.flatnonzero(np.diff(system[order])) + 1)
    return [queries for queries in batches if len(queries) > 1]


def _assigned(candidates: Candidates, queries: Int64Array, wave_size: int, solver: _Solver) -> Int64Array:
    """int64 [B]: position on the candidate axis that each of B queries of one system is assigned to."""
    network = _Network(candidates, queries)
    nodes = np.concatenate(
        [
            network.solve(slice(start, min(start + wave_size, len(queries))), solver)
            for start in range(0, len(queries), wave_size)
        ]
    )
    return network.positions(nodes)


class _Network:
    """The flow network of B queries over the M nodes they can reach. Columns are float64 [B, M]."""

    def __init__(self, candidates: Candidates, queries: Int64Array) -> None:
        offsets = candidates.offsets
        counts = candidate_counts(candidates)[queries]
        row = np.repeat(np.arange(len(queries)), counts)
        position = np.arange(len(row)) + np.repeat(offsets[queries] - (np.cumsum(counts) - counts), counts)
        nodes, column = np.unique(candidates.node[position], return_inverse=True)
        order = np.lexsort((candidates.completion_seconds[position], column, row))
        cell = (row * len(nodes) + column)[order]
        first = np.flatnonzero(np.diff(cell, prepend=-1))
        row, column = row[order][first], column[order][first]
        shape = len(queries), len(nodes)
        self._ordered = position[order]
        self._service = candidates.queries.service[queries]
        self._first: Int64Array = np.zeros(shape, np.int64)
        self._first[row, column] = first
        self._members: Int64Array = np.zeros(shape, np.int64)
        self._members[row, column] = np.diff(first, append=len(cell))
        self._reachable: BoolArray = self._members > 0
        best = self._ordered[first]

        def table(values: Float32Array) -> Float64Array:
            cells = np.zeros(shape)
            cells[row, column] = values[best]
            return cells

        execution = candidates.execution_seconds
        mean_execution = candidates.table.node_mean_execution_seconds[candidates.node]
        self._execution_seconds = table(execution)
        self._cpu_wait_scale = table(np.where(mean_execution > 0, mean_execution, execution))
        self._cpu_excess = table(candidates.committed + candidates.cpu_fraction) - 1.0
        self._slot_share = table(candidates.inverse_concurrency)
        self._slot_excess = (table(candidates.outstanding) + 1.0) * self._slot_share - 1.0
        self._beside_wait_seconds = table(candidates.completion_seconds - candidates.wait_seconds)
        self._cpu_per_request = table(candidates.cpu_fraction).sum(axis=0) / self._reachable.sum(axis=0)
        deadline = np.broadcast_to(candidates.deadline_seconds, len(candidates))
        self._deadline = deadline[offsets[queries]].astype(np.float64)
        self._taken: Int64Array = np.zeros(len(nodes), np.int64)

    def solve(self, rows: slice, solver: _Solver) -> Int64Array:
        """int64: column of the node that each query of a wave is assigned to, at minimum total cost."""
        wave, nodes = rows.stop - rows.start, len(self._taken)
        slots = np.full(nodes, min(wave, 2 + 2 * wave // nodes))
        while True:
            node = np.repeat(np.arange(nodes), slots)
            slot = np.arange(len(node)) - np.repeat(np.cumsum(slots) - slots, slots)
            _, chosen = solver(self._cost(rows, node, slot))
            # An unused last slot of a node proves that further slots, which cost no less, would stay unused too.
            full = node[chosen[slot[chosen] == slots[node[chosen]] - 1]]
            full = full[slots[full] < wave]
            if not len(full):
                break
            slots[full] = np.minimum(wave, 2 * slots[full])
        assigned: Int64Array = node[chosen]
        self._taken += np.bincount(assigned, minlength=nodes)
        return assigned

    def _cost(self, rows: slice, node: Int64Array, slot: Int64Array) -> Float64Array:
        """float64 [wave, len(node)]: cost of each query of the wave at each slot of the nodes."""
        reachable = self._reachable[rows, node]
        completion = np.where(reachable, self._completion_seconds(rows, node, slot), 0.0)
        everything = 1.0 + len(completion) * completion.max()
        completion += (completion > self._deadline[rows, None]) * everything
        completion[~reachable] = everything * (len(completion) + 1)
        return completion

    def _completion_seconds(self, rows: slice, node: Int64Array, slot: Int64Array) -> Float64Array:
        before = (self._taken[node] + slot).astype(np.float64)
        cpu_wait = self._cpu_excess[rows, node] + before * self._cpu_per_request[node]
        cpu_wait *= self._cpu_wait_scale[rows, node]
        slot_wait = self._slot_excess[rows, node] + before * self._slot_share[rows, node]
        slot_wait *= self._execution_seconds[rows, node]
        wait: Float64Array = np.maximum(np.maximum(cpu_wait, slot_wait), 0.0)
        return self._beside_wait_seconds[rows, node] + wait

    def positions(self, node: Int64Array) -> Int64Array:
        """Candidate positions for the columns of the assigned nodes."""
        row = np.arange(len(node))
        members = self._members[row, node]
        turn = occurrences_before(node * (int(self._service.max()) + 1) + self._service)
        positions: Int64Array = self._ordered[self._first[row, node] + turn % members]
        return positions
