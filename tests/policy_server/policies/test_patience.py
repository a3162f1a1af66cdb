import gc
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from policy_server.policies.patience import OutOfPatienceError, PatientWorker

LONG = 30.0


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Set at the end, so that no call outlives its test."""
    event = threading.Event()
    yield event
    event.set()


def threads_named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def wait_until_gone(name: str) -> None:
    give_up = time.monotonic() + LONG
    while threads_named(name):
        assert time.monotonic() < give_up
        time.sleep(0.001)


def test_returns_what_the_function_returns() -> None:
    worker = PatientWorker("returns")
    assert [worker.call(lambda n=n: n + 1, LONG) for n in range(100)] == list(range(1, 101))


def test_raises_what_the_function_raises() -> None:
    worker = PatientWorker("raises")
    error = KeyError("k")

    def fail() -> None:
        raise error

    with pytest.raises(KeyError) as raised:
        worker.call(fail, LONG)
    assert raised.value is error
    assert worker.call(lambda: 1, LONG) == 1


def test_gives_up_while_the_call_still_runs(release: threading.Event) -> None:
    worker = PatientWorker("gives up")
    returned = threading.Event()

    def hang() -> None:
        release.wait(LONG)
        returned.set()

    with pytest.raises(OutOfPatienceError, match=r"no result after 0\.01 s"):
        worker.call(hang, 0.01)
    assert not returned.is_set()
    for _ in range(10):
        with pytest.raises(OutOfPatienceError, match="has not returned yet"):
            worker.call(lambda: 1, LONG)
    assert len(threads_named("gives up")) == 1
    release.set()
    assert returned.wait(LONG)
    give_up = time.monotonic() + LONG
    while True:
        try:
            assert worker.call(lambda: 2, LONG) == 2
            break
        except OutOfPatienceError:
            assert time.monotonic() < give_up


def test_calls_from_several_threads_take_turns() -> None:
    worker = PatientWorker("turns")
    under_way = threading.Lock()
    results: list[int] = []

    def alone(number: int) -> int:
        assert under_way.acquire(blocking=False)
        time.sleep(0.001)
        under_way.release()
        return number

    def caller(number: int) -> None:
        results.append(worker.call(lambda: alone(number), LONG))

    threads = [threading.Thread(target=caller, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(20))


def test_a_turn_is_waited_for_no_longer_than_asked(release: threading.Event) -> None:
    worker = PatientWorker("waits")
    began = threading.Event()

    def hang() -> None:
        began.set()
        release.wait(LONG)

    first = threading.Thread(target=lambda: worker.call(hang, LONG))
    first.start()
    assert began.wait(LONG)
    with pytest.raises(OutOfPatienceError, match="has not returned yet"):
        worker.call(lambda: 1, 0.01)
    release.set()
    first.join()
    assert worker.call(lambda: 1, LONG) == 1


def test_starts_no_thread_before_the_first_call() -> None:
    PatientWorker("lazy")
    assert threads_named("lazy") == []


def test_the_thread_ends_with_the_worker_and_holds_no_result() -> None:
    class Result:
        pass

    worker = PatientWorker("ends")
    result = weakref.ref(worker.call(Result, LONG))
    gc.collect()
    give_up = time.monotonic() + LONG
    while result() is not None:
        assert time.monotonic() < give_up
        time.sleep(0.001)
    assert len(threads_named("ends")) == 1
    del worker
    wait_until_gone("ends")
