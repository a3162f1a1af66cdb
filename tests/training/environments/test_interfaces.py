"""The Gymnasium and PettingZoo interfaces pass those libraries' own checkers."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from pettingzoo.test import parallel_api_test, parallel_seed_test

from training.environments.episode import EpisodeConfig
from training.environments.gymnasium_dispatch import DispatchGymEnvironment
from training.environments.pettingzoo_dispatch import DispatchParallelEnvironment

CONFIG = EpisodeConfig(slots=4, load=0.2)


def test_gymnasium_checker() -> None:
    with warnings.catch_warnings():
        # The checker advises against unbounded boxes; features have no natural bounds.
        warnings.filterwarnings("ignore", message=".*Box observation space m.*value is.*infinity.*")
        check_env(DispatchGymEnvironment(CONFIG), skip_render_check=True)


def test_pettingzoo_checker(capsys: pytest.CaptureFixture[str]) -> None:
    parallel_api_test(DispatchParallelEnvironment(CONFIG), num_cycles=200)
    parallel_seed_test(lambda: DispatchParallelEnvironment(CONFIG), num_cycles=30)
    assert "Passed" in capsys.readouterr().out


def play(environment: DispatchGymEnvironment, seed: int, *, best: bool) -> tuple[float, float]:
    """Sum of rewards and throughput rate of an episode that takes the earliest completion, or rejects everything."""
    observation, _ = environment.reset(seed=seed)
    total, finished = 0.0, False
    while not finished:
        completion = np.where(observation["action_mask"] == 1, observation["features"][:, 3], np.inf)
        action = int(completion.argmin()) if best else environment.config.maximum_candidates - 1
        observation, reward, finished, _, _ = environment.step(np.int64(action))
        total += float(reward)
    assert environment._episode is not None
    return total, environment._episode.simulator.results()[0].throughput_rate


def test_good_actions_are_rewarded() -> None:
    environment = DispatchGymEnvironment(EpisodeConfig(slots=12, load=0.4, maximum_candidates=64))
    good, good_rate = play(environment, 3, best=True)
    bad, bad_rate = play(environment, 3, best=False)
    assert good_rate > 0.5
    assert bad_rate == 0.0
    assert good > bad


def test_the_same_seed_plays_the_same_episode() -> None:
    environment = DispatchGymEnvironment(CONFIG)
    assert play(environment, 5, best=True) == play(environment, 5, best=True)


def test_step_without_reset_says_so() -> None:
    with pytest.raises(RuntimeError, match="call reset first"):
        DispatchGymEnvironment(CONFIG).step(np.int64(0))
    with pytest.raises(RuntimeError, match="call reset first"):
        DispatchParallelEnvironment(CONFIG).step({})


@pytest.mark.parametrize("name", ["slots", "maximum_candidates"])
def test_configuration_is_checked(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: 0; must be one or more"):
        EpisodeConfig(**{name: 0})
