"""HTTP and gRPC back ends of this process, which tell what they were asked and send it back."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from hypercorn.asyncio import serve
from hypercorn.config import Config

SERVED_BY = "x-served-by"
PROTOCOL = "x-protocol"
BODY_DIGEST = "x-body-digest"


@dataclass
class BackEnd:
    """An HTTP back end: answers 200 and sends the body back.

    Attributes:
        address: ``host:port``.
        requests: headers of the requests that came, by name.
        status: of the answers.
        gate: requests wait for it to open before they are answered.
        waiting: how many wait there.
        breaks_off: whether it breaks off in the middle of its answers.
    """

    address: str = ""
    requests: list[dict[str, str]] = field(default_factory=list)
    status: int = 200
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0
    breaks_off: bool = False

    def __post_init__(self) -> None:
        self.gate.set()

    async def __call__(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        """The ASGI application."""
        if scope["type"] == "lifespan":
            return await _live(receive, send)
        self.requests.append({name.decode(): value.decode() for name, value in scope["headers"]})
        body = bytearray()
        while (event := await receive())["type"] == "http.request":
            body += event["body"]
            if not event["more_body"]:
                break
        else:
            return None
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        headers = {
            SERVED_BY: self.address,
            PROTOCOL: scope["http_version"],
            BODY_DIGEST: digest(bytes(body)),
            "content-length": str(len(body)),
        }
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": encoded})
        if self.breaks_off:
            await send({"type": "http.response.body", "body": bytes(body[:1]), "more_body": True})
            raise ConnectionAbortedError("as told")
        await send({"type": "http.response.body", "body": bytes(body)})
        return None


def digest(body: bytes) -> str:
    """What a back end says it received."""
    return hashlib.sha256(body).hexdigest()


async def _live(receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
    while True:
        event = (await receive())["type"]
        await send({"type": f"{event}.complete"})
        if event == "lifespan.shutdown":
            return


@asynccontextmanager
async def running_back_ends(count: int) -> AsyncIterator[list[BackEnd]]:
    """Back ends that speak HTTP/1.1 and HTTP/2 without TLS."""
    stop = asyncio.Event()
    back_ends, servers = [], []
    for _ in range(count):
        listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
        back_end = BackEnd(f"127.0.0.1:{listener.getsockname()[1]}")
        config = Config()
        # The server closes the descriptor that it is given.
        config.bind = [f"fd://{listener.detach()}"]
        config.errorlog = None
        config.graceful_timeout = 0.1
        config.keep_alive_timeout = 600.0
        config.h2_max_concurrent_streams = 2000
        application: Any = back_end
        servers.append(asyncio.create_task(serve(application, config, shutdown_trigger=stop.wait)))
        back_ends.append(back_end)
    try:
        yield back_ends
    finally:
        for back_end in back_ends:
            back_end.gate.set()
        stop.set()
        await asyncio.gather(*servers)


@asynccontextmanager
async def running_grpc_back_end() -> AsyncIterator[str]:
    """A gRPC server that sends back whatever a unary or a streaming call sends; yields its address."""

    async def unary(message: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return message

    async def stream(
        messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        async for message in messages:
            yield message

    methods = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Stream": grpc.stream_stream_rpc_method_handler(stream),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Echo", methods)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def closed_address() -> str:
    """An address of the loopback interface that refuses connections."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
