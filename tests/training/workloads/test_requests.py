from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.workloads.columns import WorkloadError
from training.workloads.requests import RequestSequence, check_sequence_arguments


def make(arrivals: list[float], duration_seconds: float = 10.0, **changes: Any) -> RequestSequence:
    count = len(arrivals)
    columns: dict[str, Any] = {
        "arrival_seconds": np.array(arrivals, dtype=np.float64),
        "access_point": np.arange(count, dtype=np.int32) % 3,
        "service": np.arange(count, dtype=np.int32) % 5,
        "deadline_seconds": np.linspace(0.1, 1.0, count, dtype=np.float32),
        "payload_bytes": np.full(count, 1000.0, dtype=np.float32),
        "work_factor": np.ones(count, dtype=np.float32),
        "duration_seconds": duration_seconds,
    }
    return RequestSequence(**(columns | changes))


def assert_equal(left: RequestSequence, right: RequestSequence) -> None:
    for column in fields(RequestSequence):
        np.testing.assert_array_equal(getattr(left, column.name), getattr(right, column.name))


def test_length_and_rate() -> None:
    sequence = make([0.0, 1.0, 1.0, 9.5])
    assert len(sequence) == 4
    assert sequence.mean_rate_per_second == pytest.approx(0.4)


def test_an_empty_sequence_is_a_sequence() -> None:
    assert len(make([])) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arrival_seconds": np.array([0.0, 2.0, 1.0])}, r"arrival_seconds\[2\]: 1.0 after 2.0; sort"),
        ({"arrival_seconds": np.array([0.0, 1.0, 11.0])}, r"arrival_seconds\[2\]: 11.0 is after the end"),
        ({"arrival_seconds": np.array([-1.0, 1.0, 2.0])}, r"arrival_seconds\[0\]: -1.0; must be a finite"),
        ({"arrival_seconds": np.array([0.0, np.nan, 2.0])}, r"arrival_seconds\[1\]: nan"),
        ({"arrival_seconds": np.zeros(3, np.float32)}, r"arrival_seconds: float32 \(3,\); must be a one-dim"),
        ({"access_point": np.array([0, -1, 0], np.int32)}, r"access_point\[1\]: -1"),
        ({"access_point": np.zeros(3, np.int64)}, r"access_point: int64 \(3,\)"),
        ({"service": np.zeros(2, np.int32)}, r"service: 2 values for 3 rows"),
        ({"service": [0, 1, 2]}, r"service: list; must be"),
        ({"deadline_seconds": np.array([1, 0, 1], np.float32)}, r"deadline_seconds\[1\]: 0.0; .* above zero"),
        ({"payload_bytes": np.array([1, np.inf, 1], np.float32)}, r"payload_bytes\[1\]: inf"),
        ({"work_factor": np.array([1, 1, -2], np.float32)}, r"work_factor\[2\]: -2.0"),
        ({"work_factor": np.ones((3, 1), np.float32)}, r"work_factor: float32 \(3, 1\)"),
        ({"duration_seconds": 0.0}, r"duration_seconds: 0.0; must be a finite number above zero"),
        ({"duration_seconds": float("nan")}, r"duration_seconds: nan"),
    ],
)
def test_contradictions_are_refused_with_field_and_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        make([0.0, 1.0, 2.0], **changes)


def test_a_window_keeps_what_arrives_in_it_and_counts_time_from_its_start() -> None:
    window = make([0.0, 1.0, 2.0, 3.0, 4.0]).window(1.0, 3.0)
    np.testing.assert_array_equal(window.arrival_seconds, [0.0, 1.0])
    np.testing.assert_array_equal(window.service, [1, 2])
    assert window.duration_seconds == 2.0


@pytest.mark.parametrize("bounds", [(3.0, 3.0), (4.0, 3.0), (-1.0, 3.0), (0.0, 11.0), (float("nan"), 1.0)])
def test_a_window_outside_the_sequence_is_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(WorkloadError, match=r"window: .*within 0 to 10.0"):
        make([1.0]).window(*bounds)


def test_concatenation_plays_one_after_the_other() -> None:
    joined = RequestSequence.concatenate([make([0.0, 10.0]), make([]), make([2.0], duration_seconds=5.0)])
    np.testing.assert_array_equal(joined.arrival_seconds, [0.0, 10.0, 22.0])
    assert joined.duration_seconds == 25.0


def test_concatenating_nothing_is_refused() -> None:
    with pytest.raises(WorkloadError, match="sequences: empty"):
        RequestSequence.concatenate([])


@given(
    st.lists(
        st.tuples(st.floats(0.01, 1e4), st.lists(st.floats(0.0, 1.0), max_size=5)), min_size=1, max_size=6
    )
)
def test_concatenation_is_always_a_valid_sequence_and_leaves_its_parts_alone(
    parts: list[tuple[float, list[float]]],
) -> None:
    sequences = [make(sorted(p * d for p in positions), duration_seconds=d) for d, positions in parts]
    before = [sequence.arrival_seconds.copy() for sequence in sequences]
    joined = RequestSequence.concatenate(sequences)
    assert len(joined) == sum(map(len, sequences))
    assert joined.duration_seconds == pytest.approx(sum(duration for duration, _ in parts))
    for sequence, arrivals in zip(sequences, before, strict=True):
        np.testing.assert_array_equal(sequence.arrival_seconds, arrivals)


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 39))
def test_two_windows_concatenate_to_the_whole(quarters: list[int], cut: int) -> None:
    # Quarters of a second are exact in floating point, so that nothing is lost to rounding.
    whole = make(sorted(quarter / 4 for quarter in quarters if quarter < 40))
    parts = [whole.window(0.0, cut / 4), whole.window(cut / 4, 10.0)]
    assert_equal(RequestSequence.concatenate(parts), whole)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 10.0, 1.0, 0), "access_points: 0"),
        ((1, 0.0, 1.0, 0), "duration_seconds: 0.0"),
        ((1, 10.0, float("inf"), 0), "mean_rate_per_second: inf"),
        ((1, 10.0, 1.0, -1), "seed: -1"),
        ((1, 90_000.0, 1.0, 0), "duration_seconds: 90000.0; must be at most 86400"),
        ((1, 86_400.0, 1e4, 0), "mean_rate_per_second: 10000.0 over 86400.0 s"),
    ],
)
def test_arguments_of_impossible_sequences_are_refused(
    arguments: tuple[int, float, float, int], message: str
) -> None:
    with pytest.raises(WorkloadError, match=message):
        check_sequence_arguments(*arguments)
