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


class SettingsError(ValueError):
    """A setting that cannot be used. The message names it, its value and the remedy."""


@dataclass(frozen=True)
class About:
    """What a setting is for, and which numbers it takes, both bounds included."""

    description: str
    minimum: float = -math.inf
    maximum: float = math.inf


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
    metrics_host: Annotated[str, About("Address to serve Prometheus metrics on.")] = "127.0.0.1"
    metrics_port: Annotated[
        int | None, About("Port to serve Prometheus metrics on; by default none are served.", 0, 65535)
    ] = None

    def __post_init__(self) -> None:
        for name, (_, about) in described_settings().items():
            value = getattr(self, name)
            if isinstance(value, int | float) and not about.minimum <= value <= about.maximum:
                bounds = f"from {about.minimum:g}"
                if about.maximum < math.inf:
                    bounds += f" to {about.maximum:g}"
                raise SettingsError(f"{name}: {value}; must be a number {bounds}")


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
