"""An echo server that freezes once: python freezing_server.py PORT FREEZE_AFTER_SECONDS FREEZE_SECONDS.

The time runs from the first request. While it freezes nothing is answered; then everything that waits is.
"""

from __future__ import annotations

import asyncio
import sys
import time

import grpc
from grpc_health.v1 import health, health_pb2_grpc

from policy_server.proto.policy.v1.dispatch_service_pb2 import DispatchRequest, DispatchResponse


async def serve(port: int, freeze_after_seconds: float, freeze_seconds: float) -> None:
    is_armed = True

    async def dispatch(request: DispatchRequest, context: object) -> DispatchResponse:
        nonlocal is_armed
        if is_armed:
            is_armed = False
            asyncio.get_running_loop().call_later(freeze_after_seconds, time.sleep, freeze_seconds)
        return DispatchResponse(endpoint="frozen")

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(
        dispatch,
        request_deserializer=DispatchRequest.FromString,
        response_serializer=DispatchResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("policy.v1.DispatchService", {"Dispatch": handler}),)
    )
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])))
