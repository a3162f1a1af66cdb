"""Random processes that workloads are made of, each drawn in one vectorised step."""

from __future__ import annotations

import numpy as np

from policy_server.cluster.snapshot import Float64Array, Int32Array, Int64Array


def poisson_arrivals(
    edges_seconds: Float64Array, expected_count: Float64Array, rng: np.random.Generator
) -> Float64Array:
    """Arrival times of a non-homogeneous Poisson process with piecewise constant rate, by time warping.

    With the cumulative rate L(t), n ~ Poisson(L(end)) and u_1 <= ... <= u_n sorted uniforms, the arrivals are
    L^-1(u_i L(end)) (Cinlar, Introduction to Stochastic Processes, 1975, section 4.7).

    Args:
        edges_seconds: float64 [b + 1], ascending bin edges.
        expected_count: float64 [b], expected arrivals in each bin, zero or more.
        rng: consumed.

    Returns:
        float64 [n], ascending, within the edges.
    """
    cumulative = np.concatenate([[0.0], np.cumsum(expected_count)])
    count = int(rng.poisson(cumulative[-1]))
    arrival_seconds: Float64Array = np.interp(
        np.sort(rng.random(count)) * cumulative[-1], cumulative, edges_seconds
    )
    return arrival_seconds


def choose(shares: Float64Array, rows: Int64Array, rng: np.random.Generator) -> Int32Array:
    """One weighted choice per request.

    Args:
        shares: float64 [b, k], weights, each row with a sum above zero.
        rows: int64 [n], the row of ``shares`` each request draws from.
        rng: consumed.

    Returns:
        int32 [n], columns of ``shares``.
    """
    cumulative = np.cumsum(shares, axis=1)
    cumulative /= cumulative[:, -1:]
    # Shifting each row by its number makes the whole table one ascending array, so one search answers all requests.
    boundaries = (cumulative + np.arange(len(shares))[:, None])[:, :-1].ravel()
    position = np.searchsorted(boundaries, rows + rng.random(len(rows)), side="right")
    last = shares.shape[1] - 1
    # The sum of a large row number and a draw next to 1 may round up to the next row.
    column: Int32Array = np.minimum(position - rows * last, last).astype(np.int32)
    return column


def slow_drift(
    times_seconds: Float64Array,
    count: int,
    deviation: float,
    relaxation_seconds: float,
    rng: np.random.Generator,
) -> Float64Array:
    """Independent stationary Ornstein-Uhlenbeck processes, mean 0, autocovariance deviation^2 exp(-|lag| / relaxation).

    Drawn exactly at knots one second apart and joined linearly, so the relaxation should be several seconds.

    Args:
        times_seconds: float64 [b], ascending from zero or more.
        count: number of processes.
        deviation: stationary standard deviation.
        relaxation_seconds: time after which the correlation has fallen to 1/e.
        rng: consumed.

    Returns:
        float64 [b, count].
    """
    knots = np.arange(int(np.ceil(times_seconds[-1])) + 2, dtype=np.float64)
    memory = np.exp(-1.0 / relaxation_seconds)
    values = deviation * rng.standard_normal((len(knots), count))
    values[1:] *= np.sqrt(1.0 - memory**2)
    for row in range(1, len(knots)):
        values[row] += memory * values[row - 1]
    left = times_seconds.astype(np.int64)
    weight = (times_seconds - left)[:, None]
    return np.asarray(values[left] * (1.0 - weight) + values[left + 1] * weight)


def renewed_draws(
    draws: Float64Array, step_seconds: float, sojourn_seconds: float, rng: np.random.Generator
) -> Float64Array:
    """A Markov jump process on a grid: a value holds until a renewal, which comes at rate 1 / sojourn.

    Args:
        draws: [b, ...], the value taken at each grid point should a renewal happen there.
        step_seconds: grid step.
        sojourn_seconds: mean time between renewals.
        rng: consumed.

    Returns:
        Same shape as ``draws``.
    """
    renewed = rng.random(len(draws)) < -np.expm1(-step_seconds / sojourn_seconds)
    last_renewal = np.maximum.accumulate(np.where(renewed, np.arange(len(draws)), 0))
    return draws[last_renewal]
