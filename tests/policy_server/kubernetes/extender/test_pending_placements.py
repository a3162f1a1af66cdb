from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policy_server.cluster.snapshot import Topology
from policy_server.kubernetes.extender.pending_placements import (
    MOST_EQUALS,
    MOST_PENDING,
    PENDING_SECONDS,
    PendingPlacements,
)
from tests.support.systems import Endpoint, one_service_snapshot


def hosting(*replicas: int, nodes: int = 3) -> Topology:
    """A system whose service has that many replicas on each node."""
    topology = one_service_snapshot([Endpoint()] * nodes).topology
    node = np.repeat(np.arange(len(replicas), dtype=np.int32), replicas)
    columns = replace(
        topology.replicas,
        endpoints=tuple(f"10.0.0.{row}:80" for row in range(len(node))),
        service=np.zeros(len(node), np.int32),
        node=node,
        concurrency=np.ones(len(node), np.int32),
    )
    return replace(topology, replicas=columns)


@pytest.fixture
def pending() -> PendingPlacements:
    return PendingPlacements()


def counts(
    pending: PendingPlacements, topology: Topology, now: float = 0.0, without: str = ""
) -> list[float]:
    return pending.replicas(topology, 0, now, without=without).tolist()


def place(pending: PendingPlacements, pod: str, topology: Topology, *nodes: int, now: float = 0.0) -> None:
    pending.place(pod, topology, 0, np.array(nodes), now)


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
    topology = hosting(0, 0, 0)
    place(pending, "a", topology, 0)
    assert counts(pending, topology, without="a") == [0, 0, 0]
    place(pending, "a", topology, 1)
    assert counts(pending, topology) == [0, 1, 0]


def test_equally_good_nodes_share_a_replica(pending: PendingPlacements) -> None:
    topology = hosting(0, 0, 0)
    place(pending, "a", topology, 0, 1)
    assert counts(pending, topology) == [0.5, 0.5, 0]
    assert counts(pending, hosting(0, 1, 0)) == [0, 0, 0]


def test_what_does_not_come_about_is_forgotten(pending: PendingPlacements) -> None:
    topology = hosting(0, 0, 0)
    place(pending, "a", topology, 0, now=10.0)
    assert counts(pending, topology, now=10.0 + PENDING_SECONDS) == [1, 0, 0]
    assert counts(pending, topology, now=10.1 + PENDING_SECONDS) == [0, 0, 0]
    assert not len(pending)


def test_nodes_that_are_gone(pending: PendingPlacements) -> None:
    place(pending, "a", hosting(0, 0, 0), 2)
    assert counts(pending, hosting(0, nodes=1)) == [0]


def test_services_do_not_mix(pending: PendingPlacements) -> None:
    topology = hosting(0, 0, 0)
    place(pending, "a", topology, 0)
    other = replace(topology, services=replace(topology.services, names=("other",)))
    assert counts(pending, other) == [0, 0, 0]
    assert counts(pending, topology) == [1, 0, 0]


def test_memory_is_bounded(pending: PendingPlacements) -> None:
    topology = hosting(0, nodes=MOST_EQUALS + 1)
    for number in range(MOST_PENDING + 10):
        place(pending, f"pod-{number}", topology, number % 3)
    assert len(pending) == MOST_PENDING
    place(pending, "pod-20", topology, *range(MOST_EQUALS + 1))
    assert len(pending) == MOST_PENDING - 1
