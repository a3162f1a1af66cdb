"""A CPU-throttle target, after Autothrottle (Wang et al., NSDI 2024)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policy_server.cluster.containers import Fleet, MeasurementHistory
from policy_server.cluster.snapshot import Float64Array
from policy_server.policies.scaling.policy import Recommendation, peak

SCALE_UP_RATIO = 3.0
LARGEST_KEPT_SHARE = 0.9
SMALLEST_KEPT_SHARE = 0.5


@dataclass(frozen=True)
class AutothrottleScaling:
    """Keeps the share of throttled periods near a target: the paper's Captain, at this controller's interval.

    With throttle ratio r, target t and limit q, per interval:

    - margin <- max(0, margin + r - t);
    - r > 3 t right after a reduction: undo it twofold, q <- 2 q(before) - q, margin <- margin + r - t;
    - r > 3 t otherwise: q <- q (1 + r - 3 t);
    - else p = max usage + margin x standard deviation of usage; if p <= 0.9 q: q <- max(0.5 q, p).

    The paper's Tower chooses t once a minute from the request rate, for two groups of services with high and low CPU
    usage, by a contextual bandit; here the two targets are constants, tuned offline. The Captain acts on 100 ms
    samples, once a second; this one on what all policies get. It leaves memory alone, so memory follows the largest
    use. The margin is recomputed from the history, so the rule has no state of its own.

    Attributes:
        throttle_target: of services whose mean CPU usage is at least half of the application's largest.
        low_throttle_target: of the other services.
        first_margin: before anything is known.
        memory_margin: as in the percentile rule.
        usage_intervals: window of the usage statistics.
        history_intervals: window of the margin.
    """

    throttle_target: float = 0.06
    low_throttle_target: float = 0.04
    first_margin: float = 3.0
    memory_margin: float = 0.3
    usage_intervals: int = 12
    history_intervals: int = 48
    name: str = "autothrottle"
    version: str = "1"
    learned: bool = False

    def recommend(self, fleet: Fleet, history: MeasurementHistory) -> Recommendation:
        """See the class."""
        usage = history.column("cpu_usage_cores", self.usage_intervals)
        throttled = history.newest("throttled_fraction")
        limits = history.column("cpu_limit_cores", 2)
        limit, previous_limit = limits[-1], limits[0]
        target = self._targets(fleet, usage)
        margin = self._margin(history.column("throttled_fraction", self.history_intervals), target)

        reduced = limit < previous_limit
        undone = 2.0 * previous_limit - limit
        raised = np.where(reduced, undone, limit * (1.0 + throttled - SCALE_UP_RATIO * target))
        wanted = np.fmax.reduce(usage, axis=0) + margin * _deviation(usage)
        lowered = np.where(
            wanted <= LARGEST_KEPT_SHARE * limit, np.maximum(SMALLEST_KEPT_SHARE * limit, wanted), limit
        )
        return Recommendation(
            np.where(throttled > SCALE_UP_RATIO * target, raised, lowered),
            (1.0 + self.memory_margin) * peak(history, "memory_usage_bytes", self.history_intervals),
        )

    def _targets(self, fleet: Fleet, usage: Float64Array) -> Float64Array:
        mean = np.nan_to_num(usage).sum(axis=0) / np.maximum(np.isfinite(usage).sum(axis=0), 1)
        group = np.unique(fleet.application, return_inverse=True)[1]
        largest = np.zeros(int(group.max(initial=-1)) + 1)
        np.maximum.at(largest, group, mean)
        return np.where(mean >= 0.5 * largest[group], self.throttle_target, self.low_throttle_target)

    def _margin(self, throttled: Float64Array, target: Float64Array) -> Float64Array:
        """The margin that the window leads to; an interval that was not measured changes nothing."""
        margin = np.full(len(target), self.first_margin)
        for step in np.nan_to_num(throttled - target):
            margin = np.maximum(0.0, margin + step)
        return margin


def _deviation(usage: Float64Array) -> Float64Array:
    known = np.isfinite(usage)
    count = np.maximum(known.sum(axis=0), 1)
    filled = np.where(known, usage, 0.0)
    mean = filled.sum(axis=0) / count
    squares = np.where(known, (filled - mean) ** 2, 0.0).sum(axis=0)
    deviation: Float64Array = np.sqrt(squares / np.maximum(count - 1, 1))
    return deviation
