"""A data plane for tests: speaks external processing to a picker as Envoy does, message by message."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from policy_server.cluster.snapshot import Snapshot
from policy_server.policies.decision_origin import DecisionOrigin, DecisionSource
from policy_server.proto.envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValue
from policy_server.proto.envoy.service.ext_proc.v3.external_processor_pb2 import (
    HttpBody,
    HttpHeaders,
    HttpTrailers,
    ProcessingRequest,
    ProcessingResponse,
    ProtocolConfiguration,
)
from policy_server.proto.envoy.service.ext_proc.v3.external_processor_pb2_grpc import ExternalProcessorStub
from tests.support.serving import Serving, running_server

DESTINATION = "x-gateway-destination-endpoint"
SERVED = "x-gateway-destination-endpoint-served"
SUBSET = "x-gateway-destination-endpoint-subset"
TIMEOUT_SECONDS = 20.0

PlainHeaders = Mapping[str, str]
GET: PlainHeaders = {":method": "GET", ":path": "/", ":authority": "service", ":scheme": "http"}
OK: PlainHeaders = {":status": "200"}


def headers(values: PlainHeaders, *, end_of_stream: bool = False) -> HttpHeaders:
    """A header block, values as raw bytes."""
    listed = [HeaderValue(key=key, raw_value=value.encode()) for key, value in values.items()]
    return HttpHeaders(headers=HeaderMap(headers=listed), end_of_stream=end_of_stream)


def request_headers(
    values: PlainHeaders = GET, *, end_of_stream: bool = True, subset: Any = None, **fields: Any
) -> ProcessingRequest:
    """The first message of a stream.

    Args:
        values: headers.
        end_of_stream: whether there is no body.
        subset: value of the subset hint; None: no hint.
        fields: of the message.
    """
    message = ProcessingRequest(request_headers=headers(values, end_of_stream=end_of_stream), **fields)
    if subset is not None:
        message.metadata_context.filter_metadata["envoy.lb.subset_hint"].update({SUBSET: subset})
    return message


def response_headers(
    values: PlainHeaders = OK, *, served: str | None = None, end_of_stream: bool = False, **fields: Any
) -> ProcessingRequest:
    """Response headers.

    Args:
        values: headers.
        served: the endpoint that served, as metadata say; None: they do not.
        end_of_stream: whether there is no body.
        fields: of the message.
    """
    message = ProcessingRequest(response_headers=headers(values, end_of_stream=end_of_stream), **fields)
    if served is not None:
        message.metadata_context.filter_metadata["envoy.lb"].update({SERVED: served})
    return message


def request_body(content: bytes, *, end_of_stream: bool = False) -> ProcessingRequest:
    """A chunk of the request's body."""
    return ProcessingRequest(request_body=HttpBody(body=content, end_of_stream=end_of_stream))


def response_body(content: bytes, *, end_of_stream: bool = False) -> ProcessingRequest:
    """A chunk of the response's body."""
    return ProcessingRequest(response_body=HttpBody(body=content, end_of_stream=end_of_stream))


def request_trailers() -> ProcessingRequest:
    """Trailers of the request."""
    return ProcessingRequest(request_trailers=HttpTrailers())


def response_trailers() -> ProcessingRequest:
    """Trailers of the response."""
    return ProcessingRequest(response_trailers=HttpTrailers())


def modes(request: int = 0, response: int = 0) -> ProtocolConfiguration:
    """How bodies are sent."""
    return ProtocolConfiguration(request_body_mode=request, response_body_mode=response)  # type: ignore[arg-type]


def picked(answer: ProcessingResponse) -> list[str]:
    """The endpoints of an answer to request headers, best first; fails unless header and metadata agree."""
    assert answer.WhichOneof("response") == "request_headers", answer
    set_headers = answer.request_headers.response.header_mutation.set_headers
    assert [option.header.key for option in set_headers] == [DESTINATION]
    value = set_headers[0].header.raw_value.decode()
    assert set_headers[0].append_action == set_headers[0].OVERWRITE_IF_EXISTS_OR_ADD
    assert list(answer.dynamic_metadata.fields) == ["envoy.lb"]
    in_metadata = answer.dynamic_metadata.fields["envoy.lb"].struct_value.fields
    assert list(in_metadata) == [DESTINATION]
    assert in_metadata[DESTINATION].string_value == value
    return value.split(",")


class Stream:
    """One stream of the data plane's."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def send(self, *messages: ProcessingRequest) -> None:
        """Sends messages."""
        for message in messages:
            await self.call.write(message)

    async def receive(self) -> ProcessingResponse:
        """The next answer; fails if the stream ended instead."""
        answer = await self.call.read()
        assert answer is not grpc.aio.EOF, f"ended with {await self.call.code()}"
        assert isinstance(answer, ProcessingResponse)
        return answer

    async def ask(self, message: ProcessingRequest) -> ProcessingResponse:
        """Sends a message and returns the answer."""
        await self.send(message)
        return await self.receive()

    async def finish(self) -> tuple[list[ProcessingResponse], grpc.StatusCode]:
        """Ends the sending side; returns what was still to come, and the status."""
        await self.call.done_writing()
        rest = []
        while (answer := await self.call.read()) is not grpc.aio.EOF:
            rest.append(answer)
        return rest, await self.call.code()


class DataPlane:
    """A connection to a picker."""

    def __init__(self, serving: Serving, channel: grpc.aio.Channel) -> None:
        self.serving = serving
        self.channel = channel
        self._stub: Any = ExternalProcessorStub(channel)

    @property
    def origins(self) -> list[DecisionOrigin]:
        """Who decided so far, and why; in order of the first decision of each."""
        seen = self.serving.server.metrics._decisions
        return [origin for origin in seen if origin.reason or origin.source is not DecisionSource.FALLBACK]

    def open(self) -> Stream:
        """A new stream."""
        return Stream(self._stub.Process(timeout=TIMEOUT_SECONDS))

    async def exchange(self, *messages: ProcessingRequest) -> list[ProcessingResponse]:
        """The answers to the messages of one stream, which ends with status OK."""
        stream = self.open()
        await stream.send(*messages)
        answers, code = await stream.finish()
        assert code is grpc.StatusCode.OK
        return answers

    async def pick(self, values: PlainHeaders = GET, **fields: Any) -> list[str]:
        """The endpoints for a request whose stream ends at once."""
        (answer,) = await self.exchange(request_headers(values, **fields))
        return picked(answer)

    async def picks_in_flight(self, count: int) -> tuple[list[Stream], list[str]]:
        """That many requests without an end yet: their streams, and the first endpoint of each."""
        streams = [self.open() for _ in range(count)]
        endpoints = [picked(await stream.ask(request_headers()))[0] for stream in streams]
        return streams, endpoints

    @property
    def in_flight(self) -> int:
        """Requests the picker counts as not ended."""
        server = self.serving.server.picker
        assert server is not None
        return server.picker.in_flight

    @property
    def pending(self) -> Sequence[float]:
        """What the ledger counts on each endpoint."""
        held = self.serving.server.store.held
        assert held is not None
        pending: list[float] = held.ledger.replica_pending.sum(axis=0).tolist()
        return pending


@asynccontextmanager
async def data_plane(snapshot: Snapshot | None = None, **settings: Any) -> AsyncIterator[DataPlane]:
    """A server of this process with a picker, and a data plane connected to it."""
    async with running_server(snapshot, **{"envoy": True, "envoy_port": 0, **settings}) as serving:
        server = serving.server.picker
        assert server is not None
        async with grpc.aio.insecure_channel(server.address) as channel:
            yield DataPlane(serving, channel)


def status_and_reason(answer: ProcessingResponse) -> tuple[int, str]:
    """HTTP status of an immediate response, and why."""
    assert answer.WhichOneof("response") == "immediate_response", answer
    immediate = answer.immediate_response
    assert not answer.HasField("dynamic_metadata")
    return immediate.status.code, immediate.details
