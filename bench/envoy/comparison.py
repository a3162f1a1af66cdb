"""Envoy alone, with a picker that does nothing and with the real one, in turns, so that all see the same machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from bench.envoy.sides import GatewayRun, GatewaySide
from bench.latency import Mode, OnStep, SideRuns
from bench.load.h2load import get_closed_loop
from bench.load.measurement import Measurement
from bench.load.plans import ClosedLoop
from bench.void import VoidRunError

_WARM_UP_REQUESTS = 300
_LEAST_REQUESTS = 100
_MOST_VOID_RUNS = 6
MODES = (Mode.ONE_CALLER, Mode.SATURATED)


@dataclass(frozen=True)
class GatewaySettings:
    """Lengths and repetitions; the defaults take about a minute.

    Attributes:
        repetitions: Of each load on each side.
        seconds: Length of one run.
        connections: Of the saturated loop.
        streams: Requests in flight per connection of the saturated loop.
    """

    repetitions: int = 8
    seconds: float = 0.5
    connections: int = 8
    streams: int = 8


@dataclass(frozen=True)
class GatewayComparison:
    """All counted runs; run ``i`` of every side belongs to the same turn.

    Attributes:
        sides: By name.
        void_runs: Reasons of the runs that were void and were made again.
    """

    sides: dict[str, SideRuns]
    void_runs: list[str]


def compare_gateways(
    sides: Sequence[GatewaySide], settings: GatewaySettings, headers: Sequence[str], on_step: OnStep
) -> GatewayComparison:
    """Makes all runs. Warm-up runs are thrown away; they also tell how many requests fill the wanted time.

    Args:
        sides: Already serving.
        settings: How long and how often.
        headers: Arguments of h2load for the headers of the requests.
        on_step: Called before each run that counts or warms up, with a description of it.

    Raises:
        VoidRunError: too many runs must not be quoted.
        LoadError: load could not be generated.
        ServerError: a process died.
    """
    comparison = GatewayComparison({side.name: SideRuns() for side in sides}, [])
    requests: dict[tuple[str, Mode], int] = {}
    for mode in MODES:
        for side in sides:
            on_step(f"{side.name}, warm-up")
            in_flight = settings.connections if mode is Mode.SATURATED else 1
            loop = _loop(settings, mode, _WARM_UP_REQUESTS * in_flight, headers)
            warm_up = _sound_run(side, loop, comparison.void_runs).measurement
            wanted = int(warm_up.requests_per_second * settings.seconds)
            requests[side.name, mode] = max(_LEAST_REQUESTS, wanted)
    for repetition in range(settings.repetitions):
        first = repetition % len(sides)
        for mode in MODES:
            for side in (*sides[first:], *sides[:first]):
                on_step(f"{side.name}, {mode.value.replace('_', ' ')}")
                loop = _loop(settings, mode, requests[side.name, mode], headers)
                run = _sound_run(side, loop, comparison.void_runs)
                comparison.sides[side.name].runs[mode].append(run)
    return comparison


def _sound_run(side: GatewaySide, loop: Callable[[str], Measurement], void_runs: list[str]) -> GatewayRun:
    """A run that may be quoted; void ones are made again and noted in ``void_runs``."""
    while True:
        try:
            return side.run(loop)
        except VoidRunError as error:
            if len(void_runs) == _MOST_VOID_RUNS:
                raise
            void_runs.append(str(error))


def _loop(
    settings: GatewaySettings, mode: Mode, requests: int, headers: Sequence[str]
) -> Callable[[str], Measurement]:
    one_caller = mode is Mode.ONE_CALLER
    plan = (
        ClosedLoop(requests) if one_caller else ClosedLoop(requests, settings.connections, settings.streams)
    )
    return partial(get_closed_loop, plan=plan, arguments=headers)
