from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from policy_server.cluster.snapshot import Float32Array
from policy_server.features.scaling import ECONOMY_COLUMN, SCALING_SCHEMA
from tests.training.scaling.small import small_application
from training.checkpoints import RunError
from training.scaling.behaviour import HOLD_PROBABILITY, HeldNoise, LoggedOperator, random_rule
from training.scaling.cli import (
    evaluate_scale_command,
    export_scale_command,
    scale_command,
    training_command,
    tune_scale_command,
)
from training.scaling.config import Algorithm, ScalingTrainingConfig
from training.scaling.contenders import CONTENDER_NAMES, contender
from training.scaling.episodes import EpisodeSource
from training.scaling.loop import ScalingLoop
from training.scaling.objective import COST_PARTS, prices
from training.scaling.replay import LARGEST_COST, REWARD_SCALE, ScalingReplay
from training.scaling.training import load_config, load_policy, train

TINY = ScalingTrainingConfig(
    instances=3, episode_seconds=100, log_episodes=1, log_updates=10, episodes=2, updates_per_interval=1,
    batch_size=32, validate_every=1,
)  # fmt: skip
FEATURES = len(SCALING_SCHEMA.container)


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    torch.set_num_threads(1)


def quiet(stage: str, done: int, total: int, figures: dict[str, float]) -> None:
    assert 0 < done <= total


def filled_replay(count: int = 500, capacity: int = 1000) -> ScalingReplay:
    random = np.random.default_rng(0)
    replay = ScalingReplay(capacity)
    replay.add(
        random.random((count, FEATURES), np.float32),
        random.uniform(-1, 1, (count, 2)).astype(np.float32),
        random.random((count, len(COST_PARTS))) * [0.1, 0.01, 1.0, 1.0, 1.0, 1.0],
        random.random((count, FEATURES), np.float32),
    )
    return replay


def test_rewards_are_priced_for_the_economy_that_is_shown() -> None:
    replay = filled_replay()
    batch = replay.sample(300, np.random.default_rng(1))
    economy = batch.observation[:, ECONOMY_COLUMN].numpy()
    assert np.ptp(economy) > 0.9
    np.testing.assert_array_equal(batch.next_observation[:, ECONOMY_COLUMN].numpy(), economy)
    stored = {tuple(action): costs for action, costs in zip(replay._action, replay._costs, strict=True)}
    costs = np.array([stored[tuple(action)] for action in batch.action.numpy()])
    expected = -REWARD_SCALE * np.minimum((costs * prices(economy)).sum(axis=1), LARGEST_COST)
    np.testing.assert_allclose(batch.reward.numpy(), expected, rtol=1e-4)
    assert not batch.terminated.any()


def test_the_replay_forgets_the_oldest() -> None:
    replay = filled_replay(count=900)
    assert len(replay) == 900
    new = np.full((300, FEATURES), 2.0, np.float32)
    replay.add(new, np.zeros((300, 2), np.float32), np.zeros((300, len(COST_PARTS))), new)
    assert len(replay) == 1000
    assert (replay._observation[:, 0] == 2.0).sum() == 300


def test_disturbances_stay_for_a_while() -> None:
    noise = HeldNoise(np.random.default_rng(0), np.full(400, 0.3))
    series = np.array([noise.next() for _ in range(200)])
    held = (np.diff(series, axis=0) == 0).all(axis=2).mean()
    assert held == pytest.approx(HOLD_PROBABILITY, abs=0.01)
    assert series.std() == pytest.approx(0.3, rel=0.05)


def test_the_log_shows_different_operators() -> None:
    random = np.random.default_rng(3)
    assert {random_rule(random).name for _ in range(50)} == {"threshold", "percentile", "autothrottle"}
    episode = EpisodeSource(small_application()).training(0, 8, 60, seed=1)
    loop = ScalingLoop(small_application(), episode.seeds, episode.rates)
    actions = LoggedOperator(random, 8, 2).act(loop.fleet, loop.history)
    assert actions.shape == (16, 2)
    assert np.abs(actions).max() <= 1.0
    assert len(np.unique(actions[:, 0].round(2))) > 4


@pytest.mark.parametrize("algorithm", Algorithm)
def test_every_algorithm_trains_end_to_end(algorithm: Algorithm, tmp_path: Path) -> None:
    config = replace(TINY, algorithm=algorithm.value)
    state = train(small_application(), config, tmp_path / "run", resume=False, on_progress=quiet)
    assert state.episode == 2
    assert [row["episode"] for row in state.history] == [0, 1, 2]
    assert all(np.isfinite(row["validation_cost"]) for row in state.history)
    loaded, policy, figures = load_policy(tmp_path / "run")
    assert loaded == config
    assert (
        figures["validation_cost"] == state.best_cost == min(row["validation_cost"] for row in state.history)
    )
    features: Float32Array = np.random.default_rng(0).random((5, FEATURES), np.float32)
    assert policy(torch.from_numpy(features)).shape == (5, 2)


def test_the_same_seed_trains_the_same_policy(tmp_path: Path) -> None:
    costs = [
        train(small_application(), config, tmp_path / name, resume=False, on_progress=quiet).best_cost
        for name, config in (("a", TINY), ("b", TINY), ("c", replace(TINY, seed=2)))
    ]
    assert costs[0] == costs[1] != costs[2]


def test_a_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    train(small_application(), replace(TINY, episodes=1), tmp_path / "run", resume=False, on_progress=quiet)
    state = train(small_application(), TINY, tmp_path / "run", resume=True, on_progress=quiet)
    assert state.episode == 2
    assert [row["episode"] for row in state.history] == [0, 1, 2]


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path: Path) -> None:
    train(small_application(), replace(TINY, episodes=0), tmp_path / "run", resume=False, on_progress=quiet)
    with pytest.raises(RunError, match="holds a run already"):
        train(small_application(), TINY, tmp_path / "run", resume=False, on_progress=quiet)


def test_runs_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"holds no config\.json"):
        load_config(tmp_path)
    with pytest.raises(RunError, match=r"holds no checkpoint\.pt"):
        train(small_application(), TINY, tmp_path, resume=True, on_progress=quiet)
    (tmp_path / "config.json").write_text(json.dumps({"momentum": 3}))
    with pytest.raises(RunError, match="written by another command than `policy-train scale`"):
        load_config(tmp_path)


def test_the_training_command_names_what_differs_from_the_defaults() -> None:
    config = ScalingTrainingConfig(algorithm="ddpg", seed=4, actor_hidden=(32, 16))
    assert training_command(config) == (
        "policy-train scale --run RUN --algorithm ddpg --seed 4 --actor-hidden 32 --actor-hidden 16"
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_train_export_and_evaluate_from_the_command_line(tmp_path: Path) -> None:
    runner = CliRunner()
    models = tmp_path / "models"
    for algorithm in Algorithm:
        run = str(tmp_path / algorithm.value)
        arguments = [
            "--run",
            run,
            "--algorithm",
            algorithm.value,
            "--instances",
            "3",
            "--episode-seconds",
            "100",
        ]
        arguments += ["--log-episodes", "1", "--log-updates", "20", "--episodes", "1", "--json"]
        trained = runner.invoke(scale_command, arguments)
        assert trained.exit_code == 0, trained.output
        summary = json.loads(trained.stdout)
        assert summary["episodes"] == 1
        assert Path(summary["plot"]).is_file()
        exported = runner.invoke(
            export_scale_command, ["--run", run, "--models", str(models), "--version", "1.0.0", "--json"]
        )
        assert exported.exit_code == 0, exported.output
        assert contender(algorithm.value, models).policy.name == algorithm.value

    arguments = ["--seeds", "2", "--models", str(models), "--processes", "1", "--equal-allocation", "--json"]
    evaluated = runner.invoke(evaluate_scale_command, arguments)
    assert evaluated.exit_code == 0, evaluated.output
    document = json.loads(evaluated.stdout)
    assert tuple(document["policies"]) == CONTENDER_NAMES
    for figures in document["policies"].values():
        assert set(figures) == {
            "latency_seconds",
            "slo_violation_rate",
            "cpu_cores",
            "memory_mib",
            "changes",
            "ci95",
        }
        assert figures["latency_seconds"]["mean"] < figures["latency_seconds"]["p99"]
        low, high = figures["ci95"]["latency_seconds"]["mean"]
        assert low <= figures["latency_seconds"]["mean"] <= high


@pytest.mark.parametrize(
    ("command", "arguments", "complaint"),
    [
        (scale_command, ["--resume"], "holds no config.json"),
        (scale_command, ["--application", "missing.json"], "cannot be read"),
        (export_scale_command, ["--version", "1.0.0"], "holds no config.json"),
    ],
)
def test_commands_that_cannot_work_say_why(command, arguments, complaint, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    result = CliRunner().invoke(command, ["--run", str(tmp_path), *arguments])
    assert result.exit_code == 1
    assert complaint in result.output


@pytest.mark.parametrize(
    ("command", "option"), [(evaluate_scale_command, "--policies"), (tune_scale_command, "--rules")]
)
def test_unknown_names_are_usage_errors(command, option: str) -> None:  # type: ignore[no-untyped-def]
    result = CliRunner().invoke(command, [option, "fastest"])
    assert result.exit_code == 2
    assert "fastest; choose from" in result.output


def test_a_learned_policy_without_a_bundle_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="policy-train scale --algorithm td3"):
        contender("td3", tmp_path)
