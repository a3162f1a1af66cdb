"""What holds for whole systems, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from policy_server.cluster.snapshot import Links, ReplicaState, Snapshot, disjoint_union_topology
from tests.training.simulator.systems import one_access_point, requests_at, scattered_targets
from training.simulator.presets import PRESETS, build_topology, preset
from training.simulator.simulator import REJECT, SimulatorConfig, VectorSimulator
from training.simulator.state import RequestStatus
from training.workloads.patterns import Pattern, generate
from training.workloads.services import default_services

SERVICES = default_services(30)


def loaded_systems(name: str, seeds: list[int], seconds: float, load: float = 1.0) -> VectorSimulator:
    config = preset(name)
    patterns = list(Pattern)
    return VectorSimulator(
        [build_topology(config, SERVICES, seed) for seed in seeds],
        [
            generate(
                patterns[seed % len(patterns)],
                services=SERVICES,
                access_points=config.access_points,
                duration_seconds=seconds,
                mean_rate_per_second=load * config.reference_rate_per_second,
                seed=seed,
            )
            for seed in seeds
        ],
    )


def run_scattered(simulator: VectorSimulator) -> None:
    while not simulator.done:
        simulator.advance(scattered_targets(simulator.arrivals(), simulator.topology))


def test_conservation_under_load_and_orchestration() -> None:
    simulator = loaded_systems("testbed-40", [0, 1], seconds=4.0, load=2.0)
    rng = np.random.default_rng(0)
    resolved = [[], []]  # type: list[list[int]]
    arrived = 0
    while not simulator.done:
        replicas = simulator.topology.replicas
        for _ in range(4):
            simulator.add_replica(int(rng.integers(30)), int(rng.integers(82)))
            simulator.delete_replica(int(rng.integers(len(simulator.topology.replicas.endpoints))))
        assert len(set(simulator.topology.replicas.endpoints)) == len(simulator.topology.replicas.endpoints)
        outcome = simulator.advance(scattered_targets(simulator.arrivals(), simulator.topology))
        arrived += int(outcome.arrived.sum())
        for system in range(2):
            resolved[system] += outcome.resolved_index[outcome.resolved_system == system].tolist()
        snapshot = simulator.snapshot()
        nodes, load = snapshot.topology.nodes, snapshot.load
        Snapshot(snapshot.topology, load)
        assert (load.node_cpu_used_millicores <= nodes.cpu_millicores).all()
        assert (load.node_memory_used_bytes <= nodes.memory_bytes).all()
        np.testing.assert_array_equal(load.node_cpu_used_millicores, running_cpu(snapshot))
        np.testing.assert_array_equal(load.node_memory_used_bytes, held_memory(snapshot))
        assert (outcome.edge_cpu_utilisation >= 0).all()
        assert (outcome.edge_cpu_utilisation <= 1).all()
        del replicas
    assert not snapshot.load.node_cpu_used_millicores.any()
    assert not snapshot.load.replica_queued.any()
    assert not snapshot.load.access_point_queued.any()
    assert not (snapshot.load.replica_state == ReplicaState.DRAINING).any()
    for system, result in enumerate(simulator.results()):
        assert sorted(resolved[system]) == list(range(result.arrived))
        assert result.counts[RequestStatus.PENDING] == 0
        assert sum(result.counts.values()) == result.arrived == result.met + result.failed
        assert all(result.counts[status] for status in RequestStatus if status != RequestStatus.PENDING)
    assert sum(result.arrived for result in simulator.results()) == arrived


def running_cpu(snapshot: Snapshot) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    topology = snapshot.topology
    used = snapshot.load.replica_running * topology.services.cpu_millicores[topology.replicas.service]
    return np.bincount(topology.replicas.node, weights=used, minlength=len(topology.nodes.names)).astype(
        np.float32
    )


def held_memory(snapshot: Snapshot) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    topology = snapshot.topology
    held = topology.services.memory_bytes[topology.replicas.service]
    return np.bincount(topology.replicas.node, weights=held, minlength=len(topology.nodes.names)).astype(
        np.float32
    )


def test_every_request_leaves_by_its_deadline() -> None:
    simulator = loaded_systems("testbed-100", [3], seconds=3.0, load=2.0)
    workload = simulator.arrivals()
    deadlines, arrivals = [], []
    while not simulator.done:
        workload = simulator.arrivals()
        deadlines.append(workload.deadline_seconds)
        arrivals.append(workload.arrival_seconds)
        simulator.advance(scattered_targets(workload, simulator.topology))
    outcomes = simulator.outcomes(0)
    arrival = np.concatenate(arrivals)
    assert (outcomes.completion_seconds >= arrival).all()
    assert (outcomes.completion_seconds <= arrival + np.concatenate(deadlines) + 1e-9).all()


def test_same_decisions_give_the_same_results_bit_for_bit() -> None:
    runs = [loaded_systems("testbed-40", [5, 6], seconds=3.0) for _ in range(2)]
    for simulator in runs:
        run_scattered(simulator)
    for system in range(2):
        first, second = (simulator.outcomes(system) for simulator in runs)
        assert first.completion_seconds.tobytes() == second.completion_seconds.tobytes()
        assert first.status.tobytes() == second.status.tobytes()
    first_load, second_load = (simulator.snapshot().load for simulator in runs)
    for column in vars(first_load):
        assert getattr(first_load, column).tobytes() == getattr(second_load, column).tobytes()


def test_a_system_fares_the_same_alone_and_among_others() -> None:
    together = loaded_systems("testbed-40", [0, 1, 2], seconds=3.0)
    run_scattered(together)
    for position, seed in enumerate([0, 1, 2]):
        alone = loaded_systems("testbed-40", [seed], seconds=3.0)
        run_scattered(alone)
        expected, found = alone.outcomes(0), together.outcomes(position)
        assert found.completion_seconds.tobytes() == expected.completion_seconds.tobytes()
        assert found.status.tobytes() == expected.status.tobytes()
        assert together.results()[position].scheduling_cost_bytes == alone.results()[0].scheduling_cost_bytes


@pytest.mark.parametrize("name", PRESETS)
def test_the_cloud_alone_is_no_way_out(name: str) -> None:
    simulator = loaded_systems(name, [0], seconds=5.0)
    topology = simulator.topology
    in_cloud = topology.access_points.is_cloud[topology.nodes.access_point[topology.replicas.node]]
    cloud_replica = np.empty(30, np.int32)
    cloud_replica[topology.replicas.service[in_cloud]] = np.flatnonzero(in_cloud)
    while not simulator.done:
        simulator.advance(cloud_replica[simulator.arrivals().service])
    assert simulator.results()[0].throughput_rate < 0.5


def test_slot_arrivals_are_what_arrives_in_the_slot() -> None:
    workload = requests_at([0.0, 0.2, 0.25, 0.6], deadline_seconds=[0.5, 1, 2, 4], duration_seconds=1.0)
    simulator = VectorSimulator([one_access_point()] * 2, [workload, requests_at([0.1])])
    requests = simulator.arrivals()
    assert requests.system.tolist() == [0, 0, 1]
    assert requests.index.tolist() == [0, 1, 0]
    assert requests.access_point.tolist() == [0, 0, 2]
    assert requests.deadline_seconds.tolist() == [0.5, 1, 1]
    assert requests.arrival_seconds.tolist() == [0.0, 0.2, 0.1]
    outcome = simulator.advance(np.array([0, 0, 1], np.int32))
    assert outcome.arrived.tolist() == [2, 1]
    assert simulator.arrivals().arrival_seconds.tolist() == [0.25]


def test_a_decision_takes_its_time() -> None:
    simulator = VectorSimulator(
        [one_access_point(concurrency=2)],
        [requests_at([0.0, 0.0])],
        SimulatorConfig(dispatch_seconds_per_request=0),
    )
    simulator.advance(np.zeros(2, np.int32), np.array([0.0, 0.125]))
    assert simulator.outcomes(0).completion_seconds.tolist() == [0.0625, 0.1875]


def test_results_before_and_after_a_run() -> None:
    simulator = VectorSimulator(
        [one_access_point()], [requests_at([0.0, 0.1, 0.2], deadline_seconds=[1, 1, 0.01])]
    )
    before = simulator.results()[0]
    assert before.arrived == 0
    assert np.isnan(before.throughput_rate)
    simulator.advance(np.array([0, REJECT, 0], np.int32))
    result = simulator.results()[0]
    assert (result.arrived, result.met, result.failed) == (3, 1, 2)
    assert result.counts[RequestStatus.REJECTED] == 1
    assert result.throughput_rate == pytest.approx(1 / 3)
    assert result.service_throughput_rate.tolist() == [pytest.approx(1 / 3)]
    assert result.latency_seconds[99] == pytest.approx(0.0627)
    assert result.mean_latency_seconds == pytest.approx(0.0627)
    assert result.edge_cpu_utilisation == pytest.approx((0.0625 + 0.0098) * 100 / (100_000 * 0.25))
    assert result.scheduling_cost_bytes == 0


def wrong_row(simulator: VectorSimulator) -> None:
    simulator.advance(np.array([7], np.int32))


def row_beyond_int32(simulator: VectorSimulator) -> None:
    simulator.advance(np.array([2**32], np.int64))


def other_service(simulator: VectorSimulator) -> None:
    simulator.advance(np.array([1], np.int32))


def wrong_length(simulator: VectorSimulator) -> None:
    simulator.advance(np.zeros(2, np.int32))


def not_integers(simulator: VectorSimulator) -> None:
    simulator.advance(np.zeros(1, np.float32))  # type: ignore[arg-type]


def endless_delay(simulator: VectorSimulator) -> None:
    simulator.advance(np.zeros(1, np.int32), np.nan)


def delays_of_others(simulator: VectorSimulator) -> None:
    simulator.advance(np.zeros(1, np.int32), np.zeros(3))


def foreign_topology(simulator: VectorSimulator) -> None:
    simulator.advance(np.zeros(1, np.int32), topology=one_access_point())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (wrong_row, r"replica\[0\]: 7; must be a replica row from 0 to 1"),
        (row_beyond_int32, r"replica\[0\]: 4294967296; must be a replica row"),
        (other_service, r"replica\[0\]: 1 \(replica-1\) serves service-1, not service-0"),
        (wrong_length, r"replica: int32 of shape \(2,\); give one integer for each of the 1 requests"),
        (not_integers, "replica: float32"),
        (endless_delay, "decision_delay_seconds: nan"),
        (delays_of_others, r"decision_delay_seconds: shape \(3,\)"),
        (foreign_topology, "topology: not one of this simulator's"),
    ],
)
def test_refused_decisions_change_nothing(call: Callable[[VectorSimulator], None], message: str) -> None:
    simulator = VectorSimulator([one_access_point(cpu_millicores=(100.0, 100.0))], [requests_at([0.0])])
    with pytest.raises(ValueError, match=message):
        call(simulator)
    assert simulator.slot == 0
    assert simulator.advance(np.zeros(1, np.int32)).met.tolist() == [1]


def test_a_target_without_a_link_is_refused() -> None:
    topology = one_access_point()
    no_links = Links(*(np.zeros(0, dtype) for dtype in (np.int32, np.int32, np.float32, np.float32)))  # type: ignore[arg-type]
    cloud_only = replace(topology.replicas, node=np.array([1], np.int32))
    simulator = VectorSimulator(
        [replace(topology, links=no_links, replicas=cloud_only)], [requests_at([0.0])]
    )
    with pytest.raises(ValueError, match="unreachable; no link leads from ap to cloud"):
        simulator.advance(np.zeros(1, np.int32))


def test_a_target_in_another_system_is_refused() -> None:
    simulator = VectorSimulator([one_access_point()] * 2, [requests_at([0.0])] * 2)
    with pytest.raises(
        ValueError, match=r"replica\[0\]: 1 \(1/replica-0\): unreachable; no link leads from 0/ap to 1/ap"
    ):
        simulator.advance(np.array([1, 1], np.int32))


TOPOLOGY, WORKLOAD = one_access_point(), requests_at([0.0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: VectorSimulator([], []), "topologies: empty"),
        (lambda: VectorSimulator([TOPOLOGY], []), "workloads: 0 for 1 topologies"),
        (
            lambda: VectorSimulator([disjoint_union_topology([TOPOLOGY, TOPOLOGY])], [WORKLOAD]),
            r"topologies\[0\]: 2 systems",
        ),
        (
            lambda: VectorSimulator([TOPOLOGY, one_access_point(execution_seconds=1.0)], [WORKLOAD] * 2),
            r"topologies\[1\].services: differ",
        ),
        (
            lambda: VectorSimulator([TOPOLOGY, replace(TOPOLOGY, local_delay_seconds=1.0)], [WORKLOAD] * 2),
            r"topologies\[1\].local_delay_seconds: 1.0 differs",
        ),
        (
            lambda: VectorSimulator([TOPOLOGY], [replace(WORKLOAD, access_point=np.array([2], np.int32))]),
            r"workloads\[0\].access_point\[0\]: 2; the topology has rows 0 to 1",
        ),
        (
            lambda: VectorSimulator([TOPOLOGY], [replace(WORKLOAD, access_point=np.array([1], np.int32))]),
            r"workloads\[0\].access_point\[0\]: 1 is the cloud",
        ),
        (
            lambda: VectorSimulator([TOPOLOGY], [replace(WORKLOAD, service=np.array([1], np.int32))]),
            r"workloads\[0\].service\[0\]: 1; the topology has rows 0 to 0",
        ),
        (lambda: SimulatorConfig(slot_seconds=0), "slot_seconds: 0; must be finite and above zero"),
        (lambda: SimulatorConfig(dispatch_seconds_per_request=np.nan), "dispatch_seconds_per_request: nan"),
        (lambda: SimulatorConfig(latency_gain=2), "latency_gain: 2"),
    ],
)
def test_refused_systems(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
