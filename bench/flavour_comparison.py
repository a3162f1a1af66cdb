"""Which kind of Python gRPC server to choose, measured with the echo server."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import median

from bench.commands import echo_command
from bench.echo import EXAMPLE_RESPONSE
from bench.flavours import Flavour
from bench.latency import OnStep
from bench.load.closed_loop import run_closed_loop
from bench.load.measurement import percentile_microseconds
from bench.load.plans import ClosedLoop
from bench.scenario import generate_request
from bench.server_process import ServerProcess, free_port
from bench.sides import Run, Side

_ONE_CALLER = ClosedLoop(600)
_SATURATED = ClosedLoop(3000, connections=8, streams=8)


@dataclass(frozen=True)
class FlavourFigures:
    """Medians over the repetitions.

    Attributes:
        flavour: Name of the flavour.
        work_us: CPU microseconds of work the handler does per request.
        p50_us: One caller, latency in microseconds.
        p99_us: One caller, latency in microseconds.
        rps: Saturated, requests per second.
        one_caller_cpu_us: CPU microseconds of the server per request, one caller.
        saturated_cpu_us: CPU microseconds of the server per request, saturated.
    """

    flavour: str
    work_us: float
    p50_us: float
    p99_us: float
    rps: float
    one_caller_cpu_us: float
    saturated_cpu_us: float


def comparison_steps(flavours: Sequence[Flavour], works: Sequence[float], repetitions: int) -> int:
    """How often :func:`compare_flavours` calls ``on_step``."""
    return len(flavours) * len(works) * (repetitions + 1)


def compare_flavours(
    flavours: Sequence[Flavour], works: Sequence[float], repetitions: int, on_step: OnStep
) -> list[FlavourFigures]:
    """Runs every flavour with every amount of work, in turns; the first turn is a warm-up and does not count.

    Args:
        flavours: What to compare.
        works: CPU microseconds of work per request.
        repetitions: How many turns count.
        on_step: Called before each step with a description of it.

    Raises:
        LoadError: load could not be generated, or a run must not be quoted.
        ServerError: a server did not start or died.
    """
    results = []
    for work in works:
        with ExitStack() as servers:
            sides = []
            for flavour in flavours:
                port = free_port()
                command = echo_command(port, flavour.name, EXAMPLE_RESPONSE, work)
                process = servers.enter_context(ServerProcess(f"echo {flavour.name}", command, port))
                sides.append(Side(flavour.name, process.address, generate_request(), process))
            runs: dict[str, list[tuple[Run, Run]]] = {flavour.name: [] for flavour in flavours}
            for _ in range(repetitions + 1):
                for side in sides:
                    on_step(f"{side.name}, {work:g} us of work")
                    one_caller = side.run(partial(run_closed_loop, plan=_ONE_CALLER))
                    runs[side.name].append((one_caller, side.run(partial(run_closed_loop, plan=_SATURATED))))
        results += [_figures(name, work, pairs[1:]) for name, pairs in runs.items()]
    return results


def _figures(name: str, work: float, pairs: Sequence[tuple[Run, Run]]) -> FlavourFigures:
    one_caller, saturated = [one for one, _ in pairs], [many for _, many in pairs]
    return FlavourFigures(
        flavour=name,
        work_us=work,
        p50_us=median(percentile_microseconds(run.measurement, 50) for run in one_caller),
        p99_us=median(percentile_microseconds(run.measurement, 99) for run in one_caller),
        rps=round(median(run.measurement.requests_per_second for run in saturated), 1),
        one_caller_cpu_us=_cpu(one_caller),
        saturated_cpu_us=_cpu(saturated),
    )


def _cpu(runs: Sequence[Run]) -> float:
    spent = sum(run.server_cpu_seconds or 0.0 for run in runs)
    return round(spent / sum(run.measurement.requests for run in runs) * 1e6, 1)
