import threading

import pytest

from policy_server.policies.circuit_breaker import BreakerSettings, BreakerState, CircuitBreaker

SETTINGS = BreakerSettings(fault_limit=3, backoff_seconds=1.0, maximum_backoff_seconds=4.0)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    return CircuitBreaker(SETTINGS, clock)


def open_it(breaker: CircuitBreaker) -> None:
    while not breaker.failed():
        pass


def test_opens_after_consecutive_faults(breaker: CircuitBreaker) -> None:
    opened = [breaker.failed() for _ in range(3)]
    assert opened == [False, False, True]
    assert breaker.state is BreakerState.OPEN
    assert not breaker.allows()


def test_a_success_starts_the_count_again(breaker: CircuitBreaker) -> None:
    for _ in range(5):
        breaker.failed()
        breaker.failed()
        assert not breaker.succeeded()
    assert breaker.state is BreakerState.CLOSED
    assert breaker.allows()


def test_one_trial_after_the_back_off(breaker: CircuitBreaker, clock: Clock) -> None:
    open_it(breaker)
    clock.now += 0.999
    assert not breaker.allows()
    clock.now += 0.002
    assert breaker.allows()
    assert breaker.state is BreakerState.HALF_OPEN
    assert not breaker.allows()


def test_a_sound_trial_closes(breaker: CircuitBreaker, clock: Clock) -> None:
    open_it(breaker)
    clock.now += 1
    assert breaker.allows()
    assert breaker.succeeded()
    assert breaker.state is BreakerState.CLOSED
    assert not breaker.failed(), "the count starts at zero"


def test_failed_trials_double_the_back_off_up_to_the_maximum(breaker: CircuitBreaker, clock: Clock) -> None:
    open_it(breaker)
    for backoff in (1, 2, 4, 4):
        clock.now += backoff - 0.001
        assert not breaker.allows()
        clock.now += 0.001
        assert breaker.allows()
        assert breaker.failed()
    clock.now += 4
    assert breaker.allows()
    breaker.succeeded()
    open_it(breaker)
    clock.now += 1
    assert breaker.allows(), "closing resets the back-off"


def test_a_late_fault_while_open_does_not_postpone_for_ever(breaker: CircuitBreaker, clock: Clock) -> None:
    open_it(breaker)
    clock.now += 0.5
    assert not breaker.failed()
    clock.now += 1
    assert breaker.allows()


def test_a_trial_never_heard_of_again_is_replaced(breaker: CircuitBreaker, clock: Clock) -> None:
    open_it(breaker)
    clock.now += 1
    assert breaker.allows()
    clock.now += 0.5
    assert not breaker.allows()
    clock.now += 0.5
    assert breaker.allows()


def test_only_one_of_many_threads_gets_the_trial(breaker: CircuitBreaker, clock: Clock) -> None:
    open_it(breaker)
    clock.now += 1
    start = threading.Barrier(8)
    allowed: list[bool] = []

    def ask() -> None:
        start.wait()
        allowed.append(breaker.allows())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(allowed) == [False] * 7 + [True]
