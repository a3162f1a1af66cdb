"""The paper's dispatch reward."""

from __future__ import annotations

import numpy as np

from policy_server.cluster.snapshot import Float64Array
from training.simulator.metrics import SlotOutcome


def slot_reward(outcome: SlotOutcome, balance_weight: float) -> Float64Array:
    """float64 [S]: the reward exp(-lambda - w * sigma) of one slot (KaiS, section on the dispatch reward).

    lambda is the share of the requests resolved in the slot that missed their deadline, sigma the mean of the
    standard deviations of CPU and of memory usage over the edge nodes.

    Args:
        outcome: of the slot.
        balance_weight: w; the paper's value is unknown.
    """
    resolved = outcome.met + outcome.failed
    violations = np.divide(outcome.failed, resolved, out=np.zeros(len(resolved)), where=resolved > 0)
    imbalance = (outcome.cpu_usage_std + outcome.memory_usage_std) / 2
    reward: Float64Array = np.exp(-violations - balance_weight * imbalance)
    return reward
