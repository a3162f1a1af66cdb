"""Who plays episodes: this process, others, a Ray cluster; and what happens to a runner that is lost."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from training.algorithms import runners as module
from training.algorithms.episode_jobs import EpisodeJob, jobs, play_job
from training.algorithms.frames import Episodes
from training.algorithms.gpg import GpgConfig, initial_state
from training.algorithms.runners import (
    InlineRunner,
    ProcessRunners,
    RayRunners,
    RunnerError,
    start_runners,
)

# Four scenarios make two jobs.
CONFIG = GpgConfig(
    scenarios=4, repeats=2, presets=("testbed-40",), load_range=(0.1, 0.2), frames=1, embedding=8, hidden=8
)
WANTED = jobs(CONFIG, "rollout", 0, initial_state(CONFIG).actor.state_dict())
LOSES = "POLICY_TEST_LOSES_RUNNER"


def play_and_die_once(job: EpisodeJob) -> Episodes:
    """Loses its process the first time that part 1 is played."""
    mark = Path(os.environ[LOSES])
    if job.part == 1 and not mark.exists():
        mark.touch()
        os._exit(9)
    return play_job(job)


def always_die(job: EpisodeJob) -> Episodes:
    os._exit(9)


def same(one: list[Episodes], other: list[Episodes]) -> bool:
    return all(
        np.array_equal(a.service_reward, b.service_reward)
        and np.array_equal(a.steps[0].choice, b.steps[0].choice)
        for a, b in zip(one, other, strict=True)
    )


def test_options_choose_the_runners() -> None:
    assert isinstance(start_runners(1, None), InlineRunner)
    assert isinstance(start_runners(2, None), ProcessRunners)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_processes_play_what_one_plays_and_a_lost_one_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOSES, str(tmp_path / "lost"))
    with InlineRunner() as inline:
        expected = inline.play(WANTED)
    monkeypatch.setattr(module, "play_job", play_and_die_once)
    with ProcessRunners(2) as processes:
        assert same(processes.play(WANTED), expected)
        assert (tmp_path / "lost").exists()
        # The new runners go on.
        assert same(processes.play(WANTED), expected)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_job_that_loses_every_runner_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "play_job", always_die)
    with ProcessRunners(1) as processes, pytest.raises(RunnerError, match="2 of 2 jobs lost their runner 4"):
        processes.play(WANTED)


def test_ray_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(RunnerError, match=r"pip install 'policy-server\[ray\]'"):
        RayRunners("local", 2)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_ray_workers_play_what_one_process_plays_and_a_lost_one_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    monkeypatch.setenv(LOSES, str(tmp_path / "lost"))
    expected = InlineRunner().play(WANTED)
    monkeypatch.setattr(module, "_play_alone", play_and_die_once)
    with RayRunners("local", 2) as cluster:
        assert same(cluster.play(WANTED), expected)
    assert (tmp_path / "lost").exists()
