from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from training.workloads.arrivals import choose, poisson_arrivals, renewed_draws, slow_drift


def thinned_arrivals(
    edges: np.ndarray, expected: np.ndarray, rng: np.random.Generator
) -> list[float]:  # Lewis and Shedler's thinning: the slow obvious way
    rates = expected / np.diff(edges)
    time, arrivals = edges[0], []
    while True:
        time += rng.exponential(1.0 / rates.max())
        if time >= edges[-1]:
            return arrivals
        if rng.random() < rates[np.searchsorted(edges, time, side="right") - 1] / rates.max():
            arrivals.append(time)


def test_warped_arrivals_are_distributed_like_thinned_ones() -> None:
    edges = np.array([0.0, 1.0, 4.0, 5.0, 7.0])
    expected = np.array([300.0, 50.0, 0.0, 2000.0])
    warped = np.concatenate(
        [poisson_arrivals(edges, expected, np.random.default_rng(seed)) for seed in range(5)]
    )
    thinned = np.concatenate(
        [thinned_arrivals(edges, expected, np.random.default_rng(seed)) for seed in range(5)]
    )
    assert stats.ks_2samp(warped, thinned).pvalue > 0.01
    assert not np.any((warped > 4.0) & (warped < 5.0))


def test_the_number_of_arrivals_is_poisson() -> None:
    rng = np.random.default_rng(1)
    counts = [
        len(poisson_arrivals(np.array([0.0, 1.0, 2.0]), np.array([3.0, 6.0]), rng)) for _ in range(4000)
    ]
    assert np.mean(counts) == pytest.approx(9.0, abs=0.2)
    assert np.var(counts) == pytest.approx(9.0, rel=0.1)


def test_no_expected_arrivals_give_none() -> None:
    assert len(poisson_arrivals(np.array([0.0, 1.0]), np.array([0.0]), np.random.default_rng(0))) == 0


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_choices_equal_a_search_in_each_row(rows: int, columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shares = rng.random((rows, columns)) + 0.01
    asked = rng.integers(rows, size=50)
    chosen = choose(shares, asked, np.random.default_rng(seed))
    draws = np.random.default_rng(seed).random(50)
    for request, (row, draw) in enumerate(zip(asked, draws, strict=True)):
        cumulative = np.cumsum(shares[row]) / shares[row].sum()
        assert chosen[request] == np.searchsorted(cumulative[:-1], draw, side="right")


def test_a_share_of_zero_is_never_chosen_whichever_column_it_stands_in() -> None:
    shares = np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    rows = np.repeat(np.arange(3), 1000)
    assert not np.any(choose(shares, rows, np.random.default_rng(0)) == rows)


@pytest.mark.parametrize("draw", [0.0, np.nextafter(1.0, 0.0)])
def test_extreme_draws_stay_in_their_row(draw: float) -> None:
    class Fixed:
        def random(self, count: int) -> np.ndarray:
            return np.full(count, draw)

    shares = np.tile([[0.0, 1.0, 1.0]], (100_000, 1))
    chosen = choose(shares, np.arange(100_000), Fixed())  # type: ignore[arg-type]
    assert set(np.unique(chosen)) <= {1, 2}


def test_drift_has_the_asked_deviation_and_memory() -> None:
    times = np.arange(0.05, 4000.0, 0.5)
    drift = slow_drift(times, 40, 0.5, 20.0, np.random.default_rng(0))
    assert drift.shape == (len(times), 40)
    assert drift.mean() == pytest.approx(0.0, abs=0.05)
    assert drift.std() == pytest.approx(0.5, rel=0.05)
    after_relaxation = np.mean(drift[40:] * drift[:-40]) / drift.var()
    assert after_relaxation == pytest.approx(np.exp(-1.0), abs=0.06)
    assert np.abs(np.diff(drift, axis=0)).max() < 0.5


@given(st.integers(1, 60), st.floats(0.05, 20.0), st.integers(0, 2**32 - 1))
@settings(max_examples=50)
def test_renewed_draws_equal_a_walk_through_the_grid(steps: int, sojourn_seconds: float, seed: int) -> None:
    draws = np.random.default_rng(seed).random(steps)
    values = renewed_draws(draws, 0.1, sojourn_seconds, np.random.default_rng(seed))
    renewals = np.random.default_rng(seed).random(steps)
    current = draws[0]
    for step in range(steps):
        if renewals[step] < 1.0 - np.exp(-0.1 / sojourn_seconds):
            current = draws[step]
        assert values[step] == current


def test_renewals_come_at_the_asked_rate() -> None:
    values = renewed_draws(np.arange(200_000.0), 0.1, 5.0, np.random.default_rng(0))
    renewals = np.count_nonzero(np.diff(values))
    assert renewals == pytest.approx(20_000.0 / 5.0, rel=0.05)
