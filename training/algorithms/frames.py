"""What episodes of frames leave behind for learning to orchestrate: states, picks, rewards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from policy_server.cluster.actions import AddReplica, OrchestrationAction
from policy_server.cluster.snapshot import BoolArray, Float32Array, Float64Array, Int64Array
from policy_server.features.graph import OrchestrationGraph, encoder_inputs
from policy_server.features.orchestration_schema import ORCHESTRATION_SCHEMA
from policy_server.policies.orchestration.plan import FramePlan
from policy_server.policies.orchestration.policy import OrchestrationPolicy
from policy_server.policies.orchestration.stepwise import (
    NO_NODE,
    ActionPicks,
    NodePicks,
    action_scores,
    by_system,
    pick_actions,
    pick_nodes,
)
from training.environments.orchestration import OrchestrationEnvironment
from training.networks.orchestration import OrchestrationActor


@dataclass(frozen=True, eq=False)
class FrameStep:
    """The decision of one frame in S systems of W services, H picks each.

    Attributes:
        actions: of all systems, in order.
        inputs: of the encoder, by name.
        members: int64 [S, M], edge node rows of each system, padded with ``NO_NODE``.
        allowed: bool [N], nodes to pick from.
        node: int64 [S, H], picked, padded with ``NO_NODE``.
        choice: int64 [S, H], columns of ``mask``.
        mask: bool [S, H, 2W + 1], what each pick chose from.
        pair_features: float32 [K * W, F], of the K picked nodes in the order of ``node``.
        log_probability: float32 [S, H], of node and action under the policy that picked.
    """

    actions: list[OrchestrationAction]
    inputs: dict[str, NDArray[Any]]
    members: Int64Array
    allowed: BoolArray
    node: Int64Array
    choice: Int64Array
    mask: BoolArray
    pair_features: Float32Array
    log_probability: Float32Array


@dataclass(frozen=True, eq=False)
class Episodes:
    """T frames of S systems, of which ``repeats`` in a row are copies of one scenario.

    Attributes:
        steps: T decisions.
        final_inputs: of the encoder, after the last frame.
        service_reward: float64 [T, S, W], what each service adds to the reward.
        throughput_rate: float64 [S], met over resolved requests of the whole episode.
        repeats: copies of each scenario.
    """

    steps: list[FrameStep]
    final_inputs: dict[str, NDArray[Any]]
    service_reward: Float64Array
    throughput_rate: Float64Array
    repeats: int


def tensors(inputs: dict[str, NDArray[Any]]) -> dict[str, Tensor]:
    """The arrays as tensors, sharing memory."""
    return {name: torch.from_numpy(values) for name, values in inputs.items()}


@torch.no_grad()
def pick_frame(
    actor: OrchestrationActor,
    plan: FramePlan,
    random: np.random.Generator,
    *,
    steps: int,
    temperature: float = 1.0,
) -> FrameStep:
    """Enters the actor's picks in a plan and keeps what learning needs of them.

    Args:
        actor: scores.
        plan: of all systems; takes the actions.
        random: samples.
        steps: H, picks per system.
        temperature: 0 picks the best.
    """
    graph = plan.graph
    inputs = encoder_inputs([graph])
    node_embedding, access_point_summary, system_summary, node_score = actor.encoder(**tensors(inputs))
    nodes = pick_nodes(node_score.numpy(), plan, random, steps=steps, temperature=temperature)
    picked = nodes.node[nodes.node != NO_NODE]
    pairs = _pair_features(graph, picked)
    if len(picked):
        rows = torch.from_numpy(picked)
        access_point = torch.from_numpy(inputs["node_access_point"])[rows]
        scores = actor.head(
            node_embedding[rows],
            access_point_summary[access_point],
            system_summary[torch.from_numpy(inputs["access_point_system"])[access_point]],
            torch.from_numpy(pairs),
            torch.arange(len(picked)).repeat_interleave(graph.services),
        )
        delete, nothing, add = (score.numpy() for score in scores)
        flat = action_scores(delete, nothing, add, graph.services)
    else:
        flat = np.zeros((0, 2 * graph.services + 1), np.float32)
    actions = pick_actions(by_system(nodes, flat), nodes, plan, random, temperature=temperature)
    return frame_step(plan, inputs, nodes, actions, pairs)


def frame_step(
    plan: FramePlan,
    inputs: dict[str, NDArray[Any]],
    nodes: NodePicks,
    actions: ActionPicks,
    pair_features: Float32Array,
) -> FrameStep:
    """Condenses the picks of a frame, which the plan holds."""
    return FrameStep(
        actions=[planned.action for planned in plan.actions],
        inputs=inputs,
        members=system_members(plan.graph),
        allowed=nodes.allowed,
        node=nodes.node,
        choice=actions.choice,
        mask=actions.mask,
        pair_features=pair_features,
        log_probability=(nodes.log_probability + actions.log_probability).astype(np.float32),
    )


def system_members(graph: OrchestrationGraph) -> Int64Array:
    """int64 [S, M]: edge node rows of each system, padded with ``NO_NODE``."""
    rows = graph.topology.nodes_of_system
    members = np.full((len(rows), max(map(len, rows), default=0)), NO_NODE, np.int64)
    for system, own in enumerate(rows):
        members[system, : len(own)] = own
    return members


def play(
    environment: OrchestrationEnvironment,
    decide: Callable[[OrchestrationEnvironment], FrameStep],
    *,
    frames: int,
    repeats: int,
) -> Episodes:
    """Plays frames from the environment's present state on.

    Args:
        environment: its requests go on for longer than the frames.
        decide: makes the decision of a frame: :func:`sampled` or :func:`imitated`.
        frames: T.
        repeats: copies of each scenario.
    """
    steps: list[FrameStep] = []
    outcomes = []
    for _ in range(frames):
        step = decide(environment)
        steps.append(step)
        outcomes.append(environment.step(step.actions))
    met = np.sum([outcome.met for outcome in outcomes], axis=0)
    failed = np.sum([outcome.failed for outcome in outcomes], axis=0)
    return Episodes(
        steps=steps,
        final_inputs=encoder_inputs([environment.query().graph]),
        service_reward=np.array([outcome.service_reward for outcome in outcomes]),
        throughput_rate=met / np.maximum(met + failed, 1),
        repeats=repeats,
    )


def sampled(
    environment: OrchestrationEnvironment, actor: OrchestrationActor, random: np.random.Generator, steps: int
) -> FrameStep:
    """A decision drawn from the actor."""
    return pick_frame(actor, FramePlan(environment.query()), random, steps=steps)


def imitated(
    environment: OrchestrationEnvironment, rule: OrchestrationPolicy, random: np.random.Generator, steps: int
) -> FrameStep:
    """A rule's decision as picks: its nodes in order, the first action of each. The rule is given the rates to come."""
    wanted = rule.decide([environment.query(rates_to_come=True)], random)[0].plan
    plan = FramePlan(environment.query())
    graph = plan.graph
    members = graph.topology.nodes_of_system
    allowed = plan.actionable()
    node = np.full((len(members), steps), NO_NODE, np.int64)
    choice = np.full(node.shape, graph.services, np.int64)
    mask = np.zeros((*node.shape, 2 * graph.services + 1), bool)
    taken = np.zeros(len(members), np.int64)
    for planned in wanted.actions:
        system = int(graph.topology.node_system[planned.node])
        column = planned.service
        if isinstance(planned.action, AddReplica):
            column += graph.services + 1
        feasible = plan.mask(np.array([planned.node]))[0]
        if taken[system] == steps or planned.node in node[system] or not feasible[column]:
            continue
        place = (system, int(taken[system]))
        node[place], choice[place], mask[place] = planned.node, column, feasible
        plan.choose(planned.node, column)
        taken[system] += 1
    no_log_probability = np.zeros(node.shape)
    return frame_step(
        plan,
        encoder_inputs([graph]),
        NodePicks(node, no_log_probability, allowed),
        ActionPicks(choice, mask, no_log_probability),
        _pair_features(graph, node[node != NO_NODE]),
    )


def _pair_features(graph: OrchestrationGraph, nodes: Int64Array) -> Float32Array:
    if len(nodes):
        return graph.pair_features(nodes)
    schema = ORCHESTRATION_SCHEMA
    return np.zeros((0, len(schema.demand) + len(schema.pair)), np.float32)
