"""Vertical scaling on an embedded default: the real server resizes a simulated application through a bursty hour.

Every interval of five simulated seconds the application's measurements go to the server in a Scale call, and what it
tells to apply becomes the limits of the simulated containers. The server runs as a process of its own, as in
production; only the application is simulated.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from hdrh.histogram import HdrHistogram

from bench.commands import policy_server_command
from bench.server_process import ServerProcess, free_port
from policy_server.cluster.containers import Fleet, MeasurementHistory
from policy_server.cluster.snapshot import Float64Array
from policy_server.policies.scaling import RULE_SCALING_NAMES
from policy_server.proto.policy.v1.decision_pb2 import DecisionSource
from policy_server.proto.policy.v1.scaling_service_pb2 import (
    ScaleRequest,
    ScaleResponse,
    ScalingApplications,
    ScalingContainers,
    ScalingHistory,
    ScalingNodes,
)
from policy_server.proto.policy.v1.scaling_service_pb2_grpc import ScalingServiceStub
from policy_server.runtime.bundle import find_bundles
from training.scaling.hour import Hour, bursty_hour
from training.scaling.simulation import latency_quantile
from training.scaling.sock_shop import sock_shop
from training.scaling.workload import Load

LEARNED = "td3"
BASELINES = ("threshold", "autothrottle")
CALL_TIMEOUT_SECONDS = 10.0
_DEATH_NOTICE_SECONDS = 1.0
_HISTORY_COLUMNS = {
    "cpu_usage_millicores": ("cpu_usage_cores", 1000.0),
    "throttled_fraction": ("throttled_fraction", 1.0),
    "memory_usage_bytes": ("memory_usage_bytes", 1.0),
    "latency_seconds": ("latency_seconds", 1.0),
    "requests_per_second": ("requests_per_second", 1.0),
    "cpu_limit_millicores": ("cpu_limit_cores", 1000.0),
    "memory_limit_bytes": ("memory_limit_bytes", 1.0),
}


class ScalingDemoError(RuntimeError):
    """The demo cannot be run or finished. The message says why."""


@dataclass(frozen=True)
class ScalingDemoResult:
    """One policy's hour.

    Attributes:
        hour: interval by interval.
        calls: Scale calls.
        p50_seconds: of a call, seen by the Python client.
        p99_seconds: likewise.
        learned_share: of the containers' decisions, made by a model.
        fallback_share: of the containers' decisions, made by the fallback policy.
    """

    hour: Hour
    calls: int
    p50_seconds: float
    p99_seconds: float
    learned_share: float
    fallback_share: float

    @property
    def mean_latency_seconds(self) -> float:
        """Of all requests of the hour; a failed request counts with the client's timeout."""
        return float(self.hour.latency_seconds.sum() / self.requests)

    @property
    def p99_latency_seconds(self) -> float:
        """Of all requests of the hour."""
        return float(latency_quantile(self.hour.latency_counts.sum(axis=0), 0.99))

    @property
    def violation_rate(self) -> float:
        """Requests slower than the objective, or failed."""
        return float(self.hour.violations.sum() / self.requests)

    @property
    def requests(self) -> int:
        """Of the hour."""
        return int(self.hour.latency_counts.sum())

    def to_json(self) -> dict[str, Any]:
        """The figures of the hour."""
        return {
            "latency_seconds": {"mean": self.mean_latency_seconds, "p99": self.p99_latency_seconds},
            "slo_violation_rate": self.violation_rate,
            "cpu_cores": float(self.hour.cpu_cores.mean()),
            "memory_mib": float(self.hour.memory_bytes.mean()) / 2**20,
            "changes": float(self.hour.changes.sum()),
            "requests": self.requests,
            "calls": self.calls,
            "decision_seconds": {"p50": self.p50_seconds, "p99": self.p99_seconds},
            "learned_share": self.learned_share,
            "fallback_share": self.fallback_share,
        }


def known_policies() -> tuple[str, ...]:
    """Names that the server of the demo knows: of the bundles that ship with the package, and the rules."""
    return (*find_bundles(kind="scaling"), *RULE_SCALING_NAMES)


def default_policies() -> tuple[str, ...]:
    """The learned policy, if a bundle of it ships with the package, and two rules."""
    return (LEARNED, *BASELINES) if LEARNED in known_policies() else BASELINES


class ScaleCaller:
    """Asks the server for limits, as a controller does.

    Args:
        channel: to the server.
        policy: name.
    """

    def __init__(self, channel: grpc.Channel, policy: str) -> None:
        self._scale: Callable[..., ScaleResponse] = ScalingServiceStub(channel).Scale
        self._policy = policy
        self._latency = HdrHistogram(1, 60_000_000, 3)
        self._sources: Counter[int] = Counter()

    def __call__(self, fleet: Fleet, history: MeasurementHistory) -> tuple[Float64Array, Float64Array]:
        """The limits to set, in cores and bytes; those in force where the server says not to resize.

        Raises:
            grpc.RpcError: the server refuses.
        """
        request = scale_request(self._policy, fleet, history)
        started = time.perf_counter()
        response = self._scale(request, timeout=CALL_TIMEOUT_SECONDS)
        self._latency.record_value(max(1, round((time.perf_counter() - started) * 1e6)))
        sources = [provenance.source for provenance in response.provenances]
        self._sources.update(sources[row] for row in response.provenance)
        apply = np.array(response.apply)
        return (
            np.where(
                apply, np.array(response.cpu_limit_millicores) / 1000.0, history.newest("cpu_limit_cores")
            ),
            np.where(apply, np.array(response.memory_limit_bytes), history.newest("memory_limit_bytes")),
        )

    def result(self, hour: Hour) -> ScalingDemoResult:
        """What the calls of an hour came to."""
        decisions = max(self._sources.total(), 1)
        return ScalingDemoResult(
            hour=hour,
            calls=self._latency.get_total_count(),
            p50_seconds=self._latency.get_value_at_percentile(50) / 1e6,
            p99_seconds=self._latency.get_value_at_percentile(99) / 1e6,
            learned_share=self._sources[DecisionSource.DECISION_SOURCE_LEARNED] / decisions,
            fallback_share=self._sources[DecisionSource.DECISION_SOURCE_FALLBACK] / decisions,
        )


def scale_request(policy: str, fleet: Fleet, history: MeasurementHistory) -> ScaleRequest:
    """The message that asks a policy about a fleet of Guaranteed pods of one container each."""
    applications, application = np.unique(fleet.application, return_inverse=True)
    objective = np.zeros(len(applications))
    objective[application] = fleet.latency_objective_seconds
    cpu, memory = history.newest("cpu_limit_cores") * 1000.0, history.newest("memory_limit_bytes")
    return ScaleRequest(
        policy=policy,
        nodes=ScalingNodes(
            name=[f"node-{row}" for row in range(len(fleet.node_cpu_cores))],
            cpu_millicores=fleet.node_cpu_cores * 1000.0,
            memory_bytes=fleet.node_memory_bytes,
        ),
        applications=ScalingApplications(
            name=[f"application-{number}" for number in applications], latency_objective_seconds=objective
        ),
        containers=ScalingContainers(
            id=[f"container-{row}" for row in range(len(fleet))],
            node=fleet.node,
            application=application,
            cpu_request_millicores=cpu,
            cpu_limit_millicores=cpu,
            memory_request_bytes=memory,
            memory_limit_bytes=memory,
        ),
        history=ScalingHistory(
            intervals=history.intervals,
            oom_kills=history.column("oom_kills").ravel().astype(np.uint32),
            **{
                field: factor * history.column(name).ravel()
                for field, (name, factor) in _HISTORY_COLUMNS.items()
            },
        ),
    )


def run_scaling_demo(
    policies: tuple[str, ...], load: Load, on_interval: Callable[[str, int, int], None]
) -> dict[str, ScalingDemoResult]:
    """Starts the server and lets every policy through the same hour.

    Args:
        policies: names.
        load: how much is offered.
        on_interval: told the policy, the intervals done and their total.

    Raises:
        ScalingDemoError: the server refuses a call.
        ServerError: the server did not start or died.
    """
    port = free_port()
    with (
        ServerProcess("policy-server", policy_server_command(port), port) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        callers = {name: ScaleCaller(channel, name) for name in policies}
        try:
            hours = bursty_hour(sock_shop(), callers, load, on_interval=on_interval)
        except grpc.RpcError as error:
            server.check_alive(_DEATH_NOTICE_SECONDS)
            raise ScalingDemoError(
                f"the server refuses: {error.code().name}: {error.details()}. Its output:\n{server.output()}"
            ) from None
    return {name: callers[name].result(hour) for name, hour in hours.items()}


def plot_scaling_demo(path: Path, results: dict[str, ScalingDemoResult], load: Load) -> Path:
    """Draws load, latency with its objective and allocation over the hour."""
    from training.scaling.hour import plot_bursty_hour

    hours = {name: result.hour for name, result in results.items()}
    return plot_bursty_hour(path, sock_shop(), hours, f"SockShop through the bursty trace, {load} load")
