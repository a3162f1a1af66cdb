"""How many picks a dispatcher made before each query of a batch: the position of rules that take turns."""

from __future__ import annotations

import numpy as np

from policy_server.cluster.snapshot import Float64Array, Int64Array
from policy_server.features.candidates import Candidates

GOLDEN_RATIO = (5**0.5 - 1) / 2
"""Fractional parts of its multiples fill [0, 1) more evenly than those of any other number."""


def picks_before(candidates: Candidates) -> Int64Array:
    """int64 [Q]: picks that its dispatcher made among the candidates of each query, ever.

    Earlier queries of the batch by the same dispatcher for the same service of the same system count as picks
    already made, as if the queries were decided one by one. That is exact when they have the same candidates, and an
    approximation when they come from different access points or are restricted to different subsets.
    """
    picks = candidates.ledger.replica_picks[candidates.dispatcher, candidates.replica]
    queries = len(candidates.queries)
    if queries == 1:
        total: Int64Array = picks.sum(keepdims=True)
        return total
    made = np.bincount(candidates.segment, weights=picks, minlength=queries).astype(np.int64)
    return made + occurrences_before(_kind(candidates))


def starting_points(candidates: Candidates) -> Float64Array:
    """float64 [Q], in [0, 1): where the dispatcher of each query starts, spread evenly over the dispatchers.

    Dispatchers that all start with the first candidate would stay in step and meet at every endpoint.
    """
    dispatcher = candidates.queries.dispatcher
    if dispatcher is None:
        return np.zeros(len(candidates.queries))
    points: Float64Array = dispatcher.astype(np.float64) * GOLDEN_RATIO % 1.0
    return points


def occurrences_before(keys: Int64Array) -> Int64Array:
    """int64, shape of ``keys``: how often each key occurs before its place."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    occurrences = np.empty(len(keys), np.int64)
    occurrences[order] = np.arange(len(keys)) - np.searchsorted(ordered, ordered)
    return occurrences


def _kind(candidates: Candidates) -> Int64Array:
    """int64 [Q]: equal for queries of one dispatcher for one service of one system."""
    queries = candidates.queries
    topology = candidates.table.snapshot.topology
    services = len(topology.services.names)
    kind = topology.access_points.system[queries.access_point].astype(np.int64) * services + queries.service
    if queries.dispatcher is not None:
        kind += queries.dispatcher.astype(np.int64) * (topology.system_count * services)
    return kind
