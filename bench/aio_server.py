"""Bare asyncio gRPC servers with the options of the real one."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable

import grpc
from grpc_health.v1 import health, health_pb2_grpc

from policy_server.api.grpc_server import server_options


async def serve_until_stopped(address: str, add_services: Callable[[grpc.aio.Server], None]) -> None:
    """Serves with health checking until SIGTERM or SIGINT and, as the real server, on a settled heap.

    Raises:
        RuntimeError: the address cannot be bound.
    """
    gc.collect()
    gc.freeze()
    server = grpc.aio.server(options=server_options())
    add_services(server)
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    server.add_insecure_port(address)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await server.start()
    await stop.wait()
    await server.stop(grace=None)
