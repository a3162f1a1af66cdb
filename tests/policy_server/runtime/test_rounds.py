"""Batches in rounds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from policy_server.cluster.ledger import Ledger
from policy_server.cluster.queries import DispatchQueries
from policy_server.cluster.snapshot import Snapshot
from policy_server.policies.dispatch import DispatchView
from policy_server.policies.guard import GuardedDispatch
from policy_server.policies.heuristics import EarliestCompletion
from policy_server.runtime.rounds import MAXIMUM_ROUNDS, assign_rounds, decide_in_rounds
from tests.support.dispatching import NOW_SECONDS, repeated_query
from tests.support.systems import Endpoint, example_queries, one_service_snapshot, snapshots


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=60),
    st.booleans(),
)
def test_rounds_follow_the_order_within_dispatcher_and_service(
    pairs: list[tuple[int, int]], one_dispatcher: bool
) -> None:
    service = np.array([s for s, _ in pairs], np.int32)
    dispatcher = np.array([d for _, d in pairs], np.int32)
    queries = DispatchQueries(
        service,
        dispatcher,
        np.ones(len(pairs), np.float32),
        np.zeros(len(pairs), np.float32),
        dispatcher=None if one_dispatcher else dispatcher,
    )
    rounds = assign_rounds(queries, services=4).tolist()
    seen: Counter[tuple[int, int]] = Counter()
    ranks = []
    for s, d in pairs:
        key = (s, 0 if one_dispatcher else d)
        ranks.append(seen[key])
        seen[key] += 1
    per_round = -(-max(seen.values(), default=0) // MAXIMUM_ROUNDS) or 1
    assert rounds == [rank // per_round for rank in ranks]
    assert max(rounds, default=0) < MAXIMUM_ROUNDS


def test_few_requests_for_one_service_are_decided_like_one_after_the_other() -> None:
    snapshot = one_service_snapshot([Endpoint(speed=1.0 - 0.1 * row) for row in range(4)])
    view, guard = DispatchView(snapshot), GuardedDispatch(EarliestCompletion())
    random, same_random = np.random.default_rng(0), np.random.default_rng(0)
    together, apart = Ledger(snapshot.topology), Ledger(snapshot.topology)
    batch = decide_in_rounds(
        guard, view, repeated_query(MAXIMUM_ROUNDS), together, NOW_SECONDS, random, alternatives=2
    )
    singles = [
        guard.decide(view, repeated_query(1), apart, NOW_SECONDS, same_random, alternatives=2).decisions
        for _ in range(MAXIMUM_ROUNDS)
    ]
    assert batch.decisions.replica.tolist() == [int(single.replica[0]) for single in singles]
    np.testing.assert_allclose(batch.decisions.score, [single.score[0] for single in singles], atol=1e-6)
    np.testing.assert_array_equal(together.replica_pending, apart.replica_pending)


@given(snapshots(), st.integers(0, 2**16))
def test_every_query_is_decided_as_one_of_its_candidates(snapshot: Snapshot, seed: int) -> None:
    queries = example_queries(snapshot.topology, 25, seed, dispatchers=2)
    view, guard = DispatchView(snapshot), GuardedDispatch(EarliestCompletion())
    ledger = Ledger(snapshot.topology, 2)
    counts = view.candidates(queries, ledger, NOW_SECONDS)
    guarded = decide_in_rounds(
        guard, view, queries, ledger, NOW_SECONDS, np.random.default_rng(seed), alternatives=1
    )
    np.testing.assert_array_equal(guarded.decisions.candidate_counts, np.diff(counts.offsets))
    served = guarded.decisions.candidate_counts > 0
    assert ((guarded.decisions.replica >= 0) == served).all()
    chosen = guarded.decisions.replica[served]
    assert (snapshot.topology.replicas.service[chosen] == queries.service[served]).all()
    assert ledger.pending == served.sum()
    assert not guarded.exceptions


@given(snapshots(), st.integers(0, 2**16))
def test_small_rounds_are_decided_one_after_the_other(snapshot: Snapshot, seed: int) -> None:
    queries = example_queries(snapshot.topology, 3, seed, dispatchers=2)
    queries = replace(queries, service=np.zeros(3, np.int32))
    rounds = assign_rounds(queries, len(snapshot.topology.services.names))
    assert rounds.any(), "three requests of two dispatchers for one service"
    order = np.argsort(rounds, kind="stable")
    view, guard = DispatchView(snapshot), GuardedDispatch(EarliestCompletion())
    together, apart = Ledger(snapshot.topology, 2), Ledger(snapshot.topology, 2)
    batch_random, random = np.random.default_rng(seed), np.random.default_rng(seed)
    batch = decide_in_rounds(guard, view, queries, together, NOW_SECONDS, batch_random, alternatives=2)
    for row in order.tolist():
        single = guard.decide_one(view, queries.row(row), apart, NOW_SECONDS, random, alternatives=2)
        assert batch.row(row) == single
    np.testing.assert_array_equal(together.pending_values, apart.pending_values)
