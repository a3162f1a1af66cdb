"""Policy gradient over a graph encoder for orchestration (GPG, KaiS).

At each frame the actor picks H nodes of each system and for each of them one of 2W + 1 actions. It learns from
episodes of several frames by policy gradient with two baselines at once: a critic per service, and the mean over
several episodes with identical systems and arrivals, so that what the load does to the reward cancels out. (In the
authors' demo the baseline is fitted on the very trajectory it is subtracted from, so that nothing is left.)

Credit: an action on service w is credited with what becomes of the requests of w, and in part (``team_share``) with
what becomes of all others. With the paper's credit, everything for everybody, ``team_share`` is 1.

Before learning from reward the actor imitates GSP-SS, which is given the rates to come (``warm_start_batches``); the
actor is not given them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from policy_server.cluster.snapshot import Float64Array
from policy_server.features.orchestration_schema import ORCHESTRATION_SCHEMA
from policy_server.policies.orchestration.stepwise import NO_NODE
from training.algorithms.frames import Episodes, FrameStep, tensors
from training.networks.orchestration import (
    DemandCritic,
    OrchestrationActor,
    OrchestrationNetworkSizes,
)
from training.simulator.presets import PRESETS

Encoder = Literal["graph", "stacked"]


@dataclass(frozen=True)
class GpgConfig:
    """Hyperparameters. Those of the paper are unknown but for H; all values are our choice.

    Raises:
        ValueError: naming the field, the value and what it must be.
    """

    seed: int = 0
    """Of the networks, the systems, the requests and the sampling."""
    updates: int = 30
    """Batches of episodes to learn from after the warm start."""
    scenarios: int = 6
    """Scenarios per batch."""
    repeats: int = 4
    """Episodes of each scenario, with identical arrivals; their mean is the baseline."""
    presets: tuple[str, ...] = ("testbed-40",)
    """Jobs of scenarios take these in turn."""
    load_range: tuple[float, float] = (0.7, 1.3)
    """Mean request rate as a multiple of the preset's reference rate, drawn uniformly per scenario."""
    initial_replicas_range: tuple[float, float] = (0.8, 2.4)
    """Replicas at the start per edge node, drawn uniformly per job of scenarios."""
    steps: int = 8
    """H: nodes picked per frame and system (KaiS: 2); the policy may be asked for more later."""
    frames: int = 12
    """Length of an episode."""
    cost_weight: float = 0.1
    """Price of moved bytes in the reward."""
    discount: float = 0.9
    """Per frame."""
    trace: float = 0.9
    """Lambda of GAE."""
    team_share: float = 0.3
    """How much of what becomes of other services an action is credited with."""
    clip: float = 0.2
    """Ratio clip of PPO; 0: plain policy gradient, one pass."""
    passes: int = 3
    """Passes over each batch."""
    learning_rate: float = 1e-3
    """Of the actor at the start; falls linearly to a tenth."""
    critic_learning_rate: float = 2e-3
    """Of the critic."""
    entropy_weight: float = 0.01
    """Bonus for entropy at the start; falls linearly to zero."""
    maximum_gradient_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    warm_start_batches: int = 4
    """Batches of GSP-SS's decisions to imitate before learning from reward; 0: none."""
    encoder: Encoder = "graph"
    """``stacked`` is the ablation without a graph: the state of a system as one vector."""
    embedding: int = 32
    """Width of embeddings and summaries."""
    hidden: int = 48
    """Width of scorer and head."""

    def __post_init__(self) -> None:
        for name in (
            "updates", "scenarios", "repeats", "steps", "frames", "passes", "embedding", "hidden",
        ):  # fmt: skip
            self._require(name, getattr(self, name) >= 1, "one or more")
        self._require("repeats", self.repeats >= 2, "two or more: the baseline is a mean over the others")
        for name in ("seed", "warm_start_batches"):
            self._require(name, getattr(self, name) >= 0, "zero or more")
        for name in ("cost_weight", "clip", "entropy_weight"):
            self._require(name, 0 <= getattr(self, name) < math.inf, "finite, zero or more")
        for name in ("learning_rate", "critic_learning_rate", "maximum_gradient_norm"):
            self._require(name, 0 < getattr(self, name) < math.inf, "finite and above zero")
        for name in ("discount", "trace", "team_share"):
            self._require(name, 0 <= getattr(self, name) <= 1, "from 0 to 1")
        low, high = self.load_range
        self._require("load_range", 0 < low <= high < math.inf, "finite and above zero, the lower first")
        low, high = self.initial_replicas_range
        self._require(
            "initial_replicas_range", 0 < low <= high < math.inf, "finite and above zero, the lower first"
        )
        self._require(
            "presets",
            bool(self.presets) and set(self.presets) <= set(PRESETS),
            f"some of {', '.join(PRESETS)}",
        )

    def _require(self, name: str, fulfilled: bool, requirement: str) -> None:
        if not fulfilled:
            raise ValueError(f"{name}: {getattr(self, name)}; must be {requirement}")

    @property
    def sizes(self) -> OrchestrationNetworkSizes:
        """Widths of the networks."""
        return OrchestrationNetworkSizes(self.embedding, self.hidden)


@dataclass
class GpgState:
    """Everything that training changes; what a checkpoint holds."""

    actor: OrchestrationActor
    critic: DemandCritic
    actor_optimiser: torch.optim.Adam
    critic_optimiser: torch.optim.Adam
    update: int = 0
    frames: int = 0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


class EpisodeSource(Protocol):
    """Where batches of episodes come from; see :mod:`training.algorithms.runners`."""

    def imitation(self, batch: int) -> list[Episodes]:
        """Episodes of the rule to imitate."""
        ...

    def rollouts(self, actor: OrchestrationActor, batch: int) -> list[Episodes]:
        """Episodes sampled from the actor."""
        ...


def initial_actor(config: GpgConfig) -> OrchestrationActor:
    """An untrained actor."""
    stacked = 0
    if config.encoder == "stacked":
        stacked = 1 + max(PRESETS[name].edge_nodes for name in config.presets)
    return OrchestrationActor(ORCHESTRATION_SCHEMA, config.sizes, stacked)


def initial_state(config: GpgConfig) -> GpgState:
    """Untrained networks and their optimisers."""
    torch.manual_seed(config.seed)
    actor = initial_actor(config)
    critic = DemandCritic(ORCHESTRATION_SCHEMA, config.sizes)
    return GpgState(
        actor=actor,
        critic=critic,
        actor_optimiser=torch.optim.Adam(actor.parameters(), config.learning_rate),
        critic_optimiser=torch.optim.Adam(critic.parameters(), config.critic_learning_rate),
    )


def train(
    config: GpgConfig,
    state: GpgState,
    source: EpisodeSource,
    *,
    on_update: Callable[[GpgState, dict[str, float]], None],
    until: int | None = None,
) -> None:
    """Trains ``state`` in place from ``state.update`` to ``config.updates``.

    Args:
        config: hyperparameters.
        state: fresh from :func:`initial_state` or from a checkpoint.
        source: of the episodes.
        on_update: called after the warm start and each update with its figures; may write checkpoints or raise to
            stop.
        until: stops at this update; schedules still end with ``config.updates``.
    """
    random = np.random.default_rng((config.seed, state.update))
    started = time.monotonic()
    if state.update == 0 and not state.history and state.frames == 0:
        warm_start(config, state, source, random)
        state.history.append({"frames": 0.0})
        on_update(state, state.history[-1])
    while state.update < (config.updates if until is None else until):
        before = time.monotonic()
        batch = source.rollouts(state.actor, state.update)
        collected = time.monotonic()
        figures = update(config, state, batch, random)
        figures["rollout_seconds"] = collected - before
        figures["update_seconds"] = time.monotonic() - collected
        state.update += 1
        state.seconds += time.monotonic() - started
        started = time.monotonic()
        state.frames += sum(len(episodes.steps) * len(episodes.throughput_rate) for episodes in batch)
        figures["frames"] = float(state.frames)
        state.history.append(figures)
        on_update(state, figures)


def warm_start(
    config: GpgConfig, state: GpgState, source: EpisodeSource, random: np.random.Generator
) -> None:
    """Fits the normalisers, then imitates the rule by maximum likelihood and fits the critic to what it achieves."""
    batches = [source.imitation(batch) for batch in range(max(config.warm_start_batches, 1))]
    fit_normalisers(state, [step for batch in batches for episodes in batch for step in episodes.steps])
    if not config.warm_start_batches:
        return
    optimiser = torch.optim.Adam(state.actor.parameters(), config.learning_rate * 2)
    for _ in range(config.passes):
        for batch in batches:
            for episodes in batch:
                for position in random.permutation(len(episodes.steps)):
                    log_probability, _ = FrameTensors.of(episodes.steps[position]).evaluate(state.actor)
                    active = torch.from_numpy(episodes.steps[position].node != NO_NODE)
                    _descend(optimiser, -log_probability[active].mean(), state.actor, config)
    for _ in range(config.passes):
        for batch in batches:
            for episodes in batch:
                _, returns = _service_advantages(config, state.critic, episodes)
                _fit_critic(config, state, episodes, returns, random)


def update(
    config: GpgConfig, state: GpgState, batch: list[Episodes], random: np.random.Generator
) -> dict[str, float]:
    """One policy-gradient update from a batch of episodes; its figures."""
    progress = state.update / config.updates
    for group in state.actor_optimiser.param_groups:
        group["lr"] = config.learning_rate * (1 - 0.9 * progress)
    entropy_weight = config.entropy_weight * (1 - progress)
    advantages, returns = [], []
    for episodes in batch:
        of_services, targets = _service_advantages(config, state.critic, episodes)
        advantages.append(pick_advantages(config, episodes, centred(of_services, episodes.repeats)))
        returns.append(targets)
    picks = [
        advantage[np.stack([step.node for step in episodes.steps]) != NO_NODE]
        for advantage, episodes in zip(advantages, batch, strict=True)
    ]
    deviation = float(np.concatenate(picks).std()) or 1.0
    figures: dict[str, list[float]] = {"policy_loss": [], "entropy": [], "ratio_deviation": []}
    minibatches = [(row, frame) for row, episodes in enumerate(batch) for frame in range(len(episodes.steps))]
    for _ in range(config.passes if config.clip else 1):
        for position in random.permutation(len(minibatches)):
            row, frame = minibatches[position]
            step = batch[row].steps[frame]
            active = torch.from_numpy(step.node != NO_NODE)
            if not bool(active.any()):
                continue
            advantage = torch.from_numpy((advantages[row][frame] / deviation).astype(np.float32))[active]
            log_probability, entropy = FrameTensors.of(step).evaluate(state.actor)
            ratio = (log_probability - torch.from_numpy(step.log_probability))[active].exp()
            gain = ratio * advantage
            if config.clip:
                gain = torch.minimum(gain, ratio.clamp(1 - config.clip, 1 + config.clip) * advantage)
            mean_entropy = entropy[active].mean()
            loss = -gain.mean() - entropy_weight * mean_entropy
            _descend(state.actor_optimiser, loss, state.actor, config)
            figures["policy_loss"].append(float(loss.detach()))
            figures["entropy"].append(float(mean_entropy.detach()))
            figures["ratio_deviation"].append(float((ratio.detach() - 1).abs().mean()))
    critic_loss = [
        _fit_critic(config, state, episodes, targets, random)
        for episodes, targets in zip(batch, returns, strict=True)
    ]
    throughput_rate = np.concatenate([episodes.throughput_rate for episodes in batch])
    choices = np.concatenate([step.choice.ravel() for episodes in batch for step in episodes.steps])
    nothing = (batch[0].steps[0].mask.shape[2] - 1) // 2
    return {
        **{name: float(np.mean(values)) for name, values in figures.items() if values},
        "critic_loss": float(np.mean(critic_loss)),
        "reward": float(np.mean([e.service_reward.sum(axis=2) for e in batch])),
        "throughput_rate": float(throughput_rate.mean()),
        "additions": float((choices > nothing).mean() * config.steps),
        "deletions": float((choices < nothing).mean() * config.steps),
    }


def pick_advantages(config: GpgConfig, episodes: Episodes, of_services: Float64Array) -> Float64Array:
    """float64 [T, S, H]: what each pick is credited with.

    Args:
        config: ``team_share``.
        episodes: T frames of S systems.
        of_services: float64 [T, S, W], advantage of each service, centred among the repeats.
    """
    width = of_services.shape[2]
    team = of_services.sum(axis=2)
    choice = np.stack([step.choice for step in episodes.steps])
    service = np.where(choice < width, choice, choice - width - 1)
    acts = choice != width
    own = np.take_along_axis(of_services, np.where(acts, service, 0), axis=2)
    share = config.team_share
    credited: Float64Array = np.where(acts, (1 - share) * own, 0.0) + share * team[:, :, None]
    return credited


def centred(values: Float64Array, repeats: int) -> Float64Array:
    """Values minus the mean of the other repeats of the scenario; the second axis is systems.

    Against its own mean a value would lose the share 1 / repeats of what it has to say.
    """
    grouped = values.reshape(values.shape[0], -1, repeats, *values.shape[2:])
    means = grouped.mean(axis=2, keepdims=True)
    difference: Float64Array = (grouped - means) * (repeats / (repeats - 1))
    return difference.reshape(values.shape)


def _service_advantages(
    config: GpgConfig, critic: DemandCritic, episodes: Episodes
) -> tuple[Float64Array, Float64Array]:
    """Advantages of each service by GAE, and the critic's targets: float64 [T, S, W]."""
    with torch.no_grad():
        values = np.stack(
            [critic(tensors(step.inputs)).numpy() for step in episodes.steps]
            + [critic(tensors(episodes.final_inputs)).numpy()]
        ).astype(np.float64)
    advantages = np.zeros_like(episodes.service_reward)
    running = np.zeros(episodes.service_reward.shape[1:])
    for frame in range(len(episodes.steps) - 1, -1, -1):
        error = episodes.service_reward[frame] + config.discount * values[frame + 1] - values[frame]
        running = error + config.discount * config.trace * running
        advantages[frame] = running
    return advantages, advantages + values[:-1]


def _fit_critic(
    config: GpgConfig, state: GpgState, episodes: Episodes, returns: Float64Array, random: np.random.Generator
) -> float:
    losses = []
    for frame in random.permutation(len(episodes.steps)):
        value = state.critic(tensors(episodes.steps[frame].inputs))
        target = torch.from_numpy(returns[frame].astype(np.float32))
        loss = nn.functional.smooth_l1_loss(value * _CRITIC_SCALE, target * _CRITIC_SCALE)
        _descend(state.critic_optimiser, loss, state.critic, config)
        losses.append(float(loss.detach()))
    return float(np.mean(losses))


_CRITIC_SCALE = 30.0
"""Rewards of single services are some hundredths; scaled up, the loss is about 1 at first."""


@dataclass(frozen=True)
class FrameTensors:
    """A frame's decision as tensors; see :class:`training.algorithms.frames.FrameStep`."""

    inputs: dict[str, Tensor]
    members: Tensor
    allowed: Tensor
    node: Tensor
    choice: Tensor
    mask: Tensor
    pair_features: Tensor

    @staticmethod
    def of(step: FrameStep) -> FrameTensors:
        """Shares memory with the arrays."""
        return FrameTensors(
            tensors(step.inputs),
            torch.from_numpy(step.members),
            torch.from_numpy(step.allowed),
            torch.from_numpy(step.node),
            torch.from_numpy(step.choice),
            torch.from_numpy(step.mask),
            torch.from_numpy(step.pair_features),
        )

    def evaluate(self, actor: OrchestrationActor) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of each pick, node and action together, float32 [S, H] each; 0 without a node."""
        node_embedding, access_point_summary, system_summary, node_score = actor.encoder(**self.inputs)
        of_nodes, node_entropy = self._node_log_probability(node_score)
        active = self.node != NO_NODE
        picked = self.node[active]
        access_point = self.inputs["node_access_point"][picked]
        width = (self.mask.shape[2] - 1) // 2
        delete, nothing, add = actor.head(
            node_embedding[picked],
            access_point_summary[access_point],
            system_summary[self.inputs["access_point_system"][access_point]],
            self.pair_features,
            torch.arange(len(picked)).repeat_interleave(width),
        )
        scores = torch.cat((delete.reshape(-1, width), nothing[:, None], add.reshape(-1, width)), dim=1)
        log_softmax = scores.masked_fill(~self.mask[active], -torch.inf).log_softmax(dim=1)
        chosen = log_softmax.gather(1, self.choice[active][:, None]).squeeze(1)
        action_entropy = _entropy(log_softmax)
        zeros = torch.zeros(self.node.shape)
        log_probability = of_nodes.masked_fill(~active, 0.0) + zeros.masked_scatter(active, chosen)
        return log_probability, node_entropy + zeros.masked_scatter(active, action_entropy)

    def _node_log_probability(self, node_score: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability of each node pick given those before it, and the entropy of what it was drawn from."""
        exists = self.members != NO_NODE
        members = self.members.clamp(min=0)
        open_to_pick = exists & self.allowed[members]
        scores = node_score[members]
        log_probabilities, entropies = [], []
        for pick in range(self.node.shape[1]):
            chosen = self.node[:, pick]
            possible = open_to_pick.any(dim=1, keepdim=True)
            # Where nothing is left to pick, the row is made harmless; the caller drops it.
            log_softmax = scores.masked_fill(~open_to_pick & possible, -torch.inf).log_softmax(dim=1)
            is_chosen = self.members == chosen[:, None]
            log_probabilities.append(torch.where(is_chosen & possible, log_softmax, 0.0).sum(dim=1))
            entropies.append(_entropy(log_softmax) * possible.squeeze(1))
            open_to_pick = open_to_pick & ~is_chosen
        return torch.stack(log_probabilities, dim=1), torch.stack(entropies, dim=1)


def _entropy(log_softmax: Tensor) -> Tensor:
    return -(log_softmax.exp() * log_softmax.masked_fill(log_softmax == -torch.inf, 0.0)).sum(dim=1)


def fit_normalisers(state: GpgState, steps: list[FrameStep]) -> None:
    """Takes mean and scale of every feature from played frames."""
    with torch.no_grad():
        for encoder in (state.actor.encoder, state.critic.encoder):
            for rows in ("node", "access_point", "link", "replica", "demand"):
                samples = np.concatenate([step.inputs[f"{rows}_features"] for step in steps])
                if len(samples) > 1:
                    getattr(encoder, f"{rows}_norm").fit(torch.from_numpy(samples))
        pairs = np.concatenate([step.pair_features for step in steps])
        if len(pairs) > 1:
            state.actor.head.pair_norm.fit(torch.from_numpy(pairs))


def _descend(optimiser: torch.optim.Optimizer, loss: Tensor, network: nn.Module, config: GpgConfig) -> None:
    optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(network.parameters(), config.maximum_gradient_norm)
    optimiser.step()
