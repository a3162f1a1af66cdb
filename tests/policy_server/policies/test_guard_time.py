"""What the guard promises on time."""

import statistics
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from policy_server.cluster.ledger import Ledger
from policy_server.cluster.queries import single_query
from policy_server.cluster.snapshot import Float32Array
from policy_server.features.candidates import Candidates
from policy_server.features.load_table import LoadTable
from policy_server.policies.circuit_breaker import BreakerSettings, BreakerState
from policy_server.policies.dispatch import DispatchView
from policy_server.policies.guard import (
    DecisionSource,
    FallbackReason,
    GuardedDecisions,
    GuardedDispatch,
    GuardObserver,
    GuardSettings,
)
from tests.support.systems import example_snapshot, example_topology

TOPOLOGY = example_topology()
VIEW = DispatchView(example_snapshot(TOPOLOGY))
QUERY = single_query(0, 0, 1.0)
LONG = 30.0


class Slow:
    """A learned policy that takes as long as it is told."""

    name = "slow"
    version = "1"
    learned = True
    sampling_temperature = 0.0
    shares_picks = False

    def __init__(self) -> None:
        self.calls = 0
        self.threads: list[threading.Thread] = []
        self.hangs = False
        self.release = threading.Event()

    def prepare(self, table: LoadTable) -> None:
        pass

    def score(self, candidates: Candidates, prepared: None, random: np.random.Generator) -> Float32Array:
        self.calls += 1
        self.threads.append(threading.current_thread())
        if self.hangs:
            self.release.wait(LONG)
        return np.zeros(len(candidates), np.float32)


class Witness(GuardObserver):
    def __init__(self) -> None:
        self.overruns: list[float] = []

    def overran(self, policy: str, seconds: float) -> None:
        self.overruns.append(seconds)


@pytest.fixture
def policy() -> Iterator[Slow]:
    slow = Slow()
    yield slow
    slow.release.set()


def guarded(
    policy: Slow, budget_seconds: float | None = 0.02, observer: GuardObserver | None = None, **options: int
) -> GuardedDispatch:
    settings = GuardSettings(
        budget_seconds=budget_seconds, breaker=BreakerSettings(fault_limit=5, backoff_seconds=LONG), **options
    )
    return GuardedDispatch(policy, settings=settings, observer=observer)


def decided(guard: GuardedDispatch, remaining_seconds: float = LONG) -> GuardedDecisions:
    return guard.decide(
        VIEW, QUERY, Ledger(TOPOLOGY), 100.1, np.random.default_rng(0), remaining_seconds=remaining_seconds
    )


def test_a_hanging_model_delays_no_decision_and_is_not_asked_after_five(policy: Slow) -> None:
    policy.hangs = True
    guard = guarded(policy)
    reasons, seconds = [], []
    for _ in range(8):
        started = time.monotonic()
        result = decided(guard)
        seconds.append(time.monotonic() - started)
        assert result.decisions.replica[0] >= 0
        assert result.origin.source is DecisionSource.FALLBACK
        reasons.append(result.origin.reason)
    assert not policy.release.is_set(), "every answer came while the model was still at it"
    assert reasons == [FallbackReason.BUDGET_SPENT] * 5 + [FallbackReason.CIRCUIT_OPEN] * 3
    assert guard.degraded
    assert policy.calls == 1
    assert max(seconds) < LONG / 10


def test_the_first_answer_takes_the_budget_and_little_more(policy: Slow) -> None:
    policy.hangs = True
    seconds = []
    for _ in range(7):
        guard = guarded(policy)
        started = time.monotonic()
        decided(guard)
        seconds.append(time.monotonic() - started)
    assert min(seconds) >= 0.02
    assert statistics.median(seconds) < 0.04


def test_a_policy_in_time_is_trusted_and_spared_the_other_thread(policy: Slow) -> None:
    guard = guarded(policy, LONG, probation_calls=3)
    for _ in range(6):
        assert decided(guard).origin.source is DecisionSource.LEARNED
    here = threading.current_thread()
    assert [thread is here for thread in policy.threads] == [False] * 3 + [True] * 3
    assert len(set(policy.threads[:3])) == 1


def test_without_a_budget_no_other_thread_is_used(policy: Slow) -> None:
    guard = guarded(policy, None)
    for _ in range(3):
        decided(guard)
    assert set(policy.threads) == {threading.current_thread()}


class Clock:
    """Advances by ``step`` whenever it is looked at."""

    def __init__(self) -> None:
        self.now = 0.0
        self.step = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_an_overrun_in_place_is_one_late_decision_and_ends_the_trust(policy: Slow) -> None:
    clock, witness = Clock(), Witness()
    settings = GuardSettings(budget_seconds=1.0, probation_calls=2)
    guard = GuardedDispatch(policy, settings=settings, observer=witness, clock=clock)
    for _ in range(3):
        decided(guard)
    clock.step = 2.0
    assert decided(guard).origin.source is DecisionSource.LEARNED
    assert witness.overruns == [2.0]
    clock.step = 0.0
    policy.threads.clear()
    for _ in range(3):
        decided(guard)
    here = threading.current_thread()
    assert [thread is here for thread in policy.threads] == [False, False, True]


def test_overruns_in_place_open_the_breaker(policy: Slow) -> None:
    clock = Clock()
    settings = GuardSettings(budget_seconds=1.0, probation_calls=0, breaker=BreakerSettings(fault_limit=1))
    guard = GuardedDispatch(policy, settings=settings, clock=clock)
    decided(guard)
    assert guard.breaker_state is BreakerState.CLOSED
    clock.step = 2.0
    decided(guard)
    assert guard.breaker_state is BreakerState.OPEN


def test_a_caller_in_a_hurry_is_not_held_up(policy: Slow) -> None:
    guard = guarded(policy)
    result = decided(guard, remaining_seconds=0.0005)
    assert result.origin.reason is FallbackReason.BUDGET_SPENT
    assert policy.calls == 0


def test_a_caller_in_a_hurry_does_not_put_the_policy_in_the_wrong(policy: Slow) -> None:
    policy.hangs = True
    guard = guarded(policy, LONG)
    started = time.monotonic()
    for _ in range(8):
        assert decided(guard, remaining_seconds=0.002).origin.reason is FallbackReason.BUDGET_SPENT
    assert time.monotonic() - started < LONG / 10
    assert guard.breaker_state is BreakerState.CLOSED


def test_an_error_on_probation_is_a_model_error() -> None:
    class Failing(Slow):
        def score(self, candidates: Candidates, prepared: None, random: np.random.Generator) -> Float32Array:
            raise RuntimeError("broken")

    assert decided(guarded(Failing(), LONG)).origin.reason is FallbackReason.MODEL_ERROR
