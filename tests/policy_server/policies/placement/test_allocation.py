from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policy_server.cluster.snapshot import Snapshot
from policy_server.policies.placement import LeastAllocated, MostAllocated
from tests.support.placing import placement_query
from tests.support.systems import Endpoint, one_service_snapshot


@pytest.fixture
def snapshot() -> Snapshot:
    """CPU of 1000 millicores, 4 GiB of memory each."""
    snapshot = one_service_snapshot([Endpoint()] * 3)
    load = replace(
        snapshot.load,
        node_cpu_used_millicores=np.array([500, 0, 0], np.float32),
        node_memory_used_bytes=np.array([0, 0, 3 * 2**30], np.float32),
    )
    return replace(snapshot, load=load)


def test_mean_of_both_shares_after_placement(snapshot: Snapshot) -> None:
    query = placement_query(snapshot, cpu_millicores=100.0, memory_bytes=2.0**30)
    shares = np.array([(0.6 + 0.25) / 2, (0.1 + 0.25) / 2, (0.1 + 1.0) / 2])
    np.testing.assert_allclose(MostAllocated().score(snapshot, query), shares)
    np.testing.assert_allclose(LeastAllocated().score(snapshot, query), -shares)


def test_pending_replicas_hold_resources_too(snapshot: Snapshot) -> None:
    query = placement_query(
        snapshot, cpu_millicores=100.0, memory_bytes=2.0**30, pending_replicas=np.array([0, 2, 0.5])
    )
    shares = np.array([(0.6 + 0.25) / 2, (0.3 + 0.75) / 2, (0.15 + 1.125) / 2])
    np.testing.assert_allclose(MostAllocated().score(snapshot, query), shares)
