"""Bodies pass unchanged, in the form that their mode asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.envoy.replies import MAXIMUM_CHUNK_BYTES, streamed
from policy_server.proto.envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from policy_server.proto.envoy.service.ext_proc.v3.external_processor_pb2 import (
    HttpBody,
    ProcessingRequest,
    ProcessingResponse,
    StreamedBodyResponse,
)
from tests.support.ext_proc import (
    GET,
    data_plane,
    modes,
    picked,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
)
from tests.support.serving import graded_endpoints

FULL_DUPLEX = ProcessingMode.FULL_DUPLEX_STREAMED
ORDINARY = (
    ProcessingMode.NONE,
    ProcessingMode.STREAMED,
    ProcessingMode.BUFFERED,
    ProcessingMode.BUFFERED_PARTIAL,
)
sizes = st.integers(0, 50) | st.integers(61_900, 62_100) | st.integers(123_900, 124_100)


def chunk_of(answer: ProcessingResponse) -> StreamedBodyResponse:
    kind = answer.WhichOneof("response")
    body = answer.request_body if kind == "request_body" else answer.response_body
    assert kind in {"request_body", "response_body"}
    assert body.response.body_mutation.WhichOneof("mutation") == "streamed_response"
    return body.response.body_mutation.streamed_response


@given(st.lists(sizes, min_size=1, max_size=4), st.booleans())
def test_streamed_chunks_add_up_to_the_body(chunk_sizes: list[int], of_request: bool) -> None:
    chunks = [bytes([position % 251]) * size for position, size in enumerate(chunk_sizes)]
    answers = []
    for position, chunk in enumerate(chunks):
        body = HttpBody(body=chunk, end_of_stream=position == len(chunks) - 1)
        answers += list(streamed(body, of_request=of_request, whole=False))
    parts = [chunk_of(ProcessingResponse.FromString(answer)) for answer in answers]
    assert b"".join(part.body for part in parts) == b"".join(chunks)
    assert all(len(part.body) <= MAXIMUM_CHUNK_BYTES for part in parts)
    assert [part.end_of_stream for part in parts] == [False] * (len(parts) - 1) + [True]
    assert all(part.body for part in parts[:-1])


async def test_full_duplex() -> None:
    chunks = [b"a" * 10, b"b" * 150_000, b"c" * 70_000]
    async with data_plane(graded_endpoints(3)) as plane:
        answers = await plane.exchange(
            request_headers(end_of_stream=False, protocol_config=modes(FULL_DUPLEX)),
            request_body(chunks[0]),
            request_body(chunks[1]),
            request_body(chunks[2], end_of_stream=True),
        )
    assert len(picked(answers[0])) == 3
    parts = [chunk_of(answer) for answer in answers[1:]]
    assert {answer.WhichOneof("response") for answer in answers[1:]} == {"request_body"}
    assert b"".join(part.body for part in parts) == b"".join(chunks)
    assert max(len(part.body) for part in parts) <= 62_000
    assert [part.end_of_stream for part in parts] == [False] * (len(parts) - 1) + [True]


async def test_full_duplex_without_a_body_is_answered_at_once() -> None:
    async with data_plane(graded_endpoints(3)) as plane:
        stream = plane.open()
        assert picked(await stream.ask(request_headers(GET, protocol_config=modes(FULL_DUPLEX))))
        await stream.finish()


async def test_full_duplex_with_trailers() -> None:
    async with data_plane(graded_endpoints(3)) as plane:
        answers = await plane.exchange(
            request_headers(end_of_stream=False, protocol_config=modes(FULL_DUPLEX, FULL_DUPLEX)),
            request_body(b"content"),
            request_trailers(),
            response_headers(served="10.0.0.0:8080"),
            response_body(b"answer"),
            response_trailers(),
        )
        assert plane.in_flight == 0
    assert [answer.WhichOneof("response") for answer in answers] == [
        "request_headers",
        "request_body",
        "request_trailers",
        "response_headers",
        "response_body",
        "response_trailers",
    ]
    assert [chunk_of(answers[row]).body for row in (1, 4)] == [b"content", b"answer"]
    assert not chunk_of(answers[1]).end_of_stream


@pytest.mark.parametrize("mode", ORDINARY, ids=ProcessingMode.BodySendMode.Name)
async def test_elsewhere_each_message_gets_one_ordinary_answer(
    mode: ProcessingMode.BodySendMode.ValueType,
) -> None:
    async with data_plane(graded_endpoints(3)) as plane:
        answers = await plane.exchange(
            request_headers(end_of_stream=False, protocol_config=modes(mode, mode)),
            request_body(b"a" * 100_000),
            request_body(b"", end_of_stream=True),
            response_headers(),
            response_body(b"b"),
            response_body(b"c", end_of_stream=True),
        )
    kinds = [answer.WhichOneof("response") for answer in answers]
    assert kinds == ["request_headers", *["request_body"] * 2, "response_headers", *["response_body"] * 2]
    for answer in answers[1:]:
        assert not answer.request_body.HasField("response")
        assert not answer.response_body.HasField("response")
        assert not answer.HasField("dynamic_metadata")


async def test_the_mode_is_that_of_the_first_message() -> None:
    async with data_plane(graded_endpoints(3)) as plane:
        late = request_body(b"content")
        late.protocol_config.CopyFrom(modes(FULL_DUPLEX))
        answers = await plane.exchange(request_headers(end_of_stream=False), late)
    assert not answers[1].request_body.HasField("response")


async def test_messages_of_grpc_stay_whole() -> None:
    content = b"m" * 100_000
    sent = ProcessingRequest(request_body=HttpBody(body=content, grpc_message_compressed=True))
    last = ProcessingRequest(request_body=HttpBody(end_of_stream=True, end_of_stream_without_message=True))
    async with data_plane(graded_endpoints(3)) as plane:
        answers = await plane.exchange(
            request_headers(end_of_stream=False, protocol_config=modes(ProcessingMode.GRPC)), sent, last
        )
    assert len(answers) == 3
    first, second = chunk_of(answers[1]), chunk_of(answers[2])
    assert (first.body, first.grpc_message_compressed, first.end_of_stream) == (content, True, False)
    assert (second.body, second.end_of_stream, second.end_of_stream_without_message) == (b"", True, True)


async def test_observers_are_told_nothing() -> None:
    async with data_plane(graded_endpoints(3)) as plane:
        answers = await plane.exchange(
            request_headers(end_of_stream=False, observability_mode=True, protocol_config=modes(FULL_DUPLEX)),
            request_body(b"content", end_of_stream=True),
            response_headers(served="10.0.0.0:8080"),
        )
        assert answers == []
        assert plane.in_flight == 0


async def test_messages_about_nothing_get_no_answer() -> None:
    update = ProcessingRequest()
    update.client_window_update.window_increment_sidestream_to_upstream = 1000
    async with data_plane(graded_endpoints(3)) as plane:
        answers = await plane.exchange(request_headers(), update)
    assert len(answers) == 1
