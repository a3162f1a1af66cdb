"""The pick of KaiS orchestration: H nodes of each system, one after another, then one of 2W + 1 actions for each.

Masking and sampling are code on plain arrays, the same for serving (the best action) and training (a sample, with
its log-probability and the masks under which it was drawn). Probabilities are softmax(score / temperature) over what
is feasible; a second action of a system is masked by what the first one takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policy_server.cluster.snapshot import BoolArray, Float32Array, Float64Array, Int64Array
from policy_server.policies.orchestration.plan import FramePlan

NO_NODE = -1
DEFAULT_STEPS = 2
"""H of the KaiS paper, where more nodes per frame gave little throughput at more cost; a model may have its own."""


@dataclass(frozen=True)
class NodePicks:
    """The nodes picked in S systems.

    Attributes:
        node: int64 [S, H], rows in the order of the picks, padded with ``NO_NODE``.
        log_probability: float64 [S, H], of each pick given those before it; 0 where there is none.
        allowed: bool [N], nodes the first pick chose from; later ones lack those picked before.
    """

    node: Int64Array
    log_probability: Float64Array
    allowed: BoolArray


@dataclass(frozen=True)
class ActionPicks:
    """The actions picked for the nodes of :class:`NodePicks`.

    Attributes:
        choice: int64 [S, H], columns of the mask: w deletes service w, W does nothing, W + 1 + w adds w.
        mask: bool [S, H, 2W + 1], what each pick chose from; all False where there is no node.
        log_probability: float64 [S, H], given the node and the actions before it; 0 where there is no node.
    """

    choice: Int64Array
    mask: BoolArray
    log_probability: Float64Array


def pick_nodes(
    scores: Float32Array,
    plan: FramePlan,
    random: np.random.Generator,
    *,
    steps: int = DEFAULT_STEPS,
    temperature: float = 0.0,
    with_log_probability: bool = True,
) -> NodePicks:
    """Picks up to H nodes of each system, without replacement.

    Adding Gumbel noise to score / temperature and taking the H largest is the same as sampling one after another
    from the softmax over the nodes that are left.

    Args:
        scores: float32 [N], finite.
        plan: says which nodes there is anything to do on.
        random: samples, and breaks ties.
        steps: H.
        temperature: 0 picks the best.
        with_log_probability: whether anybody learns from the picks; without, it is left 0.
    """
    allowed = plan.actionable()
    nodes_of_system = plan.graph.topology.nodes_of_system
    picks = np.full((len(nodes_of_system), steps), NO_NODE, np.int64)
    log_probability = np.zeros(picks.shape)
    scaled = scores.astype(np.float64) / (temperature or 1.0)
    for system, members in enumerate(nodes_of_system):
        candidates = members[allowed[members]]
        if not len(candidates):
            continue
        values = scaled[candidates]
        order = _largest(values, random, min(steps, len(candidates)), sample=temperature > 0)
        picks[system, : len(order)] = candidates[order]
        if not with_log_probability:
            continue
        left = values.copy()
        for step, position in enumerate(order.tolist()):
            log_probability[system, step] = values[position] - _log_sum_exp(left)
            left[position] = -np.inf
    return NodePicks(picks, log_probability, allowed)


def pick_actions(
    scores: Float32Array,
    picks: NodePicks,
    plan: FramePlan,
    random: np.random.Generator,
    *,
    temperature: float = 0.0,
    with_log_probability: bool = True,
) -> ActionPicks:
    """Picks one feasible action for each picked node and enters it in the plan.

    An action's score in the plan is its score above that of doing nothing.

    Args:
        scores: float32 [S, H, 2W + 1], finite where there is a node.
        picks: the nodes.
        plan: masks, and takes the actions.
        random: samples, and breaks ties.
        temperature: 0 picks the best.
        with_log_probability: whether anybody learns from the picks; without, it is left 0.
    """
    systems, steps, _ = scores.shape
    scaled = scores.astype(np.float64) / (temperature or 1.0)
    nothing = plan.graph.services
    choice = np.full((systems, steps), nothing, np.int64)
    masks = np.zeros(scores.shape, bool)
    log_probability = np.zeros((systems, steps))
    picked = picks.node != NO_NODE
    for step in range(steps):
        active = np.flatnonzero(picked[:, step])
        if not len(active):
            break
        # Systems are disjoint: what one takes does not change what is feasible in another.
        mask = plan.mask(picks.node[active, step])
        masks[active, step] = mask
        values = np.where(mask, scaled[active, step], -np.inf)
        for row, system in enumerate(active.tolist()):
            chosen = int(_largest(values[row], random, 1, sample=temperature > 0)[0])
            choice[system, step] = chosen
            if with_log_probability:
                log_probability[system, step] = values[row, chosen] - _log_sum_exp(values[row])
            above_nothing = float(scores[system, step, chosen] - scores[system, step, nothing])
            if not plan.choose(int(picks.node[system, step]), chosen, above_nothing):
                raise AssertionError("the mask allows an action that the plan refuses")
    return ActionPicks(choice, masks, log_probability)


def pick_best_actions(
    scores: Float32Array, picks: NodePicks, plan: FramePlan, random: np.random.Generator
) -> None:
    """Enters in the plan what :func:`pick_actions` enters at temperature 0, with one look at what is feasible for all.

    Within a frame an action never makes another one feasible. So the best of what was feasible at first is the best of
    what is left, as long as it is among it; only where the plan refuses it a node's mask is made anew.

    Args:
        scores: as for :func:`pick_actions`.
        picks: likewise.
        plan: likewise.
        random: breaks ties.
    """
    nothing = plan.graph.services
    system, step = np.nonzero(picks.node.T != NO_NODE)[::-1]
    nodes = picks.node[system, step]
    of_nodes = scores[system, step]
    values = np.where(plan.mask(nodes), of_nodes, -np.inf)
    above_nothing = of_nodes - of_nodes[:, nothing, None]
    for row, node in enumerate(nodes.tolist()):
        chosen = int(_largest(values[row], random, 1, sample=False)[0])
        if not plan.choose(node, chosen, float(above_nothing[row, chosen])):
            left = np.where(plan.mask(nodes[row : row + 1])[0], of_nodes[row], -np.inf)
            chosen = int(_largest(left, random, 1, sample=False)[0])
            if not plan.choose(node, chosen, float(above_nothing[row, chosen])):
                raise AssertionError("the mask allows an action that the plan refuses")


def action_scores(
    delete_score: Float32Array, nothing_score: Float32Array, add_score: Float32Array, services: int
) -> Float32Array:
    """float32 [K, 2W + 1]: the head's scores in the order of :meth:`FramePlan.mask`'s columns.

    Args:
        delete_score: float32 [K * W].
        nothing_score: float32 [K].
        add_score: float32 [K * W].
        services: W.
    """
    return np.concatenate(
        (
            delete_score.reshape(len(nothing_score), services),
            nothing_score[:, None],
            add_score.reshape(len(nothing_score), services),
        ),
        axis=1,
    )


def by_system(picks: NodePicks, scores: Float32Array) -> Float32Array:
    """float32 [S, H, 2W + 1]: scores of the picked nodes, [K, 2W + 1] in the order of ``picks.node``, padded with 0."""
    padded = np.zeros((*picks.node.shape, scores.shape[1]), np.float32)
    padded[picks.node != NO_NODE] = scores
    return padded


def _largest(values: Float64Array, random: np.random.Generator, count: int, *, sample: bool) -> Int64Array:
    """Positions of the largest values, or of a sample without replacement; equal values in random order."""
    keys = values + random.gumbel(size=len(values)) if sample else values
    if count == 1:
        best = np.flatnonzero(keys == keys.max())
        return best if len(best) == 1 else best[random.integers(len(best), size=1)]
    shuffled = random.permutation(len(keys))
    return shuffled[np.argsort(-keys[shuffled], kind="stable")[:count]]


def _log_sum_exp(values: Float64Array) -> float:
    largest = values.max()
    return float(largest + np.log(np.exp(values - largest).sum()))
