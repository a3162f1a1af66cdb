from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.workloads.columns import WorkloadError
from training.workloads.traces.windows import Split, TimeWindow, part_of, window_for


def test_training_is_the_first_60_percent_and_held_out_the_last_30() -> None:
    span = TimeWindow(100.0, 200.0)
    training, held_out = part_of(span, Split.TRAINING), part_of(span, Split.HELD_OUT)
    assert (training.start_seconds, training.end_seconds) == (100.0, 160.0)
    assert (held_out.start_seconds, held_out.end_seconds) == (170.0, 200.0)


@given(
    st.floats(-1e6, 1e6),
    st.floats(1e-3, 1e6),
    st.integers(0, 10_000),
    st.floats(1e-3, 1e7),
    st.sampled_from(Split),
)
def test_a_window_never_leaves_its_part(
    start: float, length: float, index: int, window_length: float, split: Split
) -> None:
    span = TimeWindow(start, start + length)
    part = part_of(span, split)
    window = window_for(split, index, span=span, length_seconds=window_length)
    assert part.start_seconds <= window.start_seconds < window.end_seconds <= part.end_seconds
    assert window == window_for(split, index, span=span, length_seconds=window_length)
    assert window.length_seconds == pytest.approx(min(window_length, part.length_seconds), rel=1e-6, abs=1e-8)


def test_windows_differ_and_cover_the_part_evenly() -> None:
    span = TimeWindow(0.0, 1000.0)
    starts = np.sort(
        [window_for(Split.HELD_OUT, i, span=span, length_seconds=50.0).start_seconds for i in range(50)]
    )
    assert np.diff(starts).min() > 0
    assert np.diff(starts).max() < 3 * 250.0 / 50
    assert starts[0] < 710.0
    assert starts[-1] > 940.0


def test_a_split_may_be_given_by_name() -> None:
    span = TimeWindow(0.0, 10.0)
    named = window_for("held-out", 0, span=span, length_seconds=1.0)  # type: ignore[arg-type]
    assert named == window_for(Split.HELD_OUT, 0, span=span, length_seconds=1.0)
    with pytest.raises(ValueError, match="validation"):
        window_for("validation", 0, span=span, length_seconds=1.0)  # type: ignore[arg-type]


def test_bad_arguments_are_refused_by_name() -> None:
    span = TimeWindow(0.0, 10.0)
    with pytest.raises(WorkloadError, match="index: -1"):
        window_for(Split.TRAINING, -1, span=span, length_seconds=1.0)
    with pytest.raises(WorkloadError, match="length_seconds: 0"):
        window_for(Split.TRAINING, 0, span=span, length_seconds=0.0)
    with pytest.raises(WorkloadError, match="the end must be after the start"):
        TimeWindow(1.0, 1.0)
    with pytest.raises(WorkloadError, match="must be finite"):
        TimeWindow(float("nan"), 1.0)
