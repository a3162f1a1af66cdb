"""The two servers of a comparison, and how one run against one of them is made and checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bench.client import Client, fallback_reason
from bench.load.errors import LoadError
from bench.load.measurement import Measurement
from bench.load.target import Target
from bench.server_process import ServerProcess
from bench.void import VoidRunError, void_reasons
from policy_server.proto.policy.v1.dispatch_service_pb2 import DispatchRequest, DispatchResponse
from policy_server.proto.policy.v1.state_service_pb2 import FullState

_DEATH_GRACE_SECONDS = 0.5
DISPATCH_PATH = "/policy.v1.DispatchService/Dispatch"


@dataclass(frozen=True)
class Run:
    """One run of a load generator.

    Attributes:
        measurement: What the generator saw.
        server_cpu_seconds: What it cost the server; None where its process is not known.
    """

    measurement: Measurement
    server_cpu_seconds: float | None


@dataclass
class Side:
    """A server under load.

    Attributes:
        name: For messages.
        address: ``host:port``.
        request: What it is asked.
        process: The server's process; None for a server that already ran.
        state: Reported before every run; None leaves the server's state alone.
    """

    name: str
    address: str
    request: DispatchRequest
    process: ServerProcess | None = None
    state: FullState | None = None
    target: Target = field(init=False)

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        self.target = Target(host, int(port), DISPATCH_PATH, self.request.SerializeToString())

    def prepare(self) -> DispatchResponse:
        """Reports the state and asks once. See :meth:`probe` for the errors."""
        if self.state is not None:
            with Client(self.address) as client:
                client.report_state(self.state)
        return self.probe()

    def probe(self) -> DispatchResponse:
        """Asks once, as a real client.

        Raises:
            LoadError: the server refuses, or its fallback answers: its latency is not that of the policy.
        """
        with Client(self.address) as client:
            response = client.dispatch(self.request)
        reason = fallback_reason(response)
        if reason is not None:
            raise VoidRunError(self.name, [f"the fallback policy answers ({reason})"])
        return response

    def run(self, generate: Callable[[Target], Measurement]) -> Run:
        """Runs a load generator between two probes.

        Raises:
            VoidRunError: the run must not be quoted.
            LoadError: the load could not be generated.
            ServerError: the server died.
        """
        self.prepare()
        run = measured_run(self.name, self.target, self.process, generate)
        self.probe()
        return run


def measured_run(
    name: str, target: Target, process: ServerProcess | None, generate: Callable[[Target], Measurement]
) -> Run:
    """Runs a load generator and counts what it costs the server.

    Args:
        name: Of the server, for messages.
        target: What to send where.
        process: The server's process; None for a server that already ran.
        generate: Makes the load.

    Raises:
        VoidRunError: the run must not be quoted.
        LoadError: the load could not be generated.
        ServerError: the server died.
    """
    before = None if process is None else process.cpu_seconds()
    try:
        measurement = generate(target)
    except LoadError as error:
        if process is not None:
            process.check_alive(_DEATH_GRACE_SECONDS)
        raise LoadError(f"{name}: {error}") from None
    after = None if process is None else process.cpu_seconds()
    if process is not None:
        process.check_alive()
    reasons = void_reasons(measurement)
    if reasons:
        raise VoidRunError(name, reasons)
    return Run(measurement, None if before is None or after is None else after - before)
