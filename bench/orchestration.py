"""How long orchestration takes, by the size of the system."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import grpc
import psutil

from bench.budgets import ORCHESTRATION_BUDGETS, judge
from bench.environment import describe_environment
from bench.load.errors import LoadError
from bench.orchestration_scenario import SERVICES, generate_system
from bench.server_process import ServerProcess, free_port
from policy_server.proto.policy.v1.orchestration_service_pb2 import OrchestrateRequest, OrchestrateResponse
from policy_server.proto.policy.v1.orchestration_service_pb2_grpc import OrchestrationServiceStub
from policy_server.proto.policy.v1.state_pb2 import Load, NodeLoad
from policy_server.proto.policy.v1.state_service_pb2 import FullState, LoadDelta, ReportStateRequest
from policy_server.proto.policy.v1.state_service_pb2_grpc import StateServiceStub

OnStep = Callable[[str], None]

DEFAULT_SIZES = (100, 1_000, 10_000)
MAXIMUM_MESSAGE_BYTES = 2**28
_WARM_UP_CALLS = 2
_CALL_LIMIT_SECONDS = 60.0


@dataclass(frozen=True)
class OrchestrationSettings:
    """What to measure.

    Attributes:
        sizes: edge nodes of each system.
        repetitions: calls on the server-held state, each after a report.
        inline_repetitions: calls that carry the state along.
    """

    sizes: Sequence[int] = DEFAULT_SIZES
    repetitions: int = 20
    inline_repetitions: int = 3

    @property
    def steps(self) -> int:
        """Number of times ``on_step`` is called."""
        return 3 * len(self.sizes)


@dataclass(frozen=True)
class SizeFigures:
    """One size of system.

    Attributes:
        nodes: with the one of the cloud.
        links: between access points.
        replicas: on all nodes.
        held_ms: call on the server-held state, new at each call; each as the caller sees it.
        inline_ms: call that carries the state along.
        report_ms: call that reports the whole state.
        resident_mib: memory of the server afterwards.
        actions: in the last answer.
    """

    nodes: int
    links: int
    replicas: int
    held_ms: tuple[float, ...]
    inline_ms: tuple[float, ...]
    report_ms: float
    resident_mib: float
    actions: int

    @property
    def rows(self) -> int:
        """Nodes + links."""
        return self.nodes + self.links

    def summary(self) -> dict[str, Any]:
        """Figures as they are reported."""
        return {
            **asdict(self),
            "p50_ms": statistics.median(self.held_ms),
            "largest_ms": max(self.held_ms),
            "inline_p50_ms": statistics.median(self.inline_ms) if self.inline_ms else None,
            "microseconds_per_row": 1000 * statistics.median(self.held_ms) / self.rows,
        }


@dataclass(frozen=True)
class OrchestrationReport:
    """All sizes.

    Attributes:
        policy: that answered.
        environment: it was measured on.
        sizes: figures of each, in the order asked for.
    """

    policy: str
    environment: dict[str, Any]
    sizes: tuple[SizeFigures, ...]

    def document(self) -> dict[str, Any]:
        """The report as JSON takes it."""
        document: dict[str, Any] = {
            "policy": self.policy,
            "services": SERVICES,
            "environment": self.environment,
            "sizes": {str(figures.nodes - 1): figures.summary() for figures in self.sizes},
            "growth_exponent": self.growth_exponent,
        }
        verdicts = judge(ORCHESTRATION_BUDGETS, document)
        return {**document, "budgets": {figure: asdict(verdict) for figure, verdict in verdicts.items()}}

    @property
    def growth_exponent(self) -> float | None:
        """Of the cost in nodes + links between the two largest systems: 1 is linear. None for a single system."""
        if len(self.sizes) < 2:
            return None
        small, large = sorted(self.sizes, key=lambda figures: figures.rows)[-2:]
        cost = statistics.median(large.held_ms) / statistics.median(small.held_ms)
        return math.log(cost) / math.log(large.rows / small.rows)


def measure_orchestration(
    command: Callable[[int], Sequence[str]], policy: str, settings: OrchestrationSettings, on_step: OnStep
) -> OrchestrationReport:
    """Starts a server for each size and asks it, one call after another, as dry runs.

    Args:
        command: that serves on a port.
        policy: to ask; empty: the active one.
        settings: what to measure.
        on_step: called before each of ``settings.steps`` steps with a description.

    Raises:
        ServerError: a server did not start.
        LoadError: a call failed, or the fallback answered.
    """
    environment = asdict(describe_environment())
    sizes = []
    answered = ""
    for nodes in settings.sizes:
        on_step(f"{nodes} nodes, report")
        state = generate_system(nodes)
        port = free_port()
        with ServerProcess("policy-server", command(port), port) as process:
            try:
                figures, answered = _measure(process, state, policy, settings, on_step)
            except grpc.RpcError as error:
                process.check_alive(grace_seconds=0.5)
                details = error.details() if isinstance(error, grpc.Call) else error
                raise LoadError(f"{nodes} nodes: {details}") from None
        sizes.append(figures)
    return OrchestrationReport(answered, environment, tuple(sizes))


def _measure(
    process: ServerProcess, state: FullState, policy: str, settings: OrchestrationSettings, on_step: OnStep
) -> tuple[SizeFigures, str]:
    nodes = len(state.topology.nodes) - 1
    options = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
    with grpc.insecure_channel(process.address, options) as channel:
        reporting, orchestrating = StateServiceStub(channel), OrchestrationServiceStub(channel)

        def ask(**fields: Any) -> tuple[float, OrchestrateResponse]:
            request = OrchestrateRequest(policy=policy, dry_run=True, **fields)
            started = time.perf_counter()
            response = orchestrating.Orchestrate(request, timeout=_CALL_LIMIT_SECONDS)
            seconds = time.perf_counter() - started
            if response.provenance.fallback_reason:
                raise LoadError(
                    f"{nodes} nodes: {response.provenance.policy} answers in place of the policy; "
                    "measure on a machine that is less busy, or allow more with --orchestration-budget-seconds"
                )
            return 1000 * seconds, response

        started = time.perf_counter()
        version = reporting.ReportState(ReportStateRequest(full=state), timeout=_CALL_LIMIT_SECONDS).version
        report_ms = 1000 * (time.perf_counter() - started)
        on_step(f"{nodes} nodes, held state")
        held = []
        for repetition in range(_WARM_UP_CALLS + settings.repetitions):
            # So that nothing but what depends on the topology alone can be reused.
            changed = NodeLoad(name="node-0", cpu_used_millicores=float(repetition), memory_used_bytes=1e9)
            delta = LoadDelta(base_version=version, load=Load(nodes=[changed]))
            version = reporting.ReportState(ReportStateRequest(delta=delta)).version
            milliseconds, response = ask()
            if repetition >= _WARM_UP_CALLS:
                held.append(milliseconds)
        on_step(f"{nodes} nodes, inline state")
        inline = [ask(inline_state=state)[0] for _ in range(settings.inline_repetitions)]
        figures = SizeFigures(
            nodes=nodes + 1,
            links=len(state.topology.links),
            replicas=len(state.topology.replicas),
            held_ms=tuple(held),
            inline_ms=tuple(inline),
            report_ms=report_ms,
            resident_mib=psutil.Process(process.pid).memory_info().rss / 2**20,
            actions=len(response.actions),
        )
        source = response.provenance
        return figures, f"{source.policy} {source.policy_version}"
