from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from policy_server.cluster.snapshot import Float64Array, Snapshot
from policy_server.policies.circuit_breaker import BreakerSettings
from policy_server.policies.decision_origin import FallbackReason
from policy_server.policies.placement import PlacementQuery
from policy_server.policies.placement.guard import GuardedPlacement
from tests.support.placing import placement_query
from tests.support.systems import Endpoint, one_service_snapshot

SNAPSHOT = one_service_snapshot([Endpoint()] * 3)
QUERY = placement_query(SNAPSHOT)


@dataclass
class Scripted:
    """Answers as told, and counts how often it was asked."""

    answer: Callable[[], Float64Array]
    name: str = "scripted"
    version: str = "1"
    learned: bool = True
    asked: int = 0

    def score(self, snapshot: Snapshot, query: PlacementQuery) -> Float64Array:
        self.asked += 1
        return self.answer()


def guarded(policy: Scripted, **settings: object) -> GuardedPlacement:
    options: dict[str, object] = {"budget_seconds": 30.0, "clock": lambda: 100.0}
    return GuardedPlacement(policy, **(options | settings))  # type: ignore[arg-type]


def fail() -> Float64Array:
    raise ZeroDivisionError("no idea")


def test_sound_scores_come_through() -> None:
    outcome = guarded(Scripted(lambda: np.array([1.0, -2.0, 3.0]))).score(SNAPSHOT, QUERY)
    assert outcome.scores is not None
    assert outcome.scores.tolist() == [1, -2, 3]
    assert outcome.reason is FallbackReason.UNSPECIFIED


@pytest.mark.parametrize(
    ("answer", "reason", "error"),
    [
        (fail, FallbackReason.MODEL_ERROR, "no idea"),
        (lambda: np.zeros(2), FallbackReason.MODEL_ERROR, r"shape \(2,\) for 3 nodes"),
        (lambda: np.array([0, np.nan, 0]), FallbackReason.NON_FINITE_OUTPUT, None),
        (lambda: np.array([0, np.inf, 0]), FallbackReason.NON_FINITE_OUTPUT, None),
        (lambda: np.full(3, -np.inf), FallbackReason.NON_FINITE_OUTPUT, None),
    ],
)
def test_faults(answer: Callable[[], Float64Array], reason: FallbackReason, error: str | None) -> None:
    outcome = guarded(Scripted(answer)).score(SNAPSHOT, QUERY)
    assert outcome.scores is None
    assert outcome.reason is reason
    if error is not None:
        with pytest.raises(Exception, match=error):
            raise outcome.error or AssertionError("no error")


def test_a_call_that_hangs_is_given_up_on() -> None:
    finish = threading.Event()

    def hang() -> Float64Array:
        finish.wait(60)
        return np.zeros(3)

    policy = Scripted(hang)
    guard = guarded(policy, budget_seconds=0.01)
    try:
        for _ in range(3):
            assert guard.score(SNAPSHOT, QUERY).reason is FallbackReason.BUDGET_SPENT
        assert policy.asked == 1
    finally:
        finish.set()


def test_stale_state_is_not_judged() -> None:
    policy = Scripted(lambda: np.zeros(3))
    guard = guarded(policy, maximum_state_age_seconds=5.0)
    old = replace(SNAPSHOT, taken_at_seconds=94.9)
    assert guard.is_stale(old)
    assert guard.score(old, QUERY).reason is FallbackReason.STALE_STATE
    assert policy.asked == 0
    assert guard.score(replace(SNAPSHOT, taken_at_seconds=95.1), QUERY).scores is not None


def test_a_policy_that_keeps_failing_is_left_alone_for_a_while() -> None:
    now = 100.0
    policy = Scripted(fail)
    guard = GuardedPlacement(
        policy, budget_seconds=30.0, breaker=BreakerSettings(fault_limit=3), clock=lambda: now
    )
    for _ in range(5):
        reason = guard.score(SNAPSHOT, QUERY).reason
    assert reason is FallbackReason.CIRCUIT_OPEN
    assert policy.asked == 3
    policy.answer = lambda: np.zeros(3)
    now += 1.5
    assert guard.score(SNAPSHOT, QUERY).scores is not None
    assert guard.score(SNAPSHOT, QUERY).scores is not None
    assert policy.asked == 5
