"""A gRPC client for unary calls, reduced to what load generation needs.

A full gRPC client in Python costs as much CPU per call as the server it measures, and its timers are too coarse to
send on schedule. Here every request is the same bytes with another stream number, and responses are only timed
when they arrive; they are decoded and checked after the run. Frames and flow control: RFC 9113; the gRPC mapping:
https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import Counter

from hpack import Decoder, Encoder, NeverIndexedHeaderTuple

from bench.load.errors import LoadError

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = (
    0,
    1,
    3,
    4,
    6,
    7,
    8,
    9,
)
_ACK = _END_STREAM = 0x1
_END_HEADERS = 0x4
_PADDED, _PRIORITY = 0x8, 0x20
_SETTINGS_MAX_CONCURRENT_STREAMS = 3
_SETTINGS_INITIAL_WINDOW_SIZE = 4
_FRAME_HEADER_BYTES = 9
_DEFAULT_WINDOW_BYTES = 65_535
_LARGEST_WINDOW_BYTES = 2**31 - 1
_GRPC_PREFIX = struct.Struct(">BI")
_READ_BYTES = 1 << 18


def grpc_frame(message: bytes) -> bytes:
    """A message with gRPC's length prefix: one byte of flags (not compressed), four bytes of length."""
    return _GRPC_PREFIX.pack(0, len(message)) + message


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


class UnaryConnection:
    """One HTTP/2 connection that repeats one unary gRPC call.

    Attributes:
        sent_nanoseconds: When each request was sent, in order (``time.monotonic_ns``).
        ended_nanoseconds: When the end of each response was read, in order of the requests; 0 while open.

    Args:
        host: IPv4 address or host name.
        port: TCP port.
        path: ``/package.Service/Method``.
        message: The serialized request.
        timeout_seconds: Longest wait for the connection and for the server's settings.

    Raises:
        LoadError: the server does not speak HTTP/2 or closes the connection.
        OSError: no connection.
    """

    def __init__(
        self, host: str, port: int, path: str, message: bytes, timeout_seconds: float = 10.0
    ) -> None:
        self._socket = socket.create_connection((host, port), timeout_seconds)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": f"{host}:{port}",
            "te": "trailers",
            "content-type": "application/grpc",
            "user-agent": "policy-bench",
        }
        # Never indexed: the block then leaves the compression state alone and can be sent again and again.
        self._header_block = Encoder().encode(
            [NeverIndexedHeaderTuple(name, value) for name, value in headers.items()], huffman=False
        )
        self._body = grpc_frame(message)
        self._received = bytearray()
        self._header_blocks: list[tuple[int, bytes]] = []
        self._bodies: dict[int, bytes] = {}
        self._resets: dict[int, int] = {}
        self._send_window_bytes = _DEFAULT_WINDOW_BYTES
        self._most_open_streams = _LARGEST_WINDOW_BYTES
        self._has_settings = False
        self.open_streams = 0
        self.sent_nanoseconds: list[int] = []
        self.ended_nanoseconds: list[int] = []
        try:
            self._greet()
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """The socket's, so that a connection can be waited for with ``select``."""
        return self._socket.fileno()

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def _greet(self) -> None:
        settings = struct.pack(">HI", _SETTINGS_INITIAL_WINDOW_SIZE, _LARGEST_WINDOW_BYTES)
        window = struct.pack(">I", _LARGEST_WINDOW_BYTES - _DEFAULT_WINDOW_BYTES)
        self._socket.sendall(
            _PREFACE + _frame(_SETTINGS, 0, 0, settings) + _frame(_WINDOW_UPDATE, 0, 0, window)
        )
        while not self._has_settings:
            self.receive()

    def can_send(self) -> bool:
        """Whether the server's flow control and its limit of streams admit another request."""
        return self.open_streams < self._most_open_streams and self._send_window_bytes >= len(self._body)

    def send(self) -> None:
        """Sends one request."""
        index = len(self.sent_nanoseconds)
        stream = 2 * index + 1
        request = _frame(_HEADERS, _END_HEADERS, stream, self._header_block) + _frame(
            _DATA, _END_STREAM, stream, self._body
        )
        self._send_window_bytes -= len(self._body)
        self.open_streams += 1
        self.ended_nanoseconds.append(0)
        self.sent_nanoseconds.append(time.monotonic_ns())
        self._socket.sendall(request)

    def receive(self) -> int:
        """Reads what is there, waiting for the first bytes; returns how many responses ended.

        Raises:
            LoadError: the server closed the connection or sent what this client does not understand.
        """
        try:
            chunk = self._socket.recv(_READ_BYTES)
        except TimeoutError:
            raise LoadError("the server did not answer in time") from None
        except ConnectionError as error:
            raise LoadError(f"the server closed the connection: {error}") from None
        now = time.monotonic_ns()
        if not chunk:
            raise LoadError(f"the server closed the connection with {self.open_streams} requests open")
        received = self._received
        received += chunk
        position = ended = 0
        while len(received) - position >= _FRAME_HEADER_BYTES:
            head, flags, stream = struct.unpack_from(">IBI", received, position)
            start = position + _FRAME_HEADER_BYTES
            position = start + (head >> 8)
            if len(received) < position:
                position = start - _FRAME_HEADER_BYTES
                break
            ended += self._take(
                head & 0xFF, flags, stream & 0x7FFF_FFFF, bytes(received[start:position]), now
            )
        del received[:position]
        return ended

    def _take(self, kind: int, flags: int, stream: int, payload: bytes, now: int) -> bool:
        """Takes in one frame; whether it ends a response."""
        if kind in (_DATA, _HEADERS):
            if flags & (_PADDED | _PRIORITY) or (kind == _HEADERS and not flags & _END_HEADERS):
                raise LoadError(
                    f"the server sent an HTTP/2 frame of kind {kind} with unsupported flags {flags:#x}"
                )
            if kind == _HEADERS:
                self._header_blocks.append((stream, payload))
            else:
                self._bodies[stream] = self._bodies.get(stream, b"") + payload
            if flags & _END_STREAM:
                return self._end(stream, now)
        elif kind == _RST_STREAM:
            # After the end of a response a reset only tells that the server needs no more of the request.
            if not self.ended_nanoseconds[stream // 2]:
                self._resets[stream] = int.from_bytes(payload, "big")
                return self._end(stream, now)
        elif kind == _WINDOW_UPDATE:
            if stream == 0:
                self._send_window_bytes += int.from_bytes(payload, "big")
        elif kind == _SETTINGS:
            if not flags & _ACK:
                self._apply_settings(payload)
        elif kind == _PING:
            if not flags & _ACK:
                self._socket.sendall(_frame(_PING, _ACK, 0, payload))
        elif kind == _GOAWAY:
            reason = payload[8:].decode(errors="replace") or f"code {int.from_bytes(payload[4:8], 'big')}"
            raise LoadError(f"the server ended the connection: {reason}")
        elif kind == _CONTINUATION:
            raise LoadError("the server split its headers, which this client does not support")
        return False

    def _end(self, stream: int, now: int) -> bool:
        self.ended_nanoseconds[stream // 2] = now
        self.open_streams -= 1
        return True

    def _apply_settings(self, payload: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", payload):
            if name == _SETTINGS_MAX_CONCURRENT_STREAMS:
                self._most_open_streams = value
            elif name == _SETTINGS_INITIAL_WINDOW_SIZE and value < len(self._body):
                raise LoadError(f"the server takes {value} bytes at once, the request has {len(self._body)}")
        self._has_settings = True
        self._socket.sendall(_frame(_SETTINGS, _ACK, 0, b""))

    def failures(self) -> Counter[str]:
        """Counts the requests that did not end with gRPC status OK and one message, by reason.

        Decodes all headers; call it once, after the run.
        """
        decoder = Decoder()
        headers: dict[int, dict[str, str]] = {}
        for stream, block in self._header_blocks:
            headers.setdefault(stream, {}).update(
                (str(name), str(value)) for name, value in decoder.decode(block)
            )
        reasons: Counter[str] = Counter()
        for index, ended in enumerate(self.ended_nanoseconds):
            stream = 2 * index + 1
            reason = self._failure(stream, headers.get(stream, {})) if ended else "no response"
            if reason:
                reasons[reason] += 1
        return reasons

    def _failure(self, stream: int, headers: dict[str, str]) -> str | None:
        if stream in self._resets:
            return f"stream reset with code {self._resets[stream]}"
        if headers.get(":status") != "200":
            return f"HTTP status {headers.get(':status')}"
        if headers.get("grpc-status") != "0":
            return f"gRPC status {headers.get('grpc-status')}: {headers.get('grpc-message', '')}"
        if len(self._bodies.get(stream, b"")) < _GRPC_PREFIX.size:
            return "response without a message"
        return None

    def responses(self) -> list[bytes]:
        """The serialized response messages that arrived, in order of the requests."""
        return [self._bodies[stream][_GRPC_PREFIX.size :] for stream in sorted(self._bodies)]
