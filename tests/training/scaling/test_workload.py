from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from policy_server.policies.scaling.safety import DEFAULT_SETTINGS
from training.scaling.episodes import EpisodeSource
from training.scaling.evaluation import ScalingEvaluation, held_out_episode
from training.scaling.simulation import ScalingSimulation
from training.scaling.sock_shop import sock_shop
from training.scaling.trials import TRIAL_WORK_VARIATION
from training.scaling.workload import LEVELS, Load, generated_bursts, load_curves, offered_rates
from training.workloads.seeds import HELD_OUT_SEEDS, TRAINING_SEEDS
from training.workloads.traces.location import FOLDER_VARIABLE, traces_folder
from training.workloads.traces.windows import Split


@pytest.fixture
def without_traces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))


@pytest.fixture
def with_traces() -> None:
    if not (traces_folder() / "rps-bursty.txt").is_file():
        pytest.skip(f"the traces are not there; set {FOLDER_VARIABLE}")


@pytest.mark.usefixtures("with_traces")
def test_recorded_curves() -> None:
    curves = load_curves()
    assert all(curve.recorded for curve in curves.values())
    assert curves["diurnal"].relative_rate[:2160].mean() == pytest.approx(1.0)
    assert curves["bursty"].relative_rate.mean() == pytest.approx(1.0)
    assert curves["bursty"].relative_rate.max() > 2.3
    assert curves["azure"].relative_rate.min() >= 0.75 - 1e-9


@pytest.mark.usefixtures("with_traces")
def test_stand_ins_resemble_the_recordings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recorded = load_curves()
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    stand_ins = load_curves()
    for name, curve in stand_ins.items():
        assert not curve.recorded
        there, here = recorded[name].relative_rate, curve.relative_rate
        assert here.mean() == pytest.approx(there.mean(), rel=0.15)
        assert here.std() == pytest.approx(there.std(), rel=0.5)
        assert here.max() == pytest.approx(there.max(), rel=0.35)


def test_windows_of_training_and_evaluation_never_meet() -> None:
    curve = load_curves()["diurnal"]
    numbered = np.arange(len(curve.relative_rate), dtype=np.float64)
    marked = type(curve)(curve.name, numbered, curve.recorded, curve.entirely)
    training = [marked.window(Split.TRAINING, index, 900) for index in range(50)]
    held_out = [marked.window(Split.HELD_OUT, index, 900) for index in range(50)]
    assert np.max(training) < 0.6 * len(numbered)
    assert np.min(held_out) >= 0.7 * len(numbered)


def test_the_bursty_trace_is_held_out_as_a_whole() -> None:
    curve = load_curves()["bursty"]
    with pytest.raises(ValueError, match="all of bursty is held-out"):
        curve.window(Split.TRAINING, 0, 900)
    starts = np.arange(len(curve.relative_rate), dtype=np.float64)
    marked = type(curve)(curve.name, starts, curve.recorded, curve.entirely)
    windows = [marked.window(Split.HELD_OUT, index, 900) for index in range(100)]
    assert all(len(window) == 900 for window in windows)
    assert np.min(windows) < 60
    assert np.max(windows) > len(starts) - 60


def test_a_window_longer_than_its_part_is_refused() -> None:
    with pytest.raises(ValueError, match="seconds: 2000"):
        load_curves()["diurnal"].window(Split.HELD_OUT, 0, 2000)


@pytest.mark.usefixtures("without_traces")
def test_everything_works_without_the_traces() -> None:
    episode = EpisodeSource(sock_shop()).training(0, 3, 300, seed=1)
    assert episode.rates.shape == (3, 300)
    assert held_out_episode(sock_shop(), ScalingEvaluation(Load.HIGH, 2)).rates.shape == (6, 900)


def test_rates_have_the_level_asked_for_and_the_noise_of_their_seed() -> None:
    curve = np.ones(20_000)
    rates = offered_rates(curve, 120.0, seed=4)
    assert rates.mean() == pytest.approx(120.0, rel=0.01)
    assert rates.std() == pytest.approx(12.0, rel=0.05)
    np.testing.assert_array_equal(rates, offered_rates(curve, 120.0, seed=4))
    assert not np.array_equal(rates, offered_rates(curve, 120.0, seed=5))


def test_generated_bursts() -> None:
    curves = np.array([generated_bursts(seed, 900) for seed in range(300)])
    assert curves.min() > 0.4
    assert curves.max() == 2.5
    assert (curves.max(axis=1) > 1.6).mean() > 0.3
    np.testing.assert_array_equal(curves[7], generated_bursts(7, 900))


def test_training_and_validation_seeds_do_not_meet_and_nothing_is_held_out() -> None:
    source = EpisodeSource(sock_shop())
    training = {seed for number in range(30) for seed in source.training(number, 24, 60, seed=1).seeds}
    validation = set(source.validation(5, 60, 1.0).seeds)
    assert not training & validation
    assert all(seed in TRAINING_SEEDS for seed in training | validation)
    held_out = held_out_episode(sock_shop(), ScalingEvaluation(Load.NORMAL, 5))
    assert all(seed in HELD_OUT_SEEDS for seed in held_out.seeds)
    assert len(set(held_out.seeds)) == 15


def test_high_load_is_more_of_the_same() -> None:
    normal, high = (held_out_episode(sock_shop(), ScalingEvaluation(load, 2)) for load in Load)
    np.testing.assert_allclose(high.rates / normal.rates, LEVELS[Load.HIGH])


@pytest.mark.parametrize("load", Load)
def test_every_load_of_evaluation_and_validation_can_be_served_within_the_bounds(load: Load) -> None:
    """What no limits can serve would say nothing about policies."""
    application = sock_shop()
    for episode in (
        held_out_episode(application, ScalingEvaluation(load, 40)),
        EpisodeSource(application).validation(8, 900, LEVELS[load]),
    ):
        simulation = ScalingSimulation(application, episode.seeds, work_variation=TRIAL_WORK_VARIATION)
        graph = simulation.graph
        interval_rates = episode.rates.reshape(len(episode.seeds), -1, 5).mean(axis=2)
        needed_cores = interval_rates.max(axis=1)[:, None] * simulation.mean_cpu_cores_per_rate
        assert needed_cores.max() < 0.95 * DEFAULT_SETTINGS.largest_cpu_cores
        for cores in needed_cores:
            needed_on_node = np.bincount(graph.service_node, weights=cores)
            assert (needed_on_node < 0.95 * graph.node_cpu_cores).all()
