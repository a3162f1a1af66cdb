"""Twin delayed deep deterministic policy gradient (Fujimoto, van Hoof and Meger, ICML 2018).

Three changes to DDPG, each against the overestimation of values:

- twin critics: the target is the smaller of two critics' values;
- target policy smoothing: the target action carries clipped noise, so that a narrow peak of a critic does not pay;
- delayed updates: the actor and all target networks move once in ``policy_delay`` critic updates.

For learning from a log without new experience there is the behaviour-cloning term of TD3+BC (Fujimoto and Gu, NeurIPS
2021): the actor also stays near the logged action.
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
class TD3Settings:
    """Hyperparameters; the defaults are those of the paper."""

    learning_rate: float = 3e-4
    """of actor and critics (Adam)"""
    discount: float = 0.99
    """of future rewards"""
    target_rate: float = 0.005
    """share by which target networks move towards the networks in an update (tau)"""
    target_noise: float = 0.2
    """standard deviation of the noise on target actions"""
    target_noise_limit: float = 0.5
    """which that noise is clipped to"""
    policy_delay: int = 2
    """critic updates per actor update"""
    behaviour_cloning: float = 0.0
    """weight of staying near the logged action, relative to a value of average size (TD3+BC: 1 / 2.5); 0: off"""


@dataclass(frozen=True)
class TD3Losses:
    """What an update came to; the actor's loss is NaN in updates that leave the actor alone."""

    critic: float
    actor: float
    mean_value: float


def smoothed_target_action(action: Tensor, noise: Tensor, noise_limit: float) -> Tensor:
    """clip(action + clip(noise, -limit, limit), -1, 1): equation 14 of the paper.

    Args:
        action: [n, actions], of the target actor.
        noise: [n, actions], Gaussian.
        noise_limit: c of the paper.
    """
    return (action + noise.clamp(-noise_limit, noise_limit)).clamp(-1.0, 1.0)


def twin_target(reward: Tensor, terminated: Tensor, first: Tensor, second: Tensor, discount: float) -> Tensor:
    """reward + discount x min(first, second), without what follows an end: equation 10 of the paper.

    Args:
        reward: [n].
        terminated: [n], 1 where nothing follows.
        first: [n], value of the next state and target action by the first target critic.
        second: [n], by the second.
        discount: of the future.
    """
    return reward + discount * (1.0 - terminated) * torch.minimum(first, second)


class TD3:
    """The learner. Observations and actions are rows; an action lies within [-1, 1].

    Attributes:
        actor: the policy.
        critics: two critics.
        target_actor: moves slowly after the actor.
        target_critics: move slowly after the critics.
        settings: hyperparameters.
        updates: critic updates so far.
    """

    def __init__(self, actor: nn.Module, critics: tuple[nn.Module, nn.Module], settings: TD3Settings) -> None:
        self.actor = actor
        self.critics = nn.ModuleList(critics)
        self.target_actor = deepcopy(actor).requires_grad_(False)
        self.target_critics = deepcopy(self.critics).requires_grad_(False)
        self.settings = settings
        self.updates = 0
        self._actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=settings.learning_rate)
        self._critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=settings.learning_rate)

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """The policy's actions, [n, actions]."""
        action: Tensor = self.actor(observation)
        return action

    def update(self, batch: Transitions, *, behaviour_cloning: float | None = None) -> TD3Losses:
        """One update from a batch.

        Args:
            batch: transitions.
            behaviour_cloning: replaces the setting, for a stage of training.
        """
        self.updates += 1
        critic_loss, value = self._update_critics(batch)
        actor_loss = float("nan")
        if self.updates % self.settings.policy_delay == 0:
            weight = self.settings.behaviour_cloning if behaviour_cloning is None else behaviour_cloning
            actor_loss = self._update_actor(batch, weight)
            move_towards(self.target_actor, self.actor, self.settings.target_rate)
            move_towards(self.target_critics, self.critics, self.settings.target_rate)
        return TD3Losses(critic_loss, actor_loss, value)

    def _update_critics(self, batch: Transitions) -> tuple[float, float]:
        settings = self.settings
        with torch.no_grad():
            noise = torch.randn_like(batch.action) * settings.target_noise
            next_action = smoothed_target_action(
                self.target_actor(batch.next_observation), noise, settings.target_noise_limit
            )
            first, second = (critic(batch.next_observation, next_action) for critic in self.target_critics)
            target = twin_target(batch.reward, batch.terminated, first, second, settings.discount)
        values = [critic(batch.observation, batch.action) for critic in self.critics]
        loss = torch.stack([nn.functional.mse_loss(value, target) for value in values]).sum()
        self._critic_optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        self._critic_optimizer.step()
        return float(loss.detach()), float(values[0].detach().mean())

    def _update_actor(self, batch: Transitions, behaviour_cloning: float) -> float:
        action = self.actor(batch.observation)
        value = self.critics[0](batch.observation, action)
        loss = -value.mean()
        if behaviour_cloning > 0:
            size = value.detach().abs().mean().clamp(min=1e-6)
            loss = loss / size + behaviour_cloning * nn.functional.mse_loss(action, batch.action)
        self._actor_optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        self._actor_optimizer.step()
        return float(loss.detach())

    def set_learning_rate(self, rate: float) -> None:
        """For the updates to come."""
        for optimizer in (self._actor_optimizer, self._critic_optimizer):
            for group in optimizer.param_groups:
                group["lr"] = rate

    def state(self) -> dict[str, Any]:
        """All that training goes on from, for a checkpoint."""
        return {
            "actor": self.actor.state_dict(),
            "critics": self.critics.state_dict(),
            "target_actor": self.target_actor.state_dict(),
            "target_critics": self.target_critics.state_dict(),
            "actor_optimizer": self._actor_optimizer.state_dict(),
            "critic_optimizer": self._critic_optimizer.state_dict(),
            "updates": self.updates,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a checkpoint."""
        self.actor.load_state_dict(state["actor"])
        self.critics.load_state_dict(state["critics"])
        self.target_actor.load_state_dict(state["target_actor"])
        self.target_critics.load_state_dict(state["target_critics"])
        self._actor_optimizer.load_state_dict(state["actor_optimizer"])
        self._critic_optimizer.load_state_dict(state["critic_optimizer"])
        self.updates = state["updates"]
