"""What became of actions on replicas."""

from __future__ import annotations

from dataclasses import dataclass


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
