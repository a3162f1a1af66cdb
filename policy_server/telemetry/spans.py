"""Spans of what went wrong. Sound calls make none, so that they cost nothing.

A span continues the trace of the call it belongs to: the call's metadata are looked at only when a span is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagate import extract
from opentelemetry.trace import SpanKind, Status, StatusCode

from policy_server.policies.circuit_breaker import BreakerState
from policy_server.policies.guard import FallbackReason, GuardObserver
from policy_server.telemetry.metrics import ServerMetrics


class CallMetadata(Protocol):
    """The part of a gRPC call that carries the caller's trace."""

    def invocation_metadata(self) -> Any: ...  # noqa: D102


CURRENT_CALL: ContextVar[CallMetadata | None] = ContextVar("current call", default=None)
"""The call being handled; empty where calls are handled together."""


class ProblemSpans:
    """Makes spans of fallbacks and failed calls.

    None is made until :meth:`send_to` says where they go.
    """

    def __init__(self) -> None:
        self._tracer: trace.Tracer | None = None

    @property
    def enabled(self) -> bool:
        """Whether spans are made."""
        return self._tracer is not None

    def send_to(self, tracer: trace.Tracer) -> None:
        """Makes spans from now on."""
        self._tracer = tracer

    def fell_back(self, policy: str, reason: FallbackReason, queries: int, error: Exception | None) -> None:
        """A policy was stood in for."""
        if self._tracer is None:
            return
        with self._tracer.start_as_current_span(
            "policy.fallback",
            _caller_context(),
            SpanKind.INTERNAL,
            {"policy.name": policy, "policy.fallback.reason": reason.name.lower(), "policy.queries": queries},
        ) as span:
            span.set_status(Status(StatusCode.ERROR, reason.name.lower()))
            if error is None:
                span.add_event("error", {"reason": reason.name.lower()})
            else:
                span.record_exception(error)

    def failed(self, method: str, code: str, error: Exception) -> None:
        """A call failed."""
        if self._tracer is None:
            return
        with self._tracer.start_as_current_span(
            method,
            _caller_context(),
            SpanKind.SERVER,
            {
                "rpc.system.name": "grpc",
                "rpc.method": method,
                "rpc.response.status_code": code,
                "error.type": code,
            },
        ) as span:
            span.set_status(Status(StatusCode.ERROR, str(error)))
            span.record_exception(error)


class DecisionObserver(GuardObserver):
    """Counts what the guard meets, and makes spans of fallbacks."""

    def __init__(self, metrics: ServerMetrics, spans: ProblemSpans) -> None:
        self._metrics = metrics
        self._spans = spans

    def fell_back(
        self, policy: str, reason: FallbackReason, queries: int, error: Exception | None = None
    ) -> None:
        """See :class:`~policy_server.policies.guard.GuardObserver`."""
        self._metrics.fell_back(policy, reason, queries)
        self._spans.fell_back(policy, reason, queries, error)

    def found_non_finite_inputs(self, policy: str, values: int) -> None:
        """See :class:`~policy_server.policies.guard.GuardObserver`."""
        self._metrics.found_non_finite_inputs(policy, values)

    def overran(self, policy: str, seconds: float) -> None:
        """See :class:`~policy_server.policies.guard.GuardObserver`."""
        self._metrics.overran(policy)

    def breaker_changed(self, policy: str, state: BreakerState) -> None:
        """See :class:`~policy_server.policies.guard.GuardObserver`."""
        if state is BreakerState.OPEN:
            self._metrics.gave_up(policy)


class ForwardingObserver(GuardObserver):
    """Tells another observer, on an event loop, what guards on other threads meet."""

    def __init__(self, observer: GuardObserver, loop: asyncio.AbstractEventLoop) -> None:
        self._observer = observer
        self._loop = loop

    def fell_back(
        self, policy: str, reason: FallbackReason, queries: int, error: Exception | None = None
    ) -> None:
        """See :class:`~policy_server.policies.guard.GuardObserver`."""
        self._forward(self._observer.fell_back, policy, reason, queries, error)

    def overran(self, policy: str, seconds: float) -> None:
        """See :class:`~policy_server.policies.guard.GuardObserver`."""
        self._forward(self._observer.overran, policy, seconds)

    def breaker_changed(self, policy: str, state: BreakerState) -> None:
        """See :class:`~policy_server.policies.guard.GuardObserver`."""
        self._forward(self._observer.breaker_changed, policy, state)

    def _forward(self, tell: Callable[..., None], *told: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(tell, *told)


def _caller_context() -> Context | None:
    call = CURRENT_CALL.get()
    if call is None:
        return None
    metadata = call.invocation_metadata() or ()
    return extract({key: value for key, value in metadata if isinstance(value, str)})
