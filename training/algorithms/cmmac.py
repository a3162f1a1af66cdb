"""Coordinated multi-agent actor-critic for dispatch (cMMAC, KaiS).

One actor per access point with shared weights, a central critic in training only, a resource-context mask (only
ready replicas that can be reached are candidates at all). The paper's plain algorithm is ``credit="team",
warm_start_slots=0, clip=0, staleness_slots=0``; its defaults here add, each behind its own switch:

- a warm start by imitating the earliest-completion rule (``warm_start_slots``),
- credit for each decision's own request instead of one team reward (``credit``); difference rewards, which charge
  the harm done to others as well, are there too,
- clipped updates, several passes over each rollout (PPO, Schulman et al., 2017; ``clip``, ``passes``),
- stale snapshots in training (``staleness_slots``),
- many simulated systems of random load, pattern and size stepped as one batch (``systems``, ``presets``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from policy_server.features.schema import SCHEMA
from policy_server.policies.heuristics import heuristic_dispatch
from training.algorithms.credit import (
    discounted_node_failures,
    generalised_advantages,
    others_failures,
)
from training.algorithms.rollout import Rollout, SlotDecisions, collect
from training.algorithms.slot_reward import slot_reward
from training.environments.dispatch import DispatchEnvironment
from training.networks.dispatch import CentralCritic, DispatchActor, DispatchNetworkSizes
from training.networks.policies import TorchDispatch, replica_tensors, system_tensors
from training.scenarios import Scenario, training_simulator
from training.simulator.presets import PRESETS

Credit = Literal["difference", "own", "team"]


@dataclass(frozen=True)
class CmmacConfig:
    """Hyperparameters. Those of the paper are unknown; all values are our choice.

    Raises:
        ValueError: naming the field, the value and what it must be.
    """

    seed: int = 0
    """Of the networks, the systems, the requests and the sampling."""
    updates: int = 70
    """Rollouts to learn from after the warm start."""
    systems: int = 8
    """Systems simulated side by side."""
    rollout_slots: int = 32
    """Slots learned from per rollout."""
    tail_slots: int = 16
    """Slots simulated after them so that every request's outcome is known; longer than the longest deadline."""
    settle_slots: int = 16
    """Slots a new batch of systems runs before it is learned from."""
    rollouts_per_batch: int = 3
    """Rollouts from one batch of systems before new ones are drawn."""
    presets: tuple[str, ...] = ("testbed-40", "testbed-40", "testbed-100")
    """Systems are drawn from these in turn."""
    load_range: tuple[float, float] = (0.6, 1.4)
    """Mean request rate as a multiple of the preset's reference rate, drawn uniformly per system."""
    staleness_slots: int = 1
    """Snapshots are up to this many slots late."""
    warm_start_slots: int = 120
    """Slots of earliest-completion decisions to imitate before learning from reward; 0: none."""
    credit: Credit = "own"
    """See :mod:`training.algorithms.credit`."""
    harm_weight: float = 1.0
    """Weight of the harm done to others against the own outcome (difference rewards)."""
    harm_discount: float = 0.8
    """Per slot, for failures that follow on the same node (difference rewards)."""
    realised_harm: float = 0.5
    """Share of the realised excess of failures in the harm; the rest is the critic's estimate."""
    cost_weight: float = 0.0
    """Price of forwarding a payload of mean size, where answering a request in time is worth 1 (not team credit)."""
    balance_weight: float = 0.5
    """w of the paper's reward (team credit)."""
    discount: float = 0.9
    """Per slot (team credit); the value of the authors' demo code."""
    trace: float = 0.9
    """Lambda of GAE (team credit)."""
    clip: float = 0.2
    """Ratio clip of PPO; 0: plain policy gradient, one pass."""
    passes: int = 2
    """Passes over each rollout."""
    learning_rate: float = 1e-3
    """Of the actor at the start; falls linearly to a tenth."""
    critic_learning_rate: float = 1e-3
    """Of the critics."""
    entropy_weight: float = 0.003
    """Bonus for entropy at the start; falls linearly to zero."""
    maximum_gradient_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    embedding: int = 32
    """Width of the encoder's embeddings."""
    context: int = 48
    """Width of the head."""

    def __post_init__(self) -> None:
        for name in (
            "updates",
            "systems",
            "rollout_slots",
            "rollouts_per_batch",
            "passes",
            "embedding",
            "context",
        ):
            self._require(name, getattr(self, name) >= 1, "one or more")
        for name in ("seed", "tail_slots", "settle_slots", "staleness_slots", "warm_start_slots"):
            self._require(name, getattr(self, name) >= 0, "zero or more")
        for name in ("harm_weight", "cost_weight", "balance_weight", "clip", "entropy_weight"):
            self._require(name, 0 <= getattr(self, name) < math.inf, "finite, zero or more")
        for name in ("learning_rate", "critic_learning_rate", "maximum_gradient_norm"):
            self._require(name, 0 < getattr(self, name) < math.inf, "finite and above zero")
        for name in ("harm_discount", "realised_harm", "discount", "trace"):
            self._require(name, 0 <= getattr(self, name) <= 1, "from 0 to 1")
        low, high = self.load_range
        self._require("load_range", 0 < low <= high < math.inf, "finite and above zero, the lower first")
        self._require(
            "presets",
            bool(self.presets) and set(self.presets) <= set(PRESETS),
            f"some of {', '.join(PRESETS)}",
        )

    def _require(self, name: str, fulfilled: bool, requirement: str) -> None:
        if not fulfilled:
            raise ValueError(f"{name}: {getattr(self, name)}; must be {requirement}")


@dataclass
class CmmacState:
    """Everything that training changes; what a checkpoint holds."""

    actor: DispatchActor
    critic: CentralCritic
    outcome_critic: OutcomeCritic
    actor_optimiser: torch.optim.Adam
    critic_optimiser: torch.optim.Adam
    update: int = 0
    decisions: int = 0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


class OutcomeCritic(nn.Module):
    """What becomes of a candidate, from the features at decision time; learned by regression.

    Column 0: probability (as a logit) that the request is met there. Column 1: discounted failures of other requests
    at the node from now on if the request does not go there; column 2: how many more there are if it does.
    """

    def __init__(self, sizes: DispatchNetworkSizes) -> None:
        super().__init__()
        self.actor_like = DispatchActor(SCHEMA, sizes)
        self.actor_like.head.score = nn.Linear(sizes.context, 3)
        self.actor_like.head.shortcut = nn.Linear(len(SCHEMA.request), 3, bias=False)

    def forward(self, slot: SlotTensors) -> Tensor:
        """float32 [C, 3]."""
        head = self.actor_like.head
        replica_context, access_point_context = self.actor_like.encoder(*slot.encoder_inputs)
        request = head.request_norm(slot.features)
        first = torch.relu(
            replica_context[slot.replica]
            + access_point_context[slot.access_point][slot.segment]
            + head.request(request)
        )
        outputs: Tensor = head.score(torch.relu(head.hidden(first))) + head.shortcut(request)
        return outputs


@dataclass(frozen=True)
class SlotTensors:
    """One slot's decisions as tensors; see :class:`training.algorithms.rollout.SlotDecisions`."""

    encoder_inputs: tuple[Tensor, ...]
    features: Tensor
    replica: Tensor
    segment: Tensor
    forwarded: Tensor
    access_point: Tensor
    chosen: Tensor
    old_log_probability: Tensor
    met: Tensor

    @staticmethod
    def of(slot: SlotDecisions) -> SlotTensors:
        """Shares memory with the arrays where dtypes allow."""
        table = slot.view.table
        return SlotTensors(
            encoder_inputs=(*system_tensors(table), *replica_tensors(table)),
            features=torch.from_numpy(slot.features),
            replica=torch.from_numpy(slot.replica),
            segment=torch.from_numpy(slot.segment),
            forwarded=torch.from_numpy(slot.forwarded),
            access_point=torch.from_numpy(slot.access_point),
            chosen=torch.from_numpy(slot.chosen),
            old_log_probability=torch.from_numpy(slot.log_probability),
            met=torch.from_numpy(slot.met.astype(np.float32)),
        )

    def logits(self, actor: DispatchActor) -> Tensor:
        """float32 [C]."""
        replica_context, access_point_context = actor.encoder(*self.encoder_inputs)
        logits: Tensor = actor.head(
            replica_context[self.replica],
            access_point_context[self.access_point],
            self.segment,
            self.features,
        )
        return logits

    def log_softmax(self, logits: Tensor) -> Tensor:
        """float32 [C]: log-probability of each candidate within its decision."""
        count = len(self.chosen)
        largest = torch.full((count,), -torch.inf).scatter_reduce(0, self.segment, logits.detach(), "amax")
        shifted = logits - largest[self.segment]
        total = torch.zeros(count).index_add(0, self.segment, shifted.exp())
        return shifted - total.log()[self.segment]


def initial_state(config: CmmacConfig) -> CmmacState:
    """Untrained networks and their optimisers."""
    torch.manual_seed(config.seed)
    sizes = DispatchNetworkSizes(config.embedding, config.context)
    actor = DispatchActor(SCHEMA, sizes)
    critic = CentralCritic(SCHEMA, sizes)
    outcome_critic = OutcomeCritic(sizes)
    return CmmacState(
        actor=actor,
        critic=critic,
        outcome_critic=outcome_critic,
        actor_optimiser=torch.optim.Adam(actor.parameters(), config.learning_rate),
        critic_optimiser=torch.optim.Adam(
            [*critic.parameters(), *outcome_critic.parameters()], config.critic_learning_rate
        ),
    )


def train(
    config: CmmacConfig,
    state: CmmacState,
    *,
    on_update: Callable[[CmmacState, dict[str, float]], None],
    environments: Environments | None = None,
    until: int | None = None,
) -> None:
    """Trains ``state`` in place from ``state.update`` to ``config.updates``.

    Args:
        config: hyperparameters.
        state: fresh from :func:`initial_state` or from a checkpoint.
        on_update: called after each update with its figures; may write checkpoints or raise to stop.
        environments: makes the environment of one batch of systems; by default those of the dispatch scenarios.
        until: stops at this update; schedules still end with ``config.updates``.
    """
    random = np.random.default_rng((config.seed, state.update))
    started = time.monotonic()
    if state.update == 0 and state.decisions == 0:
        _warm_start(config, state, random)
    rollouts = _rollouts(config, state, random, environments or _environment)
    while state.update < (config.updates if until is None else until):
        before = time.monotonic()
        rollout = next(rollouts)
        collected = time.monotonic()
        figures = _update(config, state, rollout, random)
        figures["throughput_rate"] = _throughput_rate(rollout)
        figures["rollout_seconds"] = collected - before
        figures["update_seconds"] = time.monotonic() - collected
        state.update += 1
        state.seconds += time.monotonic() - started
        started = time.monotonic()
        state.decisions += sum(len(slot) for slot in rollout.slots)
        figures["decisions"] = float(state.decisions)
        state.history.append(figures)
        on_update(state, figures)


Environments: TypeAlias = Callable[[CmmacConfig, np.random.Generator, int], DispatchEnvironment]
"""Makes the environment of one batch of systems, with requests for that many rollouts."""


def _rollouts(
    config: CmmacConfig, state: CmmacState, random: np.random.Generator, environments: Environments
) -> Iterator[Rollout]:
    policy = TorchDispatch(state.actor)
    while True:
        environment = environments(config, random, config.rollouts_per_batch)
        for _ in range(config.settle_slots):
            environment.step(policy)
        for _ in range(config.rollouts_per_batch):
            yield collect(environment, policy, config.rollout_slots, config.tail_slots)


def _environment(config: CmmacConfig, random: np.random.Generator, rollouts: int) -> DispatchEnvironment:
    simulator = training_simulator(drawn_scenarios(config, random), slots=rollout_slots(config, rollouts) + 1)
    return DispatchEnvironment(simulator, random=random, staleness_slots=config.staleness_slots)


def drawn_scenarios(config: CmmacConfig, random: np.random.Generator) -> list[Scenario]:
    """Random scenarios for one batch of systems."""
    return [
        Scenario.drawn(
            preset=config.presets[row % len(config.presets)], load_range=config.load_range, random=random
        )
        for row in range(config.systems)
    ]


def rollout_slots(config: CmmacConfig, rollouts: int) -> int:
    """Slots that a batch of systems is simulated for."""
    return config.settle_slots + rollouts * (config.rollout_slots + config.tail_slots)


def _warm_start(config: CmmacConfig, state: CmmacState, random: np.random.Generator) -> None:
    """Fits the normalisers, then imitates earliest completion by maximum likelihood."""
    slots = max(config.warm_start_slots, 8)
    teacher = heuristic_dispatch("earliest-completion")
    environment = _environment(config, random, 1 + slots // config.rollout_slots)
    for _ in range(config.settle_slots):
        environment.step(teacher)
    rollout = collect(environment, teacher, slots, config.tail_slots)
    _fit_normalisers(state, rollout)
    if not config.warm_start_slots:
        return
    optimiser = torch.optim.Adam(state.actor.parameters(), config.learning_rate * 2)
    for step in random.permutation(np.tile(np.arange(slots), 2)):
        slot = rollout.slots[step]
        if not len(slot):
            continue
        tensors = SlotTensors.of(slot)
        log_probability = tensors.log_softmax(tensors.logits(state.actor))
        loss = -log_probability[tensors.chosen].mean()
        _descend(optimiser, loss, state.actor, config.maximum_gradient_norm)
        if config.credit != "team":
            critic_loss = _outcome_loss(
                state.outcome_critic(tensors), tensors, torch.zeros_like(tensors.features[:, 0])
            )
            _descend(state.critic_optimiser, critic_loss, state.outcome_critic, config.maximum_gradient_norm)


def _fit_normalisers(state: CmmacState, rollout: Rollout) -> None:
    tables = [slot.view.table for slot in rollout.slots[:: max(1, len(rollout.slots) // 8)]]
    columns = {
        "node": np.concatenate([table.node_features for table in tables]),
        "access_point": np.concatenate([table.access_point_features for table in tables]),
        "link": np.concatenate([table.link_features for table in tables]),
        "replica": np.concatenate([table.replica_features for table in tables]),
        "request": np.concatenate([slot.features for slot in rollout.slots[::4]]),
    }
    tensors = {name: torch.from_numpy(values) for name, values in columns.items()}
    encoders = (
        state.actor.encoder.system_encoder,
        state.critic.encoder,
        state.outcome_critic.actor_like.encoder.system_encoder,
    )
    for encoder in encoders:
        encoder.node_norm.fit(tensors["node"])
        encoder.access_point_norm.fit(tensors["access_point"])
        encoder.link_norm.fit(tensors["link"])
    for actor in (state.actor, state.outcome_critic.actor_like):
        actor.encoder.replica_norm.fit(tensors["replica"])
        actor.head.request_norm.fit(tensors["request"])


def _update(
    config: CmmacConfig, state: CmmacState, rollout: Rollout, random: np.random.Generator
) -> dict[str, float]:
    remaining = 1.0 - state.update / config.updates
    for group in state.actor_optimiser.param_groups:
        group["lr"] = config.learning_rate * (0.1 + 0.9 * remaining)
    entropy_weight = config.entropy_weight * remaining
    tensors = [SlotTensors.of(slot) for slot in rollout.slots]
    advantages, figures = _advantages(config, state, rollout, tensors)
    passes = config.passes if config.clip > 0 else 1
    totals = {"policy_loss": 0.0, "entropy": 0.0, "ratio_deviation": 0.0}
    steps = 0
    for _ in range(passes):
        for row in random.permutation(len(tensors)):
            slot, advantage = tensors[row], advantages[row]
            if not len(slot.chosen):
                continue
            log_probability = slot.log_softmax(slot.logits(state.actor))
            ratio = torch.exp(log_probability[slot.chosen] - slot.old_log_probability)
            if config.clip > 0:
                clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
                policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
            else:
                policy_loss = -(ratio * advantage).mean()
            entropy = -(log_probability.exp() * log_probability).sum() / len(slot.chosen)
            _descend(
                state.actor_optimiser,
                policy_loss - entropy_weight * entropy,
                state.actor,
                config.maximum_gradient_norm,
            )
            totals["policy_loss"] += float(policy_loss.detach())
            totals["entropy"] += float(entropy.detach())
            totals["ratio_deviation"] += float((ratio.detach() - 1).abs().mean())
            steps += 1
    return figures | {name: value / max(steps, 1) for name, value in totals.items()}


def _advantages(
    config: CmmacConfig, state: CmmacState, rollout: Rollout, tensors: list[SlotTensors]
) -> tuple[list[Tensor], dict[str, float]]:
    """One advantage per decision, mean 0 and deviation 1 over the rollout; fits the critics on the way."""
    if config.credit == "team":
        advantages, figures = _team_advantages(config, state, rollout)
    else:
        advantages, figures = _outcome_advantages(config, state, rollout, tensors)
    joined = torch.cat(advantages)
    mean, deviation = joined.mean(), joined.std().clamp(min=1e-6)
    return [(advantage - mean) / deviation for advantage in advantages], figures


def _team_advantages(
    config: CmmacConfig, state: CmmacState, rollout: Rollout
) -> tuple[list[Tensor], dict[str, float]]:
    inputs = [system_tensors(view.table) for view in rollout.views]
    with torch.no_grad():
        values = np.stack([state.critic(*row).numpy() for row in inputs]).astype(np.float64)
    rewards = np.stack([slot_reward(outcome, config.balance_weight) for outcome in rollout.outcomes])
    advantages = generalised_advantages(rewards, values, config.discount, config.trace)
    targets = torch.from_numpy((advantages + values[:-1]).astype(np.float32))
    loss_sum = 0.0
    for row, target in zip(inputs[:-1], targets, strict=True):
        loss = (state.critic(*row) - target).square().mean()
        _descend(state.critic_optimiser, loss, state.critic, config.maximum_gradient_norm)
        loss_sum += float(loss.detach())
    per_decision = [
        torch.from_numpy(advantages[row][slot.system].astype(np.float32))
        for row, slot in enumerate(rollout.slots)
    ]
    return per_decision, {"critic_loss": loss_sum / len(inputs), "reward": float(rewards.mean())}


def _outcome_advantages(
    config: CmmacConfig, state: CmmacState, rollout: Rollout, tensors: list[SlotTensors]
) -> tuple[list[Tensor], dict[str, float]]:
    """Own outcome minus the price of forwarding and estimated harm, against what the policy could expect.

    The baseline is the critic's value of every candidate weighted by the policy: it does not depend on which one was
    drawn, so it removes variance and no signal (a counterfactual baseline, as in COMA, Foerster et al., 2018).
    """
    failures = discounted_node_failures(rollout, config.harm_discount)
    advantages: list[Tensor] = []
    loss_sum, harm_sum, forwarded_sum, count = 0.0, 0.0, 0.0, 0
    harm_weight = config.harm_weight if config.credit == "difference" else 0.0
    for row, slot in enumerate(tensors):
        others = torch.from_numpy(others_failures(rollout.slots[row], failures[row]))
        outputs = state.outcome_critic(slot)
        with torch.no_grad():
            harm = outputs[:, 2]
            price = config.cost_weight * slot.forwarded
            value = torch.sigmoid(outputs[:, 0]) - price - harm_weight * harm
            probability = slot.log_softmax(slot.logits(state.actor)).exp()
            baseline = torch.zeros(len(slot.chosen)).index_add(0, slot.segment, probability * value)
            suffered = others[slot.chosen] - outputs[slot.chosen, 1]
            # The realised excess of failures is unbiased and noisy, the critic's estimate the other way round.
            estimated = harm[slot.chosen]
            mixed = config.realised_harm * suffered + (1 - config.realised_harm) * estimated
            advantages.append(slot.met - price[slot.chosen] - harm_weight * mixed - baseline)
            harm_sum += float(estimated.sum())
            forwarded_sum += float(slot.forwarded[slot.chosen].sum())
            count += len(slot.chosen)
        loss = _outcome_loss(outputs, slot, others)
        _descend(state.critic_optimiser, loss, state.outcome_critic, config.maximum_gradient_norm)
        loss_sum += float(loss.detach())
    return advantages, {
        "critic_loss": loss_sum / len(tensors),
        "harm": harm_sum / max(count, 1),
        "forwarded": forwarded_sum / max(count, 1),
    }


def _outcome_loss(outputs: Tensor, slot: SlotTensors, others: Tensor) -> Tensor:
    """Cross-entropy of the own outcome, and Huber error of the others' failures."""
    own = nn.functional.binary_cross_entropy_with_logits(outputs[slot.chosen, 0], slot.met)
    chosen = torch.zeros(len(others), dtype=torch.bool)
    chosen[slot.chosen] = True
    expected = outputs[:, 1] + torch.where(chosen, outputs[:, 2], torch.zeros_like(others))
    error = nn.functional.smooth_l1_loss(expected, others, reduction="none")
    # Half of the weight for the few chosen candidates, or the difference between the two drowns.
    share = chosen.float().mean().clamp(1e-3, 1 - 1e-3)
    weight = torch.where(chosen, 0.5 / share, 0.5 / (1 - share))
    return own + 0.25 * (weight * error).mean()


def _descend(
    optimiser: torch.optim.Optimizer, loss: Tensor, network: nn.Module, maximum_gradient_norm: float
) -> None:
    optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(network.parameters(), maximum_gradient_norm)
    optimiser.step()


def _throughput_rate(rollout: Rollout) -> float:
    met = sum(int(slot.met.sum()) for slot in rollout.slots)
    return met / max(1, sum(len(slot) for slot in rollout.slots))
