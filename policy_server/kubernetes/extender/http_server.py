"""The extender over HTTP or HTTPS, on the server's event loop.

Calls are read here and answered on one thread of their own: a call with thousands of node objects takes a good part of
a second, and decisions on requests must not wait for it.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec
from aiohttp import web

from policy_server.cluster.snapshot import Snapshot
from policy_server.kubernetes.extender.logic import ExtenderLogic, Prioritization
from policy_server.kubernetes.extender.telemetry import ExtenderTelemetry
from policy_server.kubernetes.extender.wire import WireError
from policy_server.kubernetes.quantity import QuantityError

AnswerT = TypeVar("AnswerT")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_MOST_CALLS = 4
"""Calls whose bodies are held at the same time; more wait in their connections."""

_READ_SECONDS = 10.0
"""Longest time a caller may take to send a body."""

_JSON = "application/json"


class ExtenderServer:
    """Serves ``filter``, ``prioritize``, ``healthz`` and ``readyz``.

    Args:
        logic: answers calls.
        snapshot: the state to answer by, or None.
        ready: whether callers should come.
        telemetry: is told what happens.
        maximum_body_bytes: larger bodies are refused.
        grace_seconds: how long open calls may take at shutdown.
    """

    def __init__(
        self,
        logic: ExtenderLogic,
        *,
        snapshot: Callable[[], Snapshot | None],
        ready: Callable[[], bool],
        telemetry: ExtenderTelemetry,
        maximum_body_bytes: int,
        grace_seconds: float,
    ) -> None:
        self._logic = logic
        self._snapshot = snapshot
        self._ready = ready
        self._telemetry = telemetry
        self._maximum_body_bytes = maximum_body_bytes
        self._turns = asyncio.Semaphore(_MOST_CALLS)
        self._thread = ThreadPoolExecutor(1, "extender")
        application = web.Application(middlewares=[self._observed], client_max_size=maximum_body_bytes)
        application.add_routes(
            [
                web.post("/filter", self._filter),
                web.post("/prioritize", self._prioritize),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
            ]
        )
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=grace_seconds)

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> str:
        """Opens the port and returns the URL to be asked at; a free port is chosen where it is 0.

        Raises:
            OSError: the address cannot be bound; the message names it and the remedy.
        """
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port, ssl_context=tls).start()
        except OSError as error:
            await self._runner.cleanup()
            raise OSError(
                f"extender: cannot listen on {host}:{port}: {error.strerror}; stop the other server or choose "
                "another extender_host or extender_port"
            ) from None
        bound = self._runner.addresses[0][1]
        return f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{bound}"

    async def stop(self) -> None:
        """Refuses new connections, lets open calls finish within the grace time, and closes."""
        await self._runner.cleanup()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _filter(self, request: web.Request) -> web.Response:
        return await self._called(request, self._logic.filter, lambda answer: answer)

    async def _prioritize(self, request: web.Request) -> web.Response:
        def answer(prioritization: Prioritization) -> bytes:
            self._telemetry.prioritized(prioritization)
            return prioritization.answer

        return await self._called(request, self._logic.prioritize, answer)

    async def _called(
        self,
        request: web.Request,
        decide: Callable[[bytes, Snapshot | None], AnswerT],
        answer: Callable[[AnswerT], bytes],
    ) -> web.Response:
        async with self._turns:
            body = await self._read(request)
            try:
                decided = await asyncio.get_running_loop().run_in_executor(
                    self._thread, decide, body, self._snapshot()
                )
            except (WireError, QuantityError) as error:
                raise web.HTTPBadRequest(text=_refusal(str(error)), content_type=_JSON) from None
            return web.Response(body=answer(decided), content_type=_JSON)

    async def _read(self, request: web.Request) -> bytes:
        try:
            async with asyncio.timeout(_READ_SECONDS):
                return await request.read()
        except TimeoutError:
            refusal = _refusal(f"body: not complete after {_READ_SECONDS:g} s; send it faster")
            raise web.HTTPRequestTimeout(text=refusal, content_type=_JSON) from None
        except ConnectionError:
            # Nobody reads this, but it is counted, and aiohttp would log a connection that is lost as our failure.
            refusal = _refusal("body: the caller hung up before its end")
            raise web.HTTPBadRequest(text=refusal, content_type=_JSON) from None
        except web.HTTPRequestEntityTooLarge as error:
            error.content_type = _JSON
            error.text = _refusal(
                f"body: larger than {self._maximum_body_bytes} bytes; set nodeCacheCapable: true in the scheduler's "
                "configuration, or raise extender_max_body_bytes"
            )
            raise

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        if self._ready():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="not ready: starting or shutting down\n")

    @web.middleware
    async def _observed(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        started = time.perf_counter()
        status = 500
        try:
            response = await handler(request)
            status = response.status
        except web.HTTPException as error:
            status = error.status
            raise
        finally:
            resource = request.match_info.route.resource
            self._telemetry.called(
                request.method,
                "" if resource is None else resource.canonical,
                request.scheme,
                status,
                time.perf_counter() - started,
            )
        return response


def server_tls(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 or newer with a certificate (chain) and its key, both PEM.

    Raises:
        OSError: one of them cannot be used; the message names them.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise OSError(
            f"extender_tls_certificate, extender_tls_key: {certificate}, {key}; {error.strerror or error}; give a "
            "certificate and its key, both PEM"
        ) from None
    return context


def _refusal(message: str) -> str:
    return msgspec.json.encode({"Error": message}).decode()
