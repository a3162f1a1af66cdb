from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from bench.commands import do_nothing_command
from bench.server_process import ServerProcess, free_port
from policy_server.proto.envoy.service.auth.v3.external_auth_pb2 import CheckRequest, CheckResponse
from policy_server.proto.envoy.service.ext_proc.v3.external_processor_pb2 import (
    HttpHeaders,
    ProcessingRequest,
    ProcessingResponse,
)

ENDPOINTS = ("10.0.0.2:8080", "10.0.0.1:8080")
DESTINATION = "x-gateway-destination-endpoint"


@pytest.fixture(scope="module")
def channel() -> Iterator[grpc.Channel]:
    port = free_port()
    with (
        ServerProcess("do-nothing picker", do_nothing_command(port, ENDPOINTS), port) as process,
        grpc.insecure_channel(process.address) as channel,
    ):
        yield channel


def test_every_stream_gets_the_same_endpoints_and_an_empty_answer_to_the_response(
    channel: grpc.Channel,
) -> None:
    process = channel.stream_stream(
        "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
        request_serializer=ProcessingRequest.SerializeToString,
        response_deserializer=ProcessingResponse.FromString,
    )
    asked = ProcessingRequest(request_headers=HttpHeaders(end_of_stream=True))
    responded = ProcessingRequest(response_headers=HttpHeaders())
    first, second = process(iter([asked, responded]), timeout=30)
    (header,) = first.request_headers.response.header_mutation.set_headers
    assert (header.header.key, header.header.raw_value) == (DESTINATION, ",".join(ENDPOINTS).encode())
    metadata = first.dynamic_metadata.fields["envoy.lb"].struct_value
    assert metadata.fields[DESTINATION].string_value == ",".join(ENDPOINTS)
    assert second.WhichOneof("response") == "response_headers"


def test_every_check_gets_the_same_endpoints(channel: grpc.Channel) -> None:
    check = channel.unary_unary(
        "/envoy.service.auth.v3.Authorization/Check",
        request_serializer=CheckRequest.SerializeToString,
        response_deserializer=CheckResponse.FromString,
    )
    answer = check(CheckRequest(), timeout=30)
    assert answer.status.code == 0
    (header,) = answer.ok_response.headers
    assert (header.header.key, header.header.raw_value) == (DESTINATION, ",".join(ENDPOINTS).encode())
