"""The four arrival patterns of the KaiS paper, generated.

The paper names the patterns and not how they were made (periodic CPU fluctuation, periodic memory fluctuation, a
higher-frequency variant, raw stochastic). What they are here, with R the mean rate, p_w the popularity of service w,
H_cpu the third of the services with the largest CPU time per request (millicores x execution time) and H_memory the
third with the largest replica memory:

* ``P1``: rate_w(t) = R p_w (1 + 0.8 sin(2 pi t / 100 s + phase)) / Z for w in H_cpu, R p_w / Z for the others.
* ``P2``: the same for w in H_memory.
* ``P3``: P1 with a period of 20 s, shorter than an orchestration frame, so that only dispatch can follow.
* ``P4``: no imposed period. rate_w(t) = R q_w(t) M(t) / Z. M is a product of six independent two-valued jump
  processes 1 +- 0.3 with mean sojourns 0.5, 1.5, ... 121.5 s (a binomial Markov-switching multifractal, Calvet and
  Fisher, J. Financial Econometrics 2(1), 2004): bursts within bursts, self-similar over those scales. Popularity
  drifts: q_w(t) ~ p_w exp(D_w(t)), D_w Ornstein-Uhlenbeck with deviation 0.5 and relaxation 40 s.

Z makes the expected number of requests exactly R x duration, so that sequences differ in shape and not in load. The
phase is drawn from the seed.

Access point a receives the share exp(E_a(t)) / sum exp(E(t)) of all requests, E_a Ornstein-Uhlenbeck with relaxation
120 s and deviation 0.5 (P1 to P3) or 0.7 (P4, where moreover one access point at a time is a hot spot with its weight
trebled, a new one being drawn every 20 s on average).

Rates are piecewise constant over 0.1 s; arrivals are a Poisson process given the rates.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from policy_server.cluster.snapshot import BoolArray, Float64Array
from training.workloads.arrivals import choose, poisson_arrivals, renewed_draws, slow_drift
from training.workloads.marks import RequestTemplates, draw_marks
from training.workloads.requests import RequestSequence, check_sequence_arguments
from training.workloads.services import ServiceCatalogue

STEP_SECONDS = 0.1
PERIOD_SECONDS = 100.0
SHORT_PERIOD_SECONDS = 20.0
AMPLITUDE = 0.8

BURST_SOJOURNS_SECONDS = tuple(0.5 * 3.0**k for k in range(6))
BURST_AMPLITUDE = 0.3
POPULARITY_DEVIATION, POPULARITY_RELAXATION_SECONDS = 0.5, 40.0
ACCESS_POINT_DEVIATION, BURSTY_ACCESS_POINT_DEVIATION = 0.5, 0.7
ACCESS_POINT_RELAXATION_SECONDS = 120.0
HOT_SPOT_WEIGHT, HOT_SPOT_SOJOURN_SECONDS = 3.0, 20.0


class Pattern(StrEnum):
    """Arrival pattern; formulas in the module's documentation."""

    P1 = "P1"
    """Periodic CPU demand."""
    P2 = "P2"
    """Periodic memory demand."""
    P3 = "P3"
    """Periodic CPU demand at five times the frequency."""
    P4 = "P4"
    """Bursty and drifting, without a period."""


def generate(
    pattern: Pattern,
    *,
    services: ServiceCatalogue,
    access_points: int,
    duration_seconds: float,
    mean_rate_per_second: float,
    seed: int,
    source: RequestTemplates | None = None,
) -> RequestSequence:
    """A sequence of the pattern. The same arguments give the same bytes.

    Args:
        pattern: which of the four.
        services: what is asked for.
        access_points: number of access points that receive requests.
        duration_seconds: length of the sequence.
        mean_rate_per_second: expected requests per second over all access points, averaged over the sequence.
        seed: from ``TRAINING_SEEDS`` or ``HELD_OUT_SEEDS`` of :mod:`training.workloads.seeds`.
        source: recorded requests to take deadlines, payloads and work factors from; without it they are drawn
            around the services' typical figures (:func:`training.workloads.marks.draw_marks`).

    Raises:
        WorkloadError: naming the argument and its value.
    """
    check_sequence_arguments(access_points, duration_seconds, mean_rate_per_second, seed)
    pattern = Pattern(pattern)
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(list(Pattern).index(pattern),)))
    edges_seconds = np.linspace(0.0, duration_seconds, int(np.ceil(duration_seconds / STEP_SECONDS)) + 1)
    middle_seconds = (edges_seconds[:-1] + edges_seconds[1:]) / 2

    service_rates = _service_rates(pattern, services, middle_seconds, rng)
    access_point_weights = _access_point_weights(pattern, access_points, middle_seconds, rng)
    total_rate = service_rates.sum(axis=1)
    expected_count = total_rate / total_rate.sum() * mean_rate_per_second * duration_seconds

    arrival_seconds = poisson_arrivals(edges_seconds, expected_count, rng)
    step = np.minimum(
        np.searchsorted(edges_seconds, arrival_seconds, side="right") - 1, len(middle_seconds) - 1
    )
    service = choose(service_rates, step, rng)
    marks = draw_marks(service, services, rng) if source is None else source.draw(service, services, rng)
    return RequestSequence(
        arrival_seconds=arrival_seconds,
        access_point=choose(access_point_weights, step, rng),
        service=service,
        deadline_seconds=marks.deadline_seconds,
        payload_bytes=marks.payload_bytes,
        work_factor=marks.work_factor,
        duration_seconds=float(duration_seconds),
    )


def cpu_heavy(services: ServiceCatalogue) -> BoolArray:
    """bool [W]: the third of the services with the largest CPU time per request."""
    return _top_third(services.cpu_millicores.astype(np.float64) * services.execution_seconds)


def memory_heavy(services: ServiceCatalogue) -> BoolArray:
    """bool [W]: the third of the services with the largest replica memory."""
    return _top_third(services.memory_bytes.astype(np.float64))


def _top_third(values: Float64Array) -> BoolArray:
    chosen = np.zeros(len(values), dtype=np.bool_)
    chosen[np.argsort(-values, kind="stable")[: max(1, len(values) // 3)]] = True
    return chosen


def _service_rates(
    pattern: Pattern, services: ServiceCatalogue, times_seconds: Float64Array, rng: np.random.Generator
) -> Float64Array:
    """float64 [b, W], up to a common factor."""
    if pattern is Pattern.P1:
        return _periodic(services, cpu_heavy(services), PERIOD_SECONDS, times_seconds, rng)
    if pattern is Pattern.P2:
        return _periodic(services, memory_heavy(services), PERIOD_SECONDS, times_seconds, rng)
    if pattern is Pattern.P3:
        return _periodic(services, cpu_heavy(services), SHORT_PERIOD_SECONDS, times_seconds, rng)
    return _stochastic(services, times_seconds, rng)


def _periodic(
    services: ServiceCatalogue,
    modulated: BoolArray,
    period_seconds: float,
    times_seconds: Float64Array,
    rng: np.random.Generator,
) -> Float64Array:
    phase = rng.uniform(0.0, 2.0 * np.pi)
    wave = AMPLITUDE * np.sin(2.0 * np.pi * times_seconds / period_seconds + phase)
    return np.asarray(services.popularity * (1.0 + wave[:, None] * modulated))


def _stochastic(
    services: ServiceCatalogue, times_seconds: Float64Array, rng: np.random.Generator
) -> Float64Array:
    step_seconds = 2.0 * times_seconds[0]
    level = np.ones(len(times_seconds))
    for sojourn_seconds in BURST_SOJOURNS_SECONDS:
        draws = 1.0 + BURST_AMPLITUDE * rng.choice([-1.0, 1.0], len(times_seconds))
        level *= renewed_draws(draws, step_seconds, sojourn_seconds, rng)
    drift = slow_drift(times_seconds, len(services), POPULARITY_DEVIATION, POPULARITY_RELAXATION_SECONDS, rng)
    popularity = services.popularity * np.exp(drift)
    popularity /= popularity.sum(axis=1, keepdims=True)
    return level[:, None] * popularity


def _access_point_weights(
    pattern: Pattern, access_points: int, times_seconds: Float64Array, rng: np.random.Generator
) -> Float64Array:
    """float64 [b, A]."""
    bursty = pattern is Pattern.P4
    deviation = BURSTY_ACCESS_POINT_DEVIATION if bursty else ACCESS_POINT_DEVIATION
    weights = np.exp(
        slow_drift(times_seconds, access_points, deviation, ACCESS_POINT_RELAXATION_SECONDS, rng)
    )
    if bursty:
        hot_spot = np.eye(access_points)[rng.integers(access_points, size=len(times_seconds))]
        hot_spot = renewed_draws(hot_spot, 2.0 * times_seconds[0], HOT_SPOT_SOJOURN_SECONDS, rng)
        weights *= 1.0 + (HOT_SPOT_WEIGHT - 1.0) * hot_spot
    return weights
