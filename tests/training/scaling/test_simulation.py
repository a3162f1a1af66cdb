"""Properties of the simulator; that its figures are right is shown against a reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.scaling.small import small_application
from training.scaling import kernel
from training.scaling.application import MEBIBYTE, CallGraph
from training.scaling.simulation import IntervalOutcome, ScalingSimulation, latency_quantile
from training.scaling.sock_shop import sock_shop


def run(
    cores: float,
    *,
    seeds: tuple[int, ...] = (1,),
    intervals: int = 6,
    memory: float = 700.0,
    rate: float = 120.0,
) -> list[IntervalOutcome]:
    simulation = ScalingSimulation(sock_shop(), seeds)
    shape = (len(seeds), simulation.containers)
    simulation.resize(np.full(shape, cores), np.full(shape, memory * MEBIBYTE))
    return [simulation.advance(np.full((len(seeds), 5), rate)) for _ in range(intervals)]


def test_the_same_seed_gives_the_same_run_in_any_company() -> None:
    alone, together = run(0.4, seeds=(3,)), run(0.4, seeds=(9, 3, 4))
    for a, b in zip(alone, together, strict=True):
        for name in IntervalOutcome.__dataclass_fields__:
            if name != "seconds":
                np.testing.assert_array_equal(getattr(a, name)[0], getattr(b, name)[1], err_msg=name)
    assert together[0].requests[0] != together[0].requests[1]


def test_more_cpu_means_less_waiting() -> None:
    latency = []
    for cores in (0.3, 0.5, 0.8, 2.0):
        outcomes = run(cores)[2:]
        latency.append(sum(o.latency_seconds[0] for o in outcomes) / sum(o.requests[0] for o in outcomes))
    assert latency == sorted(latency, reverse=True)


def test_without_waiting_latency_is_work_and_network() -> None:
    outcomes = run(2.0, intervals=40)
    requests = sum(o.requests[0] for o in outcomes)
    waits = sum(o.wait_seconds[0].sum() for o in outcomes)
    assert waits / requests < 1e-4
    mean = sum(o.latency_seconds[0] for o in outcomes) / requests
    assert 0.015 < mean < 0.025


def test_usage_is_the_offered_work_as_long_as_limits_allow() -> None:
    outcomes = run(2.0, intervals=40)
    expected = 120.0 * CallGraph.of(sock_shop()).mean_cpu_seconds_per_request
    usage = np.mean([o.cpu_usage_cores[0] for o in outcomes], axis=0)
    np.testing.assert_allclose(usage, expected, rtol=0.1)


@given(st.floats(0.1, 1.0), st.floats(20, 300), st.floats(200, 700), st.integers(0, 1000))
@settings(max_examples=25)
def test_what_always_holds(cores: float, rate: float, memory: float, seed: int) -> None:
    application = sock_shop()
    node_cores = CallGraph.of(application).node_cpu_cores
    service_node = CallGraph.of(application).service_node
    for outcome in run(cores, seeds=(seed,), rate=rate, memory=memory, intervals=4)[1:]:
        # Usage is booked by period, so an interval holds its own quota only.
        assert (outcome.cpu_usage_cores <= cores * (1 + 1e-9)).all()
        assert (
            np.bincount(service_node, weights=outcome.cpu_usage_cores[0]) <= node_cores * (1 + 1e-9)
        ).all()
        assert (outcome.memory_usage_bytes <= memory * MEBIBYTE * (1 + 1e-9)).all()
        assert ((outcome.throttled_fraction >= 0) & (outcome.throttled_fraction <= 1)).all()
        assert (outcome.failures <= outcome.violations).all()
        assert (outcome.violations <= outcome.requests).all()
        assert (outcome.wait_seconds >= -1e-9).all()
        assert outcome.blame.sum() <= outcome.violations.sum() * (1 + 1e-9)
        assert outcome.latency_counts.sum() == outcome.requests.sum()
        kept = outcome.requests > 0
        assert (outcome.latency_seconds[kept] / outcome.requests[kept] < 10).all()


def test_blame_adds_up_to_the_violations() -> None:
    outcomes = run(0.25, intervals=10)
    violations = sum(o.violations[0] for o in outcomes)
    assert violations > 100
    assert sum(o.blame[0].sum() for o in outcomes) == pytest.approx(violations, rel=1e-6)


def test_too_little_memory_kills_and_restarts() -> None:
    outcomes = run(2.0, memory=100.0, intervals=4)
    kills = sum(o.kills[0] for o in outcomes)
    names = sock_shop().service_names
    assert kills[names.index("carts")] >= 1
    assert kills[names.index("payment")] == 0
    assert sum(o.failures[0] for o in outcomes) > 0


def test_limits_come_into_force_after_a_delay() -> None:
    simulation = ScalingSimulation(small_application(), [1])
    ample, tight = np.full((1, 2), 2.0), np.full((1, 2), 0.02)
    memory = np.full((1, 2), 500 * MEBIBYTE)
    simulation.resize(ample, memory)
    simulation.advance(np.full((1, 5), 40.0))
    simulation.resize(tight, memory)
    outcome = simulation.advance(np.full((1, 5), 40.0))
    first_second = 40.0 * CallGraph.of(small_application()).mean_cpu_seconds_per_request / 5
    assert (outcome.cpu_usage_cores[0] > 0.02).any()
    assert (outcome.cpu_usage_cores[0] < 0.02 + 2 * first_second).all()
    assert (simulation.advance(np.full((1, 5), 40.0)).cpu_usage_cores <= 0.02 * (1 + 1e-9)).all()


def test_no_load_no_requests() -> None:
    simulation = ScalingSimulation(small_application(), [1])
    outcome = simulation.advance(np.zeros((1, 5)))
    assert outcome.requests[0] == 0
    assert np.isnan(outcome.container_latency_seconds).all()
    assert np.isnan(latency_quantile(outcome.latency_counts, 0.5)[0])


def test_the_number_of_requests_follows_the_rate() -> None:
    simulation = ScalingSimulation(small_application(), range(50))
    outcome = simulation.advance(np.tile([0.0, 10.0, 20.0, 30.0, 40.0], (50, 1)))
    assert outcome.requests.sum() == pytest.approx(5000, abs=4 * np.sqrt(5000))


def test_variation_changes_the_work_of_services() -> None:
    plain = ScalingSimulation(small_application(), [1, 2])
    varied = ScalingSimulation(small_application(), [1, 2], work_variation=0.3)
    np.testing.assert_allclose(plain.mean_cpu_cores_per_rate[0], plain.mean_cpu_cores_per_rate[1])
    assert np.ptp(varied.mean_cpu_cores_per_rate / plain.mean_cpu_cores_per_rate) > 0.05


@given(st.lists(st.floats(0.0011, 90.0), min_size=20, max_size=200), st.floats(0.05, 0.99))
def test_quantiles_from_bins(latencies: list[float], share: float) -> None:
    counts = np.bincount(
        [kernel.latency_bin(seconds) for seconds in latencies], minlength=kernel.LATENCY_BINS
    )
    found = latency_quantile(counts, share)
    below = np.mean(np.array(latencies) <= found * 1.03)
    above = np.mean(np.array(latencies) >= found / 1.03)
    assert below >= share - 1e-9
    assert above >= 1 - share - 1.0 / len(latencies) - 1e-9


@pytest.mark.parametrize("interval", [0.0, 1.0, 2.5])
def test_an_interval_that_makes_no_sense_is_refused(interval: float) -> None:
    with pytest.raises(ValueError, match="interval_seconds"):
        ScalingSimulation(small_application(), [1], interval_seconds=interval)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan])
def test_limits_that_are_not_above_zero_are_refused(bad: float) -> None:
    simulation = ScalingSimulation(small_application(), [1])
    with pytest.raises(ValueError, match="cpu_cores"):
        simulation.resize(np.full((1, 2), bad), np.full((1, 2), 1e8))


def test_rates_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="rates"):
        ScalingSimulation(small_application(), [1]).advance(np.zeros((1, 4)))
