from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.cluster.containers import MEASURED, Fleet, MeasurementHistory
from policy_server.features.scaling import (
    CPU_PEAK_INTERVALS,
    ECONOMY_COLUMN,
    HISTORY_INTERVALS,
    SCALING_SCHEMA,
    WINDOW_INTERVALS,
    ScalingSchema,
    cpu_demand_cores,
    memory_demand_bytes,
    scaling_features,
)
from tests.policy_server.policies.scaling_fleets import MEBIBYTE, fleet_of, history_of, measured

COLUMN = {name: column for column, name in enumerate(SCALING_SCHEMA.container)}


def row(history: MeasurementHistory, container: int = 0, fleet: Fleet | None = None) -> dict[str, float]:
    features = scaling_features(fleet or fleet_of(history.containers), history, 0.5)
    return {name: float(features[container, column]) for name, column in COLUMN.items()}


def test_the_schema() -> None:
    assert len(SCALING_SCHEMA.container) == 33
    assert SCALING_SCHEMA.container[ECONOMY_COLUMN] == "economy"
    assert SCALING_SCHEMA.hash == "5d2527645cf183203fd792410437fb31e1e5d0ed8f5ff5518a9179627e468676"


def test_any_change_of_the_schema_changes_its_hash() -> None:
    names = SCALING_SCHEMA.container
    others = (
        ScalingSchema(names[::-1]),
        ScalingSchema((*names, "another")),
        replace(SCALING_SCHEMA, revision=2),
    )
    assert len({SCALING_SCHEMA.hash, *(other.hash for other in others)}) == 4


def test_the_formulas() -> None:
    intervals = [
        measured(
            2,
            cpu_usage_cores=[usage, 0.1],
            throttled_fraction=[throttled, 0.0],
            memory_usage_bytes=[64 * MEBIBYTE, 128 * MEBIBYTE],
            latency_seconds=[0.05, 0.2],
            requests_per_second=[rate, 200.0],
        )
        for usage, throttled, rate in ((0.1, 0.0, 10.0), (0.2, 0.1, 20.0), (0.3, 0.2, 30.0), (0.5, 0.3, 60.0))
    ]
    fleet = fleet_of(2, cores=4.0)
    found = row(MeasurementHistory.of(intervals), fleet=fleet)
    assert [found[f"cpu_utilisation_{age}"] for age in range(4)] == pytest.approx([0.5, 0.3, 0.2, 0.1])
    assert [found[f"memory_utilisation_{age}"] for age in range(4)] == pytest.approx([0.25] * 4)
    assert [found[f"latency_{age}"] for age in range(4)] == pytest.approx([0.05 / 0.25] * 4)
    assert [found[f"request_trend_{age}"] for age in range(4)] == pytest.approx(
        [60 / 90, 0.5, 20 / 50, 10 / 40]
    )
    assert [found[f"throttled_{age}"] for age in range(4)] == pytest.approx([0.3, 0.2, 0.1, 0.0])
    assert found["request_rate"] == pytest.approx(np.log(61) / np.log(10001))
    assert found["request_share"] == pytest.approx(60 / 200)
    assert found["cpu_demand"] == pytest.approx(np.log(0.5 / 0.001) / np.log(4000))
    assert found["cpu_per_request"] == pytest.approx(np.log(0.5 / 60 / 1e-4) / np.log(1e4), rel=1e-5)
    assert found["cpu_limit"] == pytest.approx(np.log(20) / np.log(80))
    assert found["memory_limit"] == pytest.approx(np.log(8) / np.log(128))
    assert found["application_latency"] == pytest.approx(0.5)
    assert found["node_cpu_allocated"] == pytest.approx(2 / 4)
    assert found["economy"] == 0.5
    usage = np.array([0.1, 0.2, 0.3, 0.5])
    assert found["cpu_mean"] == pytest.approx(np.log(usage.mean() / 0.5 * 4) / np.log(16))
    assert found["cpu_newest"] == pytest.approx(0.5)
    assert found["cpu_variation"] == pytest.approx(usage.std() / (usage.std() + usage.mean()))
    assert found["throttled_mean"] == pytest.approx(0.15)


def test_the_window_remembers_what_four_intervals_do_not() -> None:
    intervals = [measured()] * 40
    intervals[-WINDOW_INTERVALS] = measured(throttled_fraction=0.6)
    intervals[-WINDOW_INTERVALS - 1] = measured(throttled_fraction=1.0)
    assert row(MeasurementHistory.of(intervals))["throttled_mean"] == pytest.approx(0.6 / WINDOW_INTERVALS)


def test_demand_rises_at_once_and_falls_after_a_minute() -> None:
    quiet = [measured(cpu_usage_cores=0.1)] * (CPU_PEAK_INTERVALS - 1)
    rising = MeasurementHistory.of([*quiet, measured(cpu_usage_cores=0.9)])
    falling = MeasurementHistory.of([measured(cpu_usage_cores=u) for u in (5.0, 0.9)] + quiet)
    assert cpu_demand_cores(rising)[0] == pytest.approx(0.9)
    assert cpu_demand_cores(falling)[0] == pytest.approx(0.9)
    assert row(falling)["cpu_newest"] == pytest.approx(0.0)
    assert cpu_demand_cores(history_of(cpu_usage_cores=0.0))[0] == 0.001


def test_memory_demand_is_the_peak_of_the_window() -> None:
    quiet = [measured(memory_usage_bytes=60 * MEBIBYTE)] * (WINDOW_INTERVALS - 1)
    history = MeasurementHistory.of([measured(memory_usage_bytes=m * MEBIBYTE) for m in (900, 80)] + quiet)
    assert memory_demand_bytes(history)[0] == 80 * MEBIBYTE
    assert memory_demand_bytes(history_of(memory_usage_bytes=0.0))[0] > 0


def test_applications_do_not_mix() -> None:
    fleet = replace(fleet_of(4), application=np.array([7, 3, 7, 3]))
    history = history_of(4, requests_per_second=[10, 50, 20, 100], latency_seconds=[0.1, 0.2, 0.3, 0.05])
    features = scaling_features(fleet, history, 0.0)
    np.testing.assert_allclose(features[:, COLUMN["request_share"]], [0.5, 0.5, 1, 1])
    np.testing.assert_allclose(features[:, COLUMN["application_latency"]], [0.6, 0.5, 0.6, 0.5])


def test_a_short_history_counts_as_steady() -> None:
    short, long = history_of(intervals=1), history_of(intervals=HISTORY_INTERVALS)
    np.testing.assert_array_equal(
        scaling_features(fleet_of(1), short, 0.5), scaling_features(fleet_of(1), long, 0.5)
    )


def test_a_gap_is_filled_from_the_next_newer_interval_and_at_the_new_end_from_the_older() -> None:
    nan = np.nan
    history = MeasurementHistory.of([measured(cpu_usage_cores=u) for u in (0.1, nan, 0.3, nan)])
    found = row(history)
    assert [found[f"cpu_utilisation_{age}"] for age in range(4)] == pytest.approx([0.3, 0.3, 0.3, 0.1])


def test_latency_without_requests_is_zero_and_not_unknown() -> None:
    history = MeasurementHistory.of(
        [
            measured(latency_seconds=0.2, requests_per_second=5.0),
            measured(latency_seconds=np.nan, requests_per_second=0.0),
            measured(latency_seconds=np.nan, requests_per_second=5.0),
            measured(latency_seconds=0.6, requests_per_second=5.0),
        ]
    )
    found = row(history)
    assert [found[f"latency_{age}"] for age in range(4)] == pytest.approx([0.75, 0.75, 0.0, 0.5])


def test_an_idle_container_is_steady() -> None:
    found = row(history_of(requests_per_second=0.0, latency_seconds=np.nan, cpu_usage_cores=0.0))
    assert found["request_trend_0"] == 0.5
    assert found["request_share"] == found["cpu_per_request"] == 0.0


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 6), st.floats(0, 1))
def test_features_are_finite_and_within_bounds_whatever_was_measured(
    seed: int, containers: int, intervals: int, economy: float
) -> None:
    random = np.random.default_rng(seed)
    values = np.exp(random.uniform(-20, 30, (len(MEASURED), intervals, containers)))
    values[random.random(values.shape) < 0.2] = 0.0
    values[random.random(values.shape) < 0.2] = np.nan
    values[random.random(values.shape) < 0.05] = random.choice((np.inf, -np.inf))
    fleet = replace(fleet_of(containers, cores=2.0), application=random.integers(3, size=containers))
    features = scaling_features(fleet, MeasurementHistory(values), economy)
    assert features.dtype == np.float32
    assert features.shape == (containers, len(SCALING_SCHEMA.container))
    assert np.isfinite(features).all()
    assert ((features >= 0) & (features <= 1)).all()


@given(st.integers(0, 2**32))
def test_the_order_of_containers_does_not_matter(seed: int) -> None:
    random = np.random.default_rng(seed)
    values = random.random((len(MEASURED), 5, 6))
    fleet = replace(fleet_of(6), application=random.integers(2, size=6))
    order = random.permutation(6)
    shuffled = replace(fleet, application=fleet.application[order])
    there = scaling_features(fleet, MeasurementHistory(values), 0.3)
    back = scaling_features(shuffled, MeasurementHistory(values[:, :, order]), 0.3)
    np.testing.assert_allclose(back, there[order], rtol=1e-6)


@pytest.mark.parametrize("economy", [-0.1, 1.1, np.nan])
def test_an_economy_outside_its_range_is_refused(economy: float) -> None:
    with pytest.raises(ValueError, match="economy"):
        scaling_features(fleet_of(1), history_of(), economy)
