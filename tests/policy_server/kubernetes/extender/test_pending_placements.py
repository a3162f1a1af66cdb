from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policy_server.cluster.snapshot import Snapshot
from policy_server.kubernetes.extender.pending_placements import (
    MOST_EQUALS,
    MOST_PENDING,
    PENDING_SECONDS,
    PendingPlacements,
)
from tests.support.systems import Endpoint, one_service_snapshot


def hosting(*replicas: int, nodes: int = 3) -> Snapshot:
    """A system whose service has that many replicas on each node."""
    snapshot = one_service_snapshot([Endpoint()] * nodes)
    node = np.repeat(np.arange(len(replicas), dtype=np.int32), replicas)
    count = len(node)
    columns = replace(
        snapshot.topology.replicas,
        endpoints=tuple(f"10.0.0.{row}:80" for row in range(count)),
        service=np.zeros(count, np.int32),
        node=node,
        concurrency=np.ones(count, np.int32),
    )
    zeros = np.zeros(count, np.float32)
    load = replace(
        snapshot.load,
        replica_state=np.ones(count, np.uint8),
        replica_queued=zeros,
        replica_running=zeros,
        replica_latency_seconds=zeros,
    )
    return Snapshot(replace(snapshot.topology, replicas=columns), load)


@pytest.fixture
def pending() -> PendingPlacements:
    return PendingPlacements()


def counts(
    pending: PendingPlacements, snapshot: Snapshot, now: float = 0.0, without: str = ""
) -> list[float]:
    return pending.replicas(snapshot, 0, now, without=without).tolist()


def place(pending: PendingPlacements, pod: str, snapshot: Snapshot, *nodes: int, now: float = 0.0) -> None:
    pending.place(pod, snapshot, 0, np.array(nodes), now)


def test_counts_until_the_state_shows_it(pending: PendingPlacements) -> None:
    before = hosting(1, 0, 0)
    place(pending, "a", before, 0)
    place(pending, "b", before, 0)
    place(pending, "c", before, 2)
    assert counts(pending, before) == [2, 0, 1]
    assert counts(pending, hosting(2, 0, 0)) == [1, 0, 1]
    assert counts(pending, hosting(2, 0, 1)) == [1, 0, 0]
    assert counts(pending, hosting(3, 0, 1)) == [0, 0, 0]
    assert not len(pending)


def test_a_pod_that_is_tried_again_counts_once(pending: PendingPlacements) -> None:
    snapshot = hosting(0, 0, 0)
    place(pending, "a", snapshot, 0)
    assert counts(pending, snapshot, without="a") == [0, 0, 0]
    place(pending, "a", snapshot, 1)
    assert counts(pending, snapshot) == [0, 1, 0]


def test_equally_good_nodes_share_a_replica(pending: PendingPlacements) -> None:
    snapshot = hosting(0, 0, 0)
    place(pending, "a", snapshot, 0, 1)
    assert counts(pending, snapshot) == [0.5, 0.5, 0]
    assert counts(pending, hosting(0, 1, 0)) == [0, 0, 0]


def test_what_does_not_come_about_is_forgotten(pending: PendingPlacements) -> None:
    snapshot = hosting(0, 0, 0)
    place(pending, "a", snapshot, 0, now=10.0)
    assert counts(pending, snapshot, now=10.0 + PENDING_SECONDS) == [1, 0, 0]
    assert counts(pending, snapshot, now=10.1 + PENDING_SECONDS) == [0, 0, 0]
    assert not len(pending)


def test_nodes_that_are_gone(pending: PendingPlacements) -> None:
    place(pending, "a", hosting(0, 0, 0), 2)
    assert counts(pending, hosting(0, nodes=1)) == [0]


def test_services_do_not_mix(pending: PendingPlacements) -> None:
    snapshot = hosting(0, 0, 0)
    place(pending, "a", snapshot, 0)
    services = replace(snapshot.topology.services, names=("other",))
    other = replace(snapshot, topology=replace(snapshot.topology, services=services))
    assert counts(pending, other) == [0, 0, 0]
    assert counts(pending, snapshot) == [1, 0, 0]


def test_memory_is_bounded(pending: PendingPlacements) -> None:
    snapshot = hosting(0, nodes=MOST_EQUALS + 1)
    for number in range(MOST_PENDING + 10):
        place(pending, f"pod-{number}", snapshot, number % 3)
    assert len(pending) == MOST_PENDING
    place(pending, "pod-20", snapshot, *range(MOST_EQUALS + 1))
    assert len(pending) == MOST_PENDING - 1
