"""The small gRPC client against real servers, and against peers that misbehave."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.load import generator
from bench.load.errors import LoadError
from bench.load.http2 import UnaryConnection, grpc_frame
from bench.load.measurement import OpenLoopMeasurement
from bench.load.plans import ClosedLoop, OpenLoop
from bench.load.target import Target

_METHOD = "/test.Service/Call"


@contextmanager
def server(
    behave: Callable[[bytes, grpc.ServicerContext], bytes], *options: tuple[str, int]
) -> Iterator[Target]:
    handler = grpc.unary_unary_rpc_method_handler(behave)
    real = grpc.server(ThreadPoolExecutor(4), options=options)
    real.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", {"Call": handler}),))
    port = real.add_insecure_port("127.0.0.1:0")
    real.start()
    try:
        yield Target("127.0.0.1", port, _METHOD, b"question")
    finally:
        real.stop(grace=None).wait()


@contextmanager
def peer(script: Callable[[socket.socket], None]) -> Iterator[Target]:
    """A TCP server that runs ``script`` on its first connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                script(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Target("127.0.0.1", listener.getsockname()[1], _METHOD, b"")
        finally:
            thread.join()


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def connect(target: Target, timeout_seconds: float = 5.0) -> UnaryConnection:
    return UnaryConnection(target.host, target.port, target.path, target.message, timeout_seconds)


def test_a_frame_is_a_flag_byte_the_length_and_the_message() -> None:
    assert grpc_frame(b"abc") == b"\0\0\0\0\x03abc"


def test_requests_reach_the_server_and_responses_come_back_whole() -> None:
    with server(lambda request, _: request[::-1]) as target:
        measurement = generator.run(target, ClosedLoop(50, connections=3, streams=4))
    assert measurement.failures == {}
    assert measurement.responses == (b"noitseuq",) * 50


def test_responses_larger_than_a_frame_and_a_window_are_put_together() -> None:
    large = bytes(300_000)
    with server(lambda *_: large) as target:
        measurement = generator.run(target, ClosedLoop(4))
    assert measurement.failures == {}
    assert measurement.responses == (large,) * 4


def test_many_large_requests_wait_for_the_servers_flow_control() -> None:
    with server(lambda request, _: str(len(request)).encode()) as target:
        large = Target(target.host, target.port, target.path, bytes(30_000))
        measurement = generator.run(large, OpenLoop(50, 10_000.0))
    assert measurement.failures == {}
    assert measurement.responses == (b"30000",) * 50


def test_an_open_loop_respects_the_servers_limit_of_streams() -> None:
    with server(lambda *_: b"", ("grpc.max_concurrent_streams", 2)) as target:
        measurement = generator.run(target, OpenLoop(100, 5_000.0))
    assert isinstance(measurement, OpenLoopMeasurement)
    sent = measurement.sent_microseconds
    ended = measurement.scheduled_microseconds + measurement.latency_microseconds
    assert max(int(((sent < moment) & (ended > moment)).sum()) for moment in sent) <= 2
    # The server may still count a stream that has just ended, and refuse one more.
    assert set(measurement.failures) <= {"stream reset with code 7"}


def test_errors_are_counted_by_status_and_message() -> None:
    calls = iter(range(10))

    def refuse_every_other(request: bytes, context: grpc.ServicerContext) -> bytes:
        if next(calls) % 2:
            context.abort(grpc.StatusCode.UNAVAILABLE, "nobody home")
        return b""

    with server(refuse_every_other) as target:
        measurement = generator.run(target, ClosedLoop(10))
    assert measurement.failures == {"gRPC status 14: nobody home": 5}


def test_an_unknown_method_is_a_failure() -> None:
    with server(lambda *_: b"") as target:
        wrong = Target(target.host, target.port, "/test.Service/Missing", b"")
        failures = generator.run(wrong, ClosedLoop(3)).failures
    assert sum(failures.values()) == 3
    assert next(iter(failures)).startswith("gRPC status 12")


def test_a_peer_that_closes_is_an_error() -> None:
    with (
        peer(lambda connection: connection.recv(10)) as target,
        pytest.raises(LoadError, match="closed the connection"),
    ):
        connect(target)


def test_a_peer_that_speaks_no_http2_is_an_error() -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(20))

    with peer(answer) as target, pytest.raises(LoadError):
        connect(target, timeout_seconds=0.3)


def test_a_silent_peer_is_an_error() -> None:
    closed = threading.Event()

    def wait(connection: socket.socket) -> None:
        closed.wait(10)

    with peer(wait) as target:
        with pytest.raises(LoadError, match="in time"):
            connect(target, timeout_seconds=0.2)
        closed.set()


def test_a_peer_that_says_goodbye_gives_its_reason() -> None:
    def goodbye(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(frame(7, 0, 0, struct.pack(">II", 0, 11) + b"too_many_pings"))

    with peer(goodbye) as target, pytest.raises(LoadError, match="too_many_pings"):
        connect(target)


@settings(max_examples=30)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(1, 9))
def test_frames_are_understood_however_the_stream_is_cut(sizes: list[int], cut: int) -> None:
    ping = frame(6, 0, 0, b"12345678")
    unknown = b"".join(frame(0xEE, 0, 0, bytes(size)) for size in sizes)
    greeting = unknown + ping + frame(4, 0, 0, struct.pack(">HI", 3, 7))
    acknowledged = threading.Event()

    def dribble(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(greeting), cut):
            connection.sendall(greeting[start : start + cut])
        received = b""
        while frame(6, 1, 0, b"12345678") not in received or frame(4, 1, 0, b"") not in received:
            received += connection.recv(1000)
        acknowledged.set()

    with peer(dribble) as target:
        connection = connect(target)
        assert connection.can_send()
        assert acknowledged.wait(5)
        connection.close()
