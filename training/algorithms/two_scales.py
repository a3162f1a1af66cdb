"""Dispatch (every slot) and orchestration (every frame) trained in turn or together.

Each half learns in a world that the other half shapes: dispatch meets the replicas that orchestration places,
orchestration is rewarded for what dispatch makes of them. How KaiS harmonises the two is not published. Schedules:

``orchestration``
    Only orchestration goes on learning, with the given dispatch inside.
``dispatch``
    Only dispatch goes on learning, on systems that the given orchestration changes every frame.
``alternating``
    Round by round, first the one and then the other, each against the other's latest weights.
``joint``
    The same number of updates, but interleaved one by one.

Both maximise the same: requests answered in time, minus ``cost_weight`` times the bytes moved for them. After each
round both play the validation scenarios together; :class:`training.joint_runs.JointRun` keeps the best pair by that
measure, the one given included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from policy_server.features.graph import OrchestrationGraph
from policy_server.policies.dispatch import DispatchPolicy
from policy_server.policies.orchestration.plan import FramePlan, OrchestrationOptions, OrchestrationQuery
from training.algorithms import cmmac, gpg
from training.algorithms.cmmac import CmmacConfig, CmmacState
from training.algorithms.frames import pick_frame
from training.algorithms.gpg import GpgConfig, GpgState
from training.algorithms.runners import JobSource, Runners
from training.environments.compiled_dispatch import CompiledDispatch
from training.environments.dispatch import DispatchEnvironment, RoundObserver
from training.environments.orchestration import OrchestrationEnvironment
from training.networks.orchestration import OrchestrationActor
from training.orchestration_scenarios import DEFAULT_SETTING, OrchestrationSetting, orchestration_simulator
from training.simulator.metrics import SlotOutcome
from training.simulator.simulator import SimulatorConfig, VectorSimulator

Schedule = Literal["orchestration", "dispatch", "alternating", "joint"]


@dataclass(frozen=True)
class JointConfig:
    """Hyperparameters of training both halves; those of each half are its own.

    Raises:
        ValueError: naming the field, the value and what it must be.
    """

    seed: int = 0
    """Of the systems, the requests and the sampling."""
    schedule: Schedule = "alternating"
    """See :mod:`training.algorithms.two_scales`."""
    rounds: int = 4
    """Rounds; each ends with a validation."""
    orchestration_updates: int = 5
    """Updates of orchestration per round."""
    dispatch_updates: int = 16
    """Updates of dispatch per round."""
    cost_weight: float = 0.2
    """Price of moving as many bytes as requests bring, where answering all of them in time is worth 1."""
    dispatch_learning_rate: float = 1e-3
    """At the start; falls to a tenth over all rounds."""
    orchestration_learning_rate: float = 5e-4
    """At the start; falls to a tenth over all rounds."""

    def __post_init__(self) -> None:
        for name in ("rounds", "orchestration_updates", "dispatch_updates"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)}; must be one or more")
        for name in ("dispatch_learning_rate", "orchestration_learning_rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: {getattr(self, name)}; must be finite and above zero")
        if not 0 <= self.cost_weight < math.inf:
            raise ValueError(f"cost_weight: {self.cost_weight}; must be finite, zero or more")
        if self.seed < 0:
            raise ValueError(f"seed: {self.seed}; must be zero or more")


@dataclass
class JointState:
    """Both halves, with the hyperparameters that each was and is trained with."""

    dispatch_config: CmmacConfig
    dispatch: CmmacState
    orchestration_config: GpgConfig
    orchestration: GpgState


class OrchestratedDispatchEnvironment(DispatchEnvironment):
    """Dispatch on systems in which an actor orchestrates at the beginning of every frame.

    Args:
        simulator: the systems.
        actor: orchestrates by its best choices.
        steps: H.
        random: see :class:`~training.environments.dispatch.DispatchEnvironment`.
        staleness_slots: likewise.
    """

    def __init__(
        self,
        simulator: VectorSimulator,
        actor: OrchestrationActor,
        *,
        steps: int,
        random: np.random.Generator,
        staleness_slots: int = 0,
    ) -> None:
        super().__init__(simulator, random=random, staleness_slots=staleness_slots)
        self._actor = actor
        self._steps = steps
        self._tie_breaks = random
        self._options = OrchestrationOptions(maximum_actions=steps)

    def step(self, policy: DispatchPolicy, observer: RoundObserver | None = None) -> SlotOutcome:
        """Orchestrates if a frame begins, then dispatches and simulates the slot."""
        if self.simulator.slot and self.simulator.slot % self.simulator.config.slots_per_frame == 0:
            graph = OrchestrationGraph.of(self.simulator.snapshot())
            plan = FramePlan(OrchestrationQuery(graph, self._options))
            step = pick_frame(self._actor, plan, self._tie_breaks, steps=self._steps, temperature=0.0)
            self.simulator.apply(step.actions, self.simulator.topology)
        return super().step(policy, observer)


def train(
    config: JointConfig,
    state: JointState,
    runners: Runners,
    validate: Callable[[JointState], float],
    *,
    on_round: Callable[[int, JointState], None],
    scores: Sequence[float] = (),
) -> list[float]:
    """Trains ``state`` in place. Which round was best, and keeping it, is left to ``on_round``.

    Args:
        config: hyperparameters.
        state: the halves to start from, or those after the last of ``scores``. Their updates are counted from 0 on.
        runners: play the episodes of orchestration.
        validate: how good a pair is on the validation scenarios.
        on_round: called after each round with its number and the state; with round 0 before the first. May keep the
            state or raise to stop.
        scores: of the pair given and of the rounds made before; empty: none were.

    Returns:
        How good the pair given is, and that of each round.
    """
    scores = list(scores)
    if not scores:
        state.dispatch.update = state.orchestration.update = 0
        scores.append(validate(state))
        on_round(0, state)
    for number in range(len(scores), config.rounds + 1):
        for orchestration_updates, dispatch_updates in _portions(config):
            if orchestration_updates:
                _train_orchestration(config, state, runners, orchestration_updates)
            if dispatch_updates:
                _train_dispatch(config, state, dispatch_updates)
        scores.append(validate(state))
        on_round(number, state)
    return scores


def _portions(config: JointConfig) -> list[tuple[int, int]]:
    """Updates of orchestration and of dispatch that one round makes in turn."""
    orchestration, dispatch = config.orchestration_updates, config.dispatch_updates
    if config.schedule == "orchestration":
        return [(orchestration, 0)]
    if config.schedule == "dispatch":
        return [(0, dispatch)]
    if config.schedule == "alternating":
        return [(orchestration, 0), (0, dispatch)]
    shares = np.diff(np.linspace(0, dispatch, orchestration + 1).round().astype(int))
    return [(1, int(share)) for share in shares]


def learning_configs(config: JointConfig, state: JointState) -> tuple[CmmacConfig, GpgConfig]:
    """The hyperparameters that dispatch and orchestration go on learning with, on the same systems."""
    orchestration = replace(
        state.orchestration_config,
        seed=config.seed,
        updates=config.rounds * config.orchestration_updates,
        learning_rate=config.orchestration_learning_rate,
        cost_weight=config.cost_weight,
    )
    dispatch = replace(
        state.dispatch_config,
        seed=config.seed,
        updates=config.rounds * config.dispatch_updates,
        learning_rate=config.dispatch_learning_rate,
        cost_weight=config.cost_weight,
        presets=orchestration.presets,
        load_range=orchestration.load_range,
    )
    return dispatch, orchestration


def _train_orchestration(config: JointConfig, state: JointState, runners: Runners, updates: int) -> None:
    _, learning = learning_configs(config, state)
    gpg.train(
        learning,
        state.orchestration,
        JobSource(learning, runners, dispatch=state.dispatch.actor),
        on_update=lambda current, figures: None,
        until=state.orchestration.update + updates,
    )


def _train_dispatch(config: JointConfig, state: JointState, updates: int) -> None:
    learning, _ = learning_configs(config, state)
    cmmac.train(
        learning,
        state.dispatch,
        on_update=lambda current, figures: None,
        environments=lambda dispatch, random, rollouts: orchestrated_systems(
            dispatch, state, random, cmmac.rollout_slots(dispatch, rollouts)
        ),
        until=state.dispatch.update + updates,
    )


def orchestrated_systems(
    dispatch: CmmacConfig, state: JointState, random: np.random.Generator, slots: int
) -> OrchestratedDispatchEnvironment:
    """Systems to learn dispatch on, with requests for that many slots.

    They have been orchestrated for some frames already (compiled dispatch makes that cheap), so that dispatch meets
    placements of every age.
    """
    orchestration = state.orchestration_config
    steps = orchestration.steps
    frames_before = int(random.integers(DEFAULT_SETTING.frames))
    setting = OrchestrationSetting(
        frames=frames_before - (-slots // SimulatorConfig().slots_per_frame),
        initial_replicas_per_node=float(random.uniform(*orchestration.initial_replicas_range)),
    )
    simulator = orchestration_simulator(cmmac.drawn_scenarios(dispatch, random), setting)
    frames = OrchestrationEnvironment(
        simulator, CompiledDispatch(simulator), options=OrchestrationOptions(maximum_actions=steps)
    )
    frames.step([], slots=setting.settle_slots)
    for _ in range(frames_before):
        plan = FramePlan(frames.query())
        frames.step(pick_frame(state.orchestration.actor, plan, random, steps=steps, temperature=0.0).actions)
    return OrchestratedDispatchEnvironment(
        simulator,
        state.orchestration.actor,
        steps=steps,
        random=random,
        staleness_slots=dispatch.staleness_slots,
    )
