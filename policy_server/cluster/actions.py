"""Actions on replicas: what orchestration decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class AddReplica:
    """Start a replica of a service (row) on a node (row)."""

    service: int
    node: int


@dataclass(frozen=True, slots=True)
class DeleteReplica:
    """Drain a replica (row of the topology decided on)."""

    replica: int


OrchestrationAction: TypeAlias = AddReplica | DeleteReplica
