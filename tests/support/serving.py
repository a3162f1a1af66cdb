"""Real servers on free loopback ports, in this process and in processes of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from policy_server.api.messages import load_to_message, topology_to_message
from policy_server.cluster.snapshot import Snapshot
from policy_server.proto.policy.v1.dispatch_service_pb2 import (
    DispatchRequest,
    DispatchResponse,
    Outcome,
    ReportOutcomeRequest,
)
from policy_server.proto.policy.v1.dispatch_service_pb2_grpc import DispatchServiceStub
from policy_server.proto.policy.v1.orchestration_service_pb2 import OrchestrateRequest, OrchestrateResponse
from policy_server.proto.policy.v1.orchestration_service_pb2_grpc import OrchestrationServiceStub
from policy_server.proto.policy.v1.state_service_pb2 import FullState, ReportStateRequest
from policy_server.proto.policy.v1.state_service_pb2_grpc import StateServiceStub
from policy_server.server import PolicyServer
from policy_server.settings import Settings
from tests.support.systems import Endpoint, one_service_snapshot

if TYPE_CHECKING:
    from policy_server.proto.policy.v1.dispatch_service_pb2_grpc import DispatchServiceAsyncStub
    from policy_server.proto.policy.v1.orchestration_service_pb2_grpc import OrchestrationServiceAsyncStub
    from policy_server.proto.policy.v1.state_service_pb2_grpc import StateServiceAsyncStub

UNLIMITED_MESSAGES = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
STEADY: Mapping[str, Any] = {
    "port": 0,
    "drain_seconds": 0.0,
    "stale_after_seconds": 1e6,
    "model_budget_seconds": 10.0,
    "orchestration_stale_after_seconds": 1e6,
    "orchestration_budget_seconds": 60.0,
}
"""Settings under which no state goes stale and no model is late while a busy machine has a test wait."""


@dataclass(frozen=True)
class Serving:
    """A server of this process and a client of it."""

    server: PolicyServer
    channel: grpc.aio.Channel
    dispatching: DispatchServiceAsyncStub
    state: StateServiceAsyncStub
    orchestrating: OrchestrationServiceAsyncStub

    async def report(self, snapshot: Snapshot, **fields: Any) -> int:
        """Reports a full state; returns the version held then."""
        response = await self.state.ReportState(full_report(snapshot, **fields))
        return response.version

    async def settle(self, endpoint: str, access_point: str = "ap-0") -> None:
        """Reports that a dispatched request ended, so that it counts as pending no more."""
        outcome = Outcome(endpoint=endpoint, access_point=access_point, success=True)
        await self.dispatching.ReportOutcome(ReportOutcomeRequest(outcomes=[outcome]))

    async def dispatch(self, **fields: Any) -> DispatchResponse:
        """The decision on a request for ``service`` at ``ap-0``, but for ``fields``."""
        return await self.dispatching.Dispatch(question(**fields))

    async def orchestrate(self, **fields: Any) -> OrchestrateResponse:
        """What to do to the held state, but for ``fields``."""
        return await self.orchestrating.Orchestrate(OrchestrateRequest(**fields))


@asynccontextmanager
async def running_server(snapshot: Snapshot | None = None, **settings: Any) -> AsyncIterator[Serving]:
    """A server of this process, with ``snapshot`` reported to it.

    Without models of the test's own a rule decides, so that answers follow from the reported state alone: the model
    that ships with the package also looks at the state's age.
    """
    if "models" not in settings:
        settings.setdefault("policy", "earliest-completion")
        settings.setdefault("orchestration_policy", "greedy")
    server = PolicyServer(Settings(**{**STEADY, **settings}))
    await server.startup()
    async with grpc.aio.insecure_channel(server.address, UNLIMITED_MESSAGES) as channel:
        serving = Serving(
            server,
            channel,
            DispatchServiceStub(channel),
            StateServiceStub(channel),
            OrchestrationServiceStub(channel),
        )
        try:
            if snapshot is not None:
                await serving.report(snapshot)
            yield serving
        finally:
            await server.shutdown(drain=False)


def question(**fields: Any) -> DispatchRequest:
    """A request for ``service`` at ``ap-0``, but for ``fields``."""
    return DispatchRequest(**({"service": "service", "access_point": "ap-0"} | fields))


def full_report(snapshot: Snapshot, *, listed: bool = True, **fields: Any) -> ReportStateRequest:
    """A report of everything in the snapshot; without the load unless replicas are ``listed`` with their figures."""
    full = FullState(topology=topology_to_message(snapshot.topology))
    if listed:
        full.load.CopyFrom(load_to_message(snapshot))
    return ReportStateRequest(full=full, **fields)


def equal_endpoints(count: int) -> Snapshot:
    """That many idle endpoints of ``service`` at ``ap-0``, alike but for their addresses."""
    return one_service_snapshot([Endpoint()] * count)


def graded_endpoints(count: int) -> Snapshot:
    """Endpoints of ``service`` at ``ap-0``, the first the fastest."""
    return one_service_snapshot([Endpoint(speed=1.0 - 0.05 * row, concurrency=100) for row in range(count)])


async def error_of(call: Any) -> grpc.aio.AioRpcError:
    """The error that a call ends with."""
    try:
        response = await call
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError(f"no error but {response}")


class ServerProcess:
    """``policy-server serve`` as a process. Made by :func:`server_process`."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self.address = ""
        self._log = log

    @property
    def log(self) -> str:
        """What it wrote to standard error so far."""
        return self._log.read_text()

    def wait_until_listening(self) -> None:
        """Reads the line that says so."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        match = re.fullmatch(r"listening on (\S+)\n", line)
        assert match, f"{line!r}\n{self.log}"
        self.address = match[1]

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float = 20.0) -> int:
        """The exit status."""
        return self.process.wait(seconds)


@contextmanager
def server_process(
    log: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[ServerProcess]:
    """A server process, listening; ended at the latest when the context is left.

    Args:
        log: file that standard error goes to.
        arguments: of ``policy-server serve``, after a free port and a long state lifetime.
        environment: added to this process's.
    """
    command = [
        sys.executable,
        "-m",
        "policy_server.cli",
        "serve",
        "--port=0",
        "--stale-after-seconds=1e6",
        "--orchestration-stale-after-seconds=1e6",
        *arguments,
    ]
    with log.open("w") as stderr:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, **(environment or {})},
        )
    server = ServerProcess(process, log)
    try:
        server.wait_until_listening()
        yield server
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def wait_for(condition: Any, seconds: float = 10.0) -> None:
    """Returns when ``condition()`` holds; fails if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)
