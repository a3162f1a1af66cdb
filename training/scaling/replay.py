"""Experience of containers, kept as cost parts so that every transition teaches about every economy."""

from __future__ import annotations

import numpy as np
import torch

from policy_server.cluster.snapshot import Float32Array, Float64Array
from policy_server.features.scaling import ECONOMY_COLUMN, SCALING_SCHEMA
from training.algorithms.transitions import Transitions
from training.scaling.objective import COST_PARTS, prices

REWARD_SCALE = 10.0
LARGEST_COST = 5.0
"""Of a container in an interval; beyond it an outage costs no more, so that few outages do not drown all else."""


class ScalingReplay:
    """A ring of transitions of single containers.

    The economy decides only how parts of the cost add up, and it is an observation of the policy. So what was seen
    under one economy is sampled under a random one: reward and observations are made for it at the time of sampling.
    """

    def __init__(self, capacity: int) -> None:
        features = len(SCALING_SCHEMA.container)
        self._observation = np.zeros((capacity, features), np.float32)
        self._next_observation = np.zeros((capacity, features), np.float32)
        self._action = np.zeros((capacity, 2), np.float32)
        self._costs = np.zeros((capacity, len(COST_PARTS)), np.float32)
        self._capacity = capacity
        self._added = 0

    def __len__(self) -> int:
        return min(self._added, self._capacity)

    def add(
        self,
        observation: Float32Array,
        action: Float32Array,
        costs: Float64Array,
        next_observation: Float32Array,
    ) -> None:
        """Adds n transitions, in place of the oldest.

        Args:
            observation: float32 [n, features].
            action: float32 [n, 2].
            costs: float64 [n, parts].
            next_observation: float32 [n, features].
        """
        rows = np.arange(self._added, self._added + len(observation)) % self._capacity
        self._observation[rows] = observation
        self._action[rows] = action
        self._costs[rows] = costs
        self._next_observation[rows] = next_observation
        self._added += len(observation)

    def sample(self, count: int, random: np.random.Generator) -> Transitions:
        """Uniformly drawn transitions, each with a uniformly drawn economy; a controller's work never ends."""
        rows = random.integers(len(self), size=count)
        economy = random.random(count)
        observation, next_observation = self._observation[rows], self._next_observation[rows]
        observation[:, ECONOMY_COLUMN] = economy
        next_observation[:, ECONOMY_COLUMN] = economy
        cost = (self._costs[rows] * prices(economy)).sum(axis=1)
        reward = (-REWARD_SCALE * np.minimum(cost, LARGEST_COST)).astype(np.float32)
        return Transitions(
            observation=torch.from_numpy(observation),
            action=torch.from_numpy(self._action[rows]),
            reward=torch.from_numpy(reward),
            next_observation=torch.from_numpy(next_observation),
            terminated=torch.zeros(count),
        )
