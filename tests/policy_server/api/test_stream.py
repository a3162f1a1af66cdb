"""DispatchStream over gRPC."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from policy_server.proto.policy.v1.dispatch_service_pb2 import (
    Candidate,
    DispatchStreamRequest,
    InlineCandidates,
)
from tests.support.serving import graded_endpoints, question, running_server

NOT_FOUND, INVALID_ARGUMENT = 5, 3


def element(number: int, **fields: object) -> DispatchStreamRequest:
    return DispatchStreamRequest(correlation_id=number, request=question(**fields))


async def test_answers_keep_the_order_of_the_requests() -> None:
    async with running_server(graded_endpoints(4)) as serving:
        requests = [element(number) for number in range(100)]
        answers = [answer async for answer in serving.dispatching.DispatchStream(iter(requests))]
    assert [answer.correlation_id for answer in answers] == list(range(100))
    assert all(answer.WhichOneof("result") == "response" for answer in answers)


async def test_stream_survives_errors_of_its_elements() -> None:
    async with running_server(graded_endpoints(4)) as serving:
        stream = serving.dispatching.DispatchStream()
        for number, fields in enumerate(
            [
                {"service": "nobody"},
                {},
                {"policy": "wishful"},
                {"inline_candidates": InlineCandidates(candidates=[Candidate(endpoint="a")])},
            ]
        ):
            await stream.write(element(number, **fields))
        await stream.done_writing()
        answers = [answer async for answer in stream]
        assert await stream.code() is grpc.StatusCode.OK
    assert [answer.correlation_id for answer in answers] == [0, 1, 2, 3]
    assert answers[0].error.code == INVALID_ARGUMENT
    assert "service: 'nobody'" in answers[0].error.message
    assert answers[1].response.endpoint == "10.0.0.0:8080"
    assert answers[2].error.code == NOT_FOUND
    assert answers[3].response.endpoint == "a"


async def test_bug_of_the_server_costs_one_element_and_tells_no_secrets(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from policy_server.api import dispatch_servicer

    async with running_server(graded_endpoints(2)) as serving:
        stream = serving.dispatching.DispatchStream()
        with monkeypatch.context() as broken:
            broken.setattr(dispatch_servicer, "_response", lambda _: 1 / 0)
            await stream.write(element(1))
            failed = await stream.read()
        await stream.write(element(2))
        answered = await stream.read()
        await stream.done_writing()
    assert failed.error.code == grpc.StatusCode.INTERNAL.value[0]
    assert "ZeroDivision" not in failed.error.message
    assert "ZeroDivisionError" in caplog.text
    assert answered.response.endpoint


async def test_many_streams_are_decided_together_and_answered_apart() -> None:
    async def converse(number: int) -> list[int]:
        requests = [element(100 * number + turn) for turn in range(20)]
        stream = serving.dispatching.DispatchStream(iter(requests))
        return [answer.correlation_id async for answer in stream if answer.HasField("response")]

    async with running_server(graded_endpoints(4)) as serving:
        heard = await asyncio.gather(*(converse(number) for number in range(50)))
    assert heard == [[100 * number + turn for turn in range(20)] for number in range(50)]


async def test_abandoned_stream_leaves_nothing_behind() -> None:
    async with running_server(graded_endpoints(4)) as serving:
        stream = serving.dispatching.DispatchStream()
        await stream.write(element(1))
        await stream.read()
        stream.cancel()
        assert (await serving.dispatch()).endpoint
        async with asyncio.timeout(10):
            while serving.server.logic.in_flight:
                await asyncio.sleep(0.01)


async def test_stopping_server_ends_open_streams_in_order() -> None:
    async with running_server(graded_endpoints(4), grace_seconds=30.0) as serving:
        stream = serving.dispatching.DispatchStream()
        await stream.write(element(1))
        assert (await stream.read()).response.endpoint
        stopping = asyncio.ensure_future(serving.server.shutdown(drain=False))
        async with asyncio.timeout(10):
            assert await stream.read() is grpc.aio.EOF
            assert await stream.code() is grpc.StatusCode.OK
            await stopping
