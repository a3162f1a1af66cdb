from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from policy_server.cluster.containers import Fleet, MeasurementHistory
from policy_server.features.scaling import ECONOMY_COLUMN
from policy_server.policies.circuit_breaker import BreakerSettings, BreakerState
from policy_server.policies.decision_origin import DecisionSource, FallbackReason
from policy_server.policies.model_calls import GuardObserver, GuardSettings
from policy_server.policies.scaling import Recommendation, StaticScaling, ThresholdScaling
from policy_server.policies.scaling.actor import CPU_FACTORS, ActorScaling
from policy_server.policies.scaling.guard import GuardedScaling, MissingScaling
from tests.policy_server.policies.scaling_fleets import task_of

Recommend = Callable[[Fleet, MeasurementHistory], Recommendation]


@dataclass
class Model:
    """A learned policy that does what it is told."""

    behaviour: Recommend
    name: str = "model"
    version: str = "3"
    learned: bool = True
    history_intervals: int = 1
    calls: int = 0

    def recommend(self, fleet: Fleet, history: MeasurementHistory) -> Recommendation:
        self.calls += 1
        return self.behaviour(fleet, history)


@dataclass
class Witness(GuardObserver):
    fallbacks: list[tuple[str, FallbackReason, int]] = field(default_factory=list)
    overruns: list[str] = field(default_factory=list)
    states: list[BreakerState] = field(default_factory=list)

    def fell_back(
        self, policy: str, reason: FallbackReason, queries: int, error: Exception | None = None
    ) -> None:
        self.fallbacks.append((policy, reason, queries))

    def overran(self, policy: str, seconds: float) -> None:
        self.overruns.append(policy)

    def breaker_changed(self, policy: str, state: BreakerState) -> None:
        self.states.append(state)


def wants(cpu: float, memory: float) -> Recommend:
    return lambda fleet, history: Recommendation(np.full(len(fleet), cpu), np.full(len(fleet), memory))


def fails(fleet: Fleet, history: MeasurementHistory) -> Recommendation:
    raise RuntimeError("no idea")


SOUND = wants(1.5, 3e8)


def test_a_sound_policy_decides() -> None:
    witness = Witness()
    guarded = GuardedScaling(Model(SOUND), observer=witness)
    outcome = guarded.decide(task_of(3))
    np.testing.assert_allclose(outcome.decisions.cpu_cores.target, 1.5)
    assert [origin.source for origin in outcome.origins] == [DecisionSource.LEARNED]
    assert (outcome.origins[0].policy, outcome.origins[0].version) == ("model", "3")
    np.testing.assert_array_equal(outcome.origin, 0)
    assert not witness.fallbacks
    assert not guarded.degraded


def test_a_rule_decides_as_a_heuristic() -> None:
    (origin,) = GuardedScaling(ThresholdScaling()).decide(task_of(1)).origins
    assert origin.source is DecisionSource.HEURISTIC


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (fails, FallbackReason.MODEL_ERROR),
        (lambda fleet, _: Recommendation(np.ones(len(fleet) + 1), np.ones(1)), FallbackReason.MODEL_ERROR),
        (wants(np.nan, 1e8), FallbackReason.NON_FINITE_OUTPUT),
        (wants(1.0, np.inf), FallbackReason.NON_FINITE_OUTPUT),
    ],
)
def test_the_fallback_answers_in_place_of_a_faulty_policy(
    behaviour: Recommend, reason: FallbackReason
) -> None:
    witness = Witness()
    outcome = GuardedScaling(Model(behaviour), observer=witness).decide(task_of(2))
    expected = GuardedScaling(ThresholdScaling()).decide(task_of(2))
    np.testing.assert_array_equal(outcome.decisions.cpu_cores.target, expected.decisions.cpu_cores.target)
    assert {(outcome.origins[row].source, outcome.origins[row].reason) for row in outcome.origin} == {
        (DecisionSource.FALLBACK, reason)
    }
    assert witness.fallbacks == [("model", reason, 2)]


def test_a_rule_that_does_not_know_is_no_fault() -> None:
    witness = Witness()
    guarded = GuardedScaling(ThresholdScaling(), observer=witness)
    outcome = guarded.decide(task_of(2, cpu_usage_cores=[np.nan, 0.5]))
    assert not witness.fallbacks
    assert outcome.origins[0].source is DecisionSource.HEURISTIC


def test_the_fallback_answers_for_those_that_the_policy_has_no_answer_for() -> None:
    def half(fleet: Fleet, history: MeasurementHistory) -> Recommendation:
        return Recommendation(np.array([1.5, np.nan, 1.5]), np.full(3, 3e8))

    outcome = GuardedScaling(Model(half), fallback=StaticScaling()).decide(task_of(3))
    np.testing.assert_allclose(outcome.decisions.cpu_cores.target, [1.5, 1.0, 1.5])
    np.testing.assert_array_equal(outcome.origin, [0, 1, 0])
    assert [origin.source for origin in outcome.origins] == [
        DecisionSource.LEARNED,
        DecisionSource.FALLBACK,
    ]
    assert outcome.rows(0, 1).origins == outcome.origins[:1]
    assert outcome.rows(1, 2).origins == outcome.origins[1:]
    np.testing.assert_array_equal(outcome.rows(1, 3).origin, [1, 0])


def test_repeated_faults_open_the_breaker_and_a_trial_closes_it() -> None:
    now = [0.0]
    witness = Witness()
    model = Model(fails)
    settings = GuardSettings(breaker=BreakerSettings(fault_limit=2, backoff_seconds=1.0))
    guarded = GuardedScaling(model, settings=settings, observer=witness, clock=lambda: now[0])
    reasons = [guarded.decide(task_of(1)).origins[0].reason for _ in range(4)]
    assert reasons == [FallbackReason.MODEL_ERROR] * 2 + [FallbackReason.CIRCUIT_OPEN] * 2
    assert (model.calls, guarded.degraded) == (2, True)
    now[0] = 1.5
    model.behaviour = SOUND
    assert guarded.decide(task_of(1)).origins[0].source is DecisionSource.LEARNED
    assert witness.states == [BreakerState.OPEN, BreakerState.CLOSED]
    assert guarded.breaker_state is BreakerState.CLOSED


def test_a_hanging_policy_is_not_waited_for() -> None:
    def hangs(fleet: Fleet, history: MeasurementHistory) -> Recommendation:
        time.sleep(0.5)
        return SOUND(fleet, history)

    guarded = GuardedScaling(Model(hangs), settings=GuardSettings(budget_seconds=0.02))
    started = time.monotonic()
    (origin,) = guarded.decide(task_of(1)).origins
    assert origin.reason is FallbackReason.BUDGET_SPENT
    assert time.monotonic() - started < 0.45


def test_a_policy_has_its_budget_for_every_thousand_containers() -> None:
    def takes_a_while(fleet: Fleet, history: MeasurementHistory) -> Recommendation:
        now[0] += 2.5
        return SOUND(fleet, history)

    now = [0.0]
    witness = Witness()
    settings = GuardSettings(budget_seconds=1.0, probation_calls=0)
    guarded = GuardedScaling(Model(takes_a_while), settings=settings, observer=witness, clock=lambda: now[0])
    guarded.decide(task_of(2001))
    assert not witness.overruns
    assert guarded.decide(task_of(2000)).origins[0].source is DecisionSource.LEARNED
    assert witness.overruns == ["model"]


def test_a_caller_in_a_hurry_is_answered_by_the_fallback() -> None:
    model = Model(SOUND)
    (origin,) = GuardedScaling(model).decide(task_of(1), remaining_seconds=1e-4).origins
    assert (origin.reason, model.calls) == (FallbackReason.BUDGET_SPENT, 0)


def test_a_missing_model_is_degraded() -> None:
    guarded = GuardedScaling(MissingScaling("td3"))
    assert guarded.degraded
    assert (guarded.name, guarded.version) == ("td3", "")
    assert guarded.decide(task_of(1)).origins[0].reason is FallbackReason.NO_MODEL
    assert np.isnan(guarded.policy.recommend(task_of(1).fleet, task_of(1).history).cpu_cores).all()


def test_an_actor_sees_the_economy_of_each_container() -> None:
    def act(features: np.ndarray) -> np.ndarray:
        economy = features[:, ECONOMY_COLUMN]
        return np.stack((-economy, -economy), axis=1)

    task = task_of(2, economy=[0.0, 1.0])
    outcome = GuardedScaling(ActorScaling(act)).decide(task)
    np.testing.assert_allclose(
        outcome.decisions.cpu_cores.uncapped_target,
        [0.5 * np.sqrt(np.prod(CPU_FACTORS)), 0.5 * CPU_FACTORS[0]],
    )
