"""An endpoint picker that always names the same endpoints, whatever the request says.

It has the stack, the options and the messages of the real picker and none of its work, so that its latency through
Envoy is the price of Envoy's filter, Python and gRPC alone. It reads each message, because a server must know what it
is asked, and answers with bytes made beforehand.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from bench.aio_server import serve_until_stopped
from policy_server.api.rpc import CallContext
from policy_server.proto.envoy.config.core.v3.base_pb2 import HeaderValue, HeaderValueOption
from policy_server.proto.envoy.service.auth.v3 import external_auth_pb2
from policy_server.proto.envoy.service.auth.v3.external_auth_pb2 import (
    CheckRequest,
    CheckResponse,
    OkHttpResponse,
)
from policy_server.proto.envoy.service.ext_proc.v3 import external_processor_pb2
from policy_server.proto.envoy.service.ext_proc.v3.external_processor_pb2 import (
    CommonResponse,
    HeaderMutation,
    HeadersResponse,
    ProcessingRequest,
    ProcessingResponse,
)

_DESTINATION = "x-gateway-destination-endpoint"
_METADATA_NAMESPACE = "envoy.lb"
_EXTERNAL_PROCESSOR = external_processor_pb2.DESCRIPTOR.services_by_name["ExternalProcessor"].full_name
_AUTHORIZATION = external_auth_pb2.DESCRIPTOR.services_by_name["Authorization"].full_name


class _Answers:
    """What is answered, made once.

    Args:
        destination: Addresses, best first, separated by commas.
    """

    def __init__(self, destination: str) -> None:
        header = HeaderValueOption(
            header=HeaderValue(key=_DESTINATION, raw_value=destination.encode()),
            append_action=HeaderValueOption.HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
        )
        mutation = HeaderMutation(set_headers=[header])
        to_request = ProcessingResponse(
            request_headers=HeadersResponse(response=CommonResponse(header_mutation=mutation))
        )
        metadata = to_request.dynamic_metadata.fields[_METADATA_NAMESPACE].struct_value
        metadata.fields[_DESTINATION].string_value = destination
        self.to_request = to_request.SerializeToString()
        self.to_response = ProcessingResponse(response_headers=HeadersResponse()).SerializeToString()
        self.to_check = CheckResponse(ok_response=OkHttpResponse(headers=[header])).SerializeToString()

    async def process(self, requests: AsyncIterator[bytes], context: CallContext) -> None:
        """``ExternalProcessor.Process``."""
        while (message := await context.read()) is not grpc.aio.EOF:
            asked = ProcessingRequest.FromString(message).HasField("request_headers")
            await context.write(self.to_request if asked else self.to_response)

    async def check(self, message: bytes, context: CallContext) -> bytes:
        """``Authorization.Check``."""
        CheckRequest.FromString(message)
        return self.to_check


async def serve_do_nothing(address: str, endpoints: Sequence[str]) -> None:
    """Serves ext_proc and ext_authz until SIGTERM or SIGINT.

    Args:
        address: ``host:port`` to listen on.
        endpoints: What it names, each ``ip:port``, best first.

    Raises:
        RuntimeError: the address cannot be bound.
    """
    answers = _Answers(",".join(endpoints))
    methods: dict[str, dict[str, Any]] = {
        _EXTERNAL_PROCESSOR: {"Process": grpc.stream_stream_rpc_method_handler(answers.process)},
        _AUTHORIZATION: {"Check": grpc.unary_unary_rpc_method_handler(answers.check)},
    }

    def add_services(server: grpc.aio.Server) -> None:
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(name, handlers) for name, handlers in methods.items()]
        )

    await serve_until_stopped(address, add_services)
