"""Training of scaling policies: first from logged history, then online, as in the paper.

1. **Log.** Rule policies with random parameters and disturbances run ``log_episodes`` episodes.
2. **Offline.** ``log_updates`` updates from the log alone; actor-critic algorithms stay near the logged actions.
3. **Online.** ``episodes`` episodes of the policy itself with disturbances, ``updates_per_interval`` updates per
   interval, the log remaining in the replay.

Validation on fixed training episodes chooses the policy that is kept; nothing held out is touched.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from policy_server.cluster.snapshot import Float32Array
from policy_server.features.scaling import DEFAULT_ECONOMY, ECONOMY_COLUMN, scaling_features
from policy_server.policies.scaling.actor import action_to_recommendation
from training.checkpoints import (
    CHECKPOINT_FILE,
    RunError,
    create_run,
    read_config,
    read_history,
    write_config,
    write_history,
    write_tensors,
)
from training.scaling.application import Application
from training.scaling.behaviour import HeldNoise, LoggedOperator
from training.scaling.config import ScalingTrainingConfig
from training.scaling.episodes import Episode, EpisodeSource
from training.scaling.learners import Learner, new_learner, torch_scaling
from training.scaling.loop import ScalingLoop
from training.scaling.replay import ScalingReplay
from training.scaling.trials import run_trials

POLICY_FILE = "policy.pt"


@dataclass
class ScalingTrainingState:
    """Where a run stands.

    Attributes:
        learner: networks and optimisers.
        episode: online episodes done.
        transitions: container intervals simulated.
        seconds: wall time spent.
        best_cost: lowest validation cost so far.
        history: figures of each validation.
    """

    learner: Learner
    episode: int = 0
    transitions: int = 0
    seconds: float = 0.0
    best_cost: float = float("inf")
    history: list[dict[str, float]] = field(default_factory=list)


OnProgress = Callable[[str, int, int, dict[str, float]], None]
"""Called with the stage, what is done of it, its total, and the latest figures."""


def train(
    application: Application,
    config: ScalingTrainingConfig,
    folder: Path,
    *,
    resume: bool,
    on_progress: OnProgress,
) -> ScalingTrainingState:
    """Trains into a run folder.

    A resumed run repeats the log, whose episodes are fixed by the seed, and goes on from the last validation with what
    was experienced online since then forgotten.

    Args:
        application: to control.
        config: of the run; a resumed run goes on with it and records it, and its networks keep their size.
        folder: of the run.
        resume: go on from the folder's checkpoint.
        on_progress: told about every step.

    Raises:
        RunError: the folder holds a run already, or none to go on from.
    """
    torch.manual_seed(config.seed)
    state = ScalingTrainingState(new_learner(config))
    if resume:
        _restore(folder, state)
        write_config(folder, config)
    else:
        create_run(folder, config)
    trainer = _Trainer(application, config, folder, state, on_progress)
    trainer.run()
    return state


def load_config(folder: Path) -> ScalingTrainingConfig:
    """The configuration of a run.

    Raises:
        RunError: see :func:`training.checkpoints.read_config`.
    """
    return read_config(folder, ScalingTrainingConfig, "policy-train scale")


def load_policy(folder: Path) -> tuple[ScalingTrainingConfig, torch.nn.Module, dict[str, float]]:
    """Configuration, best policy and its validation figures.

    Raises:
        RunError: there is no policy yet, or one of other networks.
    """
    config = load_config(folder)
    path = folder / POLICY_FILE
    if not path.is_file():
        raise RunError(f"{folder}: holds no {POLICY_FILE}; train until the first validation")
    saved = torch.load(path, weights_only=True)
    module = new_learner(config).policy_module()
    try:
        module.load_state_dict(saved["policy"])
    except RuntimeError as error:
        raise RunError(f"{path}: does not fit the networks of this version; train anew ({error})") from None
    return config, module.eval(), saved["figures"]


class _Trainer:
    def __init__(
        self,
        application: Application,
        config: ScalingTrainingConfig,
        folder: Path,
        state: ScalingTrainingState,
        on_progress: OnProgress,
    ) -> None:
        self._application = application
        self._config = config
        self._folder = folder
        self._state = state
        self._on_progress = on_progress
        self._source = EpisodeSource(application)
        self._replay = ScalingReplay(config.replay_capacity)
        self._random = np.random.default_rng(np.random.SeedSequence(config.seed, spawn_key=(state.episode,)))
        self._figures: dict[str, float] = {}

    def run(self) -> None:
        config, state = self._config, self._state
        started = time.monotonic()
        spent = state.seconds
        for number in range(config.log_episodes):
            self._log_episode(number)
            self._on_progress("log", number + 1, config.log_episodes, self._figures)
        if state.episode == 0:
            for update in range(config.log_updates):
                self._figures |= self._update(from_log=True)
                if update % 100 == 99:
                    self._on_progress("offline", update + 1, config.log_updates, self._figures)
            state.seconds = spent + time.monotonic() - started
            self._validate()
        while state.episode < config.episodes:
            progress = state.episode / config.episodes
            state.learner.set_learning_rate(config.learning_rate * (1.0 - 0.9 * progress))
            self._online_episode(config.log_episodes + state.episode, disturbance=0.25 - 0.2 * progress)
            state.episode += 1
            state.seconds = spent + time.monotonic() - started
            if state.episode % config.validate_every == 0 or state.episode == config.episodes:
                self._validate()
            self._on_progress("online", state.episode, config.episodes, self._figures)

    def _update(self, *, from_log: bool) -> dict[str, float]:
        batch = self._replay.sample(self._config.batch_size, self._random)
        return self._state.learner.learn(batch, from_log=from_log)

    def _loop(self, episode: Episode) -> ScalingLoop:
        return ScalingLoop(
            self._application, episode.seeds, episode.rates, work_variation=self._config.work_variation
        )

    def _episode(self, number: int) -> Episode:
        config = self._config
        return self._source.training(number, config.instances, config.episode_seconds, config.seed)

    def _log_episode(self, number: int) -> None:
        random = np.random.default_rng(np.random.SeedSequence(self._config.seed, spawn_key=(number, 1)))
        loop = self._loop(self._episode(number))
        containers = loop.simulation.containers
        operator = LoggedOperator(random, self._config.instances, containers)
        noise = HeldNoise(random, np.repeat(random.uniform(0.0, 0.5, self._config.instances), containers))
        self._experience(loop, lambda _: operator.act(loop.fleet, loop.history), noise, lambda: None)

    def _online_episode(self, number: int, disturbance: float) -> None:
        config, learner = self._config, self._state.learner
        loop = self._loop(self._episode(number))
        containers = loop.simulation.containers
        economy = np.repeat(self._random.random(config.instances), containers)
        noise = HeldNoise(
            self._random, np.repeat(self._random.uniform(0.0, disturbance, config.instances), containers)
        )

        def act(observation: Float32Array) -> Float32Array:
            observation[:, ECONOMY_COLUMN] = economy
            return learner.act(observation)

        def update() -> None:
            for _ in range(config.updates_per_interval):
                self._figures |= self._update(from_log=False)

        self._experience(loop, act, noise, update)

    def _experience(
        self,
        loop: ScalingLoop,
        act: Callable[[Float32Array], Float32Array],
        noise: HeldNoise,
        update: Callable[[], None],
    ) -> None:
        learner = self._state.learner
        observation = scaling_features(loop.fleet, loop.history, DEFAULT_ECONOMY)
        while loop.intervals_left:
            action = learner.executable(np.clip(act(observation) + noise.next(), -1.0, 1.0))
            step = loop.step(action_to_recommendation(action, loop.history))
            following = scaling_features(loop.fleet, loop.history, DEFAULT_ECONOMY)
            self._replay.add(observation, action, step.costs.stacked(), following)
            self._state.transitions += len(observation)
            observation = following
            update()

    def _validate(self) -> None:
        state = self._state
        policy = torch_scaling(state.learner.policy_module())
        results = run_trials(
            self._application, policy, self._source.validation(4, self._config.episode_seconds, 1.0)
        )
        high = run_trials(
            self._application, policy, self._source.validation(4, self._config.episode_seconds, 1.5)
        )
        figures = {
            "episode": float(state.episode),
            "transitions": float(state.transitions),
            "seconds": state.seconds,
            "validation_cost": float((results.cost.mean() + high.cost.mean()) / 2),
            "validation_latency_seconds": float(results.mean_latency_seconds.mean()),
            "validation_violation_rate": float(results.violation_rate.mean()),
            "validation_cpu_cores": float(results.cpu_cores.mean()),
        }
        self._figures |= figures
        state.history.append({**self._figures})
        if figures["validation_cost"] < state.best_cost:
            state.best_cost = figures["validation_cost"]
            write_tensors(
                self._folder / POLICY_FILE,
                {"policy": state.learner.policy_module().state_dict(), "figures": figures},
            )
        write_tensors(
            self._folder / CHECKPOINT_FILE,
            {
                "learner": state.learner.state(),
                "episode": state.episode,
                "transitions": state.transitions,
                "seconds": state.seconds,
                "best_cost": state.best_cost,
            },
        )
        write_history(self._folder, state.history)


def _restore(folder: Path, state: ScalingTrainingState) -> None:
    path = folder / CHECKPOINT_FILE
    if not path.is_file():
        raise RunError(f"{folder}: holds no {CHECKPOINT_FILE} yet; train until the first validation")
    saved = torch.load(path, weights_only=True)
    try:
        state.learner.restore(saved["learner"])
    except (RuntimeError, KeyError, ValueError) as error:
        raise RunError(f"{path}: does not fit the networks of this version; train anew ({error})") from None
    state.episode = int(saved["episode"])
    state.transitions = int(saved["transitions"])
    state.seconds = float(saved["seconds"])
    state.best_cost = float(saved["best_cost"])
    state.history = read_history(folder)
