"""The Gymnasium and PettingZoo interfaces: the libraries' own checkers, and what rounds and actions mean."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from pettingzoo.test import parallel_api_test, parallel_seed_test

from policy_server.features.schema import SCHEMA
from policy_server.policies.heuristics import EarliestCompletion
from training.environments.dispatch import DispatchEnvironment
from training.environments.episode import FEATURE_LIMIT, FEATURE_NAMES, DispatchEpisode, EpisodeConfig
from training.environments.gymnasium_dispatch import DispatchGymEnvironment
from training.environments.pettingzoo_dispatch import DispatchParallelEnvironment
from training.scenarios import Scenario, training_simulator
from training.simulator.state import RequestStatus
from training.workloads.patterns import Pattern
from training.workloads.seeds import TRAINING_SEEDS

CONFIG = EpisodeConfig(slots=4, load=0.2)
COMPLETION = SCHEMA.request.index("completion_seconds")


def test_gymnasium_checker() -> None:
    check_env(DispatchGymEnvironment(CONFIG), skip_render_check=True)


def test_pettingzoo_checkers(capsys: pytest.CaptureFixture[str]) -> None:
    parallel_api_test(DispatchParallelEnvironment(CONFIG), num_cycles=200)
    parallel_seed_test(lambda: DispatchParallelEnvironment(CONFIG), num_cycles=30)
    assert "Passed" in capsys.readouterr().out


def play(environment: DispatchGymEnvironment, seed: int, action: int) -> tuple[float, list[int]]:
    """Sum of rewards and final statuses of an episode that always takes the same row."""
    environment.reset(seed=seed)
    total, finished = 0.0, False
    while not finished:
        _, reward, terminated, finished, _ = environment.step(np.int64(action))
        assert not terminated
        total += float(reward)
    return total, _episode(environment).simulator.outcomes(0).status.tolist()


def test_good_actions_are_rewarded() -> None:
    environment = DispatchGymEnvironment(EpisodeConfig(slots=12, load=0.4, maximum_candidates=64))
    good, statuses = play(environment, 3, 0)
    bad, rejected = play(environment, 3, 63)
    assert statuses.count(RequestStatus.MET) > len(statuses) / 2
    assert set(rejected) == {RequestStatus.REJECTED}
    assert good > bad


def test_the_same_seed_plays_the_same_episode() -> None:
    environment = DispatchGymEnvironment(CONFIG)
    assert play(environment, 5, 1) == play(environment, 5, 1)
    assert play(environment, 5, 1) != play(environment, 6, 1)


def test_the_first_row_is_the_candidate_that_answers_first() -> None:
    environment = DispatchGymEnvironment(CONFIG)
    observation, _ = environment.reset(seed=1)
    finished = False
    while not finished:
        candidates = observation["action_mask"] == 1
        completion = observation["observation"][candidates, COMPLETION]
        assert len(completion) > 1
        assert (np.diff(completion) >= 0).all()
        assert not observation["observation"][~candidates].any()
        observation, _, _, finished, _ = environment.step(np.int64(0))
    assert not observation["action_mask"].any()
    assert not observation["observation"].any()


def test_further_candidates_are_cut_off_behind_the_best() -> None:
    wide, _ = DispatchGymEnvironment(CONFIG).reset(seed=1)
    narrow_config = EpisodeConfig(slots=4, load=0.2, maximum_candidates=3)
    narrow, _ = DispatchGymEnvironment(narrow_config).reset(seed=1)
    assert narrow["action_mask"].tolist() == [1, 1, 1]
    np.testing.assert_array_equal(narrow["observation"], wide["observation"][:3])


def test_rewards_come_with_the_end_of_a_slot() -> None:
    environment = DispatchGymEnvironment(CONFIG)
    environment.reset(seed=2)
    simulator = _episode(environment).simulator
    finished = False
    while not finished:
        slot = simulator.slot
        _, reward, _, finished, _ = environment.step(np.int64(0))
        ended = simulator.slot - slot
        assert (reward > 0) == (ended > 0)
        assert reward <= ended
    assert simulator.slot == CONFIG.slots


def test_agents_act_when_they_have_a_request() -> None:
    environment = DispatchParallelEnvironment(CONFIG)
    observations, _ = environment.reset(seed=4)
    episode = environment._episode
    assert episode is not None
    decided = 0
    while environment.agents:
        acting = {f"ap-{row}" for row in episode.access_points}
        assert acting
        decided += len(acting)
        for agent, observation in observations.items():
            assert observation["action_mask"].any() == (agent in acting)
        observations, rewards, _, truncations, _ = environment.step(dict.fromkeys(environment.agents, 0))
        assert len(set(rewards.values())) == 1
        assert all(truncations.values()) == (not environment.agents)
    assert decided == episode.simulator.results()[0].arrived


@pytest.mark.parametrize("central", [True, False])
def test_plays_like_the_environment_of_training(central: bool) -> None:
    """Taking the first row is the rule of earliest completion with that much knowledge of other picks."""
    random = np.random.default_rng(7)
    episode = DispatchEpisode(CONFIG, random, central=central)
    while not episode.finished:
        episode.act(np.zeros(len(episode.access_points), np.int64))

    seed = int(np.random.default_rng(7).integers(len(TRAINING_SEEDS)))
    scenario = Scenario(preset=CONFIG.preset, seed=seed, load=CONFIG.load, pattern=Pattern.P1)
    simulator = training_simulator([scenario], CONFIG.slots)
    environment = DispatchEnvironment(simulator, random=np.random.default_rng(0))
    while simulator.slot < CONFIG.slots:
        environment.step(EarliestCompletion(shares_picks=central))
    played, expected = episode.simulator.outcomes(0), simulator.outcomes(0)
    np.testing.assert_array_equal(played.status, expected.status)
    np.testing.assert_array_equal(played.completion_seconds, expected.completion_seconds)


def test_features_are_named_and_bounded() -> None:
    environment = DispatchGymEnvironment(EpisodeConfig(slots=2, load=0.2))
    observation, _ = environment.reset(seed=0)
    assert observation["observation"].shape == (32, len(FEATURE_NAMES))
    assert len(set(FEATURE_NAMES)) == len(FEATURE_NAMES)
    assert np.abs(observation["observation"]).max() <= FEATURE_LIMIT


def _before_reset(environment: DispatchGymEnvironment) -> None:
    environment.step(np.int64(0))


def _after_the_end(environment: DispatchGymEnvironment) -> None:
    play(environment, 0, 0)
    environment.step(np.int64(0))


@pytest.mark.parametrize("stray_step", [_before_reset, _after_the_end])
def test_a_step_outside_an_episode_says_so(stray_step: Callable[[DispatchGymEnvironment], None]) -> None:
    with pytest.raises(RuntimeError, match="call reset first"):
        stray_step(DispatchGymEnvironment(CONFIG))


def test_a_parallel_step_without_reset_says_so() -> None:
    with pytest.raises(RuntimeError, match="call reset first"):
        DispatchParallelEnvironment(CONFIG).step({})


@pytest.mark.parametrize("name", ["slots", "maximum_candidates"])
def test_configuration_is_checked(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: 0; must be one or more"):
        EpisodeConfig(**{name: 0})  # type: ignore[arg-type]


def test_unknown_preset() -> None:
    with pytest.raises(ValueError, match=r"preset: 'testbed-1' is unknown; choose one of testbed-40"):
        EpisodeConfig(preset="testbed-1")


def _episode(environment: DispatchGymEnvironment) -> DispatchEpisode:
    assert environment._episode is not None
    return environment._episode
