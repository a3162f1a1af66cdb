"""Means with 95 % confidence intervals over seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from policy_server.cluster.snapshot import Float64Array


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its 95 % confidence interval (Student's t)."""

    mean: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of the interval."""
        return (self.high - self.low) / 2

    def to_json(self) -> dict[str, Any]:
        """``{"mean", "ci95": [low, high]}``."""
        return {"mean": self.mean, "ci95": [self.low, self.high]}


def estimate(samples: Float64Array) -> Estimate:
    """Mean and interval of independent samples; a single sample has no interval (low = mean = high).

    Args:
        samples: float64 [n], n >= 1.
    """
    mean = float(np.mean(samples))
    if len(samples) < 2:
        return Estimate(mean, mean, mean)
    half = float(stats.t.ppf(0.975, len(samples) - 1) * np.std(samples, ddof=1) / np.sqrt(len(samples)))
    return Estimate(mean, mean - half, mean + half)
