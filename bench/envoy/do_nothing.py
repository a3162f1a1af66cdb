"""An endpoint picker that always names the same endpoints, whatever the request says.

It has the stack, the options and the messages of the real picker and none of its work, so that its latency through
Envoy is the price of Envoy's filter, Python and gRPC alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import grpc

from bench.aio_server import serve_until_stopped
from policy_server.proto.envoy.config.core.v3.base_pb2 import HeaderValue, HeaderValueOption
from policy_server.proto.envoy.service.auth.v3.external_auth_pb2 import (
    CheckRequest,
    CheckResponse,
    OkHttpResponse,
)
from policy_server.proto.envoy.service.auth.v3.external_auth_pb2_grpc import (
    AuthorizationServicer,
    add_AuthorizationServicer_to_server,
)
from policy_server.proto.envoy.service.ext_proc.v3.external_processor_pb2 import (
    CommonResponse,
    HeaderMutation,
    HeadersResponse,
    ProcessingRequest,
    ProcessingResponse,
)
from policy_server.proto.envoy.service.ext_proc.v3.external_processor_pb2_grpc import (
    ExternalProcessorServicer,
    add_ExternalProcessorServicer_to_server,
)

DESTINATION = "x-gateway-destination-endpoint"
METADATA_NAMESPACE = "envoy.lb"


class _DoNothingProcessor(ExternalProcessorServicer):
    def __init__(self, destination: str) -> None:
        self._destination = destination

    async def Process(  # noqa: N802
        self,
        requests: AsyncIterator[ProcessingRequest],
        context: grpc.aio.ServicerContext[ProcessingRequest, ProcessingResponse],
    ) -> AsyncIterator[ProcessingResponse]:
        async for request in requests:
            yield self._answer(request)

    def _answer(self, request: ProcessingRequest) -> ProcessingResponse:
        if not request.HasField("request_headers"):
            return ProcessingResponse(response_headers=HeadersResponse())
        mutation = HeaderMutation(set_headers=[_destination_header(self._destination)])
        answer = ProcessingResponse(
            request_headers=HeadersResponse(response=CommonResponse(header_mutation=mutation))
        )
        metadata = answer.dynamic_metadata.fields[METADATA_NAMESPACE].struct_value
        metadata.fields[DESTINATION].string_value = self._destination
        return answer


class _DoNothingAuthorization(AuthorizationServicer):
    def __init__(self, destination: str) -> None:
        self._destination = destination

    async def Check(  # noqa: N802
        self, request: CheckRequest, context: grpc.aio.ServicerContext[CheckRequest, CheckResponse]
    ) -> CheckResponse:
        return CheckResponse(
            ok_response=OkHttpResponse(headers=[_destination_header(self._destination)]),
        )


def _destination_header(destination: str) -> HeaderValueOption:
    return HeaderValueOption(
        header=HeaderValue(key=DESTINATION, raw_value=destination.encode()),
        append_action=HeaderValueOption.HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
    )


async def serve_do_nothing(address: str, endpoints: Sequence[str]) -> None:
    """Serves ext_proc and ext_authz until SIGTERM or SIGINT.

    Args:
        address: ``host:port`` to listen on.
        endpoints: What it names, each ``ip:port``, best first.

    Raises:
        RuntimeError: the address cannot be bound.
    """
    destination = ",".join(endpoints)

    def add_services(server: grpc.aio.Server) -> None:
        add_ExternalProcessorServicer_to_server(_DoNothingProcessor(destination), server)
        add_AuthorizationServicer_to_server(_DoNothingAuthorization(destination), server)

    await serve_until_stopped(address, add_services)
