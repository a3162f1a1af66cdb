"""What orchestration remembers of one system between its decisions."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

DEFAULT_FRAME_SECONDS = 25.0
"""Time between two decisions in the KaiS paper: 100 slots of 0.25 s."""


@dataclass(frozen=True, slots=True)
class GivenAddition:
    """A replica that was to be added.

    Attributes:
        given_at_seconds: on the clock of the snapshots.
        node: name.
        service: name.
        replicas: of the service on the node, not draining, that the snapshot decided on showed.
    """

    given_at_seconds: float
    node: str
    service: str
    replicas: int


@dataclass(frozen=True, slots=True)
class GivenDeletion:
    """A replica that was to be deleted.

    Attributes:
        given_at_seconds: on the clock of the snapshots.
        endpoint: of the replica.
        node: name.
        service: name.
    """

    given_at_seconds: float
    endpoint: str
    node: str
    service: str


class FrameMemory:
    """Actions given in the current frame, and what rules remember; by name, since rows shift as replicas come and go.

    Without a memory of its own answers a caller that asks twice before its system has changed would be told the same
    twice.

    Attributes:
        frame_seconds: how long an action counts.
        of_rules: what each rule remembers, by its name; rules write to it.
    """

    def __init__(self, frame_seconds: float = DEFAULT_FRAME_SECONDS) -> None:
        self.frame_seconds = frame_seconds
        self.of_rules: dict[str, Any] = {}
        self._given: list[GivenAddition | GivenDeletion] = []

    def copy(self) -> FrameMemory:
        """One that can be written to without changing this one."""
        copied = FrameMemory(self.frame_seconds)
        copied.of_rules = deepcopy(self.of_rules)
        copied._given = self._given
        return copied

    def given(self, now_seconds: float) -> list[GivenAddition | GivenDeletion]:
        """Actions given less than a frame ago, oldest first."""
        oldest = now_seconds - self.frame_seconds
        return [action for action in self._given if action.given_at_seconds > oldest]

    def record(self, actions: list[GivenAddition | GivenDeletion], now_seconds: float) -> None:
        """Remembers actions that are given now, and forgets those of earlier frames."""
        self._given = [*self.given(now_seconds), *actions]

    def forget(self, actions: list[GivenAddition | GivenDeletion]) -> None:
        """Takes actions back that were recorded and not given after all."""
        self._given = [action for action in self._given if action not in actions]
