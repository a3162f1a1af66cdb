"""The learned policy: a network that chooses how much more than its use each container gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from policy_server.cluster.containers import Fleet, MeasurementHistory
from policy_server.cluster.snapshot import Float32Array, Float64Array
from policy_server.features.scaling import (
    DEFAULT_ECONOMY,
    WINDOW_INTERVALS,
    cpu_demand_cores,
    memory_demand_bytes,
    scaling_features,
)
from policy_server.policies.scaling.policy import Recommendation

CPU_FACTORS = (0.8, 6.0)
MEMORY_FACTORS = (1.2, 2.0)


def action_to_recommendation(action: Float32Array, history: MeasurementHistory) -> Recommendation:
    """What an action means: limit = demand x low^((1 - a) / 2) x high^((1 + a) / 2), geometric between low and high.

    The demand of CPU is :func:`~policy_server.features.scaling.cpu_demand_cores` and its factors are ``CPU_FACTORS``;
    memory is alike with :func:`~policy_server.features.scaling.memory_demand_bytes` and ``MEMORY_FACTORS``. A
    constant action is thus a threshold rule; what a policy learns is the headroom, which carries over from small
    containers to large ones. The paper leaves open whether actions are absolute or changes; this is our choice.

    Args:
        action: float32 [C, 2], CPU and memory, each within [-1, 1].
        history: of the C containers.
    """
    share = (np.clip(action.astype(np.float64), -1.0, 1.0) + 1.0) / 2.0
    return Recommendation(
        cpu_demand_cores(history) * _geometric(CPU_FACTORS, share[:, 0]),
        memory_demand_bytes(history) * _geometric(MEMORY_FACTORS, share[:, 1]),
    )


def recommendation_to_action(recommendation: Recommendation, history: MeasurementHistory) -> Float32Array:
    """The action, float32 [C, 2], that comes nearest to a recommendation: how logs of other policies become actions.

    A recommendation that is not known becomes 0, the middle.
    """
    action = np.stack(
        (
            _inverse_geometric(CPU_FACTORS, recommendation.cpu_cores / cpu_demand_cores(history)),
            _inverse_geometric(MEMORY_FACTORS, recommendation.memory_bytes / memory_demand_bytes(history)),
        ),
        axis=1,
    )
    return np.nan_to_num(np.clip(action, -1.0, 1.0)).astype(np.float32)


@dataclass(frozen=True)
class ActorScaling:
    """One actor shared by all containers.

    Attributes:
        run: float32 [C, features] -> float32 [C, 2], each within [-1, 1].
        economy: what the operator chooses between latency (0) and allocation (1); float64 [C], or one for all.
        name: of the policy.
        version: of the model.
    """

    run: Callable[[Float32Array], Float32Array]
    economy: float | Float64Array = DEFAULT_ECONOMY
    name: str = "td3"
    version: str = "training"
    learned: bool = True
    history_intervals: int = WINDOW_INTERVALS

    def recommend(self, fleet: Fleet, history: MeasurementHistory) -> Recommendation:
        """Runs the actor. A container for which it returns NaN gets no recommendation."""
        return action_to_recommendation(self.run(scaling_features(fleet, history, self.economy)), history)


def _geometric(factors: tuple[float, float], share: Float64Array) -> Float64Array:
    low, high = factors
    factor: Float64Array = low * (high / low) ** share
    return factor


def _inverse_geometric(factors: tuple[float, float], factor: Float64Array) -> Float64Array:
    low, high = factors
    share: Float64Array = 2.0 * np.log(np.maximum(factor, 1e-9) / low) / np.log(high / low) - 1.0
    return share
