"""All settings of the server, resolved once: flag, then environment variable, then file, then default."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

ENVIRONMENT_PREFIX = "POLICY_SERVER"
MAXIMUM_ENDPOINTS = 17
"""One choice and the 16 alternatives that any caller may ask for."""


class SettingsError(ValueError):
    """A setting that cannot be used. The message names it, its value and the remedy."""


@dataclass(frozen=True)
class About:
    """What a setting is for, which numbers it takes, both bounds included, and whether a path is that of a file."""

    description: str
    minimum: float = -math.inf
    maximum: float = math.inf
    is_file: bool = False


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What can be set. Names carry units; flags, variables and keys of the file are made from them."""

    host: Annotated[str, About("Address to listen on; 0.0.0.0 or :: for all.")] = "127.0.0.1"
    port: Annotated[int, About("Port to listen on; 0 picks a free one.", 0, 65535)] = 50051
    models: Annotated[
        Path | None,
        About("Directory of model bundles, POLICY/VERSION/; by default those shipped with the package."),
    ] = None
    policy: Annotated[
        str | None,
        About("Policy for requests that name none; by default the first loaded model, else the fallback."),
    ] = None
    fallback: Annotated[str, About("Heuristic that answers when a policy cannot.")] = "earliest-completion"
    scaling_policy: Annotated[
        str | None,
        About(
            "Scaling policy for requests that name none; by default td3, else any model, else the fallback."
        ),
    ] = None
    scaling_fallback: Annotated[str, About("Scaling rule that answers when a policy cannot.")] = "threshold"
    scaling_economy: Annotated[
        float, About("What scaling models spare unless a request says: 0 latency most, 1 resources.", 0, 1)
    ] = 0.5
    scaling_stale_after_seconds: Annotated[
        float, About("Age of a measurement beyond which its container is not scaled.", 1e-3, 1e9)
    ] = 60.0
    state_source: Annotated[
        str | None, About("Where the state comes from when nobody reports it, such as simulator.")
    ] = None
    state_options: Annotated[Mapping[str, str], About("Options of the state source.")] = field(
        default_factory=dict
    )
    stale_after_seconds: Annotated[
        float,
        About("Age of the state beyond which models are not asked and the fallback answers.", 1e-3, 1e9),
    ] = 5.0
    model_budget_seconds: Annotated[
        float, About("Time a model has for one decision before the fallback answers.", 1e-3, 1e9)
    ] = 0.02
    batch_window_seconds: Annotated[
        float, About("How long a request that is not alone waits for others; 0: not at all.", 0, 1)
    ] = 0.0
    orchestration_policy: Annotated[
        str | None,
        About(
            "Orchestration policy for requests that name none; by default the first loaded model, else the fallback."
        ),
    ] = None
    orchestration_fallback: Annotated[str, About("Heuristic that orchestrates when a policy cannot.")] = (
        "greedy"
    )
    orchestration_stale_after_seconds: Annotated[
        float, About("The same as --stale-after-seconds for orchestration.", 1e-3, 1e9)
    ] = 30.0
    orchestration_budget_seconds: Annotated[
        float, About("Time an orchestration model has before the fallback answers.", 1e-3, 1e9)
    ] = 2.0
    frame_seconds: Annotated[
        float, About("How long actions that were returned count as taken, so that none is repeated.", 0, 1e6)
    ] = 25.0
    max_orchestration_nodes: Annotated[int, About("Nodes of a system to orchestrate.", 1)] = 20_000
    max_orchestrations_in_flight: Annotated[
        int, About("Orchestration requests handled at the same time; more are shed.", 1)
    ] = 64
    max_in_flight: Annotated[
        int, About("Dispatch requests, and Scale requests, handled at the same time; more are shed.", 1)
    ] = 1024
    retry_pushback_milliseconds: Annotated[
        int, About("How long a shed caller is told to wait.", 0, 2**31 - 1)
    ] = 100
    max_message_bytes: Annotated[int, About("Largest request.", 1024, 2**31 - 1)] = 4 * 2**20
    max_inline_candidates: Annotated[int, About("Candidates one request may carry.", 1)] = 10_000
    max_subset_endpoints: Annotated[int, About("Endpoints one endpoint subset may list.", 1)] = 10_000
    max_batch_requests: Annotated[
        int, About("Requests in one DispatchBatch, and outcomes in one ReportOutcome.", 1)
    ] = 4096
    max_scaling_containers: Annotated[int, About("Containers one Scale request may carry.", 1)] = 10_000
    max_connection_age_seconds: Annotated[
        float,
        About("Age at which a connection is replaced, so that clients find new replicas; 0: never.", 0, 1e6),
    ] = 0.0
    drain_seconds: Annotated[
        float, About("After SIGTERM: how long to go on accepting calls while not ready.", 0, 1e6)
    ] = 5.0
    grace_seconds: Annotated[
        float, About("After that: how long calls in flight may take to finish.", 0, 1e6)
    ] = 10.0
    flush_seconds: Annotated[float, About("After that: how long telemetry may take to leave.", 0, 1e6)] = 2.0
    reflection: Annotated[bool, About("Whether to offer server reflection.")] = True
    envoy: Annotated[bool, About("Whether to serve Envoy's external processing and authorization.")] = False
    envoy_host: Annotated[str, About("Address to serve Envoy on.")] = "127.0.0.1"
    envoy_port: Annotated[int, About("Port to serve Envoy on; 0 picks a free one.", 0, 65535)] = 9002
    envoy_service: Annotated[
        str, About("What names the service of a proxied request; the first of these that has a value.")
    ] = "header:x-policy-service,authority"
    envoy_access_point: Annotated[
        str, About("What names the access point of a proxied request; by default the first of the state.")
    ] = "header:x-policy-access-point"
    envoy_priority: Annotated[
        str, About("What names the priority of a proxied request; below zero it is shed first.")
    ] = "header:x-policy-priority"
    envoy_saturation: Annotated[
        float,
        About("Requests per slot of the endpoints from which on priorities below zero are shed.", 0, 1e9),
    ] = 1.0
    envoy_max_endpoints: Annotated[
        int, About("Endpoints to list for a proxied request, best first.", 1, MAXIMUM_ENDPOINTS)
    ] = 3
    envoy_max_in_flight: Annotated[
        int, About("Proxied requests picked for and not ended; more are shed with 429.", 1)
    ] = 10_000
    envoy_clear_route_cache: Annotated[
        bool, About("Whether Envoy chooses the route again after the pick, by its headers.")
    ] = True
    envoy_test_header: Annotated[
        bool, About("Whether to obey the header test-epp-endpoint-selection of conformance tests.")
    ] = False
    metrics_host: Annotated[str, About("Address to serve Prometheus metrics on.")] = "127.0.0.1"
    metrics_port: Annotated[
        int | None, About("Port to serve Prometheus metrics on; by default none are served.", 0, 65535)
    ] = None
    extender_host: Annotated[str, About("Address to serve the kube-scheduler extender on.")] = "127.0.0.1"
    extender_port: Annotated[
        int | None,
        About("Port to serve the kube-scheduler extender on, usually 9003; by default it is off.", 0, 65535),
    ] = None
    extender_tls_certificate: Annotated[
        Path | None,
        About("PEM file of the extender's certificate chain; by default it speaks plain HTTP.", is_file=True),
    ] = None
    extender_tls_key: Annotated[
        Path | None, About("PEM file of the key of the extender's certificate.", is_file=True)
    ] = None
    extender_policy: Annotated[str, About("Placement policy that scores nodes.")] = "near-demand"
    extender_budget_seconds: Annotated[
        float, About("Time the placement policy has for one pod before all nodes are alike.", 1e-3, 1e9)
    ] = 0.2
    extender_stale_after_seconds: Annotated[
        float, About("Age of the state beyond which the extender lets all nodes pass alike.", 1e-3, 1e9)
    ] = 60.0
    extender_max_body_bytes: Annotated[
        int, About("Largest body of a call of the scheduler.", 1024, 2**31 - 1)
    ] = 64 * 2**20
    extender_service_labels: Annotated[
        str, About("Labels, separated by commas; the first that a pod carries names its service.")
    ] = "policy-server.io/service,app.kubernetes.io/name,app"
    extender_own_namespace: Annotated[
        str, About("Namespace of our own pods, which pass untouched; empty: none.")
    ] = "policy-server"
    extender_own_label: Annotated[
        str, About("Label, KEY=VALUE, of our own pods, which pass untouched; empty: none.")
    ] = "app.kubernetes.io/name=policy-server"

    def __post_init__(self) -> None:
        for name, (_, about) in described_settings().items():
            value = getattr(self, name)
            if isinstance(value, int | float) and not about.minimum <= value <= about.maximum:
                bounds = f"from {about.minimum:g}"
                if about.maximum < math.inf:
                    bounds += f" to {about.maximum:g}"
                raise SettingsError(f"{name}: {value}; must be a number {bounds}")
        if self.envoy:
            _check_mapping(self.envoy_service, self.envoy_access_point, self.envoy_priority)
        if (self.extender_tls_certificate is None) != (self.extender_tls_key is None):
            missing = "certificate" if self.extender_tls_certificate is None else "key"
            raise SettingsError(f"extender_tls_{missing}: missing; give certificate and key, or neither")
        if self.extender_own_label and not all(self.extender_own_label.partition("=")):
            raise SettingsError(f"extender_own_label: {self.extender_own_label!r}; give KEY=VALUE")


def _check_mapping(service: str, access_point: str, priority: str) -> None:
    # Imported late: commands that serve nothing need not wait for it.
    from policy_server.envoy.request_mapping import MappingError, RequestMapping

    try:
        RequestMapping(service, access_point, priority)
    except MappingError as error:
        raise SettingsError(str(error)) from None


@cache
def described_settings() -> dict[str, tuple[Any, About]]:
    """Type and description of each setting, by name."""
    hints = get_type_hints(Settings, include_extras=True)
    described = {}
    for setting in fields(Settings):
        kind, about = get_args(hints[setting.name])
        described[setting.name] = (kind, about)
    return described


def read_settings_file(path: Path) -> dict[str, Any]:
    """The settings in a TOML file, by name.

    Raises:
        SettingsError: the file cannot be read, or has a key that is no setting.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"config: {path}; {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"config: {path}; is not TOML: {error}") from None
    known = {setting.name for setting in fields(Settings)}
    for key, value in content.items():
        if key not in known:
            raise SettingsError(
                f"config: {path}; {key!r} is no setting; choose from {', '.join(sorted(known))}"
            )
        if isinstance(value, dict) != (key == "state_options"):
            raise SettingsError(f"config: {path}; {key}: {value!r}; only state_options is a table")
    return content
