"""Histograms of durations."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from policy_server.telemetry.durations import (
    CALL_BOUNDS_SECONDS,
    DECISION_BOUNDS_SECONDS,
    DurationHistogram,
)


def test_bounds_ascend_from_where_calls_and_decisions_begin() -> None:
    for bounds in (CALL_BOUNDS_SECONDS, DECISION_BOUNDS_SECONDS):
        assert list(bounds) == sorted(set(bounds))
    assert CALL_BOUNDS_SECONDS[0] == 100e-6
    assert DECISION_BOUNDS_SECONDS[0] == 10e-6


@given(st.lists(st.one_of(st.floats(0, 100), st.sampled_from(CALL_BOUNDS_SECONDS))))
def test_counts_are_those_of_a_slow_reference(durations: list[float]) -> None:
    histogram = DurationHistogram(CALL_BOUNDS_SECONDS)
    for seconds in durations:
        histogram.record(seconds)
    below = (-math.inf, *CALL_BOUNDS_SECONDS)
    upto = (*CALL_BOUNDS_SECONDS, math.inf)
    expected = [
        sum(low < seconds <= high for seconds in durations) for low, high in zip(below, upto, strict=True)
    ]
    assert histogram.counts == expected
    assert math.isclose(histogram.sum_seconds, math.fsum(durations), rel_tol=1e-9)
    assert histogram.largest_seconds == max(durations, default=0)
    assert histogram.smallest_seconds == min(durations, default=math.inf)
