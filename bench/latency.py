"""Echo and dispatch side by side, in alternation, so that whatever else the machine does hits both alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from bench.load.closed_loop import run_closed_loop
from bench.load.generator import generate_open_loop
from bench.load.measurement import Measurement
from bench.load.plans import ClosedLoop, OpenLoop
from bench.load.target import Target
from bench.sides import Run, Side
from bench.void import VoidRunError

_WARM_UP_REQUESTS = 300
_LEAST_REQUESTS = 100
_MOST_VOID_RUNS = 6

OnStep = Callable[[str], None]


class Mode(StrEnum):
    """How load is made."""

    ONE_CALLER = "one_caller"
    """Closed loop, one request in flight."""
    SATURATED = "saturated"
    """Closed loop, as many requests in flight as it takes to keep the server busy."""
    OPEN_LOOP = "open_loop"
    """Fixed rate, latency from the scheduled time."""
    ONE_CORE = "one_core"
    """As saturated, the server confined to one core."""


@dataclass(frozen=True)
class LatencySettings:
    """Lengths and repetitions; the defaults take under a minute.

    Attributes:
        repetitions: Of the closed loops.
        seconds: Length of one closed loop.
        connections: Of the saturated loop.
        streams: Requests in flight per connection of the saturated loop.
        open_loop_repetitions: Of the open loop.
        open_loop_seconds: Length of one open loop.
        open_loop_requests_per_second: Its rate.
        one_core_repetitions: Of the saturated loop with the server on one core.
    """

    repetitions: int = 10
    seconds: float = 0.5
    connections: int = 8
    streams: int = 8
    open_loop_repetitions: int = 3
    open_loop_seconds: float = 1.5
    open_loop_requests_per_second: float = 500.0
    one_core_repetitions: int = 2

    @property
    def steps(self) -> int:
        """Number of runs, as reported to ``on_step``."""
        pairs = 2 + 2 * self.repetitions + self.open_loop_repetitions + self.one_core_repetitions
        return 2 * pairs


@dataclass
class SideRuns:
    """All counted runs against one server; run ``i`` of one side and of the other were made one after the other."""

    runs: dict[Mode, list[Run]] = field(default_factory=lambda: {mode: [] for mode in Mode})

    def measurements(self, mode: Mode) -> list[Measurement]:
        """What the generators saw in that mode."""
        return [run.measurement for run in self.runs[mode]]


@dataclass
class Comparison:
    """Runs against both servers.

    Attributes:
        echo: The echo server.
        dispatch: The server under test.
        void_runs: Reasons of the open loops that were void and were made again.
    """

    echo: SideRuns = field(default_factory=SideRuns)
    dispatch: SideRuns = field(default_factory=SideRuns)
    void_runs: list[str] = field(default_factory=list)


def compare(echo: Side, dispatch: Side, settings: LatencySettings, on_step: OnStep) -> Comparison:
    """Makes all runs. Warm-up runs are thrown away; they also tell how many requests fill the wanted time.

    Args:
        echo: The echo server, already serving.
        dispatch: The server under test, already serving.
        settings: How long and how often.
        on_step: Called before each of ``settings.steps`` runs with a description of it.

    Raises:
        VoidRunError: a run must not be quoted; open loops are made again, six times in all.
        LoadError: load could not be generated.
        ServerError: a server died.
    """
    return _Comparer(echo, dispatch, settings, on_step).compare()


class _Comparer:
    def __init__(self, echo: Side, dispatch: Side, settings: LatencySettings, on_step: OnStep) -> None:
        self._settings = settings
        self._on_step = on_step
        self._result = Comparison()
        self._pair = ((echo, self._result.echo), (dispatch, self._result.dispatch))
        self._requests: dict[tuple[str, Mode], int] = {}

    def compare(self) -> Comparison:
        settings = self._settings
        self._warm_up()
        for repetition in range(settings.repetitions):
            for mode in (Mode.ONE_CALLER, Mode.SATURATED):
                for side, runs in self._alternating(repetition):
                    self._on_step(f"{side.name}, {mode.value.replace('_', ' ')}")
                    runs.runs[mode].append(side.run(self._closed_loop(side, mode)))
        for repetition in range(settings.open_loop_repetitions):
            for side, runs in self._alternating(repetition):
                self._on_step(f"{side.name}, open loop")
                runs.runs[Mode.OPEN_LOOP].append(self._open_loop(side))
        self._one_core()
        return self._result

    def _alternating(self, repetition: int) -> Sequence[tuple[Side, SideRuns]]:
        return self._pair if repetition % 2 == 0 else self._pair[::-1]

    def _warm_up(self) -> None:
        for mode in (Mode.ONE_CALLER, Mode.SATURATED):
            for side, _ in self._pair:
                self._on_step(f"{side.name}, warm-up")
                requests = _WARM_UP_REQUESTS * (self._settings.connections if mode is Mode.SATURATED else 1)
                measurement = side.run(partial(run_closed_loop, plan=self._plan(mode, requests))).measurement
                wanted = int(measurement.requests_per_second * self._settings.seconds)
                self._requests[side.name, mode] = max(_LEAST_REQUESTS, wanted)

    def _closed_loop(self, side: Side, mode: Mode) -> Callable[[Target], Measurement]:
        requests = self._requests[side.name, Mode.ONE_CALLER if mode is Mode.ONE_CALLER else Mode.SATURATED]
        return partial(run_closed_loop, plan=self._plan(mode, requests))

    def _plan(self, mode: Mode, requests: int) -> ClosedLoop:
        if mode is Mode.ONE_CALLER:
            return ClosedLoop(requests)
        return ClosedLoop(requests, self._settings.connections, self._settings.streams)

    def _open_loop(self, side: Side) -> Run:
        rate = self._settings.open_loop_requests_per_second
        plan = OpenLoop(max(1, int(rate * self._settings.open_loop_seconds)), rate)
        while True:
            try:
                return side.run(partial(generate_open_loop, plan=plan))
            except VoidRunError as error:
                if len(self._result.void_runs) == _MOST_VOID_RUNS:
                    raise
                self._result.void_runs.append(str(error))

    def _one_core(self) -> None:
        """Both servers share one core, each busy only in its turn."""
        processes = [side.process for side, _ in self._pair]
        with ExitStack() as pinned:
            for process in processes:
                if process is not None:
                    pinned.enter_context(process.on_one_core())
            for repetition in range(self._settings.one_core_repetitions):
                for side, runs in self._alternating(repetition):
                    self._on_step(f"{side.name}, saturated on one core")
                    if side.process is not None:
                        runs.runs[Mode.ONE_CORE].append(side.run(self._closed_loop(side, Mode.ONE_CORE)))
