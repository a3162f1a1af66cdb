"""TD3, DDPG and DQN behind one interface, so that they train on the same experience with the same budget."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from policy_server.cluster.snapshot import Float32Array
from policy_server.features.scaling import DEFAULT_ECONOMY, SCALING_SCHEMA
from policy_server.policies.scaling.actor import ActorScaling
from training.algorithms.ddpg import DDPG, DDPGSettings
from training.algorithms.dqn import DQN, DQNSettings
from training.algorithms.td3 import TD3, TD3Settings
from training.algorithms.transitions import Transitions
from training.networks.scaling import Actor, Critic, LevelCritic
from training.scaling.config import Algorithm, ScalingTrainingConfig

ACTIONS = 2
CPU_LEVELS = 9
MEMORY_LEVELS = 3


class Learner(Protocol):
    """What the training loop needs of an algorithm."""

    def act(self, observation: Float32Array) -> Float32Array:
        """float32 [n, features] -> float32 [n, 2]: the actions to learn from next."""
        ...

    def executable(self, action: Float32Array) -> Float32Array:
        """float32 [n, 2] -> float32 [n, 2]: the nearest actions the algorithm can take."""
        ...

    def learn(self, batch: Transitions, *, from_log: bool) -> dict[str, float]:
        """One update; what it came to, by name."""
        ...

    def set_learning_rate(self, rate: float) -> None:
        """For the updates to come."""
        ...

    def policy_module(self) -> nn.Module:
        """Features float32 [n, features] -> action float32 [n, 2]: what has been learned, to be used."""
        ...

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        ...


def new_learner(config: ScalingTrainingConfig) -> Learner:
    """A fresh learner; torch's global seed decides its weights."""
    features = len(SCALING_SCHEMA.container)

    def actor() -> Actor:
        return Actor(features, ACTIONS, config.actor_hidden)

    def critic() -> Critic:
        return Critic(features, ACTIONS, config.critic_hidden)

    match Algorithm(config.algorithm):
        case Algorithm.TD3:
            td3 = TD3Settings(learning_rate=config.learning_rate, discount=config.discount)
            return _ActorCriticLearner(TD3(actor(), (critic(), critic()), td3), config.behaviour_cloning)
        case Algorithm.DDPG:
            ddpg = DDPGSettings(learning_rate=config.learning_rate, discount=config.discount)
            return _ActorCriticLearner(DDPG(actor(), critic(), ddpg), config.behaviour_cloning)
        case Algorithm.DQN:
            dqn = DQNSettings(learning_rate=config.learning_rate, discount=config.discount)
            levels = LevelCritic(features, CPU_LEVELS * MEMORY_LEVELS, config.critic_hidden)
            return _LevelLearner(DQN(levels, dqn))


def torch_scaling(module: nn.Module, economy: float = DEFAULT_ECONOMY) -> ActorScaling:
    """A policy module as a scaling policy, without an export."""

    @torch.no_grad()
    def run(features: Float32Array) -> Float32Array:
        action: Float32Array = module(torch.from_numpy(features)).numpy()
        return action

    return ActorScaling(run, economy)


class _ActorCriticLearner:
    """TD3 or DDPG."""

    def __init__(self, algorithm: TD3 | DDPG, behaviour_cloning: float) -> None:
        self._algorithm = algorithm
        self._behaviour_cloning = behaviour_cloning

    def act(self, observation: Float32Array) -> Float32Array:
        action: Float32Array = self._algorithm.act(torch.from_numpy(observation)).numpy()
        return action

    def executable(self, action: Float32Array) -> Float32Array:
        return action

    def learn(self, batch: Transitions, *, from_log: bool) -> dict[str, float]:
        weight = self._behaviour_cloning if from_log else 0.0
        losses = self._algorithm.update(batch, behaviour_cloning=weight)
        return {"critic": losses.critic, "actor": losses.actor, "mean_value": losses.mean_value}

    def set_learning_rate(self, rate: float) -> None:
        self._algorithm.set_learning_rate(rate)

    def policy_module(self) -> nn.Module:
        # The moving average of the actor is steadier than the actor after any one update.
        return self._algorithm.target_actor

    def state(self) -> dict[str, Any]:
        return self._algorithm.state()

    def restore(self, state: dict[str, Any]) -> None:
        self._algorithm.restore(state)


class LevelPolicy(nn.Module):
    """The action that the level of highest value stands for."""

    actions: Tensor

    def __init__(self, critic: nn.Module) -> None:
        super().__init__()
        self.critic = critic
        self.register_buffer("actions", torch.from_numpy(level_actions()))

    def forward(self, features: Tensor) -> Tensor:
        """float32 [n, features] -> float32 [n, 2]."""
        action: Tensor = self.actions[self.critic(features).argmax(dim=1)]
        return action


class _LevelLearner:
    """DQN over a grid of actions."""

    def __init__(self, algorithm: DQN) -> None:
        self._algorithm = algorithm
        self._actions = level_actions()

    def act(self, observation: Float32Array) -> Float32Array:
        action: Float32Array = self._actions[self._algorithm.act(torch.from_numpy(observation)).numpy()]
        return action

    def executable(self, action: Float32Array) -> Float32Array:
        nearest: Float32Array = self._actions[nearest_level(action)]
        return nearest

    def learn(self, batch: Transitions, *, from_log: bool) -> dict[str, float]:
        level = torch.from_numpy(nearest_level(batch.action.numpy()))
        losses = self._algorithm.update(batch._replace(action=level))
        return {"critic": losses.critic, "mean_value": losses.mean_value}

    def set_learning_rate(self, rate: float) -> None:
        self._algorithm.set_learning_rate(rate)

    def policy_module(self) -> nn.Module:
        return LevelPolicy(self._algorithm.critic)

    def state(self) -> dict[str, Any]:
        return self._algorithm.state()

    def restore(self, state: dict[str, Any]) -> None:
        self._algorithm.restore(state)


def level_actions() -> Float32Array:
    """float32 [CPU_LEVELS * MEMORY_LEVELS, 2]: the grid of actions that DQN chooses from, memory varying fastest."""
    cpu, memory = np.meshgrid(
        np.linspace(-1, 1, CPU_LEVELS), np.linspace(-1, 1, MEMORY_LEVELS), indexing="ij"
    )
    return np.stack((cpu.ravel(), memory.ravel()), axis=1).astype(np.float32)


def nearest_level(action: Float32Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """int64 [n]: row of :func:`level_actions` nearest to each action, float32 [n, 2] within [-1, 1]."""
    share = (action.astype(np.float64) + 1.0) / 2.0
    cpu = np.rint(share[:, 0] * (CPU_LEVELS - 1)).astype(np.int64)
    memory = np.rint(share[:, 1] * (MEMORY_LEVELS - 1)).astype(np.int64)
    return cpu * MEMORY_LEVELS + memory
