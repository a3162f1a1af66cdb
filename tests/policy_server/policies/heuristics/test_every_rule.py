"""What holds for all dispatch rules alike."""

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy_server.cluster.ledger import Ledger
from policy_server.cluster.snapshot import Snapshot, disjoint_union
from policy_server.policies.dispatch import DispatchPolicy, DispatchView, decide
from policy_server.policies.heuristics import (
    HEURISTIC_DISPATCH_NAMES,
    UnknownPolicyError,
    heuristic_dispatch,
)
from tests.support.dispatching import NOW_SECONDS, picks_one_by_one, scores_of
from tests.support.systems import (
    Endpoint,
    example_queries,
    one_service_snapshot,
    random_order,
    reordered,
    reordered_queries,
    snapshots,
    systems_of_same_services,
    united_queries,
)

EVERY_RULE = pytest.mark.parametrize("name", HEURISTIC_DISPATCH_NAMES)


def test_the_names() -> None:
    assert HEURISTIC_DISPATCH_NAMES == (
        "random",
        "round-robin",
        "local-first",
        "least-loaded",
        "power-of-two",
        "prequal",
        "earliest-completion",
        "greedy",
        "native",
        "gsp-ss",
        "firmament",
    )


@EVERY_RULE
def test_a_rule_is_found_by_its_name(name: str) -> None:
    policy = heuristic_dispatch(name)
    assert isinstance(policy, DispatchPolicy)
    assert policy.name == name
    assert policy.version
    assert not policy.learned
    assert policy.sampling_temperature == 0
    assert policy.shares_picks == (name == "firmament")


@pytest.mark.parametrize("name", ["fastest", "", "Random"])
def test_an_unknown_name_is_answered_with_the_known_ones(name: str) -> None:
    with pytest.raises(UnknownPolicyError) as refusal:
        heuristic_dispatch(name)
    known = ", ".join(HEURISTIC_DISPATCH_NAMES)
    assert str(refusal.value) == f"policy: {name!r} is unknown; choose one of {known}"


def test_rules_import_no_optional_package() -> None:
    script = (
        "import sys, policy_server.policies.heuristics as h; h.heuristic_dispatch('greedy'); "
        "sys.exit('scipy' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@EVERY_RULE
@settings(max_examples=30)
@given(snapshot=snapshots(), count=st.integers(1, 9), seed=st.integers(0, 2**16))
def test_scores_are_finite_float32_and_decisions_allowed(
    name: str, snapshot: Snapshot, count: int, seed: int
) -> None:
    policy = heuristic_dispatch(name)
    view = DispatchView(snapshot)
    ledger = Ledger(snapshot.topology, 3)
    queries = example_queries(snapshot.topology, count, seed, dispatchers=3)
    random = np.random.default_rng(seed)
    for _ in range(3):
        candidates = view.candidates(queries, ledger, NOW_SECONDS)
        if len(candidates):
            scores = policy.score(candidates, view.prepared(policy), random)
            assert scores.dtype == np.float32
            assert scores.shape == (len(candidates),)
            assert np.isfinite(scores).all()
        decisions = decide(policy, view, queries, ledger, NOW_SECONDS, random)
        for query in range(count):
            allowed = candidates.replica[candidates.offsets[query] : candidates.offsets[query + 1]]
            assert decisions.replica[query] in (allowed.tolist() or [-1])


@EVERY_RULE
@pytest.mark.parametrize("count", [1, 5])
def test_scoring_changes_nothing_it_is_given(name: str, count: int) -> None:
    snapshot = one_service_snapshot([Endpoint(queued=row, running=1) for row in range(20)])
    policy, view, ledger = heuristic_dispatch(name), DispatchView(snapshot), Ledger(snapshot.topology)
    queries = example_queries(snapshot.topology, count)

    def features() -> list[float]:
        candidates = view.candidates(queries, ledger, NOW_SECONDS)
        if scoring:
            policy.score(candidates, view.prepared(policy), np.random.default_rng(0))
        return [*candidates.features.ravel(), *candidates.committed, *candidates.outstanding]

    scoring = False
    before = features()
    scoring = True
    assert features() == before
    scoring = False
    assert features() == before


@EVERY_RULE
def test_a_seed_repeats_exactly(name: str) -> None:
    snapshot = one_service_snapshot([Endpoint()] * 5)
    policy = heuristic_dispatch(name)
    assert picks_one_by_one(policy, snapshot, 40, seed=7) == picks_one_by_one(policy, snapshot, 40, seed=7)


@pytest.mark.parametrize("name", [name for name in HEURISTIC_DISPATCH_NAMES if name != "random"])
@pytest.mark.parametrize("latency_seconds", [np.nan, 0.1])
def test_no_herd_between_two_reports(name: str, latency_seconds: float) -> None:
    """Field reports: 100 picks within one snapshot over 4 equal endpoints, none may get more than 35."""
    snapshot = one_service_snapshot([Endpoint(latency_seconds=latency_seconds)] * 4)
    counts = Counter(picks_one_by_one(heuristic_dispatch(name), snapshot, 100))
    assert max(counts.values()) <= 35


@EVERY_RULE
def test_equal_endpoints_get_equal_shares(name: str) -> None:
    """Each request is the first of a new snapshot, so own picks do not level the shares."""
    snapshot = one_service_snapshot([Endpoint()] * 4)
    policy, view = heuristic_dispatch(name), DispatchView(snapshot)
    ledger, random = Ledger(snapshot.topology), np.random.default_rng(1)
    counts = np.zeros(4)
    queries = example_queries(snapshot.topology, 1)
    for _ in range(2000):
        counts[decide(policy, view, queries, ledger, NOW_SECONDS, random).replica[0]] += 1
        ledger.refresh(NOW_SECONDS + 1e6)
    assert ((counts - 500) ** 2 / 500).sum() < 22


BY_FIGURES_ALONE = ["local-first", "least-loaded", "prequal", "earliest-completion", "greedy"]
"""Rules that look at nothing but the figures of each candidate."""


@pytest.mark.parametrize("name", BY_FIGURES_ALONE)
@settings(max_examples=30)
@given(snapshot=snapshots(), seed=st.integers(0, 2**16))
def test_scores_move_with_their_rows(name: str, snapshot: Snapshot, seed: int) -> None:
    policy = heuristic_dispatch(name)
    order = random_order(snapshot.topology, seed)
    queries = example_queries(snapshot.topology, 4, seed)
    other, other_queries = reordered(snapshot, order), reordered_queries(queries, order)
    before = DispatchView(snapshot).candidates(queries, Ledger(snapshot.topology), NOW_SECONDS)
    if not len(before):
        return
    moved = np.lexsort((np.argsort(order.replicas)[before.replica], before.segment))
    np.testing.assert_allclose(
        scores_of(policy, other, other_queries),
        scores_of(policy, snapshot, queries)[moved],
        rtol=1e-4,
        atol=1e-6,
    )


@pytest.mark.parametrize("name", [*BY_FIGURES_ALONE, "round-robin", "native", "gsp-ss", "firmament"])
@settings(max_examples=30)
@given(systems=systems_of_same_services())
def test_scores_on_a_union_are_those_on_each_system_alone(name: str, systems: list[Snapshot]) -> None:
    policy = heuristic_dispatch(name)
    parts = [example_queries(system.topology, 4, seed) for seed, system in enumerate(systems)]
    queries = united_queries(systems, parts)
    union = disjoint_union(systems)
    together = DispatchView(union).candidates(queries, Ledger(union.topology), NOW_SECONDS)
    if not len(together):
        return
    scores = scores_of(policy, union, queries)
    for row, (system, part) in enumerate(zip(systems, parts, strict=True)):
        own = scores[together.offsets[4 * row] : together.offsets[4 * row + 4]]
        if len(own):
            np.testing.assert_allclose(own, scores_of(policy, system, part), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [*BY_FIGURES_ALONE, "round-robin", "native", "gsp-ss"])
@settings(max_examples=30)
@given(snapshot=snapshots(), seed=st.integers(0, 2**16))
def test_a_batch_scores_like_one_by_one(name: str, snapshot: Snapshot, seed: int) -> None:
    """Queries of distinct dispatchers, none of which has picked before."""
    policy = heuristic_dispatch(name)
    view, ledger = DispatchView(snapshot), Ledger(snapshot.topology, 4)
    queries = example_queries(snapshot.topology, 4, seed, dispatchers=4)
    assert queries.dispatcher is not None
    queries.dispatcher[:] = np.arange(4)
    batch = view.candidates(queries, ledger, NOW_SECONDS)
    if not len(batch):
        return
    random = np.random.default_rng(0)
    scores = policy.score(batch, view.prepared(policy), random)
    for query in range(4):
        rows = slice(query, query + 1)
        alone = view.candidates(
            type(queries)(
                queries.service[rows],
                queries.access_point[rows],
                queries.deadline_seconds[rows],
                queries.payload_bytes[rows],
                dispatcher=queries.dispatcher[rows],
            ),
            ledger,
            NOW_SECONDS,
        )
        if len(alone):
            own = scores[batch.offsets[query] : batch.offsets[query + 1]]
            np.testing.assert_array_equal(policy.score(alone, view.prepared(policy), random), own)
