"""What every call has in common, seen from outside."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, cast

import grpc
import pytest

from policy_server.api import state_servicer
from policy_server.api.dispatch_logic import DispatchLogic
from policy_server.api.errors import (
    Count,
    DeadlineSpentError,
    InvalidArgumentError,
    NothingCanServeError,
    OverloadedError,
    RequestError,
    UnknownPolicyError,
    shown,
)
from policy_server.api.rpc import CallContext, OpenStreams, code_of, details_of
from policy_server.cluster.snapshot import SnapshotError
from policy_server.cluster.state_store import StateConflictError
from policy_server.proto.policy.v1.state_service_pb2 import GetStateRequest
from tests.support.serving import error_of, graded_endpoints, question, running_server


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidArgumentError("f", 1, "r"), "INVALID_ARGUMENT"),
        (SnapshotError("s"), "INVALID_ARGUMENT"),
        (UnknownPolicyError("p"), "NOT_FOUND"),
        (NothingCanServeError("n"), "UNAVAILABLE"),
        (OverloadedError("o", 1), "RESOURCE_EXHAUSTED"),
        (StateConflictError("c"), "FAILED_PRECONDITION"),
        (DeadlineSpentError(), "DEADLINE_EXCEEDED"),
        (RequestError("not a kind of its own"), "INTERNAL"),
        (ZeroDivisionError("secret"), "INTERNAL"),
    ],
)
def test_code_of_each_error(error: Exception, code: str) -> None:
    assert code_of(error).name == code
    assert (details_of(error) == str(error)) == (code != "INTERNAL")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "'a'"),
        (1.5, "1.5"),
        (None, "not set"),
        (Count(3, "rows"), "3 rows"),
        ("x" * 100, "'" + "x" * 79 + "..."),
    ],
)
def test_values_in_messages(value: object, text: str) -> None:
    assert shown(value) == text


async def test_bug_is_internal_logged_and_secret(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> object:
        raise ValueError("the password is swordfish")

    async with running_server(graded_endpoints(2)) as serving:
        with monkeypatch.context() as broken:
            broken.setattr(state_servicer, "load_to_message", fail)
            error = await error_of(serving.state.GetState(GetStateRequest()))
        assert (await serving.state.GetState(GetStateRequest())).version == 1
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "swordfish" not in (error.details() or "")
    assert "swordfish" in caplog.text


async def test_cancelled_call_is_counted_as_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = asyncio.Event()

    async def wait_for_ever(*_: Any) -> None:
        waiting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(DispatchLogic, "dispatch", wait_for_ever)
    async with running_server(graded_endpoints(2)) as serving:
        call = serving.dispatching.Dispatch(question())
        await asyncio.wait_for(waiting.wait(), 10)
        call.cancel()
        counted = serving.server.metrics.call("policy.v1.DispatchService/Dispatch", "CANCELLED")
        async with asyncio.timeout(10):
            while not sum(counted.counts) or serving.server.logic.in_flight:
                await asyncio.sleep(0.01)


async def test_sound_calls_write_nothing_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="policy_server")
    async with running_server(graded_endpoints(2)) as serving:
        before = len(caplog.records)
        for _ in range(5):
            await serving.dispatch()
        assert [record for record in caplog.records[before:] if record.name.startswith("policy_server")] == []


class SlowWriting:
    """A call whose client is slow to take a message."""

    def __init__(self) -> None:
        self.writing = asyncio.Event()
        self.taken = asyncio.Event()
        self.written: list[str] = []

    async def write(self, message: str) -> None:
        self.writing.set()
        await self.taken.wait()
        self.written.append(message)


async def test_a_stream_that_is_to_finish_writes_its_message_first() -> None:
    streams, call = OpenStreams(), SlowWriting()
    after = []

    async def answer_twice() -> None:
        await streams.write(cast("CallContext", call), "first")
        after.append("went on")

    stream = asyncio.create_task(streams.run(answer_twice()))
    await call.writing.wait()
    streams.finish()
    await asyncio.sleep(0)
    assert not stream.done()
    call.taken.set()
    await stream
    assert call.written == ["first"]
    assert not after


async def test_a_stream_that_waits_finishes_at_once() -> None:
    streams = OpenStreams()
    stream = asyncio.create_task(streams.run(cast("Coroutine[Any, Any, None]", asyncio.Event().wait())))
    await asyncio.sleep(0)
    streams.finish()
    await asyncio.wait_for(stream, 30)
    assert not stream.cancelled()
