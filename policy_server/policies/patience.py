"""Calls that are waited for only so long."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")


class OutOfPatienceError(TimeoutError):
    """The call did not return in time, or an earlier one has not returned yet."""


class PatientWorker:
    """Makes calls on one thread of its own, so that the caller can stop waiting for them.

    A call given up on runs on, since nothing can stop it; until it returns, further calls are refused at once. So a
    function that hangs costs one thread, however often it is called. Calls from several threads take turns. The
    thread starts with the first call, ends with the worker, and does not keep the process alive.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._busy = threading.Lock()
        self._given_up = False
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], Result], seconds: float) -> Result:
        """What ``function`` returns or raises.

        Raises:
            OutOfPatienceError: it takes longer than ``seconds``, or a call given up on has not returned yet.
        """
        started = time.monotonic()
        if not self._busy.acquire(blocking=False) and (
            self._given_up or not self._busy.acquire(timeout=seconds)
        ):
            raise OutOfPatienceError("an earlier call has not returned yet")
        self._given_up = False
        if self._thread is None:
            self._thread = threading.Thread(
                target=_work, args=(self._calls, self._busy), name=self._name, daemon=True
            )
            self._thread.start()
            weakref.finalize(self, self._calls.put, None)
        call = _Call(function)
        self._calls.put(call)
        if not call.finished.acquire(timeout=max(started + seconds - time.monotonic(), 0.0)):
            self._given_up = True
            raise OutOfPatienceError(f"no result after {seconds:g} s")
        if call.error is not None:
            raise call.error
        result: Result = call.result
        return result


class _Call:
    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        # Released once the call has returned; an event would do, and costs three times as much.
        self.finished = threading.Lock()
        self.finished.acquire()
        self.result: Any = None
        self.error: BaseException | None = None


def _work(calls: SimpleQueue[_Call | None], busy: threading.Lock) -> None:
    while call := calls.get():
        try:
            call.result = call.function()
        except BaseException as error:
            call.error = error
        busy.release()
        call.finished.release()
        del call
