"""Actions on replicas."""

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


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What became of an action.

    Attributes:
        accepted: whether it was carried out.
        endpoint: of the replica added or deleted; empty if there is none.
        reason: why it was refused; empty if it was not.
    """

    accepted: bool
    endpoint: str = ""
    reason: str = ""
