"""From a policy's scores to the few integers that kube-scheduler understands."""

from __future__ import annotations

import numpy as np

from policy_server.cluster.snapshot import Float64Array, Int64Array
from policy_server.kubernetes.extender.wire import LARGEST_SCORE

NEUTRAL_SCORE = 0
"""Of every node when none is preferred: the extender then adds nothing to the scheduler's own scores."""

_NOISE = 1e-9


def priorities(scores: Float64Array) -> Int64Array:
    """int64 [M]: ``floor(10 (s - min) / (max - min))``.

    A better node never gets less, equal nodes get the same, and only the best get 10, so that no rounding takes the
    policy's choice away. Differences below a billionth of the scores' range are noise and count as none; when the
    range itself is below a billionth of the largest score, all get :data:`NEUTRAL_SCORE`.

    Args:
        scores: float64 [M], finite.
    """
    largest = float(np.abs(scores).max(initial=0.0))
    if largest == 0:
        return np.full(len(scores), NEUTRAL_SCORE, np.int64)
    # Scaled first: the difference of two huge scores overflows.
    scaled = scores / largest
    above_worst = scaled - scaled.min()
    span = above_worst.max()
    if span <= _NOISE:
        return np.full(len(scores), NEUTRAL_SCORE, np.int64)
    steps: Int64Array = np.floor(LARGEST_SCORE * (above_worst / span + _NOISE)).astype(np.int64)
    return steps
