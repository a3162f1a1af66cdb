import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.cluster.ledger import Ledger
from policy_server.cluster.snapshot import Snapshot
from policy_server.features.candidates import Candidates
from policy_server.policies.dispatch import DispatchView
from policy_server.policies.heuristics import Prequal
from tests.support.dispatching import NOW_SECONDS, picks_one_by_one, ranking, repeated_query, scores_of
from tests.support.systems import Endpoint, example_queries, one_service_snapshot, snapshots


def reference_order(candidates: Candidates, rows: slice) -> list[tuple[bool, float]]:
    """Sort key of each candidate of one query by the rule: cold by latency, then hot by requests in flight."""
    load = candidates.table.snapshot.load
    in_flight = (candidates.outstanding * candidates.inverse_concurrency)[rows].tolist()
    threshold = sorted(in_flight)[int(2**-0.25 * (len(in_flight) - 1))]
    keys = []
    for position, flying in zip(range(rows.start, rows.stop), in_flight, strict=True):
        latency = float(load.replica_latency_seconds[candidates.replica[position]])
        estimated = float(candidates.completion_seconds[position])
        latency = estimated if np.isnan(latency) else (latency + estimated) / 2
        keys.append((True, flying) if flying > threshold else (False, latency))
    return keys


@given(snapshots(), st.integers(1, 6), st.integers(0, 2**16))
def test_scores_rank_as_the_rule_does(snapshot: Snapshot, count: int, seed: int) -> None:
    view, ledger = DispatchView(snapshot), Ledger(snapshot.topology, 2)
    queries = example_queries(snapshot.topology, count, seed, dispatchers=2)
    replicas = len(snapshot.topology.replicas.endpoints)
    ledger.record(
        np.arange(8) % 2,
        np.random.default_rng(seed).integers(replicas, size=8),
        np.full(8, -1),
        np.zeros(8, np.float32),
        np.full(8, 200.0),
    )
    candidates = view.candidates(queries, ledger, NOW_SECONDS)
    if not len(candidates):
        return
    scores = Prequal().score(candidates, None, np.random.default_rng(0))
    for query in range(count):
        rows = slice(int(candidates.offsets[query]), int(candidates.offsets[query + 1]))
        if rows.start == rows.stop:
            continue
        keys = reference_order(candidates, rows)
        by_score = [keys[place] for place in np.argsort(-scores[rows], kind="stable")]
        for (hot, first), (next_hot, second) in itertools.pairwise(by_score):
            assert hot <= next_hot
            assert hot != next_hot or first <= second * (1 + 1e-5)


def test_cold_replicas_by_latency() -> None:
    snapshot = one_service_snapshot(
        [Endpoint(latency_seconds=seconds, running=1) for seconds in (0.3, 0.1, 0.2)]
    )
    assert ranking(Prequal(), snapshot) == [1, 2, 0]


def test_the_fastest_is_passed_over_when_hot() -> None:
    snapshot = one_service_snapshot(
        [
            Endpoint(latency_seconds=0.01, running=4, queued=8),
            Endpoint(latency_seconds=0.2, running=2),
            Endpoint(latency_seconds=0.1, running=2),
        ]
    )
    assert ranking(Prequal(), snapshot) == [2, 1, 0]


def test_requests_in_flight_are_counted_per_slot() -> None:
    snapshot = one_service_snapshot(
        [
            Endpoint("cloud", cpu_millicores=64_000, concurrency=64, running=16, latency_seconds=0.1),
            Endpoint(running=3, latency_seconds=0.05),
            Endpoint(running=1, latency_seconds=0.2),
        ]
    )
    assert ranking(Prequal(), snapshot) == [0, 2, 1]


def test_where_no_latency_is_known_the_estimate_counts() -> None:
    snapshot = one_service_snapshot(
        [Endpoint(latency_seconds=0.15), Endpoint(), Endpoint("cloud")], execution_seconds=0.1
    )
    assert ranking(Prequal(), snapshot) == [1, 0, 2]


def test_a_new_endpoint_is_neither_shunned_nor_flooded() -> None:
    snapshot = one_service_snapshot([*[Endpoint(latency_seconds=0.12, running=1)] * 3, Endpoint()])
    counts = Counter(picks_one_by_one(Prequal(), snapshot, 100))
    assert 15 <= counts[3] <= 35


MANY = one_service_snapshot(
    [Endpoint(running=row % 4, latency_seconds=0.1 + 0.01 * row) for row in range(40)]
)


@pytest.mark.parametrize("count", [1, 300])
def test_the_pool_is_a_random_sample(count: int) -> None:
    """The fastest replica of all is chosen when it is in the pool: 16 times out of 40."""
    rounds = 900 // count
    chosen = np.concatenate(
        [
            scores_of(Prequal(), MANY, repeated_query(count), seed=seed).reshape(count, 40).argmax(axis=1)
            for seed in range(rounds)
        ]
    )
    assert (chosen == 0).mean() == pytest.approx(16 / 40, abs=0.05)


def test_those_outside_the_pool_rank_last() -> None:
    policy = replace(Prequal(), pool_size=5)
    scores = scores_of(policy, MANY, repeated_query(7)).reshape(7, 40)
    for row in scores:
        cold_or_hot_in_pool = np.sort(row)[::-1][:5]
        assert (cold_or_hot_in_pool > -2).all()
        assert (np.sort(row)[::-1][5:] <= -2).all()


def test_when_all_in_the_pool_are_hot_the_one_with_fewest_in_flight() -> None:
    """Nine in ten are idle and the pool has one member, so sometimes it holds the two hot ones only."""
    idle = [Endpoint(latency_seconds=0.1)] * 18
    snapshot = one_service_snapshot(
        [*idle, Endpoint(running=3, latency_seconds=0.1), Endpoint(running=2, latency_seconds=0.9)]
    )
    policy = replace(Prequal(), pool_size=2)
    both_hot = 0
    for seed in range(800):
        first, second = np.argsort(-scores_of(policy, snapshot, seed=seed))[:2].tolist()
        if {first, second} == {18, 19}:
            both_hot += 1
            assert first == 19
    assert both_hot > 0
