from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.kubernetes.extender.priorities import NEUTRAL_SCORE, priorities

scores = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30)


@given(scores)
def test_integers_in_range_that_keep_the_order(values: list[float]) -> None:
    mapped = priorities(np.array(values))
    assert mapped.dtype == np.int64
    assert len(mapped) == len(values)
    assert ((mapped >= 0) & (mapped <= 10)).all()
    pairs = sorted(zip(values, mapped.tolist(), strict=True))
    assert [score for _, score in pairs] == sorted(mapped.tolist())


@given(scores)
def test_equal_scores_stay_equal_in_any_order(values: list[float]) -> None:
    doubled = priorities(np.array([*values, *reversed(values)]))
    assert doubled[: len(values)].tolist() == doubled[len(values) :][::-1].tolist()


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=30))
def test_only_the_best_get_ten_and_the_worst_get_zero(values: list[int]) -> None:
    mapped = priorities(np.array(values, np.float64))
    lowest, highest = min(values), max(values)
    if lowest == highest:
        assert set(mapped.tolist()) == {NEUTRAL_SCORE}
        return
    for value, score in zip(values, mapped.tolist(), strict=True):
        assert score == math.floor(10 * (value - lowest) / (highest - lowest))
        assert (score == 10) == (value == highest)


@pytest.mark.parametrize(
    ("values", "mapped"),
    [
        ([], []),
        ([0.0], [0]),
        ([-5.0], [0]),
        ([0.1 + 0.2, 0.3], [0, 0]),
        ([1e9, 1e9 + 1e-3], [0, 0]),
        ([0.0, 0.3, 0.1 + 0.2], [0, 10, 10]),
        ([-1e308, 0.0, 1e308], [0, 5, 10]),
        ([5e-324, 0.0], [10, 0]),
        ([0.0, 0.999, 1.0], [0, 9, 10]),
    ],
)
def test_examples(values: list[float], mapped: list[int]) -> None:
    assert priorities(np.array(values)).tolist() == mapped
