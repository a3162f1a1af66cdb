"""The main job on an embedded default: a simulated cluster asks the real server about every request of a trace.

Each slot of a quarter second the simulator reports its state over gRPC, every request that arrives in the slot is
asked about in a Dispatch call of its own, and the answers decide where the simulated requests go. The server runs
as a process of its own, as in production; only the cluster is simulated.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from hdrh.histogram import HdrHistogram

from bench.commands import policy_server_command
from bench.server_process import ServerProcess, free_port
from policy_server.api.messages import load_to_message, topology_to_message
from policy_server.cluster.snapshot import Snapshot, Topology
from policy_server.policies.heuristics import HEURISTIC_DISPATCH_NAMES
from policy_server.proto.policy.v1.decision_pb2 import DecisionSource
from policy_server.proto.policy.v1.dispatch_service_pb2 import DispatchRequest, DispatchResponse
from policy_server.proto.policy.v1.dispatch_service_pb2_grpc import DispatchServiceStub
from policy_server.proto.policy.v1.state_service_pb2 import (
    FullState,
    LoadDelta,
    ReportStateRequest,
    ReportStateResponse,
)
from policy_server.proto.policy.v1.state_service_pb2_grpc import StateServiceStub
from policy_server.runtime.bundle import find_bundles
from training.scenarios import Scenario, build_simulator
from training.simulator.simulator import REJECT, SlotRequests, VectorSimulator
from training.workloads.patterns import Pattern
from training.workloads.seeds import held_out_seed
from training.workloads.traces.windows import Split

LEARNED = "kais"
BASELINES = ("earliest-completion", "greedy", "round-robin")
CALLS_IN_FLIGHT = 4
CALL_TIMEOUT_SECONDS = 10.0
REFERENCE = "round-robin"
"""Always runs: costs are relative to its."""
_DEATH_NOTICE_SECONDS = 1.0


class DemoError(RuntimeError):
    """The demo cannot be run or finished. The message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class DemoPlan:
    """What to replay.

    Attributes:
        preset: system configuration.
        trace: recorded trace; None: a generated bursty sequence (pattern P4).
        seconds: simulated time per policy.
        load: request rate as a multiple of the preset's reference rate.
        seed: index of the held-out seed and trace window.
        policies: names, in the order they run; the reference is one of them.
    """

    preset: str = "testbed-40"
    trace: Path | None = None
    seconds: float = 15.0
    load: float = 1.6
    seed: int = 0
    policies: tuple[str, ...] = ()

    def simulator(self) -> VectorSimulator:
        """The cluster and its requests, the same at every call.

        Raises:
            TraceError: the trace cannot be read.
        """
        scenario = Scenario(
            preset=self.preset,
            seed=held_out_seed(self.seed),
            load=self.load,
            pattern=Pattern.P4 if self.trace is None else None,
            trace=self.trace,
            trace_split=Split.HELD_OUT,
            trace_window=self.seed,
        )
        return build_simulator([scenario], self.seconds)


@dataclass(frozen=True)
class DemoProgress:
    """How far one policy's run has come.

    Attributes:
        policy: name.
        simulated_seconds: done so far.
        calls: Dispatch calls made so far.
        calls_per_second: of real time, the simulator's share included.
    """

    policy: str
    simulated_seconds: float
    calls: int
    calls_per_second: float


@dataclass(frozen=True)
class DemoResult:
    """One policy's run.

    Attributes:
        policy: name.
        throughput_rate: requests answered within their deadline / requests arrived, in the simulated cluster.
        cost_bytes: bytes that its decisions moved between access points and to the cloud.
        decisions: Dispatch calls; each request that arrived is asked about once.
        p50_seconds: of a call, seen by the Python client.
        p99_seconds: likewise.
        learned_share: calls answered by a model.
        fallback_share: calls answered by the fallback policy.
        calls_per_second: of real time, the simulator's share included.
    """

    policy: str
    throughput_rate: float
    cost_bytes: float
    decisions: int
    p50_seconds: float
    p99_seconds: float
    learned_share: float
    fallback_share: float
    calls_per_second: float

    def to_json(self, reference_cost_bytes: float) -> dict[str, Any]:
        """The figures, the cost relative to that of the reference; null where the reference moves nothing."""
        return {
            "throughput_rate": self.throughput_rate,
            "scheduling_cost": self.cost_bytes / reference_cost_bytes if reference_cost_bytes else None,
            "decisions": self.decisions,
            "decision_seconds": {"p50": self.p50_seconds, "p99": self.p99_seconds},
            "learned_share": self.learned_share,
            "fallback_share": self.fallback_share,
            "calls_per_second": self.calls_per_second,
        }


def known_policies() -> tuple[str, ...]:
    """Names that the server of the demo knows: of the bundles that ship with the package, and the heuristics."""
    return (*find_bundles(kind="dispatch"), *HEURISTIC_DISPATCH_NAMES)


def default_policies() -> tuple[str, ...]:
    """The learned policy, if a bundle of it ships with the package, and three baselines."""
    return (LEARNED, *BASELINES) if LEARNED in known_policies() else BASELINES


def count_requests(plan: DemoPlan) -> int:
    """How many requests arrive. At first use, the simulator is compiled meanwhile.

    Raises:
        DemoError: none.
        TraceError: the trace cannot be read.
    """
    simulator = plan.simulator()
    requests = 0
    while not simulator.done:
        arrivals = len(simulator.arrivals())
        simulator.advance(np.full(arrivals, REJECT, np.int32))
        requests += arrivals
    if not requests:
        raise DemoError(f"no request arrives in {plan.seconds:g} s at load {plan.load:g}; raise one of them")
    return requests


def run_demo(plan: DemoPlan, on_slot: Callable[[DemoProgress], None]) -> list[DemoResult]:
    """Starts the server and runs every policy on the same cluster and requests.

    Args:
        plan: what to replay.
        on_slot: called after each slot.

    Raises:
        DemoError: the server refuses a call.
        ServerError: the server did not start or died.
        TraceError: the trace cannot be read.
    """
    port = free_port()
    command = policy_server_command(port, arguments=["--policy", plan.policies[0]])
    results = []
    with ServerProcess("policy-server", command, port) as server:
        for policy in plan.policies:
            try:
                results.append(asyncio.run(_run(server.address, plan, policy, on_slot)))
            except grpc.aio.AioRpcError as error:
                server.check_alive(_DEATH_NOTICE_SECONDS)
                raise DemoError(
                    f"{policy}: the server refuses: {error.code().name}: {error.details()}. "
                    f"Its output:\n{server.output()}"
                ) from None
    return results


async def _run(
    address: str, plan: DemoPlan, policy: str, on_slot: Callable[[DemoProgress], None]
) -> DemoResult:
    simulator = plan.simulator()
    latency = HdrHistogram(1, 60_000_000, 3)
    sources: Counter[int] = Counter()
    calls = 0
    started = time.monotonic()
    async with grpc.aio.insecure_channel(address) as channel:
        reporter = Reporter(StateServiceStub(channel))
        dispatch = DispatchServiceStub(channel).Dispatch
        while not simulator.done:
            snapshot = simulator.snapshot()
            await reporter.report(snapshot)
            topology = snapshot.topology
            answers = await _ask(dispatch, simulator.arrivals(), topology, policy, latency)
            sources.update(answer.provenance.source for answer in answers)
            replica = np.array([topology.replica_index[answer.endpoint] for answer in answers], np.int32)
            simulator.advance(replica, topology=topology)
            calls += len(answers)
            rate = calls / (time.monotonic() - started)
            on_slot(DemoProgress(policy, min(simulator.now_seconds, plan.seconds), calls, rate))
    result = simulator.results()[0]
    return DemoResult(
        policy=policy,
        throughput_rate=result.throughput_rate,
        cost_bytes=result.scheduling_cost_bytes,
        decisions=calls,
        p50_seconds=latency.get_value_at_percentile(50) / 1e6,
        p99_seconds=latency.get_value_at_percentile(99) / 1e6,
        learned_share=sources[DecisionSource.DECISION_SOURCE_LEARNED] / calls,
        fallback_share=sources[DecisionSource.DECISION_SOURCE_FALLBACK] / calls,
        calls_per_second=calls / (time.monotonic() - started),
    )


class Reporter:
    """Reports snapshots: the whole state when the topology is new, deltas otherwise."""

    def __init__(self, stub: StateServiceStub) -> None:
        self._report: Callable[..., Awaitable[ReportStateResponse]] = stub.ReportState  # type: ignore[assignment]
        self._topology: Topology | None = None
        self._version = 0

    async def report(self, snapshot: Snapshot) -> None:
        """Reports one snapshot.

        Raises:
            grpc.aio.AioRpcError: the server refuses it.
        """
        load = load_to_message(snapshot)
        if snapshot.topology is self._topology:
            request = ReportStateRequest(delta=LoadDelta(base_version=self._version, load=load))
        else:
            request = ReportStateRequest(
                full=FullState(topology=topology_to_message(snapshot.topology), load=load)
            )
            self._topology = snapshot.topology
        response = await self._report(request, timeout=CALL_TIMEOUT_SECONDS)
        self._version = response.version


async def _ask(
    dispatch: grpc.aio.UnaryUnaryMultiCallable[DispatchRequest, DispatchResponse],
    arrivals: SlotRequests,
    topology: Topology,
    policy: str,
    latency: HdrHistogram,
) -> Sequence[DispatchResponse]:
    """Asks about each arrival, in order of arrival and a few at a time; records the latency in microseconds."""
    services, access_points = topology.services.names, topology.access_points.names
    order = np.argsort(arrivals.arrival_seconds, kind="stable")
    waiting = iter(order.tolist())
    answers: dict[int, DispatchResponse] = {}

    async def caller() -> None:
        for row in waiting:
            request = DispatchRequest(
                service=services[arrivals.service[row]],
                access_point=access_points[arrivals.access_point[row]],
                deadline_seconds=float(arrivals.deadline_seconds[row]),
                payload_bytes=float(arrivals.payload_bytes[row]),
                policy=policy,
            )
            started = time.perf_counter()
            answers[row] = await dispatch(request, timeout=CALL_TIMEOUT_SECONDS)
            latency.record_value(max(1, round((time.perf_counter() - started) * 1e6)))

    await asyncio.gather(*(caller() for _ in range(CALLS_IN_FLIGHT)))
    return [answers[row] for row in range(len(order))]
