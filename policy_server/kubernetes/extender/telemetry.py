"""Counts what the scheduler extender does, and makes spans and log lines of what went wrong."""

from __future__ import annotations

import logging

from policy_server.kubernetes.extender.logic import Prioritization
from policy_server.policies.decision_origin import DecisionOrigin, DecisionSource, FallbackReason
from policy_server.policies.guard import GuardObserver
from policy_server.policies.placement import PlacementPolicy
from policy_server.telemetry.metrics import ServerMetrics

_LOGGER = logging.getLogger(__name__)

ALL_ALIKE = "all-nodes-alike"
"""Stands for a placement policy that could not be asked."""


class ExtenderTelemetry:
    """Told, on the event loop, of every HTTP call and every question to the policy.

    Args:
        policy: that is asked.
        metrics: count calls and decisions.
        faults: is told of fallbacks.
    """

    def __init__(self, policy: PlacementPolicy, metrics: ServerMetrics, faults: GuardObserver) -> None:
        self._policy = policy
        self._metrics = metrics
        self._faults = faults
        source = DecisionSource.LEARNED if policy.learned else DecisionSource.HEURISTIC
        self._origin = DecisionOrigin(policy.name, policy.version, source)
        self._last_reason = FallbackReason.UNSPECIFIED

    def called(self, method: str, route: str, scheme: str, status: int, seconds: float) -> None:
        """An HTTP request was answered.

        Args:
            method: ``GET``, ``POST`` or whatever was sent.
            route: such as ``/filter``; empty: none.
            scheme: ``http`` or ``https``.
            status: of the response.
            seconds: it took.
        """
        self._metrics.http_call(method, route, scheme, status).record(seconds)

    def prioritized(self, prioritization: Prioritization) -> None:
        """Nodes were scored, or left alike."""
        if not prioritization.asked:
            return
        reason, error = prioritization.reason, prioritization.error
        if reason is FallbackReason.UNSPECIFIED:
            self._metrics.decided(self._origin, 1, prioritization.seconds)
        else:
            origin = DecisionOrigin(ALL_ALIKE, "1", DecisionSource.FALLBACK, reason)
            self._metrics.decided(origin, 1, prioritization.seconds)
            self._faults.fell_back(self._policy.name, reason, 1, error)
        if reason is not self._last_reason:
            self._last_reason = reason
            self._log_change(reason, error)

    def _log_change(self, reason: FallbackReason, error: Exception | None) -> None:
        if reason is FallbackReason.UNSPECIFIED:
            _LOGGER.info("placement policy %s: sound again", self._policy.name)
            return
        _LOGGER.warning(
            "placement policy %s: %s; until that changes, all nodes are alike to the extender%s",
            self._policy.name,
            reason.name.lower().replace("_", " "),
            "" if error is None else f" ({error!r})",
        )
