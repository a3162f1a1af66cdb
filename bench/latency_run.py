"""A whole latency run: the server under test and its echo, compared and put into one report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from bench.client import Client, request_for
from bench.commands import echo_command
from bench.environment import describe_environment
from bench.flavours import SERVER_FLAVOUR
from bench.latency import Comparison, LatencySettings, OnStep, compare
from bench.load import generator
from bench.load.closed_loop import closed_loop_generator
from bench.report import InProcessResult, Method, Report, build_report
from bench.scenario import generate_request, generate_state
from bench.server_process import ServerProcess, free_port
from bench.sides import Side

_WARM_UP = "one run of each closed loop per server"


@dataclass(frozen=True)
class LatencyRun:
    """A report and the runs it was drawn from."""

    report: Report
    comparison: Comparison


@contextmanager
def started_server(command: Callable[[int], Sequence[str]], policy: str) -> Iterator[Side]:
    """Starts the server under test with ``command(port)``; it is given the scenario's state.

    Raises:
        ServerError: it does not start.
    """
    port = free_port()
    with ServerProcess("policy-server", command(port), port) as process:
        request = generate_request()
        request.policy = policy
        yield Side("dispatch", process.address, request, process, generate_state())


def running_server(address: str, policy: str, *, replace_state: bool) -> Side:
    """A server that already runs, asked on the state it holds or, with ``replace_state``, on the scenario's.

    Raises:
        LoadError: the server cannot be reached or holds no state.
    """
    if replace_state:
        request, state = generate_request(), generate_state()
    else:
        with Client(address) as client:
            request, state = request_for(client.topology()), None
    request.policy = policy
    return Side("dispatch", address, request, state=state)


def run_latency(
    dispatch: Side,
    settings: LatencySettings,
    on_step: OnStep,
    measure_in_process: Callable[[str], InProcessResult] | None = None,
) -> LatencyRun:
    """Starts an echo server shaped like the server under test and compares the two.

    Args:
        dispatch: The server under test, already serving.
        settings: How long and how often.
        on_step: Called before each of ``settings.steps`` runs, and once more before the rest, with a description.
        measure_in_process: Measures the policy of the name it is given; None leaves that part of the report empty.

    Raises:
        VoidRunError: a run must not be quoted.
        LoadError: load could not be generated.
        ServerError: a server did not start or died.
    """
    started = time.monotonic()
    environment = describe_environment()
    answer = dispatch.prepare()
    port = free_port()
    with ServerProcess("echo", echo_command(port, SERVER_FLAVOUR.name, answer), port) as process:
        echo = Side("echo", process.address, dispatch.request, process)
        comparison = compare(echo, dispatch, settings, on_step)
    on_step("inside the process")
    in_process = InProcessResult({}, None)
    if measure_in_process is not None:
        in_process = measure_in_process(answer.provenance.policy)
    method = Method(
        closed_loop_generator=closed_loop_generator(),
        open_loop_generator=generator.NAME,
        server_flavour=SERVER_FLAVOUR.name,
        candidates=answer.candidate_count,
        policy=f"{answer.provenance.policy} {answer.provenance.policy_version}".strip(),
        request_bytes=dispatch.request.ByteSize(),
        response_bytes=answer.ByteSize(),
        warm_up=_WARM_UP,
        settings=settings,
        server_ready_seconds=None if dispatch.process is None else round(dispatch.process.ready_seconds, 2),
        elapsed_seconds=round(time.monotonic() - started, 1),
    )
    return LatencyRun(build_report(comparison, method, environment, in_process), comparison)
