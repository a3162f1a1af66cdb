"""Names and order of the features that orchestration models see."""

from __future__ import annotations

from dataclasses import dataclass

from policy_server.features.schema import SCHEMA, HashedSchema


@dataclass(frozen=True)
class OrchestrationSchema(HashedSchema):
    """Columns of each array of :mod:`policy_server.features.graph`, in order. Units are part of the names."""

    node: tuple[str, ...]
    access_point: tuple[str, ...]
    link: tuple[str, ...]
    replica: tuple[str, ...]
    demand: tuple[str, ...]
    pair: tuple[str, ...]
    revision: int = 1
    """Raised when a feature keeps its name but changes its meaning."""


ORCHESTRATION_SCHEMA = OrchestrationSchema(
    node=(
        *SCHEMA.node,
        "memory_left_gibibytes",
        "replicas_log",
        "starting_replicas_log",
        "draining_replicas_log",
        "idle_replicas_log",
    ),
    access_point=SCHEMA.access_point,
    link=SCHEMA.link,
    replica=SCHEMA.replica,
    demand=(
        "access_point_demand_fraction",
        "access_point_pressure",
        "system_demand_fraction",
        "system_pressure",
        "access_point_waiting_seconds",
        "system_waiting_seconds",
        "access_point_replicas_log",
        "access_point_starting_replicas_log",
        "system_edge_replicas_log",
        "system_cloud_replicas_log",
        "cpu_cores",
        "memory_gibibytes",
        "execution_seconds",
        "deadline_seconds",
        "cloud_slack_fraction",
    ),
    pair=(
        "replicas_log",
        "starting_replicas_log",
        "idle_replicas_log",
        "waiting_seconds",
        "cpu_fraction",
        "memory_fraction",
        "memory_left_fraction",
        "execution_deadline_fraction",
        "start_seconds_log",
    ),
)
