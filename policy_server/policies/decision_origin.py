"""Who made a decision, and why it was not the policy that was asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from policy_server.policies.dispatch import DispatchDecision, DispatchDecisions


class DecisionSource(IntEnum):
    """Who made a decision; numbers as in ``policy.v1.DecisionSource``."""

    UNSPECIFIED = 0
    LEARNED = 1
    HEURISTIC = 2
    FALLBACK = 3


class FallbackReason(IntEnum):
    """Why the fallback answered; numbers as in ``policy.v1.FallbackReason``."""

    UNSPECIFIED = 0
    MODEL_ERROR = 1
    NON_FINITE_OUTPUT = 2
    BUDGET_SPENT = 3
    STALE_STATE = 4
    CIRCUIT_OPEN = 5
    NO_MODEL = 6
    NON_FINITE_INPUT = 7
    MALFORMED_REQUEST = 8


@dataclass(frozen=True, slots=True)
class DecisionOrigin:
    """Who made a decision.

    Attributes:
        policy: name of the policy that decided; of the fallback where it did.
        version: of that policy.
        source: learned, heuristic or fallback.
        reason: why the fallback decided; UNSPECIFIED where it did not.
    """

    policy: str
    version: str
    source: DecisionSource
    reason: FallbackReason = FallbackReason.UNSPECIFIED
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Every decision is counted by its origin, and enumerations are slow to hash.
        object.__setattr__(self, "_hash", hash((self.policy, self.version, self.source, self.reason)))

    def __hash__(self) -> int:
        return self._hash


class GuardedDecisions(NamedTuple):
    """Decisions for Q queries and who made them.

    Attributes:
        decisions: of all queries.
        origin: who decided, unless ``exceptions`` says otherwise.
        snapshot_age_seconds: age of the state at decision time.
        exceptions: who decided the queries (by position) that someone else than ``origin`` decided.
    """

    decisions: DispatchDecisions
    origin: DecisionOrigin
    snapshot_age_seconds: float
    exceptions: Mapping[int, DecisionOrigin] = MappingProxyType({})

    def origin_of(self, query: int) -> DecisionOrigin:
        """Who decided one query."""
        return self.exceptions.get(query, self.origin)

    def row(self, query: int) -> GuardedDecision:
        """The decision for one query."""
        return GuardedDecision(self.decisions.row(query), self.origin_of(query), self.snapshot_age_seconds)


class GuardedDecision(NamedTuple):
    """The decision for one query and who made it; see :class:`GuardedDecisions`."""

    decision: DispatchDecision
    origin: DecisionOrigin
    snapshot_age_seconds: float
