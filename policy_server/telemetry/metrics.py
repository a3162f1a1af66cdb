"""What the server counts, and under which names it is exported.

Names and attributes follow OpenTelemetry's semantic conventions (RPC and HTTP metrics of version 1.38) or carry the
prefix ``policy.``. Attributes take few values; an endpoint, node or request never is one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from policy_server.cluster.actions import AddReplica
from policy_server.policies.guard import DecisionOrigin, FallbackReason
from policy_server.policies.orchestration.plan import PlannedAction
from policy_server.telemetry.durations import (
    CALL_BOUNDS_SECONDS,
    DECISION_BOUNDS_SECONDS,
    DurationHistogram,
)

Attributes = Mapping[str, str]
CallKey = tuple[str, str]
HttpCallKey = tuple[str, str, str, int]
Gauge = Callable[[], float]
SeriesT = TypeVar("SeriesT")

CALL_DURATION = "rpc.server.call.duration"
HTTP_CALL_DURATION = "http.server.request.duration"
DECISION_DURATION = "policy.decision.duration"
ORCHESTRATION_DURATION = "policy.orchestration.duration"

_HTTP_METHODS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})


@dataclass(slots=True)
class DecisionSeries:
    """Decisions of one origin: how many, and how long each call of the policy took."""

    decisions: int = 0
    durations: DurationHistogram = field(default_factory=lambda: DurationHistogram(DECISION_BOUNDS_SECONDS))


@dataclass(frozen=True, slots=True)
class DurationSeries:
    """One exported histogram: its name, and a data point per set of attributes."""

    name: str
    description: str
    points: tuple[tuple[Attributes, DurationHistogram], ...]


class ServerMetrics:
    """Counts of one server. Written on the event loop, read by exporters on their own threads."""

    def __init__(self) -> None:
        self._calls: dict[CallKey, DurationHistogram] = {}
        self._http_calls: dict[HttpCallKey, DurationHistogram] = {}
        self._decisions: dict[DecisionOrigin, DecisionSeries] = {}
        self._fallbacks: Counter[tuple[str, FallbackReason]] = Counter()
        self._non_finite_outputs: Counter[str] = Counter()
        self._non_finite_inputs: Counter[str] = Counter()
        self._overruns: Counter[str] = Counter()
        self._breaker_openings: Counter[str] = Counter()
        self._shed = 0
        self._refusals: Counter[str] = Counter()
        self._outcomes: Counter[str] = Counter()
        self._orchestrations: dict[DecisionOrigin, DurationHistogram] = {}
        self._actions: Counter[tuple[str, str]] = Counter()
        self._withdrawn_actions: Counter[str] = Counter()

    def call(self, method: str, code: str) -> DurationHistogram:
        """Durations of the calls of one method that ended with one status code."""
        key = (method, code)
        histogram = self._calls.get(key)
        if histogram is None:
            # A new dictionary, so that an exporter's loop over the old one is not disturbed.
            histogram = DurationHistogram(CALL_BOUNDS_SECONDS)
            self._calls = {**self._calls, key: histogram}
        return histogram

    def http_call(self, method: str, route: str, scheme: str, status: int) -> DurationHistogram:
        """Durations of the HTTP requests of one method and route (empty: unknown) that ended with one status."""
        key = (method if method in _HTTP_METHODS else "_OTHER", route, scheme, status)
        histogram = self._http_calls.get(key)
        if histogram is None:
            histogram = DurationHistogram(CALL_BOUNDS_SECONDS)
            self._http_calls = {**self._http_calls, key: histogram}
        return histogram

    def decided(self, origin: DecisionOrigin, decisions: int, seconds: float) -> None:
        """One call of a policy decided for ``decisions`` requests."""
        series = self._decisions.get(origin)
        if series is None:
            shown = _without_reason(origin)
            series = self._decisions.get(shown) or DecisionSeries()
            self._decisions = {**self._decisions, shown: series, origin: series}
        series.decisions += decisions
        series.durations.record(seconds)

    def orchestrated(self, origin: DecisionOrigin, seconds: float, actions: Iterable[PlannedAction]) -> None:
        """One orchestration request was answered with these actions, decided in that time."""
        durations = self._orchestrations.get(origin)
        if durations is None:
            shown = _without_reason(origin)
            durations = self._orchestrations.get(shown) or DurationHistogram(CALL_BOUNDS_SECONDS)
            self._orchestrations = {**self._orchestrations, shown: durations, origin: durations}
        durations.record(seconds)
        for planned in actions:
            deletes = "drain" if planned.drain_first else "delete"
            kind = "add" if isinstance(planned.action, AddReplica) else deletes
            self._actions[origin.policy, kind] += 1

    def withdrew(self, origin: DecisionOrigin, actions: int) -> None:
        """Actions became infeasible before they were returned."""
        if actions:
            self._withdrawn_actions[origin.policy] += actions

    def shed(self) -> None:
        """A request was refused because the server is overloaded."""
        self._shed += 1

    def refused(self, reason: str) -> None:
        """A proxied request got no endpoint."""
        self._refusals[reason] += 1

    def proxied(self, outcome: str) -> None:
        """A proxied request that got an endpoint was answered, or ended without."""
        self._outcomes[outcome] += 1

    def fell_back(self, policy: str, reason: FallbackReason, queries: int) -> None:
        """The fallback decided ``queries`` requests in place of a policy."""
        self._fallbacks[policy, reason] += queries
        if reason is FallbackReason.NON_FINITE_OUTPUT:
            self._non_finite_outputs[policy] += queries

    def found_non_finite_inputs(self, policy: str, values: int) -> None:
        """Features were imputed before a policy saw them."""
        self._non_finite_inputs[policy] += values

    def overran(self, policy: str) -> None:
        """A policy answered late."""
        self._overruns[policy] += 1

    def gave_up(self, policy: str) -> None:
        """The circuit breaker of a policy opened."""
        self._breaker_openings[policy] += 1

    def durations(self) -> Iterator[DurationSeries]:
        """The histograms."""
        yield DurationSeries(
            CALL_DURATION,
            "Duration of incoming calls.",
            tuple(
                (
                    {
                        "rpc.system.name": "grpc",
                        "rpc.method": method,
                        "rpc.response.status_code": code,
                        **({} if code == "OK" else {"error.type": code}),
                    },
                    histogram,
                )
                for (method, code), histogram in self._calls.items()
            ),
        )
        yield DurationSeries(
            HTTP_CALL_DURATION,
            "Duration of incoming HTTP requests.",
            tuple(
                (
                    {
                        "http.request.method": method,
                        **({"http.route": route} if route else {}),
                        "url.scheme": scheme,
                        "http.response.status_code": str(status),
                        **({} if status < 500 else {"error.type": str(status)}),
                    },
                    histogram,
                )
                for (method, route, scheme, status), histogram in self._http_calls.items()
            ),
        )
        yield DurationSeries(
            DECISION_DURATION,
            "Time from resolved request to decision: features, policy and pick.",
            tuple((_attributes(origin), series.durations) for origin, series in _shown(self._decisions)),
        )
        yield DurationSeries(
            ORCHESTRATION_DURATION,
            "Time that an orchestration request was decided in, with those decided together with it.",
            tuple((_attributes(origin), durations) for origin, durations in _shown(self._orchestrations)),
        )

    def register(self, meter: Meter, gauges: ServerGauges) -> None:
        """Creates the instruments that show counts and gauges."""
        for name, description, unit, observe in (
            ("policy.decisions", "Decisions made.", "{decision}", self._observe_decisions),
            (
                "policy.fallbacks",
                "Decisions the fallback made in place of a policy.",
                "{decision}",
                self._observe_fallbacks,
            ),
            (
                "policy.nonfinite_outputs",
                "Decisions a policy lost to the fallback by NaN or infinite scores.",
                "{decision}",
                lambda: _by_policy(self._non_finite_outputs),
            ),
            (
                "policy.nonfinite_inputs",
                "NaN or infinite features, imputed before a policy saw them.",
                "{value}",
                lambda: _by_policy(self._non_finite_inputs),
            ),
            (
                "policy.overruns",
                "Calls of a policy that overran its time budget.",
                "{call}",
                lambda: _by_policy(self._overruns),
            ),
            (
                "policy.breaker.openings",
                "Times a policy was given up for a while.",
                "{opening}",
                lambda: _by_policy(self._breaker_openings),
            ),
            (
                "policy.orchestration.actions",
                "Actions returned.",
                "{action}",
                self._observe_actions,
            ),
            (
                "policy.orchestration.withdrawn",
                "Actions that became infeasible before they were returned.",
                "{action}",
                lambda: _by_policy(self._withdrawn_actions),
            ),
            (
                "policy.requests.shed",
                "Requests refused because the server was overloaded.",
                "{request}",
                lambda: [Observation(self._shed)],
            ),
            (
                "policy.envoy.refusals",
                "Proxied requests that got no endpoint.",
                "{request}",
                lambda: _by("reason", self._refusals),
            ),
            (
                "policy.envoy.outcomes",
                "How proxied requests that got an endpoint were answered.",
                "{request}",
                lambda: _by("outcome", self._outcomes),
            ),
        ):
            meter.create_observable_counter(name, [_callback(observe)], unit, description)
        for name, description, unit, gauge in (
            (
                "policy.state.age",
                "Age of the held state; absent while there is none.",
                "s",
                gauges.state_age_seconds,
            ),
            (
                "policy.state.pending",
                "Own picks the held state does not show yet.",
                "{request}",
                gauges.pending_picks,
            ),
            (
                "policy.stale_endpoints",
                "Endpoints whose figures are too old; chosen only where none has fresher ones.",
                "{endpoint}",
                gauges.stale_endpoints,
            ),
            (
                "policy.requests.in_flight",
                "Dispatch and scaling requests being handled.",
                "{request}",
                gauges.in_flight,
            ),
            (
                "policy.envoy.in_flight",
                "Proxied requests that got an endpoint and have not ended.",
                "{request}",
                gauges.proxied_in_flight,
            ),
        ):
            meter.create_observable_gauge(name, [_callback(_known(gauge))], unit, description)

    def _observe_decisions(self) -> Iterator[Observation]:
        for origin, series in _shown(self._decisions):
            yield Observation(series.decisions, _attributes(origin))

    def _observe_fallbacks(self) -> Iterator[Observation]:
        for (policy, reason), count in list(self._fallbacks.items()):
            yield Observation(count, {"policy": policy, "reason": reason.name.lower()})

    def _observe_actions(self) -> Iterator[Observation]:
        for (policy, kind), count in list(self._actions.items()):
            yield Observation(count, {"policy": policy, "kind": kind})


@dataclass(frozen=True, slots=True)
class ServerGauges:
    """Where current values come from. NaN: there is none."""

    state_age_seconds: Gauge
    pending_picks: Gauge
    in_flight: Gauge
    stale_endpoints: Gauge = lambda: math.nan
    proxied_in_flight: Gauge = lambda: math.nan


def _without_reason(origin: DecisionOrigin) -> DecisionOrigin:
    """What is shown of an origin: fallbacks are counted by reason elsewhere."""
    return replace(origin, reason=FallbackReason.UNSPECIFIED)


def _shown(series: Mapping[DecisionOrigin, SeriesT]) -> Iterator[tuple[DecisionOrigin, SeriesT]]:
    """Each series once; origins that differ by their reason share one."""
    return ((origin, one) for origin, one in series.items() if not origin.reason)


def _attributes(origin: DecisionOrigin) -> Attributes:
    return {"policy": origin.policy, "version": origin.version, "source": origin.source.name.lower()}


def _by_policy(counts: Mapping[str, int]) -> list[Observation]:
    return _by("policy", counts)


def _by(attribute: str, counts: Mapping[str, int]) -> list[Observation]:
    return [Observation(count, {attribute: value}) for value, count in list(counts.items())]


def _known(gauge: Gauge) -> Callable[[], list[Observation]]:
    def observe() -> list[Observation]:
        value = gauge()
        return [Observation(value)] if value == value else []

    return observe


def _callback(
    observe: Callable[[], Iterable[Observation]],
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _: observe()
