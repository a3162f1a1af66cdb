"""Windows of a trace's time, split so that evaluation never sees what training saw."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from training.workloads.columns import WorkloadError, check_positive

TRAINING_END = 0.6
HELD_OUT_START = 0.7
_GOLDEN_RATIO = (math.sqrt(5.0) - 1.0) / 2.0


class Split(StrEnum):
    """Part of a trace's time: the first 60 % trains, the last 30 % evaluates, the gap between them is unused."""

    TRAINING = "training"
    HELD_OUT = "held-out"


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """[start, end) in the trace's own time.

    Raises:
        WorkloadError: not finite, or of no length.
    """

    start_seconds: float
    end_seconds: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.start_seconds) and math.isfinite(self.end_seconds)):
            raise WorkloadError(f"window: {self.start_seconds} to {self.end_seconds}; must be finite")
        if not self.start_seconds < self.end_seconds:
            raise WorkloadError(
                f"window: {self.start_seconds} to {self.end_seconds}; the end must be after the start"
            )

    @property
    def length_seconds(self) -> float:
        """Seconds from start to end."""
        return self.end_seconds - self.start_seconds


def part_of(span: TimeWindow, split: Split) -> TimeWindow:
    """The part of the span that belongs to the split."""
    start, end = (0.0, TRAINING_END) if Split(split) is Split.TRAINING else (HELD_OUT_START, 1.0)
    return TimeWindow(
        span.start_seconds + start * span.length_seconds, span.start_seconds + end * span.length_seconds
    )


def window_for(split: Split, index: int, *, span: TimeWindow, length_seconds: float) -> TimeWindow:
    """The window at ``index`` within the split's part of the span.

    Starts follow the golden-ratio sequence frac(index x 0.618...), so that any number of windows covers the part
    evenly; windows may overlap. A length beyond the part gives the whole part.

    Args:
        split: which part.
        index: zero or more.
        span: the trace's time.
        length_seconds: length of the window in the trace's time.

    Raises:
        WorkloadError: negative index, or a length that is not above zero.
    """
    if index < 0:
        raise WorkloadError(f"index: {index}; must be zero or more")
    check_positive("length_seconds", length_seconds)
    part = part_of(span, split)
    if length_seconds >= part.length_seconds:
        return part
    start = part.start_seconds + (index * _GOLDEN_RATIO) % 1.0 * (part.length_seconds - length_seconds)
    return TimeWindow(start, min(start + length_seconds, part.end_seconds))
