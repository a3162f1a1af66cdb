"""What a server derived from its settings and its machine, for whoever reads its log."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

from policy_server.policies.guard import MissingModel
from policy_server.policies.heuristics import HEURISTIC_DISPATCH_NAMES
from policy_server.policies.orchestration.guard import MissingOrchestration
from policy_server.policies.orchestration.rules import HEURISTIC_ORCHESTRATION_NAMES
from policy_server.policies.scaling import RULE_SCALING_NAMES
from policy_server.policies.scaling.guard import MissingScaling
from policy_server.runtime.cpu_budget import read_cpu_budget
from policy_server.runtime.orchestration_registry import OrchestrationRegistry
from policy_server.runtime.registry import PolicyRegistry
from policy_server.runtime.scaling_registry import ScalingRegistry
from policy_server.server import PolicyServer


def startup_report(server: PolicyServer) -> str:
    """A block of aligned lines."""
    rows = list(_rows(server))
    width = max(len(label) for label, _ in rows)
    lines = [f"policy-server {version('policy-server')}"]
    lines += [f"  {label:<{width}}  {text}" for label, text in rows]
    return "\n".join(lines)


def _rows(server: PolicyServer) -> Iterator[tuple[str, str]]:
    settings, registry, telemetry = server.settings, server.registry, server.telemetry
    orchestration = server.orchestration_registry
    scaling = server.scaling_registry
    yield "address", server.address
    if server.picker is not None:
        yield "Envoy", f"{server.picker.address}, {settings.envoy_max_endpoints} endpoints a request"
    yield "policy", _policy(registry)
    yield "fallback", settings.fallback
    yield "models", _models(registry)
    yield "heuristics", ", ".join(HEURISTIC_DISPATCH_NAMES)
    yield "orchestration policy", _policy(orchestration)
    yield "orchestration fallback", settings.orchestration_fallback
    yield "orchestration models", _models(orchestration)
    yield "orchestration rules", ", ".join(HEURISTIC_ORCHESTRATION_NAMES)
    yield "scaling policy", _policy(scaling)
    yield "scaling fallback", settings.scaling_fallback
    yield "scaling models", _models(scaling)
    yield "scaling rules", ", ".join(RULE_SCALING_NAMES)
    for served in (registry, orchestration, scaling):
        for failure in served.last_reload.failures:
            yield "refused", str(failure)
    yield "CPU", read_cpu_budget().describe()
    yield "threads", "1 for calls and dispatch, 1 for orchestration, 1 per model session"
    yield "state", f"from {settings.state_source}" if settings.state_source else "as reported by ReportState"
    yield (
        "limits",
        f"{settings.max_message_bytes} bytes a message, {settings.max_inline_candidates} inline candidates, "
        f"{settings.max_batch_requests} requests a batch, {settings.max_scaling_containers} containers to scale, "
        f"{settings.max_in_flight} in flight",
    )
    yield (
        "model guard",
        f"budget {settings.model_budget_seconds:g} s, state stale after {settings.stale_after_seconds:g} s",
    )
    port = telemetry.prometheus_port
    yield "metrics", "off" if port is None else f"http://{settings.metrics_host}:{port}/metrics"
    yield (
        "extender",
        "off" if server.extender_url is None else f"{server.extender_url}, policy {settings.extender_policy}",
    )
    yield "traces", "off" if telemetry.tracer is None else "to the collector"


def _policy(registry: PolicyRegistry | OrchestrationRegistry | ScalingRegistry) -> str:
    active = registry.get()
    if isinstance(active.policy, MissingModel | MissingOrchestration | MissingScaling):
        return f"{active.name}, of which no version could be loaded: the fallback answers"
    return f"{active.name} {active.version}"


def _models(registry: PolicyRegistry | OrchestrationRegistry | ScalingRegistry) -> str:
    loaded = [f"{name} {bundle.manifest.version}" for name, bundle in registry.bundles.items()]
    return ", ".join(loaded) or "none"
