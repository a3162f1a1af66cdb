"""Back ends of unequal and changing speed behind a real Envoy: its own balancing against policies that are served.

Each contestant gets the same back ends anew, the same changes of their speed at the same times and the same rate of
requests. What differs is who chooses the back end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from bench.envoy import configuration
from bench.envoy.back_ends import BackEndPlan, BackEnds, Slowdown
from bench.envoy.configuration import Balancing, Shipped
from bench.envoy.picker import ACCESS_POINT_HEADER, SERVICE_HEADER, PickerProcess
from bench.envoy.process import EnvoyProcess
from bench.envoy.state_reporter import ACCESS_POINT, SERVICE, StateReporter
from bench.load.errors import LoadError
from bench.load.h2load import INSTALL_HINT, get_at_rate
from bench.load.h2load import version as h2load_version
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
_ASKED = "http.ingress.ext_proc.streams_started"
_UNANSWERED = "http.ingress.ext_proc.failure_mode_allowed"


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
    """

    seconds: float = 11.0
    requests_per_second: float = 240.0
    report_seconds: float = 0.1
    policies: tuple[str, ...] = ("kais", "earliest-completion", "prequal")

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
    """

    p50_ms: float
    p90_ms: float
    p99_ms: float
    rps: float
    failed: int


def run_demo(plan: DemoPlan, on_contestant: Callable[[str], None]) -> dict[str, DemoFigures]:
    """Runs all contestants, one after the other.

    Args:
        plan: How long and how hard.
        on_contestant: Called before each with its name.

    Raises:
        VoidRunError: a run must not be quoted.
        LoadError: load could not be generated.
        ServerError: a process did not start or died.
    """
    if h2load_version() is None:
        raise LoadError(f"the demo's load comes from h2load: {INSTALL_HINT}")
    results = {}
    for contestant in plan.contestants:
        on_contestant(contestant.name)
        results[contestant.name] = _figures(_run(plan, contestant))
    return results


def _run(plan: DemoPlan, contestant: Contestant) -> Measurement:
    with ExitStack() as stack:
        back_ends = stack.enter_context(BackEnds(BACK_ENDS))
        document = configuration.shipped(Shipped.FAIL_OPEN)
        configuration.listen_on_loopback(document)
        configuration.send_to(document, back_ends.addresses)
        if contestant.balancing is not None:
            configuration.balance_alone(document, contestant.balancing, **dict(contestant.settings))
        else:
            picker = stack.enter_context(PickerProcess(contestant.policy))
            configuration.ask(document, picker.picker_address)
            reporter = stack.enter_context(_reporter(plan, picker, back_ends))
        gateway = stack.enter_context(EnvoyProcess(f"Envoy, {contestant.name}", document))
        load = OpenLoop(int(plan.seconds * plan.requests_per_second), plan.requests_per_second)
        measurement = get_at_rate(f"http://{gateway.address}/", load, _CONNECTIONS, _headers())
        reasons = _void_reasons(measurement, load)
        if contestant.balancing is None:
            reporter.check()
            reasons += _unpicked(gateway, measurement)
    if reasons:
        raise VoidRunError(contestant.name, reasons)
    return measurement


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


def _void_reasons(measurement: Measurement, load: OpenLoop) -> list[str]:
    sent = measurement.sent_microseconds
    rate = (measurement.requests - 1) / max(1, int(sent[-1] - sent[0])) * 1e6
    if rate >= LEAST_ACHIEVED_SHARE * load.requests_per_second:
        return []
    return [f"{rate:.1f} of {load.requests_per_second:g} requests/s were sent: the machine is too busy"]


def _unpicked(gateway: EnvoyProcess, measurement: Measurement) -> list[str]:
    asked, unanswered = gateway.stat(_ASKED), gateway.stat(_UNANSWERED)
    reasons = []
    if asked != measurement.requests:
        reasons.append(f"the picker was asked {asked} times for {measurement.requests} requests")
    if unanswered:
        reasons.append(f"{unanswered} requests went on without the picker's answer")
    return reasons


def _figures(measurement: Measurement) -> DemoFigures:
    p50, p90, p99 = (percentile_microseconds(measurement, percentile) / 1e3 for percentile in (50, 90, 99))
    failed = sum(measurement.failures.values())
    answered_share = 1 - failed / measurement.requests
    return DemoFigures(p50, p90, p99, round(measurement.requests_per_second * answered_share, 1), failed)


def _headers() -> list[str]:
    return ["-H", f"{SERVICE_HEADER}: {SERVICE}", "-H", f"{ACCESS_POINT_HEADER}: {ACCESS_POINT}"]
