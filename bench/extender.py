"""How long the scheduler waits for the extender: ``filter`` and ``prioritize`` of one pod, over real HTTP."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from bench.budgets import EXTENDER_BUDGETS, Verdict, judge
from bench.client import Client
from bench.commands import policy_server_command
from bench.environment import Environment, describe_environment
from bench.extender_scenario import ExtenderCalls, generate_cluster
from bench.load.errors import LoadError
from bench.server_process import ServerProcess, free_port
from bench.void import VoidRunError

MODES = ("names_only", "full")
"""How nodes come: by name (``nodeCacheCapable: true``), or as objects."""

_WARM_UP_PODS = 3
_FEWEST_PODS = 20
_TIMEOUT_SECONDS = 30.0

OnStep = Callable[[str], None]


@dataclass(frozen=True)
class ExtenderFigures:
    """Of both calls about one pod together, as the caller sees them.

    Attributes:
        p50_ms: Median time.
        p99_ms: 99th percentile; the longest where there are fewer than 100 pods.
        max_ms: Longest time.
        server_cpu_ms: CPU time of the server for one pod.
        body_bytes: Size of the body of one call.
        pods: How many were asked about.
    """

    p50_ms: float
    p99_ms: float
    max_ms: float
    server_cpu_ms: float
    body_bytes: int
    pods: int


@dataclass(frozen=True)
class ExtenderReport:
    """Figures by number of nodes, in both modes. Field names are the keys of its JSON form."""

    names_only: dict[str, ExtenderFigures]
    full: dict[str, ExtenderFigures]
    budgets: dict[str, Verdict]
    seconds: float
    environment: Environment

    def document(self) -> dict[str, object]:
        """The report as plain values, ready for JSON."""
        return asdict(self)


def measure_extender(
    nodes: Sequence[int], seconds: float, on_step: OnStep, arguments: Sequence[str] = ()
) -> ExtenderReport:
    """Starts a server and asks it about one pod after another, as a scheduler does.

    Args:
        nodes: numbers of nodes.
        seconds: how long, of each number in each mode; at least 20 pods.
        on_step: called before each of these runs with a description.
        arguments: added to those of the server.

    Raises:
        LoadError: a call was refused, or the policy did not answer.
        ServerError: the server did not start or died.
    """
    environment = describe_environment()
    port, extender_port = free_port(), free_port()
    options = ("--extender-port", str(extender_port), "--extender-stale-after-seconds", "86400", *arguments)
    figures: dict[str, dict[str, ExtenderFigures]] = {mode: {} for mode in MODES}
    with ServerProcess("policy-server", policy_server_command(port, arguments=options), port) as process:
        for count in nodes:
            with Client(process.address) as client:
                client.report_state(generate_cluster(count))
            for mode in MODES:
                on_step(f"{count} nodes, {mode.replace('_', ' ')}")
                calls = ExtenderCalls(count, names_only=mode == "names_only")
                figures[mode][str(count)] = _measure(process, extender_port, calls, seconds)
    measured = {mode: {count: asdict(row) for count, row in rows.items()} for mode, rows in figures.items()}
    return ExtenderReport(
        **figures,
        budgets=judge(EXTENDER_BUDGETS, measured),
        seconds=seconds,
        environment=environment,
    )


def _measure(process: ServerProcess, port: int, calls: ExtenderCalls, seconds: float) -> ExtenderFigures:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_SECONDS)
    try:
        for pod in range(_WARM_UP_PODS):
            _ask(connection, calls.body(pod))
        times: list[float] = []
        cpu_seconds = process.cpu_seconds()
        deadline = time.monotonic() + seconds
        while len(times) < _FEWEST_PODS or time.monotonic() < deadline:
            body = calls.body(_WARM_UP_PODS + len(times))
            times.append(_ask(connection, body))
        cpu_seconds = process.cpu_seconds() - cpu_seconds
    except (OSError, http.client.HTTPException) as error:
        process.check_alive(0.5)
        raise LoadError(f"extender: {error!r}") from None
    finally:
        connection.close()
    milliseconds = np.array(times) * 1e3
    p50, p99 = np.percentile(milliseconds, [50, 99], method="higher")
    return ExtenderFigures(
        p50_ms=round(float(p50), 3),
        p99_ms=round(float(p99), 3),
        max_ms=round(float(milliseconds.max()), 3),
        server_cpu_ms=round(cpu_seconds / len(times) * 1e3, 3),
        body_bytes=len(calls.body(0)),
        pods=len(times),
    )


def _ask(connection: http.client.HTTPConnection, body: bytes) -> float:
    """Seconds that both calls took."""
    started = time.perf_counter()
    filtered = _call(connection, "/filter", body)
    prioritized = _call(connection, "/prioritize", body)
    seconds = time.perf_counter() - started
    if b'"FailedNodes":{"' not in filtered or b'"Score":10}' not in prioritized:
        raise VoidRunError("extender", ["all nodes were alike to it: the policy did not answer"])
    return seconds


def _call(connection: http.client.HTTPConnection, path: str, body: bytes) -> bytes:
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    if response.status != http.client.OK:
        raise LoadError(f"extender: {path} answered {response.status}: {json.loads(answer)['Error']}")
    return answer
