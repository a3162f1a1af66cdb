"""One job of an update's episodes: what a runner is asked to play, and how it plays it.

An update's scenarios are cut into jobs of a fixed size, each with random numbers of its own, so that the episodes do
not depend on how many runners there are or which of them plays what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from torch import Tensor

from policy_server.policies.dispatch import DispatchPolicy
from policy_server.policies.heuristics import EarliestCompletion
from policy_server.policies.orchestration.plan import OrchestrationOptions
from policy_server.policies.orchestration.rules import heuristic_orchestration
from training.algorithms.frames import Episodes, FrameStep, imitated, play, sampled
from training.algorithms.gpg import GpgConfig, initial_actor
from training.environments.compiled_dispatch import slot_stepper
from training.environments.orchestration import OrchestrationEnvironment
from training.networks.dispatch import DispatchActor
from training.networks.policies import TorchDispatch
from training.orchestration_scenarios import OrchestrationSetting, orchestration_simulator
from training.scenarios import Scenario

SCENARIOS_PER_JOB = 3
TEACHER = "gsp-ss"

Kind = Literal["imitation", "rollout"]


@dataclass(frozen=True)
class EpisodeJob:
    """What a runner plays.

    Attributes:
        config: hyperparameters.
        kind: imitation plays the rule to imitate, rollout samples from the actor.
        batch: number of the update, or of the batch to imitate.
        part: which of the batch's jobs.
        weights: of the actor; none for imitation.
        dispatch: a learned dispatch to play with; None: earliest completion.
    """

    config: GpgConfig
    kind: Kind
    batch: int
    part: int
    weights: Mapping[str, Tensor]
    dispatch: DispatchActor | None = None


def jobs(
    config: GpgConfig,
    kind: Kind,
    batch: int,
    weights: Mapping[str, Tensor],
    dispatch: DispatchActor | None = None,
) -> list[EpisodeJob]:
    """The jobs of one batch."""
    parts = -(-config.scenarios // SCENARIOS_PER_JOB)
    return [EpisodeJob(config, kind, batch, part, weights, dispatch) for part in range(parts)]


def play_job(job: EpisodeJob) -> Episodes:
    """Plays the episodes of a job; the same job gives the same episodes."""
    config = job.config
    random = np.random.default_rng((config.seed, job.kind == "imitation", job.batch, job.part))
    count = min(SCENARIOS_PER_JOB, config.scenarios - job.part * SCENARIOS_PER_JOB)
    preset = config.presets[(job.batch + job.part) % len(config.presets)]
    scenarios = [
        Scenario.drawn(preset=preset, load_range=config.load_range, random=random) for _ in range(count)
    ]
    setting = OrchestrationSetting(
        frames=config.frames,
        initial_replicas_per_node=float(random.uniform(*config.initial_replicas_range)),
    )
    repeats = 1 if job.kind == "imitation" else config.repeats
    simulator = orchestration_simulator(scenarios, setting, repeats=repeats, spare_frames=1)
    options = OrchestrationOptions(maximum_actions=config.steps)
    environment = OrchestrationEnvironment(
        simulator,
        slot_stepper(simulator, dispatch_by(job.dispatch)),
        cost_weight=config.cost_weight,
        options=options,
    )
    if setting.settle_slots:
        environment.step([], slots=setting.settle_slots)
    decide: Callable[[OrchestrationEnvironment], FrameStep]
    if job.kind == "imitation":
        decide = partial(imitated, rule=heuristic_orchestration(TEACHER), random=random, steps=config.steps)
    else:
        actor = initial_actor(config)
        actor.load_state_dict(job.weights)
        decide = partial(sampled, actor=actor, random=random, steps=config.steps)
    return play(environment, decide, frames=config.frames, repeats=repeats)


def dispatch_by(actor: DispatchActor | None) -> DispatchPolicy:
    """An actor's best choices; without an actor earliest completion."""
    return EarliestCompletion() if actor is None else TorchDispatch(actor, sampling_temperature=0.0)
