from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.cluster.ledger import Ledger
from policy_server.cluster.queries import DispatchQueries
from policy_server.cluster.snapshot import Float32Array
from policy_server.features.candidates import Candidates
from policy_server.policies.dispatch import NO_CANDIDATE, DispatchView, pick, pick_one
from tests.support.systems import Endpoint, one_service_snapshot

MOST = 100
VIEW = DispatchView(one_service_snapshot([Endpoint()] * MOST))
FEW = [0.5, -1.0, 2.5, 0.0]


def candidates_of(counts: Sequence[int], order: Sequence[int] = range(MOST)) -> Candidates:
    """Queries with that many candidates each: the replicas of the first rows."""
    return VIEW.candidates(
        DispatchQueries(
            service=np.zeros(len(counts), np.int32),
            access_point=np.zeros(len(counts), np.int32),
            deadline_seconds=np.ones(len(counts), np.float32),
            payload_bytes=np.zeros(len(counts), np.float32),
            subset=[np.arange(count, dtype=np.int32) for count in counts],
        ),
        Ledger(VIEW.snapshot.topology),
        100.0,
    )


def first_choices(
    scores: Sequence[float], draws: int, *, batch: bool, temperature: float = 0.0
) -> Counter[int]:
    """How often each candidate is chosen in many draws, made in one batch or one by one."""
    random = np.random.default_rng(11)
    values = np.array(scores, np.float32)
    if batch:
        candidates = candidates_of([len(scores)] * draws)
        decisions, _ = pick(np.tile(values, draws), candidates, random, sampling_temperature=temperature)
        return Counter(decisions.replica.tolist())
    candidates = candidates_of([len(scores)])
    return Counter(
        int(pick(values, candidates, random, sampling_temperature=temperature)[0].replica[0])
        for _ in range(draws)
    )


def assert_shares(counts: Counter[int], probabilities: Sequence[float]) -> None:
    """Chi-square against the probabilities, at about one in ten thousand."""
    draws = sum(counts.values())
    expected = np.array(probabilities) * draws
    observed = np.array([counts[row] for row in range(len(probabilities))])
    assert not observed[expected == 0].any()
    possible = expected > 0
    statistic = float(((observed - expected)[possible] ** 2 / expected[possible]).sum())
    freedom = int(possible.sum()) - 1
    assert statistic < freedom + 4 * np.sqrt(2 * freedom) + 4


@pytest.mark.parametrize("batch", [False, True])
class TestTies:
    @pytest.mark.parametrize("count", [2, 5, 70])
    def test_equal_scores_get_equal_shares(self, batch: bool, count: int) -> None:
        assert_shares(first_choices([0.25] * count, 3000, batch=batch), [1 / count] * count)

    @pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)])
    def test_shares_move_with_the_candidates(self, batch: bool, order: tuple[int, ...]) -> None:
        scores, shares = np.array([1.0, 3.0, 3.0, 2.0]), np.array([0.0, 0.5, 0.5, 0.0])
        rows = list(order)
        assert_shares(first_choices(scores[rows].tolist(), 2000, batch=batch), shares[rows].tolist())

    def test_a_seed_repeats_exactly(self, batch: bool) -> None:
        first, second = (first_choices([1.0] * 7, 50, batch=batch) for _ in range(2))
        assert first == second

    def test_infinitely_bad_is_still_a_candidate(self, batch: bool) -> None:
        lowest = float(np.finfo(np.float32).min)
        assert_shares(first_choices([lowest, lowest], 2000, batch=batch), [0.5, 0.5])


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_sampling_follows_the_softmax(batch: bool, temperature: float) -> None:
    weights = np.exp(np.array(FEW) / temperature)
    counts = first_choices(FEW, 4000, batch=batch, temperature=temperature)
    assert_shares(counts, (weights / weights.sum()).tolist())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("counts", [[4], [4, 4, 2]])
def test_a_seed_repeats_a_listing_exactly(temperature: float, counts: list[int]) -> None:
    candidates = candidates_of(counts)
    scores = np.zeros(len(candidates), np.float32)
    first, second = (
        pick(
            scores,
            candidates,
            np.random.default_rng(5),
            sampling_temperature=temperature,
            alternatives=3,
        )[0]
        for _ in range(2)
    )
    np.testing.assert_array_equal(first.replica, second.replica)
    np.testing.assert_array_equal(first.alternatives, second.alternatives)


@st.composite
def scored_batches(draw: st.DrawFn) -> tuple[Candidates, Float32Array]:
    counts = draw(st.lists(st.sampled_from([0, 1, 2, 3, 7, 64, 65, 100]), min_size=1, max_size=5))
    if not sum(counts):
        counts.append(1)
    candidates = candidates_of(counts)
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    distinct = random.permutation(len(candidates)) / 8.0
    tied = random.integers(0, 4, len(candidates)).astype(float)
    return candidates, (tied if draw(st.booleans()) else distinct).astype(np.float32)


@given(scored_batches(), st.integers(0, 5), st.sampled_from([0.0, 1.0]))
def test_listings_are_distinct_and_complete(
    batch: tuple[Candidates, Float32Array], alternatives: int, temperature: float
) -> None:
    candidates, scores = batch
    decisions, positions = pick(
        scores,
        candidates,
        np.random.default_rng(0),
        sampling_temperature=temperature,
        alternatives=alternatives,
    )
    assert decisions.alternatives.shape == (len(candidates.queries), alternatives)
    for query in range(len(candidates.queries)):
        rows = slice(int(candidates.offsets[query]), int(candidates.offsets[query + 1]))
        own, own_scores = candidates.replica[rows].tolist(), scores[rows]
        count = len(own)
        listed = [int(decisions.replica[query]), *decisions.alternatives[query].tolist()]
        listed_scores = [decisions.score[query], *decisions.alternative_scores[query]]
        kept = min(count, alternatives + 1)
        assert decisions.candidate_counts[query] == count
        assert listed[kept:] == [NO_CANDIDATE] * (alternatives + 1 - kept)
        assert listed_scores[kept:] == [0] * (alternatives + 1 - kept)
        assert len(set(listed[:kept])) == kept
        assert listed_scores[:kept] == [own_scores[own.index(replica)] for replica in listed[:kept]]
        if temperature == 0:
            assert listed_scores[:kept] == sorted(own_scores.tolist(), reverse=True)[:kept]
        if count:
            assert candidates.replica[positions[query]] == listed[0]
            assert rows.start <= positions[query] < rows.stop
        else:
            assert positions[query] == -1


@given(scored_batches(), st.integers(0, 4))
def test_a_batch_decides_like_one_by_one(batch: tuple[Candidates, Float32Array], alternatives: int) -> None:
    candidates, _ = batch
    scores = np.random.default_rng(1).permutation(len(candidates)).astype(np.float32)
    together, _ = pick(scores, candidates, np.random.default_rng(0), alternatives=alternatives)
    counts = np.diff(candidates.offsets).tolist()
    for query, count in enumerate(counts):
        if not count:
            continue
        rows = slice(int(candidates.offsets[query]), int(candidates.offsets[query + 1]))
        alone, _ = pick(
            scores[rows], candidates_of([count]), np.random.default_rng(9), alternatives=alternatives
        )
        assert alone.replica[0] == together.replica[query]
        assert alone.score[0] == together.score[query]
        np.testing.assert_array_equal(alone.alternatives[0], together.alternatives[query])
        np.testing.assert_array_equal(alone.alternative_scores[0], together.alternative_scores[query])


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("count", [6, 80])
def test_tied_alternatives_get_equal_shares(batch: bool, count: int) -> None:
    """One clear winner; the two alternatives come from the others, all equal."""
    random = np.random.default_rng(3)
    draws = 2000
    scores = np.zeros(count, np.float32)
    scores[count - 1] = 1.0
    shares: Counter[int] = Counter()
    if batch:
        decisions, _ = pick(np.tile(scores, draws), candidates_of([count] * draws), random, alternatives=2)
        assert (decisions.replica == count - 1).all()
        shares.update(decisions.alternatives.ravel().tolist())
    else:
        candidates = candidates_of([count])
        for _ in range(draws):
            decisions, _ = pick(scores, candidates, random, alternatives=2)
            assert decisions.replica[0] == count - 1
            shares.update(decisions.alternatives[0].tolist())
    assert_shares(shares, [1 / (count - 1)] * (count - 1))


def test_scores_are_reported_without_the_noise_of_sampling() -> None:
    scores = np.array(FEW, np.float32)
    decisions, positions = pick(
        scores, candidates_of([4]), np.random.default_rng(0), sampling_temperature=2.0, alternatives=3
    )
    assert decisions.score[0] == scores[positions[0]]
    assert sorted([decisions.score[0], *decisions.alternative_scores[0]]) == sorted(scores)


@given(
    st.sampled_from([1, 2, 3, 31, 32, 33, 64, 65, 100]),
    st.booleans(),
    st.integers(0, 5),
    st.sampled_from([0.0, 1.0]),
    st.integers(0, 2**16),
)
def test_one_pick_is_the_batch_of_one(
    count: int, tied: bool, alternatives: int, temperature: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    scores = (random.integers(0, 4, count) if tied else random.permutation(count)).astype(np.float32)
    candidates = candidates_of([count])
    decisions, positions = pick(
        scores,
        candidates,
        np.random.default_rng(seed),
        sampling_temperature=temperature,
        alternatives=alternatives,
    )
    decision, position = pick_one(
        scores,
        candidates,
        np.random.default_rng(seed),
        sampling_temperature=temperature,
        alternatives=alternatives,
    )
    assert decisions.row(0) == decision
    assert positions.tolist() == [position]
    assert candidates.replica[position] == decision.replica
    assert scores[position] == decision.score
    assert len(decision.alternatives) == min(alternatives, count - 1)
