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
from policy_server.policies.heuristics import EarliestCompletion
from training.environments.dispatch import DispatchEnvironment
from training.simulator import presets
from training.simulator.presets import build_topology
from training.simulator.simulator import VectorSimulator
from training.workloads.patterns import Pattern, generate
from training.workloads.services import default_services

EPISODE_SECONDS = 120.0
"""Simulated time between two restarts of the system; requests are generated for one episode at a time."""

_MAXIMUM_RATE_PER_SECOND = 100_000.0


class SimulatorStateSource:
    """Publishes a snapshot of a simulated system at every slot.

    The system dispatches a workload of its own by earliest completion; requests that a server's clients ask about
    don't enter it.

    Args:
        preset: name of a system configuration.
        seed: of the system and its workload.
        pattern: arrival pattern of the workload, P1 to P4.
        rate_per_second: mean requests per second; the preset's reference rate by default.
        acceleration: simulated seconds per second.

    Raises:
        ValueError: naming the option, its value and what it must be.
    """

    def __init__(
        self,
        *,
        preset: str = "testbed-40",
        seed: str = "0",
        pattern: str = "P1",
        rate_per_second: str | None = None,
        acceleration: str = "1",
    ) -> None:
        self._config = presets.preset(preset)
        self._seed = _whole_number("seed", seed)
        if pattern not in list(Pattern):
            raise ValueError(f"pattern: {pattern!r} is unknown; choose one of {', '.join(Pattern)}")
        self._pattern = Pattern(pattern)
        self._rate_per_second = (
            self._config.reference_rate_per_second
            if rate_per_second is None
            else _positive_number("rate_per_second", rate_per_second)
        )
        if self._rate_per_second > _MAXIMUM_RATE_PER_SECOND:
            raise ValueError(
                f"rate_per_second: {rate_per_second!r}; must be at most {_MAXIMUM_RATE_PER_SECOND:g}"
            )
        self._acceleration = _positive_number("acceleration", acceleration)

    def run(self, publish: Callable[[Snapshot], None], stopped: threading.Event) -> None:
        """Publishes a snapshot per slot until ``stopped`` is set.

        A source that falls behind by a slot or more goes on from where it is; it never hurries to catch up.
        """
        due_at = -math.inf
        for snapshot, simulated_seconds in self._slots():
            slot_seconds = simulated_seconds / self._acceleration
            if stopped.wait(max(0.0, due_at - time.monotonic())):
                return
            now = time.monotonic()
            publish(replace(snapshot, taken_at_seconds=now))
            due_at = (due_at if now - due_at < slot_seconds else now) + slot_seconds

    def _slots(self) -> Iterator[tuple[Snapshot, float]]:
        services = default_services(self._config.services)
        topology = build_topology(self._config, services, self._seed)
        policy = EarliestCompletion()
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
                environment.step(policy)
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
