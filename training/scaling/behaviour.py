"""The logged history that training starts from: rule policies at work, with disturbances."""

from __future__ import annotations

import numpy as np

from policy_server.cluster.containers import Fleet, MeasurementHistory
from policy_server.cluster.snapshot import Float32Array
from policy_server.policies.scaling import (
    AutothrottleScaling,
    PercentileScaling,
    Recommendation,
    ScalingPolicy,
    ThresholdScaling,
)
from policy_server.policies.scaling.actor import recommendation_to_action

RULES_AT_WORK = 4
HOLD_PROBABILITY = 0.85
"""A disturbance stays with a container for 1 / (1 - this) intervals on average: limits rest, so noise that changes
every interval would be swallowed by the dead band or only make limits flap."""


class HeldNoise:
    """Gaussian disturbances of actions that stay for a while, each container with its own.

    Args:
        random: consumed.
        deviation: float64 [C], standard deviation of each container's disturbances.
    """

    def __init__(
        self, random: np.random.Generator, deviation: np.ndarray[tuple[int], np.dtype[np.float64]]
    ) -> None:
        self._random = random
        self._deviation = deviation[:, None]
        self._held = random.standard_normal((len(deviation), 2)) * self._deviation

    def next(self) -> Float32Array:
        """float32 [C, 2]: the disturbances of the next interval."""
        changes = self._random.random(len(self._held)) >= HOLD_PROBABILITY
        fresh = self._random.standard_normal(self._held.shape) * self._deviation
        self._held = np.where(changes[:, None], fresh, self._held)
        return self._held.astype(np.float32)


class LoggedOperator:
    """Rule policies with random parameters, one of ``RULES_AT_WORK`` for each instance, as actions."""

    def __init__(self, random: np.random.Generator, instances: int, containers: int) -> None:
        """Draws the rules.

        Args:
            random: consumed.
            instances: B.
            containers: S of each instance.
        """
        self._rules = [random_rule(random) for _ in range(RULES_AT_WORK)]
        self._rule_of = np.repeat(random.integers(RULES_AT_WORK, size=instances), containers)

    def act(self, fleet: Fleet, history: MeasurementHistory) -> Float32Array:
        """float32 [B * S, 2]: what the rules recommend."""
        recommended = [rule.recommend(fleet, history) for rule in self._rules]
        return recommendation_to_action(
            Recommendation(
                np.choose(self._rule_of, [recommendation.cpu_cores for recommendation in recommended]),
                np.choose(self._rule_of, [recommendation.memory_bytes for recommendation in recommended]),
            ),
            history,
        )


def random_rule(random: np.random.Generator) -> ScalingPolicy:
    """A threshold, percentile or Autothrottle-style rule with parameters from wasteful to stingy."""
    memory_margin = float(random.uniform(0.1, 0.9))
    match random.integers(3):
        case 0:
            return ThresholdScaling(
                target_utilisation=float(random.uniform(0.2, 0.8)),
                target_memory_utilisation=1.0 / (1.0 + memory_margin),
                history_intervals=int(random.choice((1, 4, 12))),
            )
        case 1:
            return PercentileScaling(
                percentile=float(random.uniform(0.8, 1.0)),
                margin=float(random.uniform(0.3, 3.0)),
                memory_margin=memory_margin,
                half_life_intervals=6.0,
            )
        case _:
            return AutothrottleScaling(
                throttle_target=float(10.0 ** random.uniform(-3.0, -1.0)),
                low_throttle_target=float(10.0 ** random.uniform(-3.0, -1.0)),
                memory_margin=memory_margin,
                usage_intervals=12,
            )
