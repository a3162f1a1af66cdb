"""The gateways of a comparison, and how one run through one of them is made and checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from bench.envoy.configuration import Shipped
from bench.envoy.picker import PickerProcess
from bench.envoy.process import EnvoyProcess
from bench.load.errors import LoadError
from bench.load.measurement import Measurement
from bench.server_process import ServerProcess
from bench.sides import Run
from bench.void import VoidRunError, void_reasons

_MOST_FALLBACK_SHARE = 0.01


class Way(StrEnum):
    """How Envoy asks a picker, as its statistics call it."""

    EXT_PROC = "ext_proc"
    EXT_AUTHZ = "ext_authz"

    @property
    def configuration(self) -> Shipped:
        """The configuration that asks so and fails open."""
        return Shipped.FAIL_OPEN if self is Way.EXT_PROC else Shipped.EXT_AUTHZ

    @property
    def asked_stat(self) -> str:
        """Counts the requests about which the picker was asked."""
        return f"http.ingress.{self}.{'streams_started' if self is Way.EXT_PROC else 'ok'}"

    @property
    def unanswered_stat(self) -> str:
        """Counts the requests that went on without an answer."""
        return f"http.ingress.{self}.failure_mode_allowed"


@dataclass(frozen=True)
class GatewayRun(Run):
    """One run of a load generator through Envoy; ``server_cpu_seconds`` is the picker's.

    Attributes:
        gateway_cpu_seconds: What it cost Envoy.
    """

    gateway_cpu_seconds: float


@dataclass
class GatewaySide:
    """An Envoy under load, with the picker it asks.

    Attributes:
        name: For messages.
        gateway: The Envoy.
        back_ends: The Envoy that answers in place of back ends.
        way: How the picker is asked; None where there is none.
        picker: The picker's process; None where there is none.
        prepare: Called before every run.
    """

    name: str
    gateway: EnvoyProcess
    back_ends: EnvoyProcess
    way: Way | None = None
    picker: ServerProcess | None = None
    prepare: Callable[[], object] = lambda: None

    @property
    def url(self) -> str:
        """What to get."""
        return f"http://{self.gateway.address}/"

    def run(self, generate: Callable[[str], Measurement]) -> GatewayRun:
        """Runs a load generator and checks that every request was answered by a back end that the picker named.

        Raises:
            VoidRunError: the run must not be quoted.
            LoadError: the load could not be generated.
            ServerError: a process died.
        """
        self.prepare()
        before = self._counters()
        try:
            measurement = generate(self.url)
        except LoadError as error:
            self._check_alive()
            raise LoadError(f"{self.name}: {error}") from None
        after = self._counters()
        self._check_alive()
        reasons = [*void_reasons(measurement), *self._implausible(before, after, measurement)]
        if reasons:
            raise VoidRunError(self.name, reasons)
        picker = None if self.picker is None else after.picker_cpu - before.picker_cpu
        return GatewayRun(measurement, picker, after.gateway_cpu - before.gateway_cpu)

    def _check_alive(self) -> None:
        for process in (self.gateway, self.back_ends, self.picker):
            if process is not None:
                process.check_alive()

    def _counters(self) -> _Counters:
        return _Counters(
            gateway_cpu=self.gateway.cpu_seconds(),
            picker_cpu=0.0 if self.picker is None else self.picker.cpu_seconds(),
            served=self.gateway.stat("cluster.back_ends.upstream_rq_completed"),
            asked=0 if self.way is None else self.gateway.stat(self.way.asked_stat),
            unanswered=0 if self.way is None else self.gateway.stat(self.way.unanswered_stat),
            fallbacks=self.picker.fallbacks() if isinstance(self.picker, PickerProcess) else 0,
        )

    def _implausible(self, before: _Counters, after: _Counters, measurement: Measurement) -> list[str]:
        reasons = []
        sent = measurement.requests
        if after.served - before.served != sent:
            reasons.append(f"back ends answered {after.served - before.served} of {sent} requests")
        if self.way is not None and after.asked - before.asked != sent:
            reasons.append(f"the picker was asked {after.asked - before.asked} times for {sent} requests")
        if after.unanswered > before.unanswered:
            count = after.unanswered - before.unanswered
            reasons.append(f"{count} requests went on without the picker's answer")
        if after.fallbacks - before.fallbacks > _MOST_FALLBACK_SHARE * sent:
            reasons.append(
                f"the fallback policy answered {after.fallbacks - before.fallbacks} of {sent} requests"
            )
        return reasons


@dataclass(frozen=True)
class _Counters:
    gateway_cpu: float
    picker_cpu: float
    served: int
    asked: int
    unanswered: int
    fallbacks: int
