"""The life of replicas: image pull, cold start, draining, and decisions made on an older topology."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policy_server.cluster.actions import AddReplica, DeleteReplica
from policy_server.cluster.snapshot import Links, ReplicaState
from tests.training.simulator.small import (
    CLOUD_BYTES_PER_SECOND,
    CLOUD_DELAY_SECONDS,
    CLOUD_NODE,
    COLD_START_SECONDS,
    EDGE_NODE,
    EDGE_REPLICA,
    IMAGE_BYTES,
    REPLICA_BYTES,
    requests_at,
    run_to_the_end,
    small_topology,
)
from training.simulator.simulator import SimulatorConfig, VectorSimulator
from training.simulator.state import RequestStatus

PULL_SECONDS = IMAGE_BYTES / CLOUD_BYTES_PER_SECOND + CLOUD_DELAY_SECONDS


def idle_simulator(
    *, services: int = 3, node_millicores: float = 1000.0, concurrency: int = 1
) -> VectorSimulator:
    topology = small_topology(services=services, node_millicores=node_millicores, concurrency=concurrency)
    return VectorSimulator([topology], [requests_at([], duration_seconds=60.0)])


def advance_to(simulator: VectorSimulator, seconds: float) -> None:
    while simulator.now_seconds < seconds:
        simulator.advance(np.zeros(len(simulator.arrivals()), np.int32))


def state_of(simulator: VectorSimulator, endpoint: str) -> ReplicaState:
    snapshot = simulator.snapshot()
    return ReplicaState(snapshot.load.replica_state[snapshot.topology.replica_index[endpoint]])


def ready_seconds(simulator: VectorSimulator, endpoint: str) -> float:
    """The first slot boundary at which a replica is ready."""
    while state_of(simulator, endpoint) != ReplicaState.READY:
        simulator.advance(np.zeros(0, np.int32))
    return simulator.now_seconds


def next_slot(seconds: float) -> float:
    slot = SimulatorConfig().slot_seconds
    return float(np.ceil(seconds / slot) * slot)


def test_the_first_replica_of_a_node_pulls_its_image_and_starts() -> None:
    simulator = idle_simulator()
    added = simulator.add_replica(1, EDGE_NODE)
    assert added.accepted
    assert state_of(simulator, added.endpoint) == ReplicaState.STARTING
    assert ready_seconds(simulator, added.endpoint) == next_slot(PULL_SECONDS + COLD_START_SECONDS)
    assert simulator.results()[0].pulled_bytes == IMAGE_BYTES
    assert simulator.results()[0].scheduling_cost_bytes == IMAGE_BYTES


def test_further_replicas_pull_nothing() -> None:
    simulator = idle_simulator()
    added = simulator.add_replica(0, EDGE_NODE)
    assert ready_seconds(simulator, added.endpoint) == next_slot(COLD_START_SECONDS)
    assert simulator.results()[0].pulled_bytes == 0


def test_the_image_stays_after_deletion() -> None:
    simulator = idle_simulator()
    added = simulator.add_replica(1, EDGE_NODE)
    simulator.delete_replica(simulator.topology.replica_index[added.endpoint])
    again = simulator.add_replica(1, EDGE_NODE)
    assert again.accepted
    assert simulator.results()[0].pulled_bytes == IMAGE_BYTES
    assert ready_seconds(simulator, again.endpoint) == next_slot(PULL_SECONDS + COLD_START_SECONDS)


def test_pulls_share_the_link_from_the_cloud() -> None:
    simulator = idle_simulator()
    simulator.add_replica(1, EDGE_NODE)
    second = simulator.add_replica(2, EDGE_NODE)
    expected = PULL_SECONDS + IMAGE_BYTES / CLOUD_BYTES_PER_SECOND + COLD_START_SECONDS
    assert simulator.snapshot().load.link_backlog_bytes.tolist() == [0, 2 * IMAGE_BYTES]
    assert ready_seconds(simulator, second.endpoint) == next_slot(expected)


def test_a_starting_replica_rejects_requests() -> None:
    simulator = VectorSimulator([small_topology(services=2)], [requests_at([0.1, 10.0], service=1)])
    added = simulator.add_replica(1, EDGE_NODE)
    run_to_the_end(simulator, simulator.topology.replica_index[added.endpoint])
    assert simulator.outcomes(0).status.tolist() == [RequestStatus.REJECTED, RequestStatus.MET]


def test_memory_is_held_from_the_beginning_and_given_back_at_the_end() -> None:
    simulator = idle_simulator()
    used = simulator.snapshot().load.node_memory_used_bytes[EDGE_NODE]
    added = simulator.add_replica(1, EDGE_NODE)
    assert simulator.snapshot().load.node_memory_used_bytes[EDGE_NODE] == used + REPLICA_BYTES
    simulator.delete_replica(simulator.topology.replica_index[added.endpoint])
    assert simulator.snapshot().load.node_memory_used_bytes[EDGE_NODE] == used
    assert added.endpoint not in simulator.topology.replica_index


def test_a_full_node_refuses() -> None:
    simulator = idle_simulator()
    assert all(simulator.add_replica(0, EDGE_NODE).accepted for _ in range(3))
    refused = simulator.add_replica(1, EDGE_NODE)
    assert not refused.accepted
    assert "edge-0-0 has 0 bytes of memory left; service-1 needs 100000000" in refused.reason
    assert simulator.results()[0].pulled_bytes == 0


def test_a_node_with_too_little_cpu_for_one_request_refuses() -> None:
    refused = idle_simulator(node_millicores=400.0).add_replica(1, EDGE_NODE)
    assert not refused.accepted
    assert "edge-0-0 has 400 millicores; a request of service-1 needs 500" in refused.reason


def test_a_node_that_no_cloud_reaches_refuses_new_services_only() -> None:
    topology = small_topology(services=2)
    links = topology.links
    uplink = Links(
        links.source[:1], links.target[:1], links.delay_seconds[:1], links.bandwidth_bytes_per_second[:1]
    )
    simulator = VectorSimulator([replace(topology, links=uplink)], [requests_at([], duration_seconds=1.0)])
    refused = simulator.add_replica(1, EDGE_NODE)
    assert not refused.accepted
    assert "no link from a cloud to the access point of edge-0-0; can't pull service-1" in refused.reason
    assert simulator.add_replica(0, EDGE_NODE).accepted


def test_the_cloud_starts_replicas_without_a_pull() -> None:
    simulator = idle_simulator()
    added = simulator.add_replica(1, CLOUD_NODE)
    assert ready_seconds(simulator, added.endpoint) == next_slot(COLD_START_SECONDS)
    assert simulator.results()[0].pulled_bytes == 0


def test_a_busy_replica_drains_before_it_goes() -> None:
    workload = requests_at([0.0, 0.5], work_factor=8.0)
    simulator = VectorSimulator([small_topology()], [workload])
    simulator.advance(np.array([EDGE_REPLICA], np.int32))
    assert simulator.delete_replica(EDGE_REPLICA).accepted
    assert state_of(simulator, "edge-0") == ReplicaState.DRAINING
    twice = simulator.delete_replica(EDGE_REPLICA)
    assert (twice.accepted, twice.reason) == (False, "edge-0 is draining already")
    used = simulator.snapshot().load.node_memory_used_bytes[EDGE_NODE]
    advance_to(simulator, 1.0)
    assert "edge-0" in simulator.topology.replica_index
    advance_to(simulator, 1.25)
    assert "edge-0" not in simulator.topology.replica_index
    assert simulator.snapshot().load.node_memory_used_bytes[EDGE_NODE] == used - REPLICA_BYTES
    assert simulator.outcomes(0).status.tolist() == [RequestStatus.MET, RequestStatus.REJECTED]


def test_decisions_on_an_older_topology_find_their_replicas() -> None:
    topology = small_topology(services=1, hosted=(0, 0))
    simulator = VectorSimulator([topology], [requests_at([0.0, 0.1, 0.2], work_factor=0.1)])
    old = simulator.topology
    assert simulator.delete_replica(0).accepted
    assert simulator.topology is not old
    assert simulator.topology.replicas.endpoints == ("edge-1", "cloud-0")
    simulator.advance(np.array([0, 1, 2], np.int32), topology=old)
    run_to_the_end(simulator)
    outcomes = simulator.outcomes(0)
    assert outcomes.status.tolist() == [RequestStatus.REJECTED, RequestStatus.MET, RequestStatus.MET]
    assert outcomes.node.tolist() == [-1, EDGE_NODE, CLOUD_NODE]
    gone = simulator.delete_replica(0, topology=old)
    assert (gone.accepted, gone.reason) == (False, "edge-0 has gone already")


def test_a_new_replica_is_not_taken_for_the_one_whose_record_it_got() -> None:
    simulator = VectorSimulator([small_topology()], [requests_at([0.0])])
    old = simulator.topology
    simulator.delete_replica(EDGE_REPLICA)
    simulator.add_replica(0, EDGE_NODE)
    simulator.advance(np.array([EDGE_REPLICA], np.int32), topology=old)
    assert simulator.outcomes(0).status.tolist() == [RequestStatus.REJECTED]
    assert not simulator.delete_replica(EDGE_REPLICA, topology=old).accepted


def test_added_replicas_have_the_concurrency_of_the_edge_and_names_of_their_own() -> None:
    simulator = idle_simulator(concurrency=3)
    names = [simulator.add_replica(0, EDGE_NODE).endpoint for _ in range(3)]
    replicas = simulator.topology.replicas
    assert len(set(names)) == 3
    rows = [replicas.endpoints.index(name) for name in names]
    assert replicas.concurrency[rows].tolist() == [3, 3, 3]


def test_the_topology_stays_the_same_object_until_a_replica_comes_or_goes() -> None:
    simulator = idle_simulator()
    before = simulator.topology
    simulator.advance(np.zeros(0, np.int32))
    assert simulator.snapshot().topology is before
    simulator.add_replica(1, EDGE_NODE)
    assert simulator.topology is not before


def test_actions_are_applied_in_order() -> None:
    simulator = idle_simulator()
    topology = simulator.topology
    row = topology.replica_index["edge-0"]
    results = simulator.apply(
        [AddReplica(1, EDGE_NODE), DeleteReplica(row), DeleteReplica(row), AddReplica(2, EDGE_NODE)], topology
    )
    assert [result.accepted for result in results] == [True, True, False, True]
    assert results[1].endpoint == "edge-0"


@pytest.mark.parametrize(
    ("service", "node", "message"),
    [
        (3, 0, "service: 3; must be a row from 0 to 2"),
        (-1, 0, "service: -1; must be a row"),
        (0, 2, "node: 2; must be a row from 0 to 1"),
    ],
)
def test_unknown_rows(service: int, node: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        idle_simulator().add_replica(service, node)


def test_unknown_replica() -> None:
    with pytest.raises(ValueError, match="replica: 4; must be a row from 0 to 3"):
        idle_simulator().delete_replica(4)
