from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import psutil
import pytest

from bench.demo import (
    BASELINES,
    LEARNED,
    REFERENCE,
    DemoError,
    DemoPlan,
    DemoProgress,
    Reporter,
    count_requests,
    default_policies,
    known_policies,
    run_demo,
)
from bench.server_process import ServerError
from policy_server.proto.policy.v1.state_service_pb2 import ReportStateRequest, ReportStateResponse
from training.simulator.simulator import REJECT
from training.workloads.traces.errors import TraceError
from training.workloads.traces.location import trace_path

SMALL = DemoPlan(seconds=1.0, load=0.3, policies=("earliest-completion", REFERENCE))


def nothing(progress: DemoProgress) -> None:
    pass


def servers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "policy_server.cli" in child.cmdline()]


def once(action: Callable[[], None]) -> Callable[[DemoProgress], None]:
    waiting = [action]

    def on_slot(progress: DemoProgress) -> None:
        if waiting:
            waiting.pop()()

    return on_slot


def test_every_policy_is_asked_about_every_request_once() -> None:
    requests = count_requests(SMALL)
    assert requests > 100
    seen: dict[str, list[DemoProgress]] = {}
    results = run_demo(SMALL, lambda progress: seen.setdefault(progress.policy, []).append(progress))
    assert [result.policy for result in results] == list(SMALL.policies)
    for result in results:
        assert result.decisions == requests
        assert 0 < result.throughput_rate <= 1
        assert result.cost_bytes > 0
        assert 0 < result.p50_seconds <= result.p99_seconds < 10
        assert (result.learned_share, result.fallback_share) == (0, 0)
        slots = seen[result.policy]
        assert [slot.calls for slot in slots] == sorted(slot.calls for slot in slots)
        assert slots[-1].calls == requests
        assert slots[-1].simulated_seconds == SMALL.seconds
    # Round robin forwards most requests, earliest completion few.
    assert results[0].cost_bytes < results[1].cost_bytes
    assert not servers()


def test_the_learned_policy_answers_itself() -> None:
    if LEARNED not in known_policies():
        pytest.skip("no bundle of the learned policy ships")
    assert default_policies() == (LEARNED, *BASELINES)
    (result,) = run_demo(replace(SMALL, policies=(LEARNED,)), nothing)
    assert result.learned_share + result.fallback_share == 1
    assert result.learned_share > 0.9


def test_all_policies_meet_the_same_requests() -> None:
    one, other = SMALL.simulator(), SMALL.simulator()
    while not one.done:
        first, second = one.arrivals(), other.arrivals()
        np.testing.assert_array_equal(first.service, second.service)
        np.testing.assert_array_equal(first.access_point, second.access_point)
        np.testing.assert_array_equal(first.arrival_seconds, second.arrival_seconds)
        for simulator, arrivals in ((one, first), (other, second)):
            simulator.advance(np.full(len(arrivals), REJECT, np.int32))
    assert other.done


def test_another_seed_is_another_sequence() -> None:
    first, second = (replace(SMALL, seed=seed).simulator().arrivals() for seed in (0, 1))
    assert first.arrival_seconds.tolist() != second.arrival_seconds.tolist()


def test_a_recorded_trace_is_replayed() -> None:
    try:
        trace = trace_path("alibaba-batch-a.csv")
    except TraceError as error:
        pytest.skip(str(error))
    requests = count_requests(replace(SMALL, trace=trace))
    assert 0 < requests != count_requests(SMALL)


def test_a_trace_without_requests_is_an_error() -> None:
    with pytest.raises(DemoError, match="no request arrives in 1 s at load 1e-09"):
        count_requests(replace(SMALL, load=1e-9))


def test_a_refused_call_ends_the_demo_with_what_the_server_said() -> None:
    with pytest.raises(DemoError, match=r"(?s)nonsense: .*NOT_FOUND.*Its output:.*listening on"):
        run_demo(replace(SMALL, policies=(REFERENCE, "nonsense")), nothing)
    assert not servers()


def test_the_death_of_the_server_ends_the_demo_with_its_output() -> None:
    with pytest.raises(ServerError, match=r"(?s)exit code -9.*listening on"):
        run_demo(SMALL, once(lambda: os.kill(servers()[0].pid, signal.SIGKILL)))


def test_an_interrupt_stops_the_server() -> None:
    with pytest.raises(KeyboardInterrupt):
        run_demo(SMALL, once(lambda: os.kill(os.getpid(), signal.SIGINT)))
    assert not servers()


class RecordingStub:
    def __init__(self) -> None:
        self.requests: list[ReportStateRequest] = []

    async def ReportState(self, request: ReportStateRequest, timeout: float) -> ReportStateResponse:  # noqa: N802
        self.requests.append(request)
        return ReportStateResponse(version=100 + len(self.requests))


def test_the_whole_state_is_reported_when_the_topology_is_new_and_deltas_otherwise() -> None:
    simulator = SMALL.simulator()
    stub = RecordingStub()
    reporter = Reporter(stub)  # type: ignore[arg-type]

    def report() -> ReportStateRequest:
        asyncio.run(reporter.report(simulator.snapshot()))
        return stub.requests[-1]

    def advance() -> None:
        simulator.advance(np.full(len(simulator.arrivals()), REJECT, np.int32))

    topology = simulator.topology
    assert len(report().full.topology.replicas) == len(topology.replicas.endpoints)
    advance()
    assert report().delta.base_version == 101
    advance()
    assert report().delta.base_version == 102
    cloud_replicas = topology.replicas.service[topology.replicas.node == topology.nodes.access_point.size - 1]
    added = simulator.add_replica(int(cloud_replicas[0]), 0)
    assert simulator.topology is not topology, added
    request = report()
    assert request.WhichOneof("report") == "full"
    assert len(request.full.topology.replicas) == len(topology.replicas.endpoints) + 1
