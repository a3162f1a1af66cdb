"""Back ends of unequal and changing speed behind a real Envoy: its own balancing against policies that are served.

Each contestant gets the same back ends anew, the same changes of their speed at the same times and the same rate of
requests. What differs is who chooses the back end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.envoy import configuration
from bench.envoy.back_ends import BackEndPlan, BackEnds, Slowdown
from bench.envoy.configuration import Balancing
from bench.envoy.picker import PickerProcess, request_headers
from bench.envoy.process import EnvoyProcess
from bench.envoy.sides import Way
from bench.envoy.state_reporter import ACCESS_POINT, SERVICE, StateReporter
from bench.load import h2load
from bench.load.errors import LoadError
from bench.load.h2load import get_at_rate
from bench.load.measurement import Measurement, percentile_microseconds
from bench.load.plans import OpenLoop
from bench.void import LEAST_ACHIEVED_SHARE, VoidRunError

BACK_ENDS = (
    BackEndPlan(1.0, slowdowns=(Slowdown(3.0, 6.0, 0.2),)),
    BackEndPlan(1.0, slowdowns=(Slowdown(7.0, 10.0, 0.2),)),
    BackEndPlan(0.8),
    BackEndPlan(0.5),
    BackEndPlan(0.35),
    BackEndPlan(0.25),
)
_CONNECTIONS = 4
_MOST_ATTEMPTS = 2
NOTEWORTHY_STALL_MILLISECONDS = 150.0
"""Requests leave every 10 ms or so; a longer silence is none of the back ends' doing."""
_MOST_FAILED_SHARE = 0.2


@dataclass(frozen=True)
class Contestant:
    """Who chooses the back end.

    Attributes:
        name: For people.
        balancing: Envoy's own policy; None: the endpoint picker.
        settings: Fields of that policy's configuration.
        policy: The picker's policy.
    """

    name: str
    balancing: Balancing | None = None
    settings: tuple[tuple[str, Any], ...] = ()
    policy: str = ""


ENVOYS_OWN = (
    Contestant("round robin", Balancing.ROUND_ROBIN),
    Contestant("random", Balancing.RANDOM),
    Contestant("least request", Balancing.LEAST_REQUEST),
    Contestant("least request, all", Balancing.LEAST_REQUEST, (("selection_method", "FULL_SCAN"),)),
)
"""Envoy compares two random back ends by default; the last compares all."""


@dataclass(frozen=True)
class DemoPlan:
    """How long and how hard.

    Attributes:
        seconds: Per contestant.
        requests_per_second: The rate, whatever becomes of the requests.
        report_seconds: Between two reports of the back ends' state.
        policies: Of the picker.
        way: How Envoy asks it.
    """

    seconds: float = 11.0
    requests_per_second: float = 220.0
    report_seconds: float = 0.1
    policies: tuple[str, ...] = ("earliest-completion", "kais", "prequal")
    way: Way = Way.EXT_PROC

    @property
    def contestants(self) -> tuple[Contestant, ...]:
        """In the order they run."""
        return (*ENVOYS_OWN, *(Contestant(f"policy-server, {name}", policy=name) for name in self.policies))


@dataclass(frozen=True)
class DemoFigures:
    """What clients saw of one contestant.

    Attributes:
        p50_ms: Latency.
        p90_ms: Latency.
        p99_ms: Latency.
        rps: Requests answered with 200 per second, until the last answer.
        failed: Requests that failed.
        unpicked: Requests that Envoy sent somewhere by itself, because the picker did not answer in time.
        stall_ms: Longest time in which the load generator sent nothing: others kept the machine busy.
    """

    p50_ms: float
    p90_ms: float
    p99_ms: float
    rps: float
    failed: int
    unpicked: int
    stall_ms: float


def run_demo(plan: DemoPlan, on_contestant: Callable[[str], None]) -> dict[str, DemoFigures]:
    """Runs all contestants, one after the other.

    Args:
        plan: How long and how hard.
        on_contestant: Called before each with its name.

    Raises:
        VoidRunError: too many runs must not be quoted.
        LoadError: load could not be generated.
        ServerError: a process did not start or died.
    """
    if h2load.version() is None:
        raise LoadError(f"the demo's load comes from h2load: {h2load.INSTALL_HINT}")
    results = {}
    for contestant in plan.contestants:
        on_contestant(contestant.name)
        results[contestant.name] = _run_undisturbed(plan, contestant)
    return results


def _run_undisturbed(plan: DemoPlan, contestant: Contestant) -> DemoFigures:
    """A run during which the machine did not stall, if there is one in a few attempts."""
    figures: DemoFigures | None = None
    for attempt in range(1, _MOST_ATTEMPTS + 1):
        try:
            latest = _run(plan, contestant)
        except VoidRunError:
            if figures is None and attempt == _MOST_ATTEMPTS:
                raise
            continue
        if figures is None or latest.stall_ms < figures.stall_ms:
            figures = latest
        if figures.stall_ms <= NOTEWORTHY_STALL_MILLISECONDS:
            break
    assert figures is not None
    return figures


def _run(plan: DemoPlan, contestant: Contestant) -> DemoFigures:
    unpicked = 0
    with ExitStack() as stack:
        back_ends = stack.enter_context(BackEnds(BACK_ENDS))
        document = configuration.shipped(plan.way.configuration)
        configuration.listen_on_loopback(document)
        configuration.send_to(document, back_ends.addresses)
        reporter = None
        if contestant.balancing is not None:
            configuration.balance_alone(document, contestant.balancing, **dict(contestant.settings))
        else:
            picker = stack.enter_context(PickerProcess(contestant.policy))
            configuration.ask(document, picker.picker_address)
            reporter = stack.enter_context(_reporter(plan, picker, back_ends))
        gateway = stack.enter_context(EnvoyProcess(f"Envoy, {contestant.name}", document))
        load = OpenLoop(int(plan.seconds * plan.requests_per_second), plan.requests_per_second)
        headers = request_headers(SERVICE, ACCESS_POINT)
        measurement = get_at_rate(f"http://{gateway.address}/", load, _CONNECTIONS, headers)
        if reporter is not None:
            reporter.check()
            unpicked = gateway.stat(plan.way.unanswered_stat)
    _check(contestant, measurement, load)
    return _figures(measurement, unpicked)


def _reporter(plan: DemoPlan, picker: PickerProcess, back_ends: BackEnds) -> StateReporter:
    first = BACK_ENDS[0]
    return StateReporter(
        picker.address,
        back_ends,
        [back_end.speed for back_end in BACK_ENDS],
        execution_seconds=first.execution_seconds,
        workers=first.workers,
        period_seconds=plan.report_seconds,
    )


def _check(contestant: Contestant, measurement: Measurement, load: OpenLoop) -> None:
    sent = measurement.sent_microseconds
    rate = (measurement.requests - 1) / max(1, int(sent[-1] - sent[0])) * 1e6
    reasons = []
    if rate < LEAST_ACHIEVED_SHARE * load.requests_per_second:
        reasons.append(
            f"{rate:.1f} of {load.requests_per_second:g} requests/s were sent: the machine is too busy"
        )
    if sum(measurement.failures.values()) > _MOST_FAILED_SHARE * measurement.requests:
        reasons += [f"{count} requests failed: {reason}" for reason, count in measurement.failures.items()]
    if reasons:
        raise VoidRunError(contestant.name, reasons)


def _figures(measurement: Measurement, unpicked: int) -> DemoFigures:
    p50, p90, p99 = (percentile_microseconds(measurement, percentile) / 1e3 for percentile in (50, 90, 99))
    failed = sum(measurement.failures.values())
    answered_share = 1 - failed / measurement.requests
    rps = round(measurement.requests_per_second * answered_share, 1)
    stall_ms = round(float(np.diff(measurement.sent_microseconds).max(initial=0)) / 1e3, 1)
    return DemoFigures(p50, p90, p99, rps, failed, unpicked, stall_ms)
