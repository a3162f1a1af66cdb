"""The embedded simulator: a simulated system in real time, as the state of a server that nobody reports to."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

import numpy as np

from policy_server.cluster.snapshot import Snapshot
from policy_server.policies.heuristics import UnknownPolicyError, heuristic_dispatch
from training.environments.dispatch import DispatchEnvironment
from training.simulator import presets
from training.simulator.presets import build_topology
from training.simulator.simulator import VectorSimulator
from training.workloads.patterns import Pattern, generate
from training.workloads.services import default_services

EPISODE_SECONDS = 120.0
"""Simulated time between two restarts of the system; requests are generated for one episode at a time."""


class SimulatorStateSource:
    """Publishes a snapshot of a simulated system at every slot.

    The system serves a workload of its own; requests that a server's clients ask about don't enter it.

    Args:
        preset: name of a system configuration.
        seed: of the system and its workload.
        pattern: arrival pattern of the workload, P1 to P4.
        rate: mean requests per second; the preset's reference rate by default.
        policy: dispatch rule that serves the workload.
        speed: simulated seconds per second.

    Raises:
        ValueError: naming the option, its value and what it must be.
    """

    def __init__(
        self,
        *,
        preset: str = "testbed-40",
        seed: str = "0",
        pattern: str = "P1",
        rate: str | None = None,
        policy: str = "earliest-completion",
        speed: str = "1",
    ) -> None:
        self._config = presets.preset(preset)
        self._seed = _whole_number("seed", seed)
        if pattern not in list(Pattern):
            raise ValueError(f"pattern: {pattern!r} is unknown; choose one of {', '.join(Pattern)}")
        self._pattern = Pattern(pattern)
        self._rate_per_second = (
            self._config.reference_rate_per_second if rate is None else _positive_number("rate", rate)
        )
        self._speed = _positive_number("speed", speed)
        try:
            self._policy = heuristic_dispatch(policy)
        except UnknownPolicyError as error:
            raise ValueError(str(error)) from error

    def run(self, publish: Callable[[Snapshot], None], stopped: threading.Event) -> None:
        """Publishes a snapshot per slot until ``stopped`` is set.

        A source that falls behind its pace goes on from where it is; it never publishes in a burst to catch up.
        """
        next_at = time.monotonic()
        for snapshot, slot_seconds in self._slots():
            if stopped.wait(max(0.0, next_at - time.monotonic())):
                return
            now = time.monotonic()
            publish(replace(snapshot, taken_at_seconds=now))
            next_at = max(next_at + slot_seconds / self._speed, now)

    def _slots(self) -> Iterator[tuple[Snapshot, float]]:
        services = default_services(self._config.services)
        topology = build_topology(self._config, services, self._seed)
        random = np.random.default_rng(self._seed)
        for episode in count():
            workload = generate(
                self._pattern,
                services=services,
                access_points=self._config.access_points,
                duration_seconds=EPISODE_SECONDS,
                mean_rate_per_second=self._rate_per_second,
                seed=self._seed + episode,
            )
            simulator = VectorSimulator([topology], [workload])
            environment = DispatchEnvironment(simulator, random=random)
            while simulator.now_seconds < EPISODE_SECONDS:
                environment.step(self._policy)
                yield simulator.snapshot(), simulator.config.slot_seconds


def _whole_number(option: str, text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{option}: {text!r}; must be a whole number, zero or more")
    return int(text)


def _positive_number(option: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"{option}: {text!r}; must be a finite number above zero")
    return value
