"""Whatever an orchestration policy does, the caller gets feasible actions."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from policy_server.cluster.snapshot import Float64Array, Snapshot
from policy_server.policies.circuit_breaker import BreakerSettings, BreakerState
from policy_server.policies.decision_origin import DecisionSource, FallbackReason
from policy_server.policies.guard import GuardObserver
from policy_server.policies.orchestration.guard import (
    GuardedOrchestration,
    MissingOrchestration,
    OrchestrationGuardSettings,
)
from policy_server.policies.orchestration.memory import FrameMemory
from policy_server.policies.orchestration.onnx import OnnxOrchestration
from policy_server.policies.orchestration.plan import FramePlan, OrchestrationOptions, OrchestrationQuery
from policy_server.policies.orchestration.policy import FrameDecision
from policy_server.policies.orchestration.rules import Greedy, Static
from tests.support.models import loaded_orchestration_bundle, orchestration_head_model
from tests.support.orchestrating import assert_feasible, query_of
from tests.support.systems import example_snapshot, example_topology

SNAPSHOT = example_snapshot(example_topology(), 1)
PATIENT = OrchestrationGuardSettings(budget_seconds=30.0)


class Scripted:
    """A policy that does what a test says."""

    name, version, learned = "scripted", "1", True

    def __init__(self, behaviour: Callable[[Sequence[OrchestrationQuery]], list[FrameDecision]]) -> None:
        self.behaviour = behaviour
        self.calls = 0

    def observe(self, snapshot: Snapshot, memory: FrameMemory) -> None:
        memory.of_rules["seen"] = snapshot

    def decide(
        self, queries: Sequence[OrchestrationQuery], random: np.random.Generator
    ) -> list[FrameDecision]:
        self.calls += 1
        return self.behaviour(queries)

    def score_additions(self, query: OrchestrationQuery, service: int) -> Float64Array:
        return np.zeros(len(query.graph.snapshot.topology.nodes.names))


class Recorder(GuardObserver):
    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def fell_back(
        self, policy: str, reason: FallbackReason, queries: int, error: Exception | None = None
    ) -> None:
        self.told.append(("fell back", policy, reason, queries))

    def overran(self, policy: str, seconds: float) -> None:
        self.told.append(("overran", policy))

    def breaker_changed(self, policy: str, state: BreakerState) -> None:
        self.told.append(("breaker", policy, state))


def nothing(queries: Sequence[OrchestrationQuery]) -> list[FrameDecision]:
    return [FrameDecision(FramePlan(query)) for query in queries]


def fails(queries: Sequence[OrchestrationQuery]) -> list[FrameDecision]:
    raise RuntimeError("broken")


def reasons_of(
    guarded: GuardedOrchestration, *queries: OrchestrationQuery, now_seconds: float = 100.0
) -> list[FallbackReason]:
    plans = guarded.decide(queries, now_seconds, np.random.default_rng(0))
    for query, (plan, origin) in zip(queries, plans, strict=True):
        assert_feasible(query.graph.snapshot, OrchestrationOptions(), plan.actions)
        if origin.reason:
            assert (origin.policy, origin.source) == ("greedy", DecisionSource.FALLBACK)
            (expected,) = Greedy().decide([query], np.random.default_rng(0))
            assert plan.actions == expected.plan.actions
    return [origin.reason for _, origin in plans]


def test_a_sound_policy_answers_itself() -> None:
    guarded = GuardedOrchestration(
        OnnxOrchestration(loaded_orchestration_bundle()), fallback=Greedy(), settings=PATIENT
    )
    ((plan, origin),) = guarded.decide([query_of(SNAPSHOT)], 100.0, np.random.default_rng(0))
    assert plan.actions
    assert (origin.policy, origin.version, origin.source) == ("gpg", "1.0.0", DecisionSource.LEARNED)


def test_a_rule_answers_as_a_heuristic() -> None:
    guarded = GuardedOrchestration(Static(), fallback=Greedy())
    ((_, origin),) = guarded.decide([query_of(SNAPSHOT)], 1e6, np.random.default_rng(0))
    assert (origin.policy, origin.source) == ("static", DecisionSource.HEURISTIC)


def test_an_error_is_the_fallbacks_to_answer() -> None:
    observer = Recorder()
    guarded = GuardedOrchestration(Scripted(fails), fallback=Greedy(), observer=observer)
    assert reasons_of(guarded, query_of(SNAPSHOT)) == [FallbackReason.MODEL_ERROR]
    assert observer.told == [("fell back", "scripted", FallbackReason.MODEL_ERROR, 1)]


def test_one_bad_query_costs_its_neighbours_nothing() -> None:
    bad = query_of(example_snapshot(example_topology(nodes=3), 2))

    def fails_on_bad(queries: Sequence[OrchestrationQuery]) -> list[FrameDecision]:
        return fails(queries) if bad in queries else nothing(queries)

    guarded = GuardedOrchestration(Scripted(fails_on_bad), fallback=Greedy(), settings=PATIENT)
    assert reasons_of(guarded, query_of(SNAPSHOT), bad, query_of(SNAPSHOT)) == [
        FallbackReason.UNSPECIFIED,
        FallbackReason.MODEL_ERROR,
        FallbackReason.UNSPECIFIED,
    ]


def test_scores_that_are_not_finite_are_the_fallbacks_to_answer() -> None:
    broken = OnnxOrchestration(loaded_orchestration_bundle(orchestration_head_model(fault=math.nan)))
    guarded = GuardedOrchestration(broken, fallback=Greedy(), settings=PATIENT)
    assert reasons_of(guarded, query_of(SNAPSHOT)) == [FallbackReason.NON_FINITE_OUTPUT]


def test_stale_state_is_not_for_models() -> None:
    scripted = Scripted(nothing)
    guarded = GuardedOrchestration(scripted, fallback=Greedy())
    fresh = query_of(replace(SNAPSHOT, taken_at_seconds=140.0))
    assert reasons_of(guarded, query_of(SNAPSHOT), fresh, now_seconds=150.0) == [
        FallbackReason.STALE_STATE,
        FallbackReason.UNSPECIFIED,
    ]


def test_a_model_that_hangs_is_not_waited_for() -> None:
    release = threading.Event()

    def hangs(queries: Sequence[OrchestrationQuery]) -> list[FrameDecision]:
        release.wait(30)
        return nothing(queries)

    observer = Recorder()
    settings = OrchestrationGuardSettings(budget_seconds=0.05)
    guarded = GuardedOrchestration(Scripted(hangs), fallback=Greedy(), settings=settings, observer=observer)
    try:
        assert reasons_of(guarded, query_of(SNAPSHOT)) == [FallbackReason.BUDGET_SPENT]
        assert ("overran", "scripted") in observer.told
    finally:
        release.set()


def test_a_missing_model_is_stood_in_for() -> None:
    guarded = GuardedOrchestration(MissingOrchestration("gone"), fallback=Greedy())
    assert guarded.degraded
    assert reasons_of(guarded, query_of(SNAPSHOT)) == [FallbackReason.NO_MODEL]


def test_a_model_that_keeps_failing_is_left_alone_and_tried_again() -> None:
    now = [0.0]
    observer = Recorder()
    scripted = Scripted(fails)
    guarded = GuardedOrchestration(
        scripted,
        fallback=Greedy(),
        settings=replace(PATIENT, breaker=BreakerSettings(fault_limit=2, backoff_seconds=10.0)),
        observer=observer,
        clock=lambda: now[0],
    )
    for _ in range(2):
        assert reasons_of(guarded, query_of(SNAPSHOT)) == [FallbackReason.MODEL_ERROR]
    assert reasons_of(guarded, query_of(SNAPSHOT)) == [FallbackReason.CIRCUIT_OPEN]
    assert scripted.calls == 2
    assert guarded.degraded
    scripted.behaviour = nothing
    now[0] = 11.0
    assert reasons_of(guarded, query_of(SNAPSHOT)) == [FallbackReason.UNSPECIFIED]
    assert not guarded.degraded
    states = [told[2] for told in observer.told if told[0] == "breaker"]
    assert states == [BreakerState.OPEN, BreakerState.CLOSED]


def test_what_it_observes_the_policy_sees() -> None:
    memory = FrameMemory()
    GuardedOrchestration(Scripted(nothing), fallback=Greedy()).observe(SNAPSHOT, memory)
    assert memory.of_rules == {"seen": SNAPSHOT}


def test_a_missing_model_scores_nothing() -> None:
    assert (MissingOrchestration("gone").score_additions(query_of(SNAPSHOT), 0) == -np.inf).all()
    (decision,) = MissingOrchestration("gone").decide([query_of(SNAPSHOT)], np.random.default_rng(0))
    assert decision.trouble is FallbackReason.NO_MODEL


@pytest.mark.parametrize("now_seconds", [100.0, 1e6])
def test_a_rule_that_fails_is_stood_in_for_too(now_seconds: float) -> None:
    rule = Scripted(fails)
    rule.learned = False
    guarded = GuardedOrchestration(rule, fallback=Greedy())
    assert reasons_of(guarded, query_of(SNAPSHOT), now_seconds=now_seconds) == [FallbackReason.MODEL_ERROR]
