from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.load.measurement import (
    Measurement,
    OpenLoopMeasurement,
    latency_histogram,
    percentile_microseconds,
)
from bench.load.schedule import ConstantRateSchedule


def closed(latency: list[int], sent: list[int] | None = None) -> Measurement:
    return Measurement(
        "test",
        np.array(sent if sent is not None else range(len(latency)), np.int64),
        np.array(latency, np.int64),
        {},
        client_cpu_seconds=0.5,
    )


def open_loop(rate: float, sent: list[int], ended: list[int], failures: int = 0) -> OpenLoopMeasurement:
    scheduled = ConstantRateSchedule(0, rate).all_due_nanoseconds(len(sent)) // 1000
    return OpenLoopMeasurement(
        "test",
        np.array(sent, np.int64),
        np.array(ended, np.int64) - scheduled,
        {"broken": failures} if failures else {},
        client_cpu_seconds=0.5,
        target_requests_per_second=rate,
        scheduled_microseconds=scheduled,
    )


@given(
    st.lists(st.integers(1, 10_000_000), min_size=1, max_size=500), st.sampled_from([50.0, 90.0, 99.0, 100.0])
)
def test_percentiles_are_those_of_the_sorted_latencies_to_three_digits(
    latency: list[int], percentile: float
) -> None:
    rank = max(1, int(percentile / 100 * len(latency) + 0.5))
    expected = sorted(latency)[rank - 1]
    assert percentile_microseconds(closed(latency), percentile) == pytest.approx(expected, rel=1e-3, abs=1)


def test_a_histogram_holds_all_measurements() -> None:
    histogram = latency_histogram([closed([1, 2, 3]), closed([0, 4_000])])
    assert histogram.get_total_count() == 5
    assert histogram.get_value_at_percentile(100) == pytest.approx(4_000, rel=1e-3)


def test_rate_counts_from_the_first_send_to_the_last_end() -> None:
    assert closed([100, 100, 100], sent=[0, 100, 900]).requests_per_second == pytest.approx(3000)


def test_client_cost_is_per_request() -> None:
    assert closed([1] * 1000).client_cpu_microseconds_per_request == pytest.approx(500)


@given(
    st.floats(10, 2000),
    st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 2_000_000)), min_size=1, max_size=200),
)
def test_open_loop_latency_is_lag_plus_service_time(rate: float, delays: list[tuple[int, int]]) -> None:
    due = [int(index * 1e9 / rate) // 1000 for index in range(len(delays))]
    sent = [time + lag for time, (lag, _) in zip(due, delays, strict=True)]
    ended = [time + service for time, (_, service) in zip(sent, delays, strict=True)]
    measurement = open_loop(rate, sent, ended)
    assert measurement.lag_microseconds.tolist() == [lag for lag, _ in delays]
    assert measurement.latency_microseconds.tolist() == [lag + service for lag, service in delays]


def test_open_loop_rate_is_that_of_the_schedule_when_answers_keep_up() -> None:
    due = [index * 10_000 for index in range(100)]
    assert open_loop(100, due, [time + 500 for time in due]).requests_per_second == pytest.approx(100)


def test_open_loop_rate_drops_when_answers_pile_up() -> None:
    due = [index * 10_000 for index in range(100)]
    ended = [(index + 1) * 20_000 for index in range(100)]
    assert open_loop(100, due, ended).requests_per_second == pytest.approx(50)


def test_failed_requests_do_not_count_as_achieved() -> None:
    due = [index * 10_000 for index in range(100)]
    assert open_loop(100, due, [time + 1 for time in due], failures=10).requests_per_second == pytest.approx(
        90
    )
