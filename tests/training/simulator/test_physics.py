"""What happens to requests: worked examples, queueing theory and the laws that hold in any system."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings

from policy_server.cluster.snapshot import NO_LINK, Int32Array, ReplicaState
from tests.training.simulator.small import (
    CLOUD_BYTES_PER_SECOND,
    CLOUD_DELAY_SECONDS,
    CLOUD_REPLICA,
    EDGE_NODE,
    EDGE_REPLICA,
    LOCAL_DELAY_SECONDS,
    requests_at,
    run_to_the_end,
    small_topology,
)
from tests.training.simulator.systems import Scenario, draw_services, draw_topology, draw_workload, scenarios
from training.simulator.simulator import REJECT, SimulatorConfig, VectorSimulator
from training.simulator.state import RequestStatus

MET, DROPPED, ABORTED, REJECTED = (
    RequestStatus.MET,
    RequestStatus.DROPPED_QUEUED,
    RequestStatus.ABORTED_RUNNING,
    RequestStatus.REJECTED,
)
EXECUTION_SECONDS = 0.125
DISPATCH_SECONDS = SimulatorConfig().dispatch_seconds_per_request
LOCAL_RESPONSE_SECONDS = DISPATCH_SECONDS + 2 * LOCAL_DELAY_SECONDS + EXECUTION_SECONDS


def test_a_local_request_takes_dispatch_two_delays_and_execution() -> None:
    simulator = VectorSimulator([small_topology()], [requests_at([0.1])])
    run_to_the_end(simulator)
    outcomes = simulator.outcomes(0)
    assert outcomes.status.tolist() == [MET]
    assert outcomes.completion_seconds[0] == pytest.approx(0.1 + LOCAL_RESPONSE_SECONDS)
    assert outcomes.node.tolist() == [EDGE_NODE]
    assert simulator.results()[0].forwarded_bytes == 0


def test_forwarded_requests_share_the_link_first_in_first_out_and_answers_take_no_bandwidth() -> None:
    simulator = VectorSimulator([small_topology()], [requests_at([0.0, 0.0, 0.0], payload_bytes=1e6)])
    run_to_the_end(simulator, CLOUD_REPLICA)
    transmission = 1e6 / CLOUD_BYTES_PER_SECOND
    expected = [
        DISPATCH_SECONDS + turn * transmission + 2 * CLOUD_DELAY_SECONDS + EXECUTION_SECONDS
        for turn in (1, 2, 3)
    ]
    np.testing.assert_allclose(simulator.outcomes(0).completion_seconds, expected)
    assert simulator.results()[0].forwarded_bytes == 3e6


def test_the_dispatcher_takes_one_request_after_the_other() -> None:
    config = SimulatorConfig(dispatch_seconds_per_request=0.01)
    simulator = VectorSimulator([small_topology(concurrency=2)], [requests_at([0.0, 0.0])], config)
    run_to_the_end(simulator)
    first, second = simulator.outcomes(0).completion_seconds
    assert second - first == pytest.approx(0.01)


def test_a_decision_delay_holds_up_those_behind() -> None:
    simulator = VectorSimulator([small_topology(concurrency=2)], [requests_at([0.0, 0.0])])
    simulator.advance(np.zeros(2, np.int32), np.array([0.1, 0.0]))
    run_to_the_end(simulator)
    first, second = simulator.outcomes(0).completion_seconds
    assert first == pytest.approx(0.1 + LOCAL_RESPONSE_SECONDS)
    assert second == pytest.approx(first + DISPATCH_SECONDS)


def test_execution_time_follows_the_work_factor() -> None:
    workload = requests_at([0.0, 1.0], work_factor=[0.5, 2.0])
    simulator = VectorSimulator([small_topology()], [workload])
    run_to_the_end(simulator)
    response = simulator.outcomes(0).completion_seconds - workload.arrival_seconds
    overhead = DISPATCH_SECONDS + 2 * LOCAL_DELAY_SECONDS
    np.testing.assert_allclose(response - overhead, [0.5 * EXECUTION_SECONDS, 2 * EXECUTION_SECONDS])


@pytest.mark.parametrize(
    ("deadline_seconds", "status", "given_up_seconds"),
    [
        (1.0, MET, None),
        (0.1, ABORTED, 0.1 - LOCAL_DELAY_SECONDS),
        (0.002, DROPPED, 0.002 - LOCAL_DELAY_SECONDS),
        (0.0001, DROPPED, 0.0),
    ],
)
def test_a_request_that_cannot_be_answered_in_time_is_given_up_at_that_instant(
    deadline_seconds: float, status: RequestStatus, given_up_seconds: float | None
) -> None:
    """At its deadline less the way back, or on arrival if that has passed already."""
    simulator = VectorSimulator([small_topology()], [requests_at([0.0], deadline_seconds=deadline_seconds)])
    run_to_the_end(simulator)
    outcomes = simulator.outcomes(0)
    assert outcomes.status.tolist() == [status]
    if given_up_seconds is not None:
        assert outcomes.completion_seconds[0] == pytest.approx(given_up_seconds, abs=1e-7)


def test_the_earliest_deadline_starts_first() -> None:
    deadlines = [1000.0, 900.0, 700.0, 800.0]
    simulator = VectorSimulator([small_topology()], [requests_at([0.0] * 4, deadline_seconds=deadlines)])
    run_to_the_end(simulator)
    # The first found the node idle; the others waited for it together.
    assert np.argsort(simulator.outcomes(0).completion_seconds).tolist() == [0, 2, 3, 1]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_with_equal_deadlines_requests_start_in_order_of_arrival(concurrency: int) -> None:
    rng = np.random.default_rng(0)
    arrival = np.sort(rng.random(400) * 10)
    work = rng.exponential(1.0, 400) + 0.01
    topology = small_topology(node_millicores=64_000, concurrency=concurrency)
    workload = requests_at(arrival.tolist(), work_factor=work.tolist())
    simulator = VectorSimulator([topology], [workload], SimulatorConfig(dispatch_seconds_per_request=0.0))
    run_to_the_end(simulator)
    free_at = [0.0] * concurrency
    for row in range(400):
        server = int(np.argmin(free_at))
        begins = max(free_at[server], arrival[row] + LOCAL_DELAY_SECONDS)
        free_at[server] = begins + float(workload.work_factor[row]) * EXECUTION_SECONDS
        answered = simulator.outcomes(0).completion_seconds[row]
        assert answered == pytest.approx(free_at[server] + LOCAL_DELAY_SECONDS)


def test_cpu_is_given_back() -> None:
    """A node starts many more requests than fit on it at once, and is idle when they have ended."""
    count = 2000
    simulator = VectorSimulator([small_topology()], [requests_at((np.arange(count) * 0.13).tolist())])
    run_to_the_end(simulator)
    result = simulator.results()[0]
    assert result.throughput_rate == 1.0
    assert simulator.snapshot().load.node_cpu_used_millicores.tolist() == [0, 0]
    held = count * 500 * EXECUTION_SECONDS
    assert result.edge_cpu_utilisation == pytest.approx(held / (1000 * simulator.now_seconds))


def test_an_aborted_request_gives_its_cpu_back_at_once() -> None:
    topology = small_topology(request_millicores=1000, concurrency=2)
    workload = requests_at([0.0, 0.05], deadline_seconds=[0.1, 1.0], work_factor=[100.0, 1.0])
    simulator = VectorSimulator([topology], [workload])
    run_to_the_end(simulator)
    outcomes = simulator.outcomes(0)
    assert outcomes.status.tolist() == [ABORTED, MET]
    aborted_at = 0.1 - LOCAL_DELAY_SECONDS
    expected = aborted_at + EXECUTION_SECONDS + LOCAL_DELAY_SECONDS
    assert outcomes.completion_seconds[1] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("servers", "load"), [(1, 0.7), (4, 0.8), (8, 0.6)])
@pytest.mark.parametrize("limit", ["concurrency", "cpu"])
def test_mean_wait_is_that_of_erlang_c(servers: int, load: float, limit: str) -> None:
    """An M/M/c queue, whether the replica's slots or the node's CPU are the servers."""
    rng = np.random.default_rng(servers)
    count, mean_service = 200_000, 0.01
    arrival_rate = load * servers / mean_service
    topology = small_topology(
        node_millicores=500 * servers if limit == "cpu" else 64_000,
        execution_seconds=mean_service,
        concurrency=servers if limit == "concurrency" else 64,
    )
    workload = requests_at(
        np.cumsum(rng.exponential(1 / arrival_rate, count)).tolist(),
        work_factor=np.maximum(rng.exponential(1.0, count), 1e-9).tolist(),
    )
    config = SimulatorConfig(slot_seconds=4.0, dispatch_seconds_per_request=0.0)
    simulator = VectorSimulator([topology], [workload], config)
    run_to_the_end(simulator)
    service = workload.work_factor * np.float64(topology.services.execution_seconds[0])
    response = simulator.outcomes(0).completion_seconds - workload.arrival_seconds
    wait = response - service - 2 * LOCAL_DELAY_SECONDS
    assert wait.min() > -1e-9
    offered = load * servers
    blocked = offered**servers / math.factorial(servers) / (1 - load)
    delayed = blocked / (blocked + sum(offered**k / math.factorial(k) for k in range(servers)))
    expected = delayed * mean_service / (servers * (1 - load))
    assert wait.mean() == pytest.approx(expected, rel=0.05)


class Run:
    """Systems with decisions that depend on the request alone, so that they are the same alone and in a batch."""

    def __init__(self, scenario: Scenario, chosen: list[int] | None = None) -> None:
        rng = np.random.default_rng(scenario.seed)
        services = draw_services(scenario, rng)
        topologies = [draw_topology(scenario, services, rng) for _ in range(3)]
        workloads = [draw_workload(scenario, topology, rng) for topology in topologies]
        kept = range(3) if chosen is None else chosen
        self.simulator = VectorSimulator(
            [topologies[system] for system in kept], [workloads[system] for system in kept], scenario.config
        )
        self.resolved: list[list[int]] = [[] for _ in kept]

    def finish(self) -> Run:
        while not self.simulator.done:
            self.advance()
        return self

    def advance(self) -> None:
        outcome = self.simulator.advance(self.targets())
        for system, index in zip(outcome.resolved_system, outcome.resolved_index, strict=True):
            self.resolved[system].append(int(index))

    def targets(self) -> Int32Array:
        requests, topology = self.simulator.arrivals(), self.simulator.topology
        destination = topology.nodes.access_point[topology.replicas.node]
        target = np.full(len(requests), REJECT, np.int32)
        for row in range(len(requests)):
            point = requests.access_point[row]
            reachable = (destination == point) | (topology.link_row[point, destination] != NO_LINK)
            candidates = np.flatnonzero(reachable & (topology.replicas.service == requests.service[row]))
            if len(candidates):
                target[row] = candidates[int(requests.index[row]) % len(candidates)]
        return target


@given(scenarios)
@settings(max_examples=40)
def test_every_request_is_resolved_once_and_nothing_is_overcommitted(scenario: Scenario) -> None:
    run = Run(scenario)
    simulator = run.simulator
    nodes = simulator.topology.nodes
    rng = np.random.default_rng(scenario.seed)
    arrived = np.zeros(simulator.systems, np.int64)
    resolved = np.zeros(simulator.systems, np.int64)
    while not simulator.done:
        if scenario.orchestrated and len(simulator.topology.replicas.endpoints):
            simulator.delete_replica(int(rng.integers(len(simulator.topology.replicas.endpoints))))
            simulator.add_replica(int(rng.integers(scenario.services)), int(rng.integers(len(nodes.names))))
        arrived += np.bincount(simulator.arrivals().system, minlength=simulator.systems)
        run.advance()
        resolved = np.array([len(indices) for indices in run.resolved])
        load = simulator.snapshot().load
        assert (load.node_cpu_used_millicores <= nodes.cpu_millicores).all()
        assert (load.node_cpu_used_millicores >= 0).all()
        assert (load.node_memory_used_bytes <= nodes.memory_bytes).all()
        for system, result in enumerate(simulator.results()):
            assert result.arrived == arrived[system] == sum(result.counts.values())
            assert result.met + result.failed == resolved[system]
    assert resolved.tolist() == arrived.tolist()
    snapshot = simulator.snapshot()
    topology, load = snapshot.topology, snapshot.load
    assert not load.node_cpu_used_millicores.any()
    assert not load.replica_queued.any()
    assert not load.replica_running.any()
    assert not load.access_point_queued.any()
    assert (load.replica_state != ReplicaState.DRAINING).all()
    held = np.bincount(
        topology.replicas.node,
        weights=topology.services.memory_bytes[topology.replicas.service],
        minlength=len(nodes.names),
    )
    np.testing.assert_array_equal(load.node_memory_used_bytes, held)
    for system in range(simulator.systems):
        assert sorted(run.resolved[system]) == list(range(int(arrived[system])))


@given(scenarios)
@settings(max_examples=40)
def test_every_request_leaves_between_its_arrival_and_its_deadline(scenario: Scenario) -> None:
    rng = np.random.default_rng(scenario.seed)
    services = draw_services(scenario, rng)
    topologies = [draw_topology(scenario, services, rng) for _ in range(3)]
    workloads = [draw_workload(scenario, topology, rng) for topology in topologies]
    simulator = Run(scenario).finish().simulator
    for system, workload in enumerate(workloads):
        outcomes = simulator.outcomes(system)
        response = outcomes.completion_seconds - workload.arrival_seconds
        assert (response >= 0).all()
        assert (response <= workload.deadline_seconds.astype(np.float64) + 1e-9).all()
        assert ((outcomes.node < 0) == (outcomes.status == REJECTED)).all()


@given(scenarios)
@settings(max_examples=20)
def test_the_same_input_gives_the_same_bits(scenario: Scenario) -> None:
    one, other = Run(scenario), Run(scenario)
    while not one.simulator.done:
        one.advance()
        other.advance()
        loads = one.simulator.snapshot().load, other.simulator.snapshot().load
        for name in vars(loads[0]):
            assert getattr(loads[0], name).tobytes() == getattr(loads[1], name).tobytes()
    for system in range(3):
        assert _bits(one.simulator, system) == _bits(other.simulator, system)


@given(scenarios)
@settings(max_examples=20)
def test_a_system_fares_the_same_alone_and_among_others(scenario: Scenario) -> None:
    together = Run(scenario).finish()
    first_node = np.cumsum([0, *np.bincount(_system_of_nodes(together.simulator), minlength=3)])
    for system in range(3):
        alone = Run(scenario, [system]).finish()
        assert _bits(together.simulator, system)[:2] == _bits(alone.simulator, 0)[:2]
        sent = together.simulator.outcomes(system).node
        expected = np.where(sent >= 0, sent - first_node[system], -1)
        np.testing.assert_array_equal(alone.simulator.outcomes(0).node, expected)


def _bits(simulator: VectorSimulator, system: int) -> tuple[bytes, bytes, bytes]:
    outcomes = simulator.outcomes(system)
    return outcomes.status.tobytes(), outcomes.completion_seconds.tobytes(), outcomes.node.tobytes()


def _system_of_nodes(simulator: VectorSimulator) -> Int32Array:
    topology = simulator.topology
    return topology.access_points.system[topology.nodes.access_point]


def test_a_simulation_with_nothing_to_do_ends_with_its_sequence() -> None:
    simulator = VectorSimulator([small_topology()], [requests_at([], duration_seconds=1.0)])
    run_to_the_end(simulator, EDGE_REPLICA)
    assert simulator.now_seconds == 1.0
    assert math.isnan(simulator.results()[0].throughput_rate)
