"""What every call has in common: parsing, timing, and errors as status codes.

Messages are parsed here rather than by gRPC, which would answer a malformed one with UNKNOWN.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from time import perf_counter
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from policy_server.api.errors import (
    DeadlineSpentError,
    InvalidArgumentError,
    NothingCanServeError,
    OverloadedError,
    UnknownPolicyError,
)
from policy_server.cluster.snapshot import SnapshotError
from policy_server.cluster.state_store import StateConflictError
from policy_server.telemetry.metrics import ServerMetrics
from policy_server.telemetry.spans import CURRENT_CALL, ProblemSpans

CallContext = grpc.aio.ServicerContext[Any, Any]

RETRY_PUSHBACK_KEY = "grpc-retry-pushback-ms"
_LOGGER = logging.getLogger(__name__)
_INTERNAL_ERROR = "internal error; the server's log has the details"
_CODE_OF_ERROR: dict[type[Exception], grpc.StatusCode] = {
    InvalidArgumentError: grpc.StatusCode.INVALID_ARGUMENT,
    SnapshotError: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownPolicyError: grpc.StatusCode.NOT_FOUND,
    StateConflictError: grpc.StatusCode.FAILED_PRECONDITION,
    NothingCanServeError: grpc.StatusCode.UNAVAILABLE,
    OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    DeadlineSpentError: grpc.StatusCode.DEADLINE_EXCEEDED,
    DecodeError: grpc.StatusCode.INVALID_ARGUMENT,
}
"""Errors that tell a caller something. Any other is a bug of the server: INTERNAL."""
_CALLERS_FAULTS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
)


def code_of(error: Exception) -> grpc.StatusCode:
    """The status code an error is answered with."""
    return _CODE_OF_ERROR.get(type(error), grpc.StatusCode.INTERNAL)


def details_of(error: Exception) -> str:
    """What the caller is told of an error: its message, or of a bug nothing but that it was one."""
    if type(error) in _CODE_OF_ERROR:
        return str(error)
    return _INTERNAL_ERROR


class OpenStreams:
    """The streams that are open, so that a stopping server can end them in order."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._writing: set[asyncio.Task[Any]] = set()
        self._finishing = False

    def finish(self) -> None:
        """Ends every open stream, and every later one, with status OK: what was answered stays answered."""
        self._finishing = True
        for task in self._tasks - self._writing:
            task.cancel()

    async def write(self, context: CallContext, message: Any) -> None:
        """Writes a message to the stream of this task, whole, also when streams are to finish meanwhile.

        A stream that is cancelled while it writes cannot be ended with a status of its own any more: its client would
        see an error in place of OK.
        """
        task = asyncio.current_task()
        assert task is not None
        self._writing.add(task)
        try:
            await context.write(message)
        finally:
            self._writing.discard(task)
        if self._finishing:
            task.cancel()
            await asyncio.sleep(0)

    async def run(self, stream: Coroutine[Any, Any, None]) -> None:
        """Runs a stream until it ends, or until streams are to finish."""
        if self._finishing:
            stream.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await stream
        except asyncio.CancelledError:
            if not self._finishing:
                raise
            task.uncancel()
        finally:
            self._tasks.discard(task)


class RpcServices:
    """Adds services to a server, with what all calls have in common.

    Args:
        server: not started yet.
        metrics: counts calls.
        spans: of failed calls.

    Attributes:
        streams: that are open.
    """

    def __init__(self, server: grpc.aio.Server, metrics: ServerMetrics, spans: ProblemSpans) -> None:
        self.streams = OpenStreams()
        self._server = server
        self._metrics = metrics
        self._spans = spans

    def add(
        self, service: ServiceDescriptor, servicer: object, *, name: str | None = None, as_bytes: bool = False
    ) -> None:
        """Serves the methods of ``servicer``, which are named like those of ``service``.

        Args:
            service: describes the methods.
            servicer: has them, as coroutine functions, or as asynchronous generators where they answer a stream.
            name: of the service on the wire, where it is not its own.
            as_bytes: whether the methods that stream both ways take and give messages as bytes.
        """
        name = name or service.full_name
        handlers = {
            method.name: self._handler(
                f"{name}/{method.name}", method, getattr(servicer, method.name), as_bytes=as_bytes
            )
            for method in service.methods
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))

    def _handler(
        self, full_name: str, method: MethodDescriptor, behaviour: Callable[..., Any], *, as_bytes: bool
    ) -> grpc.RpcMethodHandler[Any, Any]:
        request = GetMessageClass(method.input_type)
        response = GetMessageClass(method.output_type)
        if method.server_streaming:
            stream = self._stream(full_name, behaviour)
            if method.client_streaming and as_bytes:
                return grpc.stream_stream_rpc_method_handler(stream)
            if method.client_streaming:
                return grpc.stream_stream_rpc_method_handler(
                    stream, request.FromString, response.SerializeToString
                )
            return grpc.unary_stream_rpc_method_handler(
                stream, request.FromString, response.SerializeToString
            )
        return grpc.unary_unary_rpc_method_handler(self._unary(full_name, request.FromString, behaviour))

    def _unary(
        self,
        full_name: str,
        parse: Callable[[bytes], Any],
        behaviour: Callable[[Any, CallContext], Awaitable[Any]],
    ) -> Callable[[bytes, CallContext], Awaitable[bytes]]:
        record_success = self._metrics.call(full_name, grpc.StatusCode.OK.name).record
        tracing = self._spans.enabled

        async def handle(message: bytes, context: CallContext) -> bytes:
            started = perf_counter()
            if tracing:
                CURRENT_CALL.set(context)
            try:
                response = await behaviour(parse(message), context)
                serialized: bytes = response.SerializeToString()
            except BaseException as error:
                await self._fail(full_name, error, context, started)
                raise
            record_success(perf_counter() - started)
            return serialized

        return handle

    def _stream(
        self, full_name: str, behaviour: Callable[..., Any]
    ) -> Callable[[Any, CallContext], Awaitable[None]]:
        generates = inspect.isasyncgenfunction(behaviour)

        async def generate(request: Any, context: CallContext) -> None:
            async for response in behaviour(request, context):
                await self.streams.write(context, response)

        run = generate if generates else behaviour

        async def handle(request: Any, context: CallContext) -> None:
            started = perf_counter()
            if self._spans.enabled:
                CURRENT_CALL.set(context)
            try:
                await self.streams.run(run(request, context))
            except BaseException as error:
                await self._fail(full_name, error, context, started)
                raise
            self._metrics.call(full_name, grpc.StatusCode.OK.name).record(perf_counter() - started)

        return handle

    async def _fail(self, full_name: str, error: BaseException, context: CallContext, started: float) -> None:
        """Counts a failed call and answers it, unless it is answered already or nobody waits for it any more."""
        if isinstance(error, asyncio.CancelledError):
            code = grpc.StatusCode.CANCELLED
        elif isinstance(error, grpc.aio.AbortError):
            code = context.code() or grpc.StatusCode.UNKNOWN
        elif isinstance(error, Exception):
            code = code_of(error)
        else:
            return
        self._metrics.call(full_name, code.name).record(perf_counter() - started)
        if isinstance(error, asyncio.CancelledError | grpc.aio.AbortError):
            return
        if code is grpc.StatusCode.INTERNAL:
            _LOGGER.exception("%s failed", full_name, exc_info=error)
        if code not in _CALLERS_FAULTS:
            self._spans.failed(full_name, code.name, error)
        pushback: tuple[tuple[str, str], ...] = ()
        if isinstance(error, OverloadedError):
            pushback = ((RETRY_PUSHBACK_KEY, str(error.retry_after_milliseconds)),)
        await context.abort(code, details_of(error), pushback)
