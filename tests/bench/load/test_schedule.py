from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bench.load.schedule import ConstantRateSchedule

rates = st.floats(0.1, 1e5)
starts = st.integers(0, 10**15)


@given(starts, rates, st.integers(0, 100_000))
def test_due_time_is_exact_however_late_in_the_run(start: int, rate: float, index: int) -> None:
    exact = start + Fraction(index * 1_000_000_000) / Fraction(rate)
    assert abs(ConstantRateSchedule(start, rate).due_nanoseconds(index) - exact) <= 1


@given(starts, rates, st.integers(0, 5_000))
def test_due_count_agrees_with_due_times(start: int, rate: float, index: int) -> None:
    schedule = ConstantRateSchedule(start, rate)
    due = schedule.due_nanoseconds(index)
    assert schedule.due_count(due) >= index + 1
    assert schedule.due_count(due - 1) <= index


@given(st.integers(0, 1000), st.floats(1, 1000), st.integers(0, 3_000_000_000))
def test_due_count_is_what_counting_gives(start: int, rate: float, now: int) -> None:
    schedule = ConstantRateSchedule(start, rate)
    counted = 0
    while schedule.due_nanoseconds(counted) <= now:
        counted += 1
    assert schedule.due_count(now) == counted


def test_nothing_is_due_before_the_start() -> None:
    assert ConstantRateSchedule(1000, 1e9).due_count(999) == 0


@given(starts, rates, st.integers(1, 200))
def test_all_due_times_ascend_and_agree_with_single_ones(start: int, rate: float, count: int) -> None:
    schedule = ConstantRateSchedule(start, rate)
    due = schedule.all_due_nanoseconds(count)
    assert due.tolist() == [schedule.due_nanoseconds(i) for i in range(count)]
    assert (np.diff(due) >= 0).all()
