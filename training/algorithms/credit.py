"""Who deserves credit for what: from the outcomes of a rollout to one number per decision.

Three ways, from the paper's to ours:

``team``
    The paper's: all decisions of a slot share the slot's reward r = exp(-lambda - w * sigma), lambda the share of
    requests resolved in the slot that missed their deadline, sigma the standard deviation of CPU and memory usage
    over the edge nodes (KaiS section on the dispatch reward; the weight w is our choice). Advantages by GAE over
    slots with the central critic.
``own``
    Each decision is credited with its own request's outcome (1 met, 0 missed) and nothing else: every access point
    for itself.
``difference``
    Own outcome minus the harm done to others: a difference reward (Wolpert and Tumer, 2002). The harm of sending a
    request to a node is how many more requests sent to the same node in the following slots failed than would
    have without it; "would have" is estimated from candidates that were *not* chosen in the same situation.
"""

from __future__ import annotations

import numpy as np

from policy_server.cluster.snapshot import Float32Array, Float64Array
from training.algorithms.rollout import Rollout, SlotDecisions


def generalised_advantages(
    rewards: Float64Array, values: Float64Array, discount: float, trace: float
) -> Float64Array:
    """Generalised advantage estimates (Schulman et al., 2016), float64 [T, S].

    Args:
        rewards: float64 [T, S].
        values: float64 [T + 1, S], of the states before each slot and after the last.
        discount: gamma.
        trace: lambda of GAE.
    """
    advantages = np.zeros_like(rewards)
    running = np.zeros(rewards.shape[1])
    for step in range(len(rewards) - 1, -1, -1):
        delta = rewards[step] + discount * values[step + 1] - values[step]
        running = delta + discount * trace * running
        advantages[step] = running
    return advantages


def discounted_node_failures(rollout: Rollout, discount: float) -> Float64Array:
    """float64 [T, N]: failures among requests sent to each node from a slot on, discounted per slot."""
    failures = rollout.node_failures
    totals = np.zeros_like(failures)
    running = np.zeros(failures.shape[1])
    for step in range(len(failures) - 1, -1, -1):
        running = failures[step] + discount * running
        totals[step] = running
    return totals[: len(rollout.slots)]


def others_failures(slot: SlotDecisions, node_failures: Float64Array) -> Float32Array:
    """float32 [C]: failures at each candidate's node from the slot on, the decision's own request not counted.

    Args:
        slot: the decisions.
        node_failures: float64 [N], the slot's row of :func:`discounted_node_failures`.
    """
    failures = node_failures[slot.node]
    failures[slot.chosen] -= ~slot.met
    return failures.astype(np.float32)
