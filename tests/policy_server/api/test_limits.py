"""Load, deadlines and connections: what the server promises when things get tight."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from policy_server.api.rpc import RETRY_PUSHBACK_KEY
from policy_server.policies.heuristics.earliest_completion import EarliestCompletion
from tests.support.serving import Serving, error_of, graded_endpoints, question, running_server

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, SETTINGS, PING, GOAWAY = 1, 4, 6, 7
END_STREAM, ACK = 1, 1


async def crowd(serving: Serving, count: int, **fields: Any) -> list[Any]:
    calls = [serving.dispatch(**fields) for _ in range(count)]
    return await asyncio.gather(*calls, return_exceptions=True)


@contextmanager
def company(serving: Serving, count: int = 1) -> Iterator[None]:
    """That many more requests in flight, so that none is alone."""
    for _ in range(count):
        serving.server.logic.enter()
    try:
        yield
    finally:
        for _ in range(count):
            serving.server.logic.leave()


async def test_more_than_may_be_in_flight_are_shed_with_a_pushback() -> None:
    async with running_server(
        graded_endpoints(3), max_in_flight=4, retry_pushback_milliseconds=250
    ) as serving:
        with company(serving, 4):
            error = await error_of(serving.dispatch())
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (RETRY_PUSHBACK_KEY, "250") in tuple(error.trailing_metadata())
        assert not tuple(error.initial_metadata())
        with company(serving, 3):
            assert (await serving.dispatch()).endpoint


async def test_burst_is_answered_in_full() -> None:
    async with running_server(graded_endpoints(3)) as serving:
        answers = await crowd(serving, 3000)
    assert all(getattr(answer, "endpoint", None) for answer in answers)


async def test_expired_call_never_reaches_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    score = EarliestCompletion.score

    def counted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return score(*arguments)

    monkeypatch.setattr(EarliestCompletion, "score", counted)
    async with running_server(graded_endpoints(3), batch_window_seconds=0.5) as serving:
        with company(serving):
            patient = [asyncio.ensure_future(serving.dispatch()) for _ in range(8)]
            error = await error_of(serving.dispatching.Dispatch(question(), timeout=0.1))
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert not any(call.done() for call in patient)
            assert all(answer.endpoint for answer in await asyncio.gather(*patient))
        assert calls == picks(serving) == 8


def picks(serving: Serving) -> int:
    held = serving.server.store.held
    assert held is not None
    return int(held.ledger.replica_picks.sum())


async def test_call_that_expired_while_the_server_was_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_server(graded_endpoints(3)) as serving:
        assert (await serving.dispatch()).endpoint
        before = picks(serving)
        late = asyncio.ensure_future(error_of(serving.dispatching.Dispatch(question(), timeout=0.05)))
        await asyncio.sleep(0)
        time.sleep(0.2)
        assert (await late).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert picks(serving) == before


async def test_cancelled_caller_harms_no_neighbour() -> None:
    async with running_server(graded_endpoints(3), batch_window_seconds=0.5) as serving:
        with company(serving):
            calls = [serving.dispatching.Dispatch(question(max_alternatives=row % 3)) for row in range(8)]
            while serving.server.logic.in_flight < 9:
                await asyncio.sleep(0.01)
            calls[1].cancel()
            answers = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(answers[1], asyncio.CancelledError)
        assert [len(answers[row].alternatives) for row in (0, 2, 3, 4, 5, 6, 7)] == [0, 2, 0, 1, 2, 0, 1]
        assert picks(serving) == 7
        started = time.monotonic()
        assert (await serving.dispatch()).endpoint
        assert time.monotonic() - started < 2.0


class RawConnection:
    """HTTP/2 spoken by hand, to see frames that clients hide."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        self._socket.sendall(PREFACE)
        self.send(SETTINGS, 0, 0, b"")

    def send(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        header = struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream)
        self._socket.sendall(header + payload)

    def receive(self) -> tuple[int, int, int, bytes]:
        header = self._read(9)
        length = int.from_bytes(header[:3], "big")
        kind, flags, stream = struct.unpack(">BBI", header[3:])
        return kind, flags, stream, self._read(length)

    def call(self, path: str, message: bytes) -> list[tuple[int, int]]:
        """Kinds and flags of the frames that answer a unary call."""
        literal = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]
        block = b"".join(
            b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
            for name, value in literal
        )
        self.send(HEADERS, 4, 1, block)
        self.send(0, END_STREAM, 1, b"\x00" + struct.pack(">I", len(message)) + message)
        frames = []
        while True:
            kind, flags, stream, _ = self.receive()
            if stream == 1 and kind in (0, HEADERS):
                frames.append((kind, flags & END_STREAM))
                if flags & END_STREAM:
                    return frames

    def close(self) -> None:
        self._socket.close()

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            if not part:
                raise ConnectionError("closed by the server")
            data += part
        return data


async def test_errors_are_sent_trailers_only() -> None:
    path = "/policy.v1.DispatchService/Dispatch"
    async with running_server(graded_endpoints(3)) as serving:
        connection = RawConnection(serving.server.address)
        refused = await asyncio.to_thread(
            connection.call, path, question(service="nobody").SerializeToString()
        )
        connection.close()
        connection = RawConnection(serving.server.address)
        answered = await asyncio.to_thread(connection.call, path, question().SerializeToString())
        connection.close()
    assert refused == [(HEADERS, END_STREAM)]
    assert answered == [(HEADERS, 0), (0, 0), (HEADERS, END_STREAM)]


def ping(connection: RawConnection) -> None:
    connection.send(PING, 0, 0, b"12345678")
    while True:
        kind, flags, _, _ = connection.receive()
        assert kind != GOAWAY
        if kind == PING and flags & ACK:
            return


@pytest.mark.slow
async def test_idle_client_that_pings_every_few_seconds_is_welcome() -> None:
    async with running_server() as serving:
        connection = RawConnection(serving.server.address)
        for _ in range(6):
            await asyncio.to_thread(ping, connection)
            await asyncio.sleep(6)
        await asyncio.to_thread(ping, connection)
        connection.close()


async def test_connections_are_replaced_without_a_client_noticing() -> None:
    async with running_server(graded_endpoints(3), max_connection_age_seconds=0.2) as serving:
        ends = asyncio.get_running_loop().time() + 1.5
        peers = set()
        while asyncio.get_running_loop().time() < ends:
            call = serving.dispatching.Dispatch(question())
            assert (await call).endpoint
            await asyncio.sleep(0.01)
        connection = RawConnection(serving.server.address)
        peers.add(await asyncio.to_thread(_first_goaway, connection))
        connection.close()
    assert peers == {GOAWAY}


def _first_goaway(connection: RawConnection) -> int:
    while True:
        kind, flags, _, payload = connection.receive()
        if kind == PING and not flags & ACK:
            connection.send(PING, ACK, 0, payload)
        if kind == GOAWAY:
            return kind
