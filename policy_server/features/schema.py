"""Names and order of every feature, with a hash that ties a model to the code that feeds it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class HashedSchema:
    """Columns of feature arrays. The server refuses a model bundle whose manifest records another :attr:`hash`."""

    @property
    def hash(self) -> str:
        """Hex SHA-256 of the canonical JSON form."""
        canonical = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True)
class FeatureSchema(HashedSchema):
    """Columns of each feature array of dispatch, in order. Units are part of the names."""

    node: tuple[str, ...]
    access_point: tuple[str, ...]
    link: tuple[str, ...]
    replica: tuple[str, ...]
    request: tuple[str, ...]
    revision: int = 1
    """Raised when a feature keeps its name but changes its meaning."""


SCHEMA = FeatureSchema(
    node=(
        "cpu_cores",
        "memory_gibibytes",
        "speed",
        "cpu_used_fraction",
        "memory_used_fraction",
        "cpu_committed_fraction",
        "queued_cpu_fraction",
        "expected_utilisation",
        "mean_execution_seconds",
        "is_cloud",
    ),
    access_point=(
        "queued_requests",
        "demand_fraction",
        "node_count_log",
        "cloud_delay_seconds",
        "cloud_backlog_seconds",
        "is_cloud",
    ),
    link=("delay_seconds", "transfer_seconds_per_megabyte", "backlog_seconds"),
    replica=(
        "execution_seconds",
        "cpu_fraction",
        "outstanding_per_slot",
        "concurrency_log",
        "latency_seconds",
        "latency_known",
        "service_demand_fraction",
        "service_edge_replicas_log",
    ),
    request=(
        "network_seconds",
        "return_seconds",
        "wait_seconds",
        "completion_seconds",
        "slack_seconds",
        "slack_fraction",
        "pending_cpu_fraction",
        "pending_per_slot",
        "excess_cpu_fraction",
        "deadline_seconds",
        "snapshot_age_seconds",
        "is_local",
    ),
)
