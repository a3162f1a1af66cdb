from __future__ import annotations

import warnings

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from policy_server.features.scaling import SCALING_SCHEMA
from tests.training.scaling.small import small_application
from training.scaling.environment import ScalingEnvironment


def steady(seed: int) -> np.ndarray:
    return np.full(60, 40.0)


def test_gymnasium_finds_nothing_to_complain_about() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(ScalingEnvironment(small_application(), load=steady), skip_render_check=True)


def test_the_default_is_the_shop() -> None:
    environment = ScalingEnvironment()
    observation, info = environment.reset(seed=1)
    assert observation.shape == (14, len(SCALING_SCHEMA.container))
    assert info == {}
    observation, reward, terminated, truncated, info = environment.step(np.zeros((14, 2), np.float32))
    assert environment.observation_space.contains(observation)
    assert reward == pytest.approx(info["container_rewards"].sum())
    assert reward < 0
    assert 0.01 < info["latency_seconds"] < 0.1
    assert 0 <= info["violation_rate"] < 0.2
    assert not terminated
    assert not truncated


def test_an_episode_ends_with_its_load() -> None:
    environment = ScalingEnvironment(small_application(), load=steady)
    environment.reset(seed=2)
    ends = [environment.step(np.zeros((2, 2), np.float32))[2:4] for _ in range(11)]
    # Of twelve intervals the first is over when the episode begins.
    assert ends == [(False, False)] * 10 + [(False, True)]


def test_the_same_seed_gives_the_same_episode() -> None:
    runs = []
    for seed in (5, 5, 6):
        environment = ScalingEnvironment(small_application())
        environment.reset(seed=seed)
        runs.append([environment.step(np.full((2, 2), 0.3, np.float32))[1] for _ in range(5)])
    assert runs[0] == runs[1] != runs[2]


def test_dear_resources_weigh_more() -> None:
    rewards = []
    for economy in (0.0, 0.5, 1.0):
        environment = ScalingEnvironment(small_application(), load=steady, economy=economy)
        environment.reset(seed=2)
        rewards.append(environment.step(np.ones((2, 2), np.float32))[1])
    assert rewards == sorted(rewards, reverse=True)


def test_a_step_before_the_first_reset_is_refused() -> None:
    with pytest.raises(RuntimeError, match="reset first"):
        ScalingEnvironment(small_application()).step(np.zeros((2, 2), np.float32))
