from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.training.algorithms.gymnasium_runs import PendulumBounds, learn_pendulum, pendulum_returns
from tests.training.algorithms.references import (
    actor_action,
    changed,
    critic_value,
    example_transitions,
    parameters_of,
    through_a_file,
    with_constant_action,
)
from training.algorithms.ddpg import DDPG, DDPGSettings
from training.networks.scaling import Actor, Critic

INPUTS, ACTIONS = 5, 2


def new_ddpg(**settings: float) -> DDPG:
    torch.manual_seed(0)
    return DDPG(Actor(INPUTS, ACTIONS, (16, 16)), Critic(INPUTS, ACTIONS, (16, 16)), DDPGSettings(**settings))


def test_an_update_regresses_the_critic_on_the_target_networks() -> None:
    ddpg = new_ddpg(discount=0.9)
    batch = example_transitions(INPUTS, ACTIONS)
    observation, action, reward, following, terminated = (
        column.numpy().astype(np.float64) for column in batch
    )
    next_value = critic_value(ddpg.target_critic, following, actor_action(ddpg.target_actor, following))
    target = reward + 0.9 * (1 - terminated) * next_value
    value = critic_value(ddpg.critic, observation, action)
    losses = ddpg.update(batch)
    assert losses.critic == pytest.approx(((value - target) ** 2).mean(), rel=1e-4)
    # The actor is judged by the critic that has just been updated.
    assert np.isfinite(losses.actor)


def test_everything_moves_in_every_update() -> None:
    ddpg = new_ddpg()
    batch = example_transitions(INPUTS, ACTIONS)
    modules = [ddpg.actor, ddpg.critic, ddpg.target_actor, ddpg.target_critic]
    for _ in range(3):
        before = [parameters_of(module) for module in modules]
        ddpg.update(batch)
        assert all(changed(old, module) for old, module in zip(before, modules, strict=True))


def test_behaviour_cloning_pulls_towards_the_logged_actions() -> None:
    batch = with_constant_action(example_transitions(INPUTS, ACTIONS), 0.5)
    distances = []
    for weight in (0.0, 100.0):
        ddpg = new_ddpg(learning_rate=3e-3)
        for _ in range(100):
            ddpg.update(batch, behaviour_cloning=weight)
        distances.append(float(((ddpg.act(batch.observation) - batch.action) ** 2).mean()))
    assert distances[1] < 0.5 * distances[0]


def test_a_restored_learner_goes_on_as_if_never_stopped() -> None:
    batch = example_transitions(INPUTS, ACTIONS)
    first = new_ddpg()
    for _ in range(5):
        first.update(batch)
    second = new_ddpg()
    second.restore(through_a_file(first.state()))
    for learner in (first, second):
        for _ in range(5):
            learner.update(batch)
    for a, b in zip(parameters_of(first.actor), parameters_of(second.actor), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_learns_pendulum() -> None:
    """Less reliable than TD3, so the bar is lower; a random policy gets -1 200."""
    torch.manual_seed(1)
    actor, critic = (kind(3, 1, (128, 128), PendulumBounds()) for kind in (Actor, Critic))
    ddpg = DDPG(actor, critic, DDPGSettings(learning_rate=1e-3))
    learn_pendulum(ddpg, steps=8_000, seed=1)
    assert np.mean(pendulum_returns(ddpg.act, episodes=20, seed=1_000)) > -300
