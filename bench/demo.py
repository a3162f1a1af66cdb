"""The main job on an embedded default: a simulated cluster asks the real server about every request of a trace.

Each slot of a quarter second the simulator reports its state over gRPC, every request that arrives in the slot is
asked about in a Dispatch call of its own, and the answers decide where the simulated requests go. The server runs
as a process of its own, as in production; only the cluster is simulated.
"""

from __future__ import annotations

import asyncio
import time
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
from training.simulator.simulator import SlotRequests, VectorSimulator
from training.workloads.patterns import Pattern
from training.workloads.seeds import held_out_seed
from training.workloads.traces.windows import Split

LEARNED = "kais"
BASELINES = ("earliest-completion", "greedy", "round-robin")
CALLS_IN_FLIGHT = 4
CALL_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class DemoPlan:
    """What to replay.

    Attributes:
        preset: system configuration.
        trace: recorded trace; None: a generated bursty sequence (pattern P4).
        seconds: simulated time per policy.
        load: request rate as a multiple of the preset's reference rate.
        seed: index of the held-out seed and trace window.
        policies: names, in the order they run.
    """

    preset: str = "testbed-40"
    trace: Path | None = None
    seconds: float = 12.0
    load: float = 1.2
    seed: int = 0
    policies: tuple[str, ...] = ()

    def simulator(self) -> VectorSimulator:
        """The cluster and its requests, the same for every policy."""
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
class DemoResult:
    """One policy's run.

    Attributes:
        policy: name.
        throughput_rate: requests answered within their deadline / requests arrived, in the simulated cluster.
        cost_bytes: bytes that its decisions moved between access points and to the cloud.
        decisions: Dispatch calls.
        p50_seconds: of a call, seen by the Python client.
        p99_seconds: likewise.
        learned_share: calls answered by a model.
        fallback_share: calls answered by the fallback policy.
        refused: calls that ended in an error; their requests are lost.
        calls_per_second: real time.
    """

    policy: str
    throughput_rate: float
    cost_bytes: float
    decisions: int
    p50_seconds: float
    p99_seconds: float
    learned_share: float
    fallback_share: float
    refused: int
    calls_per_second: float

    def to_json(self, reference_cost_bytes: float) -> dict[str, Any]:
        """The figures, the cost relative to a reference."""
        return {
            "throughput_rate": self.throughput_rate,
            "scheduling_cost": self.cost_bytes / reference_cost_bytes if reference_cost_bytes else None,
            "decisions": self.decisions,
            "decision_seconds": {"p50": self.p50_seconds, "p99": self.p99_seconds},
            "learned_share": self.learned_share,
            "fallback_share": self.fallback_share,
            "refused": self.refused,
            "calls_per_second": self.calls_per_second,
        }


def default_policies() -> tuple[str, ...]:
    """The learned policy, if a bundle of it ships with the package, and three baselines."""
    return (LEARNED, *BASELINES) if find_bundles().get(LEARNED) else BASELINES


def run_demo(plan: DemoPlan, on_slot: Callable[[str, VectorSimulator, int], None]) -> list[DemoResult]:
    """Starts the server and runs every policy on the same cluster and requests.

    Args:
        plan: what to replay.
        on_slot: called after each slot with the policy, its simulator and the calls made so far.

    Raises:
        ServerError: the server did not start or died.
        TraceError: the trace cannot be read.
    """
    port = free_port()
    command = policy_server_command(port, arguments=["--policy", plan.policies[0]])
    with ServerProcess("policy-server", command, port) as server:
        return [asyncio.run(_run(server.address, plan, name, on_slot)) for name in plan.policies]


async def _run(
    address: str, plan: DemoPlan, policy: str, on_slot: Callable[[str, VectorSimulator, int], None]
) -> DemoResult:
    simulator = plan.simulator()
    latency = HdrHistogram(1, 60_000_000, 3)
    sources: dict[int, int] = {}
    calls, refused = 0, 0
    started = time.monotonic()
    async with grpc.aio.insecure_channel(address) as channel:
        reporter = _Reporter(StateServiceStub(channel))
        dispatch = DispatchServiceStub(channel).Dispatch
        while not simulator.done:
            snapshot = simulator.snapshot()
            await reporter.report(snapshot)
            topology = snapshot.topology
            answers = await _ask(dispatch, simulator.arrivals(), topology, policy, latency)
            replica = np.full(len(answers), -1, np.int32)
            for row, answer in enumerate(answers):
                if answer is None:
                    refused += 1
                    continue
                replica[row] = topology.replica_index[answer.endpoint]
                source = answer.provenance.source
                sources[source] = sources.get(source, 0) + 1
            simulator.advance(replica, topology=topology)
            calls += len(answers)
            on_slot(policy, simulator, calls)
    elapsed = time.monotonic() - started
    result = simulator.results()[0]
    return DemoResult(
        policy=policy,
        throughput_rate=result.throughput_rate,
        cost_bytes=result.scheduling_cost_bytes,
        decisions=calls,
        p50_seconds=latency.get_value_at_percentile(50) / 1e6,
        p99_seconds=latency.get_value_at_percentile(99) / 1e6,
        learned_share=sources.get(DecisionSource.DECISION_SOURCE_LEARNED, 0) / max(calls, 1),
        fallback_share=sources.get(DecisionSource.DECISION_SOURCE_FALLBACK, 0) / max(calls, 1),
        refused=refused,
        calls_per_second=calls / elapsed,
    )


class _Reporter:
    """Reports snapshots: the whole state when the topology is new, deltas otherwise."""

    def __init__(self, stub: StateServiceStub) -> None:
        self._report: Callable[..., Awaitable[ReportStateResponse]] = stub.ReportState  # type: ignore[assignment]
        self._topology: Topology | None = None
        self._version = 0

    async def report(self, snapshot: Snapshot) -> None:
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
) -> Sequence[DispatchResponse | None]:
    """Asks about each arrival, in order of arrival and a few at a time; None where the server refused."""
    services, access_points = topology.services.names, topology.access_points.names
    order = np.argsort(arrivals.arrival_seconds, kind="stable")
    waiting = iter(order.tolist())
    answers: list[DispatchResponse | None] = [None] * len(order)

    async def caller() -> None:
        for row in waiting:
            request = DispatchRequest(
                service=services[arrivals.service[row]],
                access_point=access_points[arrivals.access_point[row]],
                deadline_seconds=float(arrivals.deadline_seconds[row]),
                payload_bytes=float(arrivals.payload_bytes[row]),
                policy=policy,
                max_alternatives=0,
            )
            started = time.perf_counter()
            try:
                answers[row] = await dispatch(request, timeout=CALL_TIMEOUT_SECONDS)
            except grpc.aio.AioRpcError:
                answers[row] = None
            latency.record_value(max(1, round((time.perf_counter() - started) * 1e6)))

    await asyncio.gather(*(caller() for _ in range(CALLS_IN_FLIGHT)))
    return answers
