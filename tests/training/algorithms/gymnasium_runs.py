"""Off-policy learning on a Gymnasium task of one observation at a time, as CleanRL's scripts do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from training.algorithms.transitions import Transitions


class Replay:
    def __init__(self, capacity: int, inputs: int, action_shape: tuple[int, ...], action_dtype: Any) -> None:
        self.observation = np.zeros((capacity, inputs), np.float32)
        self.next_observation = np.zeros((capacity, inputs), np.float32)
        self.action = np.zeros((capacity, *action_shape), action_dtype)
        self.reward = np.zeros(capacity, np.float32)
        self.terminated = np.zeros(capacity, np.float32)
        self.size = 0

    def add(
        self, observation: Any, action: Any, reward: float, next_observation: Any, terminated: bool
    ) -> None:
        row = self.size
        self.observation[row], self.next_observation[row] = observation, next_observation
        self.action[row], self.reward[row], self.terminated[row] = action, reward, terminated
        self.size += 1

    def sample(self, count: int, random: np.random.Generator) -> Transitions:
        rows = random.integers(self.size, size=count)
        return Transitions(
            *(
                torch.from_numpy(column[rows])
                for column in (
                    self.observation,
                    self.action,
                    self.reward,
                    self.next_observation,
                    self.terminated,
                )
            )
        )


class PendulumBounds(nn.Module):
    """Pendulum's observation [cos, sin, speed up to 8] brought to [-1, 1]."""

    def forward(self, observation: Tensor) -> Tensor:
        return observation / torch.tensor([1.0, 1.0, 8.0])


def learn_pendulum(
    learner: Any, *, steps: int, seed: int, warm_up: int = 500, batch: int = 256, noise: float = 0.1
) -> None:
    """Actions are torques relative to the largest, 2."""
    random = np.random.default_rng(seed)
    environment = gymnasium.make("Pendulum-v1")
    replay = Replay(steps, 3, (1,), np.float32)
    observation, _ = environment.reset(seed=seed)
    for step in range(steps):
        if step < warm_up:
            action = random.uniform(-1, 1, 1).astype(np.float32)
        else:
            chosen = learner.act(torch.from_numpy(observation[None]))[0].numpy()
            action = np.clip(chosen + noise * random.standard_normal(1), -1, 1).astype(np.float32)
        following, reward, terminated, truncated, _ = environment.step(2.0 * action)
        replay.add(observation, action, float(reward), following, terminated)
        observation = environment.reset()[0] if terminated or truncated else following
        if step >= warm_up:
            learner.update(replay.sample(batch, random))
    environment.close()


def pendulum_returns(act: Callable[[Tensor], Tensor], *, episodes: int, seed: int) -> list[float]:
    environment = gymnasium.make("Pendulum-v1")
    returns = []
    for episode in range(episodes):
        observation, _ = environment.reset(seed=seed + episode)
        total, done = 0.0, False
        while not done:
            action = 2.0 * act(torch.from_numpy(observation[None]))[0].numpy()
            observation, reward, terminated, truncated, _ = environment.step(action)
            total += float(reward)
            done = terminated or truncated
        returns.append(total)
    environment.close()
    return returns


def learn_cart_pole(learner: Any, *, steps: int, seed: int, warm_up: int = 500, batch: int = 128) -> None:
    random = np.random.default_rng(seed)
    environment = gymnasium.make("CartPole-v1")
    replay = Replay(steps, 4, (), np.int64)
    observation, _ = environment.reset(seed=seed)
    for step in range(steps):
        if random.random() < max(0.05, 1.0 - step / (0.5 * steps)):
            action = int(random.integers(2))
        else:
            action = int(learner.act(torch.from_numpy(observation[None]))[0])
        following, reward, terminated, truncated, _ = environment.step(action)
        replay.add(observation, action, float(reward), following, terminated)
        observation = environment.reset()[0] if terminated or truncated else following
        if step >= warm_up:
            learner.update(replay.sample(batch, random))
    environment.close()


def cart_pole_lengths(act: Callable[[Tensor], Tensor], *, episodes: int, seed: int) -> list[int]:
    environment = gymnasium.make("CartPole-v1")
    lengths = []
    for episode in range(episodes):
        observation, _ = environment.reset(seed=seed + episode)
        length, done = 0, False
        while not done:
            observation, _, terminated, truncated, _ = environment.step(
                int(act(torch.from_numpy(observation[None]))[0])
            )
            length += 1
            done = terminated or truncated
        lengths.append(length)
    environment.close()
    return lengths
