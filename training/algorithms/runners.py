"""Who plays the episodes: this process, processes beside it, or a Ray cluster. The episodes are the same.

A runner that is lost (killed, out of memory, its machine gone) is replaced and its jobs are played again.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from types import TracebackType
from typing import Any, Protocol, Self

import torch

from training.algorithms.episode_jobs import EpisodeJob, jobs, play_job
from training.algorithms.frames import Episodes
from training.algorithms.gpg import GpgConfig
from training.networks.dispatch import DispatchActor
from training.networks.orchestration import OrchestrationActor

ATTEMPTS = 4
"""A job that loses this many runners is at fault itself."""


class RunnerError(RuntimeError):
    """Runners cannot be started, or are lost again and again."""


class Runners(Protocol):
    """Plays jobs; a context manager."""

    def play(self, wanted: Sequence[EpisodeJob]) -> list[Episodes]:
        """The episodes of each job, in the order of the jobs.

        Raises:
            RunnerError: a job lost its runner ``ATTEMPTS`` times.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class InlineRunner:
    """Plays in this process, one job after another."""

    def play(self, wanted: Sequence[EpisodeJob]) -> list[Episodes]:
        """The episodes of each job."""
        return [play_job(job) for job in wanted]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return


class ProcessRunners:
    """Plays in local processes.

    Args:
        runners: how many.
    """

    def __init__(self, runners: int) -> None:
        self._runners = runners
        self._pool: ProcessPoolExecutor | None = None

    def play(self, wanted: Sequence[EpisodeJob]) -> list[Episodes]:
        """The episodes of each job; jobs of a lost runner are played again by a new one."""
        played: dict[int, Episodes] = {}
        for _ in range(ATTEMPTS):
            pool = self._started_pool()
            try:
                pending: dict[int, Future[Episodes]] = {
                    position: pool.submit(play_job, job)
                    for position, job in enumerate(wanted)
                    if position not in played
                }
            except BrokenProcessPool:
                self._drop_pool()
                continue
            for position, future in pending.items():
                try:
                    played[position] = future.result()
                except BrokenProcessPool:
                    self._drop_pool()
            if len(played) == len(wanted):
                return [played[position] for position in range(len(wanted))]
        raise RunnerError(
            f"runners: {len(wanted) - len(played)} of {len(wanted)} jobs lost their runner {ATTEMPTS} times; "
            "look for what ends these processes (memory?), or train with fewer --runners"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _started_pool(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self._runners, mp_context=get_context("spawn"), initializer=_use_one_thread
            )
        return self._pool

    def _drop_pool(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


class RayRunners:
    """Plays on a Ray cluster, where one machine is too small; needs the extra ``ray``.

    Ray starts a task again whose worker or machine is lost.

    Args:
        address: of the cluster, as ``ray.init`` takes it; ``local`` starts one on this machine.
        runners: most tasks at a time.

    Raises:
        RunnerError: Ray is not installed, or the cluster cannot be reached.
    """

    def __init__(self, address: str, runners: int) -> None:
        try:
            import ray
        except ImportError:
            raise RunnerError(
                "ray-address: the package 'ray' is not installed; pip install 'policy-server[ray]', or train with "
                "--runners alone"
            ) from None
        self._ray: Any = ray
        local = address == "local"
        try:
            ray.init(
                address=address,
                num_cpus=runners if local else None,
                include_dashboard=False if local else None,
                log_to_driver=False,
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise RunnerError(f"ray-address: {address!r} cannot be used: {error}") from None
        self._play = ray.remote(max_retries=ATTEMPTS - 1, num_cpus=1)(_play_alone)

    def play(self, wanted: Sequence[EpisodeJob]) -> list[Episodes]:
        """The episodes of each job."""
        try:
            episodes: list[Episodes] = self._ray.get([self._play.remote(job) for job in wanted])
        except self._ray.exceptions.WorkerCrashedError as error:
            raise RunnerError(f"runners: a job lost its runner {ATTEMPTS} times: {error}") from None
        return episodes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ray.shutdown()


class JobSource:
    """Batches of episodes from runners.

    Args:
        config: hyperparameters.
        runners: play them.
        dispatch: see :class:`~training.algorithms.episode_jobs.EpisodeJob`.
    """

    def __init__(self, config: GpgConfig, runners: Runners, *, dispatch: DispatchActor | None = None) -> None:
        self._config = config
        self._runners = runners
        self._dispatch = dispatch

    def imitation(self, batch: int) -> list[Episodes]:
        """Episodes of the rule to imitate."""
        return self._runners.play(jobs(self._config, "imitation", batch, {}, self._dispatch))

    def rollouts(self, actor: OrchestrationActor, batch: int) -> list[Episodes]:
        """Episodes sampled from the actor."""
        weights = {name: values.detach().clone() for name, values in actor.state_dict().items()}
        return self._runners.play(jobs(self._config, "rollout", batch, weights, self._dispatch))


def start_runners(runners: int, ray_address: str | None) -> Runners:
    """The runners that the options ask for.

    Raises:
        RunnerError: see :class:`RayRunners`.
    """
    if ray_address is not None:
        return RayRunners(ray_address, runners)
    return InlineRunner() if runners == 1 else ProcessRunners(runners)


def _play_alone(job: EpisodeJob) -> Episodes:
    _use_one_thread()
    return play_job(job)


def _use_one_thread() -> None:
    torch.set_num_threads(1)
