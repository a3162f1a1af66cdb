"""Puts the extender together from the server's settings."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from policy_server.cluster.snapshot import Snapshot
from policy_server.kubernetes.extender.http_server import ExtenderServer, server_tls
from policy_server.kubernetes.extender.logic import ExtenderLogic
from policy_server.kubernetes.extender.pod_rules import PodRules
from policy_server.kubernetes.extender.telemetry import ExtenderTelemetry
from policy_server.policies.guard import GuardObserver
from policy_server.policies.placement import placement_policy
from policy_server.policies.placement.guard import GuardedPlacement
from policy_server.settings import Settings
from policy_server.telemetry.metrics import ServerMetrics


def extender_server(
    settings: Settings,
    *,
    snapshot: Callable[[], Snapshot | None],
    ready: Callable[[], bool],
    metrics: ServerMetrics,
    faults: GuardObserver,
) -> ExtenderServer:
    """An extender that is not listening yet.

    Args:
        settings: of the server.
        snapshot: the state to answer by, or None.
        ready: whether callers should come.
        metrics: count calls and decisions.
        faults: is told of fallbacks.

    Raises:
        UnknownPolicyError: there is no such placement policy.
    """
    policy = placement_policy(settings.extender_policy)
    guarded = GuardedPlacement(
        policy,
        budget_seconds=settings.extender_budget_seconds,
        maximum_state_age_seconds=settings.extender_stale_after_seconds,
    )
    return ExtenderServer(
        ExtenderLogic(guarded, pod_rules(settings)),
        snapshot=snapshot,
        ready=ready,
        telemetry=ExtenderTelemetry(policy, metrics, faults),
        maximum_body_bytes=settings.extender_max_body_bytes,
        grace_seconds=settings.grace_seconds,
    )


def extender_tls(settings: Settings) -> ssl.SSLContext | None:
    """TLS of the extender; None for plain HTTP.

    Raises:
        OSError: certificate or key cannot be used.
    """
    if settings.extender_tls_certificate is None or settings.extender_tls_key is None:
        return None
    return server_tls(settings.extender_tls_certificate, settings.extender_tls_key)


def pod_rules(settings: Settings) -> PodRules:
    """Which pods are whose."""
    key, _, value = settings.extender_own_label.partition("=")
    labels = (label.strip() for label in settings.extender_service_labels.split(","))
    return PodRules(
        service_labels=tuple(label for label in labels if label),
        own_namespace=settings.extender_own_namespace,
        own_label=(key, value) if key else None,
    )
