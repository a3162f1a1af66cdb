"""Deep deterministic policy gradient (Lillicrap et al., ICLR 2016): what TD3 improves on.

One critic, no noise on target actions, actor and target networks moved with every update.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from training.algorithms.target_networks import move_towards
from training.algorithms.transitions import Transitions


@dataclass(frozen=True)
class DDPGSettings:
    """Hyperparameters; where the paper's are tuned to its tasks, those of TD3's own comparison with DDPG."""

    learning_rate: float = 3e-4
    """of actor and critic (Adam)"""
    discount: float = 0.99
    """of future rewards"""
    target_rate: float = 0.005
    """share by which target networks move towards the networks in an update (tau)"""
    behaviour_cloning: float = 0.0
    """weight of staying near the logged action, relative to a value of average size; 0: off"""


@dataclass(frozen=True)
class DDPGLosses:
    """What an update came to."""

    critic: float
    actor: float
    mean_value: float


def bootstrapped_target(reward: Tensor, terminated: Tensor, value: Tensor, discount: float) -> Tensor:
    """reward + discount x value, without what follows an end. All [n]."""
    return reward + discount * (1.0 - terminated) * value


class DDPG:
    """The learner. Observations and actions are rows; an action lies within [-1, 1].

    Attributes:
        actor: the policy.
        critic: values actions.
        target_actor: moves slowly after the actor.
        target_critic: moves slowly after the critic.
        settings: hyperparameters.
        updates: so far.
    """

    def __init__(self, actor: nn.Module, critic: nn.Module, settings: DDPGSettings) -> None:
        self.actor = actor
        self.critic = critic
        self.target_actor = deepcopy(actor).requires_grad_(False)
        self.target_critic = deepcopy(critic).requires_grad_(False)
        self.settings = settings
        self.updates = 0
        self._actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=settings.learning_rate)
        self._critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=settings.learning_rate)

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """The policy's actions, [n, actions]."""
        action: Tensor = self.actor(observation)
        return action

    def update(self, batch: Transitions, *, behaviour_cloning: float | None = None) -> DDPGLosses:
        """One update from a batch.

        Args:
            batch: transitions.
            behaviour_cloning: replaces the setting, for a stage of training.
        """
        self.updates += 1
        settings = self.settings
        with torch.no_grad():
            next_action = self.target_actor(batch.next_observation)
            next_value = self.target_critic(batch.next_observation, next_action)
            target = bootstrapped_target(batch.reward, batch.terminated, next_value, settings.discount)
        value = self.critic(batch.observation, batch.action)
        critic_loss = nn.functional.mse_loss(value, target)
        self._critic_optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(critic_loss)
        self._critic_optimizer.step()

        action = self.actor(batch.observation)
        actor_value = self.critic(batch.observation, action)
        actor_loss = -actor_value.mean()
        weight = settings.behaviour_cloning if behaviour_cloning is None else behaviour_cloning
        if weight > 0:
            size = actor_value.detach().abs().mean().clamp(min=1e-6)
            actor_loss = actor_loss / size + weight * nn.functional.mse_loss(action, batch.action)
        self._actor_optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(actor_loss)
        self._actor_optimizer.step()

        move_towards(self.target_actor, self.actor, settings.target_rate)
        move_towards(self.target_critic, self.critic, settings.target_rate)
        return DDPGLosses(
            float(critic_loss.detach()), float(actor_loss.detach()), float(value.detach().mean())
        )

    def set_learning_rate(self, rate: float) -> None:
        """For the updates to come."""
        for optimizer in (self._actor_optimizer, self._critic_optimizer):
            for group in optimizer.param_groups:
                group["lr"] = rate

    def state(self) -> dict[str, Any]:
        """All that training goes on from, for a checkpoint."""
        return {
            "actor": self.actor.state_dict(),
            "critic": self.critic.state_dict(),
            "target_actor": self.target_actor.state_dict(),
            "target_critic": self.target_critic.state_dict(),
            "actor_optimizer": self._actor_optimizer.state_dict(),
            "critic_optimizer": self._critic_optimizer.state_dict(),
            "updates": self.updates,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a checkpoint."""
        self.actor.load_state_dict(state["actor"])
        self.critic.load_state_dict(state["critic"])
        self.target_actor.load_state_dict(state["target_actor"])
        self.target_critic.load_state_dict(state["target_critic"])
        self._actor_optimizer.load_state_dict(state["actor_optimizer"])
        self._critic_optimizer.load_state_dict(state["critic_optimizer"])
        self.updates = state["updates"]
