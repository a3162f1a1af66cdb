from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.training.algorithms.gymnasium_runs import cart_pole_lengths, learn_cart_pole
from tests.training.algorithms.references import (
    centred,
    changed,
    example_transitions,
    forward,
    parameters_of,
    through_a_file,
)
from training.algorithms.dqn import DQN, DQNSettings
from training.networks.scaling import LevelCritic

INPUTS, LEVELS = 5, 5


def new_dqn(**settings: float) -> DQN:
    torch.manual_seed(0)
    return DQN(LevelCritic(INPUTS, LEVELS, (16, 16)), DQNSettings(**settings))  # type: ignore[arg-type]


def test_an_update_regresses_the_taken_actions_on_the_best_next_value() -> None:
    dqn = new_dqn(discount=0.9)
    batch = example_transitions(INPUTS, None)
    observation, _, reward, following, terminated = (column.numpy().astype(np.float64) for column in batch)
    best = forward(dqn.target_critic, centred(following)).max(axis=1)
    target = reward + 0.9 * (1 - terminated) * best
    value = forward(dqn.critic, centred(observation))[np.arange(len(reward)), batch.action.numpy()]
    losses = dqn.update(batch)
    assert losses.critic == pytest.approx(((value - target) ** 2).mean(), rel=1e-4)
    assert losses.mean_value == pytest.approx(value.mean(), rel=1e-4)


def test_the_best_action_is_taken() -> None:
    dqn = new_dqn()
    batch = example_transitions(INPUTS, None)
    expected = forward(dqn.critic, centred(batch.observation.numpy().astype(np.float64))).argmax(axis=1)
    np.testing.assert_array_equal(dqn.act(batch.observation).numpy(), expected)


def test_the_target_is_copied_once_in_so_many_updates() -> None:
    dqn = new_dqn(target_interval=3)
    batch = example_transitions(INPUTS, None)
    for update in range(1, 8):
        before = parameters_of(dqn.target_critic)
        dqn.update(batch)
        assert changed(before, dqn.target_critic) == (update % 3 == 0)
        if update % 3 == 0:
            assert not changed(parameters_of(dqn.critic), dqn.target_critic)


def test_a_restored_learner_goes_on_as_if_never_stopped() -> None:
    batch = example_transitions(INPUTS, None)
    first = new_dqn(target_interval=4)
    for _ in range(5):
        first.update(batch)
    second = new_dqn(target_interval=4)
    second.restore(through_a_file(first.state()))
    for learner in (first, second):
        for _ in range(5):
            learner.update(batch)
    for a, b in zip(parameters_of(first.critic), parameters_of(second.critic), strict=True):
        np.testing.assert_array_equal(a, b)


class CartPoleBounds(nn.Module):
    def forward(self, observation: Tensor) -> Tensor:
        return observation / torch.tensor([2.4, 3.0, 0.21, 3.0])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_solves_cart_pole() -> None:
    """Episodes end at 500; Gymnasium calls an average of 475 solved."""
    torch.manual_seed(1)
    critic = LevelCritic(4, 2, (128, 128), CartPoleBounds())
    dqn = DQN(critic, DQNSettings(learning_rate=5e-4, target_interval=200))
    learn_cart_pole(dqn, steps=25_000, seed=1)
    assert np.mean(cart_pole_lengths(dqn.act, episodes=20, seed=1_000)) > 400
