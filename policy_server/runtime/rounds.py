"""Batches in rounds, so that the requests of one batch do not all run to the same endpoint.

Requests decided at the same instant see the same load and not each other. So a batch is decided in rounds, each
of which sees the picks of the rounds before: requests for the same service from the same dispatcher are spread over
as many rounds as there are, up to a limit that keeps large batches fast.
"""

from __future__ import annotations

import math

import numpy as np

from policy_server.cluster.ledger import Ledger
from policy_server.cluster.queries import DispatchQueries
from policy_server.cluster.snapshot import Int64Array
from policy_server.policies.dispatch import NO_CANDIDATE, DispatchDecisions, DispatchView
from policy_server.policies.guard import DecisionOrigin, GuardedDecisions, GuardedDispatch

MAXIMUM_ROUNDS = 16


def decide_in_rounds(
    policy: GuardedDispatch,
    view: DispatchView,
    queries: DispatchQueries,
    ledger: Ledger,
    now_seconds: float,
    random: np.random.Generator,
    *,
    alternatives: int = 0,
) -> GuardedDecisions:
    """Like :meth:`~policy_server.policies.guard.GuardedDispatch.decide`, in rounds."""
    rounds = assign_rounds(queries, len(view.snapshot.topology.services.names))
    last = int(rounds.max(initial=0))
    if last == 0:
        return policy.decide(view, queries, ledger, now_seconds, random, alternatives=alternatives)
    merged = DispatchDecisions(
        replica=np.full(len(queries), NO_CANDIDATE, np.int64),
        score=np.zeros(len(queries), np.float32),
        alternatives=np.full((len(queries), alternatives), NO_CANDIDATE, np.int64),
        alternative_scores=np.zeros((len(queries), alternatives), np.float32),
        candidate_counts=np.zeros(len(queries), np.int64),
    )
    origins: dict[int, DecisionOrigin] = {}
    age_seconds = 0.0
    for number in range(last + 1):
        rows = np.flatnonzero(rounds == number)
        part = policy.decide(
            view, _select(queries, rows), ledger, now_seconds, random, alternatives=alternatives
        )
        decisions = part.decisions
        merged.replica[rows] = decisions.replica
        merged.score[rows] = decisions.score
        merged.alternatives[rows] = decisions.alternatives
        merged.alternative_scores[rows] = decisions.alternative_scores
        merged.candidate_counts[rows] = decisions.candidate_counts
        age_seconds = part.snapshot_age_seconds
        if part.exceptions or part.origin != policy.origin:
            origins.update({row: part.origin_of(i) for i, row in enumerate(rows.tolist())})
    return GuardedDecisions(merged, policy.origin, age_seconds, origins)


def assign_rounds(queries: DispatchQueries, services: int) -> Int64Array:
    """int64 [Q]: the round of each query, from 0; in order of the queries within one dispatcher and service."""
    group = queries.service.astype(np.int64)
    if queries.dispatcher is not None:
        group += queries.dispatcher.astype(np.int64) * services
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    first = np.searchsorted(ordered, ordered)
    rank = np.empty(len(group), np.int64)
    rank[order] = np.arange(len(group)) - first
    per_round = math.ceil((int(rank.max(initial=0)) + 1) / MAXIMUM_ROUNDS)
    rounds: Int64Array = rank // per_round
    return rounds


def _select(queries: DispatchQueries, rows: Int64Array) -> DispatchQueries:
    return DispatchQueries(
        service=queries.service[rows],
        access_point=queries.access_point[rows],
        deadline_seconds=queries.deadline_seconds[rows],
        payload_bytes=queries.payload_bytes[rows],
        subset=None if queries.subset is None else [queries.subset[row] for row in rows.tolist()],
        dispatcher=None if queries.dispatcher is None else queries.dispatcher[rows],
    )
