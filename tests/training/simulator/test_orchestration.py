"""Replicas that come and go."""

from __future__ import annotations

import numpy as np
import pytest

from policy_server.cluster.snapshot import ReplicaState
from tests.training.simulator.systems import MEBIBYTE, one_access_point, requests_at
from training.simulator.orchestration import AddReplica, DeleteReplica
from training.simulator.simulator import VectorSimulator
from training.simulator.state import RequestStatus

IDLE = requests_at([], duration_seconds=100.0)
NOBODY = np.zeros(0, np.int32)


def state_by_endpoint(simulator: VectorSimulator) -> dict[str, ReplicaState]:
    snapshot = simulator.snapshot()
    return {
        endpoint: ReplicaState(state)
        for endpoint, state in zip(
            snapshot.topology.replicas.endpoints, snapshot.load.replica_state, strict=True
        )
    }


def test_a_new_replica_holds_memory_pulls_its_image_and_starts() -> None:
    # 10 MB at 80 Mbit/s take 1 s, 31 ms to arrive, and 0.5 s to start.
    topology = one_access_point()
    simulator = VectorSimulator([topology], [IDLE])
    simulator.delete_replica(0)
    simulator = VectorSimulator([one_access_point(cpu_millicores=(100.0, 100.0))], [IDLE])
    bare = VectorSimulator([_without_replicas()], [IDLE])
    added = bare.add_replica(0, 0)
    assert added.accepted
    assert bare.snapshot().load.node_memory_used_bytes[0] == 128 * MEBIBYTE
    assert bare.snapshot().load.link_backlog_bytes.tolist() == [0, 10e6]
    states = []
    for _ in range(8):
        states.append(state_by_endpoint(bare)[added.endpoint])
        bare.advance(NOBODY)
    assert states == [ReplicaState.STARTING] * 7 + [ReplicaState.READY]
    assert bare.results()[0].pulled_bytes == 10e6
    del simulator, topology


def _without_replicas():  # type: ignore[no-untyped-def]
    return one_access_point(replicas_per_service=0)
