"""HTTP back ends of unequal and changing speed, in a process of their own.

Each back end runs a few requests at a time and queues the rest, as a service with a fixed number of workers does. A
request holds its worker for a random time, but no CPU: the machine that plays all of them stays idle.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from bench.server_process import ServerProcess, free_ports

STATS_PATH = "/stats"
_ERLANG_STAGES = 4
_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class Slowdown:
    """A while in which a back end is slower, as beside a noisy neighbour; times count from the first request.

    Attributes:
        begin_seconds: When it begins.
        end_seconds: When it is over.
        factor: What remains of the speed.
    """

    begin_seconds: float
    end_seconds: float
    factor: float


@dataclass(frozen=True)
class BackEndPlan:
    """One back end.

    Attributes:
        speed: Relative to a machine that takes ``execution_seconds``.
        execution_seconds: Mean time a request holds a worker at speed 1; Erlang distributed with four stages.
        workers: Requests it runs at the same time.
        queue_limit: Requests that may wait; one more is answered with 503.
        slowdowns: When it is slower.
    """

    speed: float
    execution_seconds: float = 0.04
    workers: int = 4
    queue_limit: int = 200
    slowdowns: tuple[Slowdown, ...] = ()

    def speed_at(self, seconds: float) -> float:
        """The speed that long after the first request."""
        speed = self.speed
        for slowdown in self.slowdowns:
            if slowdown.begin_seconds <= seconds < slowdown.end_seconds:
                speed *= slowdown.factor
        return speed


@dataclass(frozen=True)
class BackEndStats:
    """What a back end tells of itself, as a service's metrics do.

    Attributes:
        queued: Requests waiting.
        running: Requests holding a worker.
        busy_seconds_total: Time for which workers were held so far, those that are held included.
        completed_total: Requests that were answered so far.
        asked_at_seconds: When it was asked, on the monotonic clock of who asked.
    """

    queued: int
    running: int
    busy_seconds_total: float
    completed_total: int
    asked_at_seconds: float = 0.0


class BackEnds(ServerProcess):
    """A process with all back ends of a plan; entered when they answer.

    Args:
        plans: One per back end.

    Attributes:
        addresses: ``host:port`` of each.
    """

    def __init__(self, plans: Sequence[BackEndPlan]) -> None:
        ports = free_ports(len(plans))
        self.addresses = [f"127.0.0.1:{port}" for port in ports]
        description = json.dumps(
            [{"port": port, **asdict(plan)} for port, plan in zip(ports, plans, strict=True)]
        )
        super().__init__("back ends", [sys.executable, "-m", "bench.envoy.back_ends", description], ports[0])

    def stats(self) -> list[BackEndStats]:
        """What each tells of itself now.

        Raises:
            OSError: one does not answer.
        """
        return [_read_stats(address) for address in self.addresses]

    @contextlib.contextmanager
    def _readiness(self) -> Iterator[Callable[[], str | None]]:
        def missing() -> str | None:
            try:
                self.stats()
            except OSError as error:
                return str(error)
            return None

        yield missing


def _read_stats(address: str) -> BackEndStats:
    asked_at_seconds = time.monotonic()
    with urllib.request.urlopen(f"http://{address}{STATS_PATH}", timeout=_TIMEOUT_SECONDS) as answer:
        return replace(BackEndStats(**json.load(answer)), asked_at_seconds=asked_at_seconds)


@dataclass
class _Clock:
    """Seconds since the first request to any of the back ends."""

    started: float | None = None

    def seconds(self) -> float:
        if self.started is None:
            self.started = time.monotonic()
        return time.monotonic() - self.started


@dataclass
class _BackEnd:
    plan: BackEndPlan
    clock: _Clock
    random: random.Random
    queued: int = 0
    running: int = 0
    completed: int = 0
    busy_seconds: float = 0.0
    busy_until: float = 0.0

    def __post_init__(self) -> None:
        self._workers = asyncio.Semaphore(self.plan.workers)

    async def __call__(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        """The ASGI application."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["path"] == STATS_PATH:
            await _respond(send, 200, json.dumps(asdict(self.stats())).encode())
        else:
            await _respond(send, await self.serve())

    async def serve(self) -> int:
        """Does one request's work; returns the HTTP status."""
        if self.queued >= self.plan.queue_limit:
            return 503
        self.queued += 1
        try:
            await self._workers.acquire()
        finally:
            self.queued -= 1
        self._count_busy_seconds()
        self.running += 1
        try:
            await asyncio.sleep(self._execution_seconds())
            self.completed += 1
        finally:
            self._count_busy_seconds()
            self.running -= 1
            self._workers.release()
        return 200

    def stats(self) -> BackEndStats:
        self._count_busy_seconds()
        return BackEndStats(self.queued, self.running, self.busy_seconds, self.completed)

    def _count_busy_seconds(self) -> None:
        now = time.monotonic()
        self.busy_seconds += self.running * (now - self.busy_until)
        self.busy_until = now

    def _execution_seconds(self) -> float:
        mean = self.plan.execution_seconds / self.plan.speed_at(self.clock.seconds())
        return self.random.gammavariate(_ERLANG_STAGES, mean / _ERLANG_STAGES)


async def _respond(send: Callable[[Any], Any], status: int, body: bytes = b"") -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _live(receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
    while True:
        event = (await receive())["type"]
        await send({"type": f"{event}.complete"})
        if event == "lifespan.shutdown":
            return


async def _serve(descriptions: Sequence[dict[str, Any]]) -> None:
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    clock = _Clock()
    servers = []
    for position, description in enumerate(descriptions):
        config = Config()
        config.bind = [f"127.0.0.1:{description.pop('port')}"]
        config.graceful_timeout = 0.1
        config.keep_alive_timeout = 3600.0
        slowdowns = tuple(Slowdown(**slowdown) for slowdown in description.pop("slowdowns"))
        plan = BackEndPlan(**description, slowdowns=slowdowns)
        application: Any = _BackEnd(plan, clock, random.Random(position))
        servers.append(serve(application, config, shutdown_trigger=stop.wait))
    await asyncio.gather(*servers)


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(json.loads(sys.argv[1])))
