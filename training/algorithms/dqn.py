"""Deep Q-network (Mnih et al., Nature 2015): values of discrete actions, the best of which is taken.

The loss is the squared error: the paper's clipped one learns medians, and where rare costs are large, medians lie far
below means.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from training.algorithms.transitions import Transitions


@dataclass(frozen=True)
class DQNSettings:
    """Hyperparameters."""

    learning_rate: float = 3e-4
    """of the network (Adam)"""
    discount: float = 0.99
    """of future rewards"""
    target_interval: int = 500
    """updates after which the target network becomes a copy of the network"""


@dataclass(frozen=True)
class DQNLosses:
    """What an update came to."""

    critic: float
    mean_value: float


def greedy_target(reward: Tensor, terminated: Tensor, next_values: Tensor, discount: float) -> Tensor:
    """reward + discount x largest next value, without what follows an end: equation 2 of the paper.

    Args:
        reward: [n].
        terminated: [n], 1 where nothing follows.
        next_values: [n, actions], by the target network.
        discount: of the future.
    """
    return reward + discount * (1.0 - terminated) * next_values.amax(dim=1)


class DQN:
    """The learner. Observations are rows; an action is a number from 0 on.

    Attributes:
        critic: values all actions of an observation.
        target_critic: copied from it now and then.
        settings: hyperparameters.
        updates: so far.
    """

    def __init__(self, critic: nn.Module, settings: DQNSettings) -> None:
        self.critic = critic
        self.target_critic = deepcopy(critic).requires_grad_(False)
        self.settings = settings
        self.updates = 0
        self._optimizer = torch.optim.Adam(self.critic.parameters(), lr=settings.learning_rate)

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """The best actions, int64 [n]."""
        action: Tensor = self.critic(observation).argmax(dim=1)
        return action

    def update(self, batch: Transitions) -> DQNLosses:
        """One update from a batch of discrete actions, int64 [n]."""
        self.updates += 1
        settings = self.settings
        with torch.no_grad():
            next_values = self.target_critic(batch.next_observation)
            target = greedy_target(batch.reward, batch.terminated, next_values, settings.discount)
        value = self.critic(batch.observation).gather(1, batch.action[:, None]).squeeze(1)
        loss = nn.functional.mse_loss(value, target)
        self._optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        self._optimizer.step()
        if self.updates % settings.target_interval == 0:
            self.target_critic.load_state_dict(self.critic.state_dict())
        return DQNLosses(float(loss.detach()), float(value.detach().mean()))

    def set_learning_rate(self, rate: float) -> None:
        """For the updates to come."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def state(self) -> dict[str, Any]:
        """All that training goes on from, for a checkpoint."""
        return {
            "critic": self.critic.state_dict(),
            "target_critic": self.target_critic.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "updates": self.updates,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a checkpoint."""
        self.critic.load_state_dict(state["critic"])
        self.target_critic.load_state_dict(state["target_critic"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]
