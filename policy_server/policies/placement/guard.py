"""Whatever a placement policy does, the caller learns either sound scores or why there are none."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from policy_server.cluster.snapshot import Float64Array, Snapshot
from policy_server.policies.circuit_breaker import BreakerSettings, CircuitBreaker
from policy_server.policies.decision_origin import FallbackReason
from policy_server.policies.patience import OutOfPatienceError, PatientWorker
from policy_server.policies.placement.policy import PlacementPolicy, PlacementQuery

_BREAKER = BreakerSettings()


class PlacementScores(NamedTuple):
    """What became of a question to a policy.

    Attributes:
        scores: float64 [M], finite; None where there are none to rely on.
        reason: why there are none.
        error: that the policy raised, or that says how long it was waited for.
    """

    scores: Float64Array | None
    reason: FallbackReason = FallbackReason.UNSPECIFIED
    error: Exception | None = None


class GuardedPlacement:
    """A placement policy whose faults stay with it.

    A policy that raises, returns NaN or takes longer than its budget yields no scores. It runs on a thread of its own,
    so that a call that hangs is given up on; while it hangs, further calls are refused at once. After several faults
    in a row it is not asked for a while.

    Attributes:
        policy: that is asked.
    """

    def __init__(
        self,
        policy: PlacementPolicy,
        *,
        budget_seconds: float,
        maximum_state_age_seconds: float = math.inf,
        breaker: BreakerSettings = _BREAKER,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Guards ``policy``.

        Args:
            policy: learned or heuristic.
            budget_seconds: time it has for one question.
            maximum_state_age_seconds: it does not judge older state.
            breaker: when it is given up for a while.
            clock: of the snapshots and of the breaker, seconds.
        """
        self.policy = policy
        self._budget_seconds = budget_seconds
        self._maximum_state_age_seconds = maximum_state_age_seconds
        self._breaker = CircuitBreaker(breaker, clock)
        self._clock = clock
        self._worker = PatientWorker(f"placement by {policy.name}")

    def is_stale(self, snapshot: Snapshot) -> bool:
        """Whether the snapshot is too old to be judged."""
        return snapshot.age_seconds(self._clock()) > self._maximum_state_age_seconds

    def score(self, snapshot: Snapshot, query: PlacementQuery) -> PlacementScores:
        """Asks the policy, about one node or more."""
        if self.is_stale(snapshot):
            return PlacementScores(None, FallbackReason.STALE_STATE)
        if not self._breaker.allows():
            return PlacementScores(None, FallbackReason.CIRCUIT_OPEN)
        try:
            scores = self._worker.call(lambda: self.policy.score(snapshot, query), self._budget_seconds)
            if scores.shape != (len(query),):
                raise ValueError(f"scores: shape {scores.shape} for {len(query)} nodes")
        except OutOfPatienceError as error:
            self._breaker.failed()
            return PlacementScores(None, FallbackReason.BUDGET_SPENT, error)
        except Exception as error:
            self._breaker.failed()
            return PlacementScores(None, FallbackReason.MODEL_ERROR, error)
        if not np.isfinite(scores).all():
            self._breaker.failed()
            return PlacementScores(None, FallbackReason.NON_FINITE_OUTPUT)
        self._breaker.succeeded()
        return PlacementScores(scores)
