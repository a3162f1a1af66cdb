"""Servers as child processes: started on a free port, watched, measured, always stopped."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

_STOP_LIMIT_SECONDS = 5.0
_POLL_SECONDS = 0.02
_MOST_OUTPUT_CHARACTERS = 4000
_CONNECT_QUICKLY = tuple((f"grpc.{which}_reconnect_backoff_ms", 100) for which in ("initial", "min", "max"))


class ServerError(RuntimeError):
    """A server that did not start, or that died. The message carries the end of its output."""


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """As many different TCP ports of the loopback interface that nobody listens on."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


class ServerProcess:
    """A gRPC server of this machine as a context manager: entered when it serves, left when it is gone.

    The server runs in a process group of its own: a Ctrl-C in the terminal reaches only the caller, which then
    stops the server in order.

    Args:
        name: For messages.
        command: Program and arguments.
        port: Loopback port the command makes it listen on.
        start_limit_seconds: Longest time until the health service answers SERVING.
        environment: Added to the caller's environment.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        port: int,
        *,
        start_limit_seconds: float = 20.0,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self.address = f"127.0.0.1:{port}"
        self.ready_seconds = 0.0
        self._command = list(command)
        self._start_limit_seconds = start_limit_seconds
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Starts the server.

        Raises:
            ServerError: it ended, or did not serve in time.
        """
        self._output = tempfile.TemporaryFile(prefix="policy-bench-")
        started = time.monotonic()
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )
            self._wait_until_serving(started + self._start_limit_seconds)
        except OSError as error:
            self.stop()
            raise ServerError(f"{self.name}: cannot run {self._command[0]}: {error}") from None
        except BaseException:
            self.stop()
            raise
        self.ready_seconds = time.monotonic() - started
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops the server."""
        self.stop()

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process is not None, "the server has not been started"
        return self._process.pid

    def cpu_seconds(self) -> float:
        """CPU time of all its threads so far, user and system, to the resolution of /proc (10 ms)."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def output(self) -> str:
        """The end of what the server wrote."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace")[-_MOST_OUTPUT_CHARACTERS:].strip()

    def check_alive(self, grace_seconds: float = 0.0) -> None:
        """Raises ServerError when the server has ended, or ends within the grace time."""
        assert self._process is not None, "the server has not been started"
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(grace_seconds)
            raise ServerError(f"{self.name} ended with exit code {code}. Its output:\n{self.output()}")

    @contextlib.contextmanager
    def on_one_core(self) -> Iterator[None]:
        """Keeps all threads of the server on one core for the time of the context."""
        before = os.sched_getaffinity(self.pid)
        self._set_affinity({min(before)})
        try:
            yield
        finally:
            self._set_affinity(before)

    def _set_affinity(self, cores: set[int]) -> None:
        # The server may end meanwhile; that is noticed and reported by check_alive.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for thread in Path(f"/proc/{self.pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), cores)

    def kill(self) -> None:
        """Ends the server as a crash does: SIGKILL."""
        assert self._process is not None, "the server has not been started"
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Ends the server: SIGTERM, then SIGKILL after five seconds. Does nothing when it has ended."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(_STOP_LIMIT_SECONDS)
            except BaseException as error:
                process.kill()
                process.wait()
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
        self._output.close()

    def _wait_until_serving(self, deadline: float) -> None:
        with self._readiness() as missing:
            while True:
                self.check_alive()
                state = missing()
                if state is None:
                    return
                if time.monotonic() > deadline:
                    raise ServerError(
                        f"{self.name} does not serve on {self.address} after {self._start_limit_seconds:g} s "
                        f"({state}). Its output:\n{self.output()}"
                    )
                time.sleep(_POLL_SECONDS)

    @contextlib.contextmanager
    def _readiness(self) -> Iterator[Callable[[], str | None]]:
        """Yields a function that tells what keeps the server from serving; None: nothing."""
        with grpc.insecure_channel(self.address, options=_CONNECT_QUICKLY) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check

            def missing() -> str | None:
                try:
                    answer = check(
                        health_pb2.HealthCheckRequest(), timeout=_POLL_SECONDS * 10, wait_for_ready=True
                    )
                except grpc.RpcError as error:
                    return str(error.details() if isinstance(error, grpc.Call) else error)
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return None
                return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))

            yield missing
