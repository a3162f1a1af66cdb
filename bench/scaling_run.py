"""Scale and a bare echo server with messages of the same size, side by side, for several numbers of containers."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import grpc

from bench.budgets import SCALING_BUDGETS, Verdict, judge
from bench.commands import scale_echo_command
from bench.environment import Environment, describe_environment
from bench.flavours import SERVER_FLAVOUR
from bench.latency import OnStep
from bench.load import h2load
from bench.load.errors import LoadError
from bench.load.measurement import latency_histogram
from bench.load.plans import ClosedLoop
from bench.load.target import Target
from bench.scaling_in_process import measure_scaling
from bench.scaling_scenario import INTERVALS, generate_scale_request
from bench.server_process import ServerProcess, free_port
from bench.sides import Run, measured_run
from bench.void import VoidRunError
from policy_server.proto.policy.v1.decision_pb2 import DecisionSource, FallbackReason
from policy_server.proto.policy.v1.scaling_service_pb2 import ScaleRequest, ScaleResponse
from policy_server.proto.policy.v1.scaling_service_pb2_grpc import ScalingServiceStub

SCALE_PATH = "/policy.v1.ScalingService/Scale"
_TIMEOUT_SECONDS = 10.0
_UNLIMITED = (("grpc.max_receive_message_length", -1),)


@dataclass(frozen=True)
class ScalingSettings:
    """Lengths and repetitions; the defaults take about half a minute.

    Attributes:
        containers: of each request.
        repetitions: alternating runs of either server.
        calls: of one run, one after another.
        warm_up_calls: of each server, thrown away.
    """

    containers: tuple[int, ...] = (1, 50, 1000)
    repetitions: int = 5
    calls: int = 200
    warm_up_calls: int = 100

    @property
    def steps(self) -> int:
        """Number of runs, as reported to ``on_step``."""
        return len(self.containers) * 2 * (self.repetitions + 1)


@dataclass(frozen=True)
class CallFigures:
    """One caller, all repetitions together.

    Attributes:
        p50_us: Latency in microseconds.
        p99_us: Latency in microseconds.
        cpu_us: CPU time of the server per call.
    """

    p50_us: float
    p99_us: float
    cpu_us: float


@dataclass(frozen=True)
class ScalingRatio:
    """Scale over echo."""

    p50: float
    p99: float
    cpu: float


@dataclass(frozen=True)
class ScalingFigures:
    """One number of containers.

    Attributes:
        echo: The echo server.
        scale: The server under test.
        ratio: The one over the other.
        cpu_us_per_container: CPU time of the server under test.
        in_process_p50_us: Its own part of a call, without gRPC, in a loop.
        policy: That answered, with its version.
        request_bytes: Size of the serialized request.
        response_bytes: Size of the serialized response, the same for both servers.
    """

    echo: CallFigures
    scale: CallFigures
    ratio: ScalingRatio
    cpu_us_per_container: float
    in_process_p50_us: float
    policy: str
    request_bytes: int
    response_bytes: int


@dataclass(frozen=True)
class ScalingMethod:
    """How the figures were made."""

    closed_loop_generator: str
    server_flavour: str
    intervals: int
    settings: ScalingSettings
    elapsed_seconds: float


@dataclass(frozen=True)
class ScalingReport:
    """Everything a comparison shows. Field names are the keys of its JSON form."""

    containers: dict[str, ScalingFigures]
    budgets: dict[str, Verdict]
    method: ScalingMethod
    environment: Environment

    def document(self) -> dict[str, object]:
        """The report as plain values, ready for JSON."""
        return asdict(self)


def run_scaling(
    command: Callable[[int], Sequence[str]],
    policy: str,
    settings: ScalingSettings,
    on_step: OnStep,
    models: Path | None = None,
) -> ScalingReport:
    """Starts the server under test with ``command(port)`` and, for each number of containers, its echo.

    Args:
        command: Of the server under test.
        policy: To ask for; empty: the active one.
        settings: How many and how often.
        on_step: Called before each of ``settings.steps`` runs with a description of it.
        models: Directory of model bundles for what is measured inside the process; None: those that ship.

    Raises:
        VoidRunError: a run must not be quoted.
        LoadError: load could not be generated.
        ServerError: a server did not start or died.
    """
    if h2load.version() is None:
        raise LoadError(
            f"requests of Scale are too large for the built-in load generator; {h2load.INSTALL_HINT}"
        )
    started = time.monotonic()
    environment = describe_environment()
    port = free_port()
    with ServerProcess("policy-server", command(port), port) as process:
        figures = {
            str(count): _compare(process, generate_scale_request(count, policy), settings, on_step, models)
            for count in settings.containers
        }
    budgets = judge(SCALING_BUDGETS, {"containers": {name: asdict(row) for name, row in figures.items()}})
    method = ScalingMethod(
        h2load.NAME,
        SERVER_FLAVOUR.name,
        INTERVALS,
        settings,
        round(time.monotonic() - started, 1),
    )
    return ScalingReport(figures, budgets, method, environment)


def _compare(
    process: ServerProcess,
    request: ScaleRequest,
    settings: ScalingSettings,
    on_step: OnStep,
    models: Path | None,
) -> ScalingFigures:
    answer = _ask(process.address, request)
    message = request.SerializeToString()
    count = len(request.containers.id)
    runs: dict[str, list[Run]] = {"echo": [], "scale": []}
    with ExitStack() as stack:
        response = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="policy-bench-")), "response")
        response.write_bytes(answer.SerializeToString())
        port = free_port()
        echo = stack.enter_context(
            ServerProcess("echo", scale_echo_command(port, SERVER_FLAVOUR.name, response), port)
        )
        sides = [("echo", echo), ("scale", process)]
        for repetition in range(-1, settings.repetitions):
            for name, server in sides if repetition % 2 else sides[::-1]:
                warm_up = repetition < 0
                on_step(f"{name}, {count} containers" + (", warm-up" if warm_up else ""))
                run = _run(name, server, message, settings.warm_up_calls if warm_up else settings.calls)
                if not warm_up:
                    runs[name].append(run)
        _ask(process.address, request)
    below, above = _figures(runs["echo"]), _figures(runs["scale"])
    origin = answer.provenances[0]
    named = ScaleRequest()
    named.CopyFrom(request)
    named.policy = origin.policy
    return ScalingFigures(
        echo=below,
        scale=above,
        ratio=ScalingRatio(
            *(
                round(value, 3)
                for value in (
                    above.p50_us / below.p50_us,
                    above.p99_us / below.p99_us,
                    above.cpu_us / max(below.cpu_us, 1e-9),
                )
            )
        ),
        cpu_us_per_container=round(above.cpu_us / count, 2),
        in_process_p50_us=measure_scaling(named.SerializeToString(), settings.calls, models),
        policy=f"{origin.policy} {origin.policy_version}",
        request_bytes=len(message),
        response_bytes=answer.ByteSize(),
    )


def _run(name: str, server: ServerProcess, message: bytes, calls: int) -> Run:
    host, _, port = server.address.rpartition(":")
    target = Target(host, int(port), SCALE_PATH, message)
    return measured_run(name, target, server, lambda at: h2load.generate_closed_loop(at, ClosedLoop(calls)))


def _ask(address: str, request: ScaleRequest) -> ScaleResponse:
    """Asks once, as a real client.

    Raises:
        LoadError: the server refuses.
        VoidRunError: its fallback answers: its latency is not that of the policy.
    """
    with grpc.insecure_channel(address, _UNLIMITED) as channel:
        try:
            answer = ScalingServiceStub(channel).Scale(request, timeout=_TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            what = f"{error.code().name}: {error.details()}" if isinstance(error, grpc.Call) else str(error)
            raise LoadError(f"{address}: Scale failed: {what}") from None
    for origin in answer.provenances:
        if origin.source == DecisionSource.DECISION_SOURCE_FALLBACK:
            reason = FallbackReason.Name(origin.fallback_reason).removeprefix("FALLBACK_REASON_")
            raise VoidRunError("scale", [f"the fallback policy answers ({reason})"])
    return answer


def _figures(runs: Sequence[Run]) -> CallFigures:
    histogram = latency_histogram([run.measurement for run in runs])
    spent = [(run.server_cpu_seconds or 0.0) / run.measurement.requests * 1e6 for run in runs]
    return CallFigures(
        p50_us=float(histogram.get_value_at_percentile(50)),
        p99_us=float(histogram.get_value_at_percentile(99)),
        cpu_us=round(median(spent), 1),
    )
