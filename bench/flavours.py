"""The ways to run a Python gRPC server that are worth comparing."""

from __future__ import annotations

from dataclasses import dataclass

_THREADS_PREFIX = "threads-"


@dataclass(frozen=True, slots=True)
class Flavour:
    """One kind of Python gRPC server.

    Attributes:
        name: Name on the command line: ``aio``, ``aio-uvloop`` or ``threads-N``.
        asynchronous: Whether handlers are coroutines of ``grpc.aio``.
        uvloop: Whether the event loop is uvloop's; only for asynchronous servers.
        worker_threads: Size of the thread pool of a synchronous server; 0 for asynchronous ones.
    """

    name: str
    asynchronous: bool
    uvloop: bool = False
    worker_threads: int = 0


def parse_flavour(name: str) -> Flavour:
    """Returns the flavour of that name.

    Raises:
        ValueError: The name is unknown.
    """
    if name == "aio":
        return Flavour(name, asynchronous=True)
    if name == "aio-uvloop":
        return Flavour(name, asynchronous=True, uvloop=True)
    threads = name.removeprefix(_THREADS_PREFIX)
    if name.startswith(_THREADS_PREFIX) and threads.isdecimal() and int(threads) > 0:
        return Flavour(name, asynchronous=False, worker_threads=int(threads))
    raise ValueError(f"unknown server flavour {name!r}: use aio, aio-uvloop or threads-N with N >= 1")


COMPARED_FLAVOURS = tuple(
    parse_flavour(name) for name in ("aio", "aio-uvloop", "threads-1", "threads-2", "threads-4", "threads-8")
)
SERVER_FLAVOUR = parse_flavour("aio-uvloop")
"""What the real server is."""
