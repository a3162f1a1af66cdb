"""What is sent back to a data plane, as bytes: messages that say the same for every request are made once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import grpc

from policy_server.api.rpc import RETRY_PUSHBACK_KEY
from policy_server.envoy.names import DESTINATION_ENDPOINT, DESTINATION_NAMESPACE
from policy_server.envoy.picker import Refusal
from policy_server.proto.envoy.config.core.v3.base_pb2 import HeaderValue, HeaderValueOption
from policy_server.proto.envoy.service.ext_proc.v3.external_processor_pb2 import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    GrpcStatus,
    HeaderMutation,
    HeadersResponse,
    HttpBody,
    ImmediateResponse,
    ProcessingResponse,
    StreamedBodyResponse,
    TrailersResponse,
)
from policy_server.proto.envoy.type.v3.http_status_pb2 import HttpStatus, StatusCode

MAXIMUM_CHUNK_BYTES = 62_000
"""Of a streamed body; Envoy takes chunks below 64 KiB."""

RETRY_AFTER = "retry-after"

RESPONSE_HEADERS = ProcessingResponse(response_headers=HeadersResponse()).SerializeToString()
REQUEST_BODY = ProcessingResponse(request_body=BodyResponse()).SerializeToString()
RESPONSE_BODY = ProcessingResponse(response_body=BodyResponse()).SerializeToString()
REQUEST_TRAILERS = ProcessingResponse(request_trailers=TrailersResponse()).SerializeToString()
RESPONSE_TRAILERS = ProcessingResponse(response_trailers=TrailersResponse()).SerializeToString()
REQUEST_HEADERS = ProcessingResponse(request_headers=HeadersResponse()).SerializeToString()


@lru_cache(maxsize=16_384)
def picked(endpoints: str, clear_route_cache: bool) -> bytes:
    """The answer to request headers: the endpoints in header and dynamic metadata."""
    response = ProcessingResponse(
        request_headers=HeadersResponse(
            response=CommonResponse(
                header_mutation=HeaderMutation(set_headers=[_set_header(DESTINATION_ENDPOINT, endpoints)]),
                clear_route_cache=clear_route_cache,
            )
        )
    )
    response.dynamic_metadata.update({DESTINATION_NAMESPACE: {DESTINATION_ENDPOINT: endpoints}})
    return response.SerializeToString()


def refused(refusal: Refusal) -> bytes:
    """The answer to a request that gets no endpoint: 503, or 429 where endpoints are ready but busy."""
    return ProcessingResponse(
        immediate_response=ImmediateResponse(
            status=HttpStatus(code=status_of(refusal)),
            headers=HeaderMutation(
                set_headers=[_set_header(name, value) for name, value in retry_headers(refusal).items()]
            ),
            body=refusal.message.encode(),
            grpc_status=GrpcStatus(status=grpc_code_of(refusal)),
            details=f"endpoint_picker_{refusal.reason.value}",
        )
    ).SerializeToString()


def status_of(refusal: Refusal) -> StatusCode.ValueType:
    """HTTP status of a refusal."""
    return StatusCode.TooManyRequests if refusal.shed else StatusCode.ServiceUnavailable


def grpc_code_of(refusal: Refusal) -> int:
    """gRPC status of a refusal."""
    code = grpc.StatusCode.RESOURCE_EXHAUSTED if refusal.shed else grpc.StatusCode.UNAVAILABLE
    number: int = code.value[0]
    return number


def retry_headers(refusal: Refusal) -> dict[str, str]:
    """Headers that say when to try again: whole seconds for HTTP, and the milliseconds gRPC clients read."""
    milliseconds = refusal.retry_after_milliseconds
    return {RETRY_AFTER: str(math.ceil(milliseconds / 1000)), RETRY_PUSHBACK_KEY: str(milliseconds)}


def text_of(header: HeaderValue) -> str:
    """A header's value, from whichever of its two fields the filter fills."""
    return header.raw_value.decode("latin-1") or header.value


def streamed(body: HttpBody, *, of_request: bool, whole: bool) -> Iterator[bytes]:
    """A chunk of a streamed body, unchanged, in chunks that Envoy takes.

    Args:
        body: the chunk.
        of_request: whether it is of the request, not of the response.
        whole: whether it is a message of its own (a gRPC message) that must not be divided.
    """
    content = body.body
    step = len(content) if whole else MAXIMUM_CHUNK_BYTES
    last = max(0, len(content) - 1) // step if step else 0
    if not content and not body.end_of_stream and not whole:
        return
    for position in range(last + 1):
        part = BodyResponse(
            response=CommonResponse(
                body_mutation=BodyMutation(
                    streamed_response=StreamedBodyResponse(
                        body=content[position * step : (position + 1) * step],
                        end_of_stream=body.end_of_stream and position == last,
                        end_of_stream_without_message=body.end_of_stream_without_message,
                        grpc_message_compressed=body.grpc_message_compressed,
                    )
                )
            )
        )
        response = (
            ProcessingResponse(request_body=part) if of_request else ProcessingResponse(response_body=part)
        )
        yield response.SerializeToString()


def _set_header(name: str, value: str) -> HeaderValueOption:
    return HeaderValueOption(
        header=HeaderValue(key=name, raw_value=value.encode()),
        append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
    )
