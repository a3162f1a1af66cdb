from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.workloads.columns import WorkloadError
from training.workloads.marks import RequestTemplates
from training.workloads.patterns import (
    Pattern,
    cpu_heavy,
    generate,
    memory_heavy,
)
from training.workloads.requests import RequestSequence
from training.workloads.seeds import held_out_seed
from training.workloads.services import default_services

SERVICES = default_services()
PERIODS = 10
PERIOD_SECONDS, SHORT_PERIOD_SECONDS = 100.0, 20.0  # as documented


def sequence(
    pattern: Pattern, *, seed: int = 0, duration: float = 120.0, rate: float = 500.0
) -> RequestSequence:
    return generate(
        pattern,
        services=SERVICES,
        access_points=5,
        duration_seconds=duration,
        mean_rate_per_second=rate,
        seed=seed,
    )


def digest(requests: RequestSequence) -> str:
    sha = hashlib.sha256()
    for column in fields(RequestSequence):
        sha.update(np.asarray(getattr(requests, column.name)).tobytes())
    return sha.hexdigest()


def per_second(requests: RequestSequence, weights: np.ndarray) -> np.ndarray:
    """Sum of the weights of the requests' services, second by second."""
    return np.bincount(
        requests.arrival_seconds.astype(np.int64),
        weights[requests.service],
        minlength=int(requests.duration_seconds),
    )


def periodogram(series: np.ndarray) -> np.ndarray:
    """Power by frequency (multiples of 1 / length), relative to the median."""
    power = np.abs(np.fft.rfft(series - series.mean())) ** 2
    return power / np.median(power[1:])


CPU_SECONDS = (SERVICES.cpu_millicores * SERVICES.execution_seconds).astype(np.float64)
MEMORY_SECONDS = (SERVICES.memory_bytes * SERVICES.execution_seconds / SERVICES.concurrency).astype(
    np.float64
)
PERIODIC = [
    (Pattern.P1, CPU_SECONDS, PERIOD_SECONDS),
    (Pattern.P2, MEMORY_SECONDS, PERIOD_SECONDS),
    (Pattern.P3, CPU_SECONDS, SHORT_PERIOD_SECONDS),
]


@pytest.mark.parametrize(("pattern", "demand", "period_seconds"), PERIODIC)
@pytest.mark.parametrize("seed", [0, held_out_seed(0)])
def test_demand_has_one_spectral_line_at_the_period(
    pattern: Pattern, demand: np.ndarray, period_seconds: float, seed: int
) -> None:
    duration = PERIODS * PERIOD_SECONDS
    power = periodogram(per_second(sequence(pattern, seed=seed, duration=duration), demand))
    line = round(duration / period_seconds)
    assert np.argmax(power) == line
    assert power[line] > 100 * np.delete(power, line).max()


@pytest.mark.parametrize(("pattern", "demand", "period_seconds"), PERIODIC)
def test_demand_swings_by_a_good_part_of_its_mean(
    pattern: Pattern, demand: np.ndarray, period_seconds: float
) -> None:
    requests = sequence(pattern, duration=PERIODS * PERIOD_SECONDS)
    by_phase = per_second(requests, demand).reshape(-1, int(period_seconds)).mean(axis=0)
    assert (by_phase.max() - by_phase.min()) / by_phase.mean() > 0.7


def test_p1_and_p2_move_different_services() -> None:
    assert not np.any(cpu_heavy(SERVICES) & memory_heavy(SERVICES))
    duration = PERIODS * PERIOD_SECONDS
    steady_memory = periodogram(
        per_second(sequence(Pattern.P1, duration=duration), memory_heavy(SERVICES).astype(float))
    )
    steady_cpu = periodogram(
        per_second(sequence(Pattern.P2, duration=duration), cpu_heavy(SERVICES).astype(float))
    )
    assert steady_memory[PERIODS] < 20
    assert steady_cpu[PERIODS] < 20


def test_p4_has_no_line_at_the_periods_of_the_others() -> None:
    duration = PERIODS * PERIOD_SECONDS
    power = np.mean(
        [
            np.abs(
                np.fft.rfft(
                    per_second(sequence(Pattern.P4, seed=s, duration=duration, rate=50.0), CPU_SECONDS)
                )
            )
            ** 2
            for s in range(20)
        ],
        axis=0,
    )
    for period_seconds in (PERIOD_SECONDS, SHORT_PERIOD_SECONDS):
        line = round(duration / period_seconds)
        around = np.r_[power[line - 4 : line - 1], power[line + 2 : line + 5]]
        assert power[line] < 4 * around.mean()


def index_of_dispersion(requests: RequestSequence, window_seconds: int) -> float:
    counts = np.bincount((requests.arrival_seconds / window_seconds).astype(np.int64))[:-1]
    return float(counts.var() / counts.mean())


def test_p4_is_bursty_on_every_scale() -> None:
    for seed in range(3):
        requests = sequence(Pattern.P4, seed=seed, duration=2000.0, rate=100.0)
        dispersion = [index_of_dispersion(requests, window) for window in (1, 4, 16, 64)]
        assert dispersion[0] > 5
        assert np.all(np.diff(dispersion) > 0)


def test_the_services_left_alone_by_p1_are_plain_poisson() -> None:
    requests = sequence(Pattern.P1, duration=1000.0)
    counts = per_second(requests, (~cpu_heavy(SERVICES)).astype(float))
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.15)


def test_p4_popularity_drifts_while_that_of_p1_stays() -> None:
    light = ~cpu_heavy(SERVICES)
    shift = {}
    for pattern in (Pattern.P1, Pattern.P4):
        requests = sequence(pattern, duration=400.0)
        halves = [
            np.bincount(requests.window(*bounds).service, minlength=len(SERVICES))[light]
            for bounds in ((0.0, 200.0), (200.0, 400.0))
        ]
        first, second = (half / half.sum() for half in halves)
        shift[pattern] = np.abs(np.log(first / second)).mean()
    assert shift[Pattern.P1] < 0.05
    assert shift[Pattern.P4] > 0.15


@pytest.mark.parametrize("pattern", Pattern)
def test_access_points_get_uneven_shares_that_drift_slowly(pattern: Pattern) -> None:
    uneven, drift = [], []
    for seed in range(4):
        requests = sequence(pattern, seed=seed, duration=480.0)
        shares = np.array(
            [
                np.bincount(requests.window(start, start + 10.0).access_point, minlength=5)
                for start in np.arange(0.0, 480.0, 10.0)
            ],
            dtype=np.float64,
        )
        shares /= shares.sum(axis=1, keepdims=True)
        uneven.append(shares.mean(axis=0).max() / shares.mean(axis=0).min())
        drift.append(np.abs(shares[24:].mean(axis=0) - shares[:24].mean(axis=0)).max())
        assert np.all(shares.sum(axis=0) > 0)
    assert np.median(uneven) > 1.5
    assert np.median(drift) > 0.02


def test_p4_has_hot_spots() -> None:
    def largest_share(pattern: Pattern) -> float:
        shares = []
        for seed in range(6):
            requests = sequence(pattern, seed=seed)
            for start in range(0, 120, 5):
                counts = np.bincount(requests.window(start, start + 5).access_point, minlength=5)
                shares.append(counts.max() / counts.sum())
        return float(np.mean(shares))

    assert largest_share(Pattern.P4) > largest_share(Pattern.P1) + 0.05


@pytest.mark.parametrize("pattern", Pattern)
def test_the_mean_rate_is_the_one_asked_for_whatever_the_shape(pattern: Pattern) -> None:
    counts = [len(sequence(pattern, seed=seed, duration=30.0)) for seed in range(20)]
    assert np.abs(np.mean(counts) - 15_000) < 4 * np.sqrt(15_000 / 20)
    assert np.std(counts) < 2 * np.sqrt(15_000)


@pytest.mark.parametrize("pattern", Pattern)
def test_popularity_is_the_catalogues_on_average(pattern: Pattern) -> None:
    asked = np.zeros(len(SERVICES))
    for seed in range(10):
        requests = sequence(pattern, seed=seed, duration=200.0, rate=200.0)
        asked += np.bincount(requests.service, minlength=len(SERVICES))
    asked /= asked.sum()
    assert np.abs(asked - SERVICES.popularity).sum() < (0.2 if pattern is Pattern.P4 else 0.03)


@pytest.mark.parametrize("pattern", Pattern)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(pattern: Pattern) -> None:
    assert digest(sequence(pattern, seed=3)) == digest(sequence(pattern, seed=3))
    assert digest(sequence(pattern, seed=3)) != digest(sequence(pattern, seed=held_out_seed(3)))


def test_patterns_do_not_share_random_numbers() -> None:
    assert len({digest(sequence(pattern)) for pattern in Pattern}) == 4
    first, third = sequence(Pattern.P1), sequence(Pattern.P3)
    common = min(len(first), len(third))
    assert not np.array_equal(first.work_factor[:common], third.work_factor[:common])


def test_another_process_makes_the_same_bytes() -> None:
    program = (
        "import hashlib, numpy, dataclasses\n"
        "from training.workloads.patterns import generate, Pattern\n"
        "from training.workloads.services import default_services\n"
        "r = generate(Pattern.P4, services=default_services(), access_points=5, duration_seconds=20.0,"
        " mean_rate_per_second=100.0, seed=11)\n"
        "h = hashlib.sha256()\n"
        "[h.update(numpy.asarray(getattr(r, f.name)).tobytes()) for f in dataclasses.fields(r)]\n"
        "print(h.hexdigest())"
    )
    output = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert output.strip() == digest(sequence(Pattern.P4, seed=11, duration=20.0, rate=100.0))


def test_the_pattern_may_be_given_by_name() -> None:
    named = generate(
        "P2",  # type: ignore[arg-type]
        services=SERVICES,
        access_points=5,
        duration_seconds=120.0,
        mean_rate_per_second=500.0,
        seed=0,
    )
    assert digest(named) == digest(sequence(Pattern.P2))


@given(
    st.sampled_from(Pattern),
    st.integers(1, 12),
    st.integers(1, 40),
    st.floats(0.01, 40.0),
    st.floats(0.01, 300.0),
    st.integers(0, 2**63),
)
@settings(max_examples=60)
def test_any_size_gives_a_valid_sequence(
    pattern: Pattern, access_points: int, services: int, duration: float, rate: float, seed: int
) -> None:
    requests = generate(
        pattern,
        services=default_services(services),
        access_points=access_points,
        duration_seconds=duration,
        mean_rate_per_second=rate,
        seed=seed,
    )
    assert requests.duration_seconds == duration
    if len(requests):
        assert requests.access_point.max() < access_points
        assert requests.service.max() < services


def test_recorded_marks_replace_drawn_ones_and_leave_arrivals_alone() -> None:
    recorded = RequestTemplates(
        service=np.arange(30, dtype=np.int32),
        deadline_seconds=np.arange(1, 31, dtype=np.float32),
        payload_bytes=np.arange(101, 131, dtype=np.float32),
        work_factor=np.full(30, 0.5, np.float32),
    )
    plain = sequence(Pattern.P1, duration=10.0)
    requests = generate(
        Pattern.P1,
        services=SERVICES,
        access_points=5,
        duration_seconds=10.0,
        mean_rate_per_second=500.0,
        seed=0,
        source=recorded,
    )
    np.testing.assert_array_equal(requests.arrival_seconds, plain.arrival_seconds)
    np.testing.assert_array_equal(requests.service, plain.service)
    np.testing.assert_array_equal(requests.deadline_seconds, requests.service + 1)
    np.testing.assert_array_equal(requests.payload_bytes, requests.service + 101)
    assert set(requests.work_factor) == {0.5}


def test_the_marks_of_a_sequence_serve_as_templates() -> None:
    recorded = sequence(Pattern.P4, duration=10.0)
    templates = RequestTemplates.from_sequence(recorded)
    requests = generate(
        Pattern.P2,
        services=SERVICES,
        access_points=2,
        duration_seconds=10.0,
        mean_rate_per_second=500.0,
        seed=0,
        source=templates,
    )
    known = {
        tuple(row)
        for row in zip(
            recorded.service.tolist(),
            recorded.deadline_seconds.tolist(),
            recorded.payload_bytes.tolist(),
            strict=True,
        )
    }
    made = zip(
        requests.service.tolist(),
        requests.deadline_seconds.tolist(),
        requests.payload_bytes.tolist(),
        strict=True,
    )
    assert all(row in known for row in made)


def test_bad_arguments_are_refused_by_name() -> None:
    with pytest.raises(WorkloadError, match="mean_rate_per_second: -1"):
        sequence(Pattern.P1, rate=-1.0)
    with pytest.raises(ValueError, match="P5"):
        sequence("P5")  # type: ignore[arg-type]
