"""Figures of a run and of a slot, against hand computations."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from policy_server.cluster.snapshot import Nodes
from tests.training.simulator.small import EDGE_REPLICA, REPLICA_BYTES, requests_at, small_topology
from training.simulator.metrics import summarise
from training.simulator.simulator import SimulatorConfig, VectorSimulator
from training.simulator.state import RequestStatus

MET, DROPPED, PENDING = RequestStatus.MET, RequestStatus.DROPPED_QUEUED, RequestStatus.PENDING


def test_a_run_is_condensed() -> None:
    result = summarise(
        status=np.array([MET, DROPPED, MET, PENDING], np.uint8),
        completion_seconds=np.array([1.0, 9.0, 5.0, math.nan]),
        arrival_seconds=np.array([0.0, 1.0, 2.0, 3.0]),
        service=np.array([0, 0, 2, 2], np.int32),
        services=3,
        forwarded_bytes=10.0,
        pulled_bytes=5.0,
        edge_cpu_utilisation=0.5,
        cloud_cpu_utilisation=0.25,
    )
    assert result.arrived == 4
    assert (result.met, result.failed, result.counts[PENDING]) == (2, 1, 1)
    assert result.throughput_rate == 0.5
    assert result.scheduling_cost_bytes == 15.0
    assert result.mean_latency_seconds == 2.0
    assert result.latency_seconds[50] == 2.0
    assert result.service_arrived.tolist() == [2, 0, 2]
    np.testing.assert_array_equal(result.service_throughput_rate, [0.5, np.nan, 0.5])


def test_a_slot_is_measured() -> None:
    """Two requests of 500 millicores run for 0.1 s of a slot on the one edge node of 1000."""
    config = SimulatorConfig(dispatch_seconds_per_request=0.0)
    topology = small_topology(execution_seconds=0.1, concurrency=2)
    simulator = VectorSimulator([topology], [requests_at([0.0, 0.0])], config)
    outcome = simulator.advance(np.full(2, EDGE_REPLICA, np.int32))
    assert outcome.arrived.tolist() == [2]
    assert (outcome.met.tolist(), outcome.failed.tolist()) == ([2], [0])
    assert outcome.edge_cpu_utilisation[0] == pytest.approx(0.1 / 0.25)
    assert outcome.cloud_cpu_utilisation[0] == 0.0
    assert outcome.cpu_usage_std.tolist() == [0.0]
    assert outcome.resolved_index.tolist() == [0, 1]
    assert outcome.resolved_status.tolist() == [MET, MET]


def test_imbalance_is_the_standard_deviation_over_edge_nodes() -> None:
    config = SimulatorConfig(dispatch_seconds_per_request=0.0)
    topology = small_topology(execution_seconds=0.1)
    nodes = topology.nodes
    second = Nodes(
        names=(*nodes.names, "edge-0-1"),
        access_point=np.append(nodes.access_point, np.int32(0)),
        cpu_millicores=np.append(nodes.cpu_millicores, nodes.cpu_millicores[0]),
        memory_bytes=np.append(nodes.memory_bytes, nodes.memory_bytes[0]),
        speed=np.append(nodes.speed, nodes.speed[0]),
    )
    simulator = VectorSimulator([replace(topology, nodes=second)], [requests_at([0.0])], config)
    outcome = simulator.advance(np.array([EDGE_REPLICA], np.int32))
    assert outcome.cpu_usage_std[0] == pytest.approx((500 / 1000) * (0.1 / 0.25) / 2)
    assert outcome.memory_usage_std[0] == pytest.approx(REPLICA_BYTES / (4 * REPLICA_BYTES) / 2)
