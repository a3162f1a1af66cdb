"""The queues against queueing theory and against recursions written out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from policy_server.cluster.snapshot import Topology
from tests.training.simulator.systems import one_access_point, requests_at
from training.simulator.simulator import SimulatorConfig, VectorSimulator
from training.simulator.state import RequestStatus
from training.workloads.requests import RequestSequence

NO_DISPATCH_TIME = SimulatorConfig(dispatch_seconds_per_request=0.0)


def run_on_first_replicas(
    topology: Topology, workload: RequestSequence, config: SimulatorConfig = NO_DISPATCH_TIME
) -> VectorSimulator:
    """Sends every request to the first replica of its service."""
    simulator = VectorSimulator([topology], [workload], config)
    first = np.array(
        [np.argmax(topology.replicas.service == w) for w in range(len(topology.services.names))], np.int32
    )
    while not simulator.done:
        simulator.advance(first[simulator.arrivals().service])
    return simulator


@pytest.mark.parametrize(("servers", "load"), [(1, 0.5), (1, 0.8), (3, 0.7), (8, 0.9)])
def test_waiting_time_of_m_m_c(servers: int, load: float) -> None:
    rng = np.random.default_rng(servers)
    mean_service_seconds, count = 0.0625, 400_000
    rate = servers * load / mean_service_seconds
    workload = requests_at(
        np.cumsum(rng.exponential(1 / rate, count)),
        deadline_seconds=1e4,
        work_factor=rng.exponential(1.0, count) + 1e-9,
    )
    simulator = run_on_first_replicas(
        one_access_point(concurrency=servers, execution_seconds=mean_service_seconds), workload
    )
    waited = simulator.results()[0].mean_latency_seconds - mean_service_seconds
    offered = servers * load
    blocked = offered**servers / math.factorial(servers) / (1 - load)
    erlang_c = blocked / (sum(offered**k / math.factorial(k) for k in range(servers)) + blocked)
    assert waited == pytest.approx(erlang_c * mean_service_seconds / (servers * (1 - load)), rel=0.06)


def test_equal_deadlines_are_served_first_in_first_out() -> None:
    rng = np.random.default_rng(7)
    workload = requests_at(
        np.cumsum(rng.exponential(0.06, 2000)), deadline_seconds=1e4, work_factor=rng.uniform(0.5, 1.5, 2000)
    )
    outcomes = run_on_first_replicas(one_access_point(), workload).outcomes(0)
    free_at = 0.0
    for arrival, work, completion in zip(
        workload.arrival_seconds, workload.work_factor, outcomes.completion_seconds, strict=True
    ):
        free_at = max(free_at, float(arrival)) + 0.0625 * float(work)
        assert completion == free_at


def test_the_earliest_deadline_goes_first() -> None:
    workload = requests_at([0.0, 0.01, 0.02, 0.03], deadline_seconds=[9.0, 3.0, 1.0, 2.0])
    outcomes = run_on_first_replicas(one_access_point(), workload).outcomes(0)
    assert np.argsort(outcomes.completion_seconds).tolist() == [0, 2, 3, 1]


def test_a_node_never_runs_more_than_its_cpu_and_its_replicas_share_it_by_deadline() -> None:
    topology = one_access_point(cpu_millicores=(600.0, 400.0), concurrency=4, node_cpu_millicores=1000.0)
    workload = requests_at(
        [0.0, 0.001, 0.002, 0.003], service=[0, 0, 1, 1], deadline_seconds=[1, 0.9, 0.8, 0.7]
    )
    outcomes = run_on_first_replicas(topology, workload).outcomes(0)
    # 600 and 400 run together; the freed 600 then take the second 400, whose deadline is earlier, but not 600 more.
    expected = [0.0625, 0.002 + 0.0625 + 0.0625, 0.002 + 0.0625, 0.0625 + 0.0625]
    np.testing.assert_allclose(outcomes.completion_seconds, expected)


def test_cpu_is_given_back() -> None:
    """The KaiS authors' demo never did: its nodes stopped after a handful of requests."""
    workload = requests_at(np.arange(1000) * 0.1)
    simulator = run_on_first_replicas(
        one_access_point(cpu_millicores=(1000.0,), node_cpu_millicores=1000.0), workload
    )
    assert simulator.results()[0].met == 1000
    assert simulator.snapshot().load.node_cpu_used_millicores.tolist() == [0, 0]


def test_requests_that_cannot_be_answered_in_time_free_the_cpu_when_they_expire() -> None:
    workload = requests_at([0.0, 0.125], deadline_seconds=[0.0625, 0.5], work_factor=np.array([100.0, 1.0]))
    outcomes = run_on_first_replicas(one_access_point(), workload).outcomes(0)
    assert outcomes.status.tolist() == [RequestStatus.ABORTED_RUNNING, RequestStatus.MET]
    assert outcomes.completion_seconds.tolist() == [0.0625, 0.125 + 0.0625]


def test_dispatcher_serves_one_request_at_a_time() -> None:
    workload = requests_at([0.0, 0.0, 0.0])
    config = SimulatorConfig(dispatch_seconds_per_request=0.125)
    outcomes = run_on_first_replicas(one_access_point(concurrency=8), workload, config).outcomes(0)
    assert outcomes.completion_seconds.tolist() == [0.1875, 0.3125, 0.4375]
