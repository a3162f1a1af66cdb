"""A percentile of past usage, as the Vertical Pod Autoscaler's recommender computes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policy_server.cluster.containers import Fleet, MeasurementHistory
from policy_server.cluster.snapshot import Float64Array
from policy_server.policies.scaling.policy import Recommendation, peak


@dataclass(frozen=True)
class PercentileScaling:
    """limit = (1 + margin) x percentile of the usage, older samples counting less.

    The VPA keeps histograms that halve every 24 hours over 8 days; here the samples themselves are kept, and the
    times are those of a controller that acts within minutes. Memory follows the largest use of the window.

    Attributes:
        percentile: of CPU usage, between 0 and 1 (VPA: 0.9).
        margin: of CPU (VPA: 0.15).
        memory_margin: of memory (VPA: 0.15).
        half_life_intervals: after which a sample counts half.
        history_intervals: samples kept.
    """

    percentile: float = 0.9
    margin: float = 0.6
    memory_margin: float = 0.3
    half_life_intervals: float = 3.0
    history_intervals: int = 48
    name: str = "percentile"
    version: str = "1"
    learned: bool = False

    def recommend(self, fleet: Fleet, history: MeasurementHistory) -> Recommendation:
        """See the class."""
        usage = history.column("cpu_usage_cores", self.history_intervals)
        age = np.arange(len(usage))[::-1]
        weight = 0.5 ** (age / self.half_life_intervals)
        return Recommendation(
            (1.0 + self.margin) * weighted_percentile(usage, weight, self.percentile),
            (1.0 + self.memory_margin) * peak(history, "memory_usage_bytes", self.history_intervals),
        )


def weighted_percentile(values: Float64Array, weight: Float64Array, percentile: float) -> Float64Array:
    """Smallest value of each column whose weight, with that of all smaller ones, reaches the percentile of the sum.

    Args:
        values: float64 [K, C]; NaN does not count.
        weight: float64 [K], above zero.
        percentile: between 0 and 1.

    Returns:
        float64 [C]; NaN where a column has no values.
    """
    order = np.argsort(values, axis=0, kind="stable")  # NaN comes last
    ordered = np.take_along_axis(values, order, axis=0)
    counted = np.where(np.isnan(ordered), 0.0, weight[order])
    cumulative = np.cumsum(counted, axis=0)
    # A sum may fall short of the share it should reach by a rounding error.
    reached = cumulative >= percentile * cumulative[-1] * (1.0 - 1e-12)
    chosen: Float64Array = np.take_along_axis(ordered, reached.argmax(axis=0)[None], axis=0)[0]
    return chosen
