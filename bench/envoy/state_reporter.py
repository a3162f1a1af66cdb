"""Reports what back ends tell of themselves to the server, as the agent of a deployment would.

Every period each back end's own figures are read over HTTP. Requests waiting and running are the load. How fast the
machine is *now* follows from two counters that any service can keep, by the utilisation law: mean service time = time
its workers were busy / requests completed, over the last few periods. A few completions at the declared speed are
added to both, so that a rarely used machine is not judged by one request. Where a speed has changed by more than a
tenth, the whole state is reported, else the load alone.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from bench.client import Client
from bench.envoy.back_ends import BackEnds, BackEndStats
from bench.load.errors import LoadError
from bench.server_process import ServerError
from policy_server.proto.policy.v1.state_pb2 import (
    AccessPoint,
    Load,
    Node,
    NodeLoad,
    Replica,
    ReplicaLoad,
    Service,
    Topology,
)
from policy_server.proto.policy.v1.state_service_pb2 import FullState, LoadDelta, ReportStateRequest

ACCESS_POINT = "edge"
SERVICE = "web"
_CPU_MILLICORES_PER_REQUEST = 250.0
_GIBIBYTE = 2.0**30
_NOTEWORTHY_CHANGE = 0.1
_WINDOW_SECONDS = 0.4
_DECLARED_COMPLETIONS = 2
_MEMORY_BYTES = 64.0 * 2**20


class StateReporter:
    """A thread that reports, as a context manager; entered when the first report is taken in.

    Args:
        server: Native address of the server, ``host:port``.
        back_ends: Already serving.
        declared_speeds: Of each back end's machine, as its owner declares it; counts while nothing is measured.
        execution_seconds: Mean execution time of a request on a machine of speed 1.
        workers: Requests a back end runs at the same time.
        period_seconds: Between two reports.
    """

    def __init__(
        self,
        server: str,
        back_ends: BackEnds,
        declared_speeds: Sequence[float],
        *,
        execution_seconds: float,
        workers: int,
        period_seconds: float,
    ) -> None:
        self._server = server
        self._back_ends = back_ends
        self._declared_speeds = declared_speeds
        self._execution_seconds = execution_seconds
        self._workers = workers
        self._period_seconds = period_seconds
        self._speeds: list[float] = []
        self._history: deque[tuple[float, Sequence[BackEndStats]]] = deque()
        self._version = 0
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="state reporter", daemon=True)
        self._ready = threading.Event()

    def __enter__(self) -> Self:
        """Starts reporting.

        Raises:
            LoadError: the server refuses the first report.
        """
        self._thread.start()
        self._ready.wait()
        self.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops reporting."""
        self._stop.set()
        self._thread.join()

    @property
    def running(self) -> bool:
        """Whether reports go on."""
        return self._thread.is_alive()

    def check(self) -> None:
        """Raises what ended the reports before they were to end."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with Client(self._server) as client:
                due = time.monotonic()
                while not self._stop.wait(max(0.0, due - time.monotonic())):
                    self._report(client)
                    self._ready.set()
                    due += self._period_seconds
        except (LoadError, ServerError, OSError) as error:
            self._error = error
        finally:
            self._ready.set()

    def _report(self, client: Client) -> None:
        began = time.monotonic()
        stats = self._back_ends.stats()
        newest = max(row.asked_at_seconds for row in stats)
        load = self._load(stats, newest)
        speeds = self._measured_speeds(began, stats)
        age_seconds = time.monotonic() - newest
        if self._speeds and all(map(_alike, speeds, self._speeds)):
            delta = LoadDelta(base_version=self._version, load=load)
            request = ReportStateRequest(delta=delta, age_seconds=age_seconds)
        else:
            self._speeds = speeds
            full = FullState(topology=self._topology(), load=load)
            request = ReportStateRequest(full=full, age_seconds=age_seconds)
        self._version = client.report(request)

    def _measured_speeds(self, now: float, stats: Sequence[BackEndStats]) -> list[float]:
        self._history.append((now, stats))
        while len(self._history) > 1 and self._history[1][0] <= now - _WINDOW_SECONDS:
            self._history.popleft()
        speeds = []
        for row, before, declared in zip(stats, self._history[0][1], self._declared_speeds, strict=True):
            completed = _DECLARED_COMPLETIONS + row.completed_total - before.completed_total
            busy_seconds = _DECLARED_COMPLETIONS * self._execution_seconds / declared
            busy_seconds += row.busy_seconds_total - before.busy_seconds_total
            speeds.append(self._execution_seconds * completed / busy_seconds)
        return speeds

    def _topology(self) -> Topology:
        nodes = [
            Node(
                name=f"node-{position}",
                access_point=ACCESS_POINT,
                cpu_millicores=_CPU_MILLICORES_PER_REQUEST * self._workers,
                memory_bytes=_GIBIBYTE,
                speed=speed,
            )
            for position, speed in enumerate(self._speeds)
        ]
        service = Service(
            name=SERVICE,
            cpu_millicores=_CPU_MILLICORES_PER_REQUEST,
            execution_seconds=self._execution_seconds,
            memory_bytes=_MEMORY_BYTES,
            deadline_seconds=1.0,
        )
        replicas = [
            Replica(endpoint=address, service=SERVICE, node=node.name, concurrency=self._workers)
            for address, node in zip(self._back_ends.addresses, nodes, strict=True)
        ]
        return Topology(
            access_points=[AccessPoint(name=ACCESS_POINT)], nodes=nodes, services=[service], replicas=replicas
        )

    def _load(self, stats: Sequence[BackEndStats], newest: float) -> Load:
        nodes = [
            NodeLoad(
                name=f"node-{position}",
                cpu_used_millicores=row.running * _CPU_MILLICORES_PER_REQUEST,
                memory_used_bytes=_MEMORY_BYTES,
            )
            for position, row in enumerate(stats)
        ]
        replicas = [
            ReplicaLoad(
                endpoint=address,
                queued=row.queued,
                running=row.running,
                age_seconds=newest - row.asked_at_seconds,
            )
            for address, row in zip(self._back_ends.addresses, stats, strict=True)
        ]
        return Load(nodes=nodes, replicas=replicas)


def _alike(one: float, other: float) -> bool:
    return abs(one - other) <= _NOTEWORTHY_CHANGE * other
