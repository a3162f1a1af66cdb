"""Orchestration as a Gymnasium environment."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from policy_server.cluster.actions import AddReplica, DeleteReplica
from policy_server.policies.orchestration.plan import OrchestrationOptions
from training.environments.compiled_dispatch import CompiledDispatch
from training.environments.gymnasium_orchestration import (
    END_OF_FRAME,
    OrchestrationEpisodeConfig,
    OrchestrationGymEnvironment,
)
from training.environments.orchestration import OrchestrationEnvironment
from training.orchestration_scenarios import OrchestrationSetting, orchestration_simulator
from training.scenarios import Scenario
from training.workloads.seeds import TRAINING_SEEDS

CONFIG = OrchestrationEpisodeConfig(load=0.3, steps=3, setting=OrchestrationSetting(frames=2, settle_slots=8))


def test_gymnasium_checker() -> None:
    check_env(OrchestrationGymEnvironment(CONFIG), skip_render_check=True)


def play(seed: int) -> tuple[OrchestrationGymEnvironment, list[list[object]], list[float], list[float]]:
    """An episode of random feasible actions: what was done in each frame, rewards, throughput rates."""
    environment = OrchestrationGymEnvironment(CONFIG)
    observation, _ = environment.reset(seed=seed)
    random = np.random.default_rng(seed)
    done: list[list[object]] = [[]]
    rewards, rates, truncated = [], [], False
    while not truncated:
        feasible = np.flatnonzero(observation["action_mask"])
        action = random.choice(feasible[1:])
        before = environment.planned_actions
        steps_left = float(observation["steps_left"][0])
        observation, reward, terminated, truncated, info = environment.step(np.int64(action))
        assert not terminated
        node, change = divmod(int(action) - 1, 60)
        if steps_left > 0.5:
            (new,) = environment.planned_actions[len(before) :]
            if change >= 30:
                assert new == AddReplica(change - 30, node)
            else:
                assert isinstance(new, DeleteReplica)
            done[-1] = environment.planned_actions
            assert reward == 0
        else:
            # The third action of a frame lets it begin, so what was planned with it is gone from view.
            rewards.append(reward)
            rates.append(info["throughput_rate"])
            done.append([])
    return environment, done, rewards, rates


def test_rewards_come_with_frames_and_the_same_seed_plays_the_same_episode() -> None:
    _, done, rewards, rates = play(3)
    _, again, rewards_again, rates_again = play(3)
    assert (done, rewards, rates) == (again, rewards_again, rates_again)
    assert len(rewards) == 2
    assert all(-1.5 < reward < 0 for reward in rewards)
    assert all(0 < rate < 1 for rate in rates)
    assert play(4)[2] != rewards


def test_equal_actions_give_the_rewards_of_the_vector_environment() -> None:
    environment = OrchestrationGymEnvironment(CONFIG)
    observation, _ = environment.reset(seed=5)
    seed = int(np.random.Generator(np.random.PCG64(np.random.SeedSequence(5))).integers(len(TRAINING_SEEDS)))
    simulator = orchestration_simulator(
        [Scenario(preset="testbed-40", seed=seed, load=0.3, pattern=CONFIG.pattern)],
        CONFIG.setting,
        spare_frames=1,
    )
    vector = OrchestrationEnvironment(
        simulator,
        CompiledDispatch(simulator),
        cost_weight=CONFIG.cost_weight,
        options=OrchestrationOptions(maximum_actions=3),
    )
    vector.step([], slots=8)
    for _ in range(2):
        for _ in range(2):
            action = np.flatnonzero(observation["action_mask"])[-1]
            observation, *_ = environment.step(np.int64(action))
        actions = environment.planned_actions
        assert len(actions) == 2
        observation, reward, *_ = environment.step(np.int64(END_OF_FRAME))
        assert reward == pytest.approx(float(vector.step(actions).reward[0]))


def test_what_was_done_is_seen_in_the_next_frame_and_not_possible_again_in_this_one() -> None:
    environment = OrchestrationGymEnvironment(CONFIG)
    observation, _ = environment.reset(seed=0)
    feasible = np.flatnonzero(observation["action_mask"][1:]) + 1
    action = int(feasible[(feasible - 1) % 60 >= 30][-1])
    node, service = (action - 1) // 60, (action - 1) % 60 - 30
    before = observation["replicas"][node, service]
    observation, *_ = environment.step(np.int64(action))
    assert observation["action_mask"][action] == 0
    assert observation["steps_left"][0] == pytest.approx(2 / 3)
    observation, *_ = environment.step(np.int64(END_OF_FRAME))
    assert observation["replicas"][node, service] == before + 1
    assert observation["steps_left"][0] == 1


def test_an_infeasible_action_changes_nothing_but_is_counted() -> None:
    environment = OrchestrationGymEnvironment(CONFIG)
    observation, _ = environment.reset(seed=0)
    infeasible = int(np.flatnonzero(observation["action_mask"] == 0)[0])
    for _ in range(2):
        observation, reward, *_ = environment.step(np.int64(infeasible))
        assert reward == 0
    assert environment.planned_actions == []
    _, reward, *_, info = environment.step(np.int64(infeasible))
    assert reward < 0
    assert info["frame"] == 1


def test_without_an_episode_step_says_so() -> None:
    environment = OrchestrationGymEnvironment(CONFIG)
    with pytest.raises(RuntimeError, match="call reset first"):
        environment.step(np.int64(0))


@pytest.mark.parametrize("field", ["steps", "cost_weight"])
def test_wrong_values_are_named(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}: -1"):
        replace(CONFIG, **{field: -1})  # type: ignore[arg-type]


def test_the_documented_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[3] / "docs" / "simulator.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (example,) = (each for each in examples if "OrchestrationGymEnvironment" in each)
    exec(compile(example.replace("frames=12", "frames=1"), "docs/simulator.md", "exec"), {})
    assert "throughput rate" in capsys.readouterr().out
