"""Least loaded, power of two choices, local first, greedy, earliest completion and random on hand-made systems."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from policy_server.cluster.ledger import Ledger
from policy_server.cluster.snapshot import Replicas, Snapshot
from policy_server.policies.heuristics import (
    EarliestCompletion,
    Greedy,
    LeastLoaded,
    LocalFirst,
    PowerOfTwo,
    RandomDispatch,
)
from tests.support.dispatching import picks_one_by_one, ranking, repeated_query, scores_of
from tests.support.systems import Endpoint, one_service_snapshot


def with_neighbour(snapshot: Snapshot, node: int, running: float) -> Snapshot:
    """A replica more of the same service on a node, not ready itself: load that candidates there must share."""
    topology, load = snapshot.topology, snapshot.load
    replicas = topology.replicas
    return Snapshot(
        replace(
            topology,
            replicas=Replicas(
                endpoints=(*replicas.endpoints, "neighbour"),
                service=np.append(replicas.service, 0).astype(np.int32),
                node=np.append(replicas.node, node).astype(np.int32),
                concurrency=np.append(replicas.concurrency, 64).astype(np.int32),
            ),
        ),
        replace(
            load,
            replica_state=np.append(load.replica_state, 2).astype(np.uint8),
            replica_queued=np.append(load.replica_queued, 0).astype(np.float32),
            replica_running=np.append(load.replica_running, running).astype(np.float32),
            replica_latency_seconds=np.append(load.replica_latency_seconds, np.nan).astype(np.float32),
        ),
        taken_at_seconds=snapshot.taken_at_seconds,
    )


class TestLeastLoaded:
    def test_fewest_outstanding_requests(self) -> None:
        snapshot = one_service_snapshot([Endpoint(running=2), Endpoint(running=1), Endpoint(running=3)])
        assert ranking(LeastLoaded(), snapshot) == [1, 0, 2]

    def test_queued_requests_count(self) -> None:
        snapshot = one_service_snapshot([Endpoint(running=4, queued=3), Endpoint(running=4, queued=1)])
        assert ranking(LeastLoaded(), snapshot) == [1, 0]

    def test_load_is_relative_to_the_cpu(self) -> None:
        snapshot = one_service_snapshot(
            [Endpoint(running=1), Endpoint(cpu_millicores=8000, concurrency=32, running=4)]
        )
        assert ranking(LeastLoaded(), snapshot) == [1, 0]

    def test_load_is_relative_to_the_slots(self) -> None:
        many = 64_000.0
        snapshot = one_service_snapshot(
            [
                Endpoint(cpu_millicores=many, concurrency=2, running=1),
                Endpoint(cpu_millicores=many, concurrency=16, running=4),
            ]
        )
        assert ranking(LeastLoaded(), snapshot) == [1, 0]

    def test_what_else_runs_on_the_node_counts(self) -> None:
        snapshot = one_service_snapshot([Endpoint(), Endpoint(running=1)])
        assert ranking(LeastLoaded(), snapshot) == [0, 1]
        view = with_neighbour(snapshot, node=0, running=3)
        assert scores_of(LeastLoaded(), view).argmax() == 1

    def test_own_picks_count(self) -> None:
        snapshot = one_service_snapshot([Endpoint(), Endpoint(running=2)])
        assert Counter(picks_one_by_one(LeastLoaded(), snapshot, 4)) == {0: 3, 1: 1}


class TestPowerOfTwo:
    SNAPSHOT = one_service_snapshot([Endpoint(running=row) for row in (3, 0, 2, 1)])
    SHARES = np.array([0, 1 / 2, 1 / 6, 1 / 3])
    """The k-th least loaded of n wins against the n - k more loaded ones, out of n (n - 1) / 2 pairs."""

    def test_shares_one_by_one(self) -> None:
        first = [int(scores_of(PowerOfTwo(), self.SNAPSHOT, seed=seed).argmax()) for seed in range(1500)]
        counts = np.bincount(first, minlength=4)
        assert counts[0] == 0
        expected = 1500 * self.SHARES[1:]
        assert ((counts[1:] - expected) ** 2 / expected).sum() < 20

    def test_shares_in_a_batch(self) -> None:
        scores = scores_of(PowerOfTwo(), self.SNAPSHOT, repeated_query(6000)).reshape(6000, 4)
        counts = np.bincount(scores.argmax(axis=1), minlength=4)
        assert counts[0] == 0
        expected = 6000 * self.SHARES[1:]
        assert ((counts[1:] - expected) ** 2 / expected).sum() < 20

    def test_all_pairs_are_equally_likely(self) -> None:
        scores = scores_of(PowerOfTwo(), self.SNAPSHOT, repeated_query(6000)).reshape(6000, 4)
        pairs = Counter(tuple(sorted(row)) for row in np.argsort(-scores, axis=1)[:, :2].tolist())
        assert len(pairs) == 6
        assert sum((count - 1000) ** 2 / 1000 for count in pairs.values()) < 28

    def test_those_outside_the_pair_rank_below_it_by_load(self) -> None:
        for seed in range(20):
            order = np.argsort(-scores_of(PowerOfTwo(), self.SNAPSHOT, seed=seed)).tolist()
            load = [3, 0, 2, 1]
            assert load[order[0]] < load[order[1]]
            assert load[order[2]] < load[order[3]]

    def test_a_lone_candidate_is_chosen(self) -> None:
        assert picks_one_by_one(PowerOfTwo(), one_service_snapshot([Endpoint(running=3)]), 3) == [0, 0, 0]

    def test_of_two_the_less_loaded(self) -> None:
        snapshot = one_service_snapshot([Endpoint(running=3), Endpoint(running=1)])
        for seed in range(20):
            assert scores_of(PowerOfTwo(), snapshot, seed=seed).argmax() == 1


class TestLocalFirst:
    def test_near_before_idle(self) -> None:
        snapshot = one_service_snapshot(
            [Endpoint("cloud", cpu_millicores=64_000, concurrency=64), Endpoint("ap-1"), Endpoint(running=3)]
        )
        assert ranking(LocalFirst(), snapshot) == [2, 1, 0]

    def test_least_loaded_inside_a_tier(self) -> None:
        snapshot = one_service_snapshot(
            [
                Endpoint("ap-1", running=1),
                Endpoint(running=2),
                Endpoint("ap-1"),
                Endpoint(running=1),
            ]
        )
        assert ranking(LocalFirst(), snapshot) == [3, 1, 2, 0]

    def test_spills_what_near_nodes_cannot_answer_in_time(self) -> None:
        snapshot = one_service_snapshot([Endpoint(running=4, queued=20), Endpoint("ap-1"), Endpoint("cloud")])
        assert ranking(LocalFirst(), snapshot, deadline_seconds=5.0) == [0, 1, 2]
        assert ranking(LocalFirst(), snapshot, deadline_seconds=0.3) == [1, 2, 0]

    def test_the_cloud_is_passed_over_where_it_is_too_far(self) -> None:
        snapshot = one_service_snapshot([Endpoint("cloud"), Endpoint(running=4, queued=1)])
        assert ranking(LocalFirst(), snapshot, deadline_seconds=0.18) == [1, 0]

    def test_when_all_are_late_the_least_loaded(self) -> None:
        snapshot = one_service_snapshot(
            [Endpoint(running=4, queued=9), Endpoint("ap-1", running=4, queued=3), Endpoint("cloud")]
        )
        assert ranking(LocalFirst(), snapshot, deadline_seconds=0.05) == [2, 1, 0]


class TestGreedy:
    def test_lowest_utilisation(self) -> None:
        snapshot = one_service_snapshot(
            [Endpoint(running=2), Endpoint("ap-1", running=1), Endpoint(running=3)]
        )
        assert ranking(Greedy(), snapshot) == [1, 0, 2]

    def test_edge_before_cloud_however_busy(self) -> None:
        snapshot = one_service_snapshot([Endpoint("cloud"), Endpoint(running=4, queued=50)])
        assert ranking(Greedy(), snapshot) == [1, 0]

    def test_the_cloud_where_no_edge_node_can(self) -> None:
        assert ranking(Greedy(), one_service_snapshot([Endpoint("cloud")])) == [0]

    def test_utilisation_is_of_the_node(self) -> None:
        snapshot = with_neighbour(one_service_snapshot([Endpoint(), Endpoint(running=1)]), 0, running=2)
        assert scores_of(Greedy(), snapshot).argmax() == 1

    def test_own_picks_count(self) -> None:
        snapshot = one_service_snapshot([Endpoint(), Endpoint(running=2)])
        counts = Counter(picks_one_by_one(Greedy(), snapshot, 4))
        assert counts == {0: 3, 1: 1}


class TestEarliestCompletion:
    def test_near_while_equally_fast(self) -> None:
        snapshot = one_service_snapshot([Endpoint("cloud"), Endpoint("ap-1"), Endpoint()])
        assert ranking(EarliestCompletion(), snapshot) == [2, 1, 0]

    def test_far_when_waiting_takes_longer_than_the_way(self) -> None:
        snapshot = one_service_snapshot([Endpoint(running=4, queued=4), Endpoint("ap-1"), Endpoint("cloud")])
        assert ranking(EarliestCompletion(), snapshot) == [1, 2, 0]

    def test_a_fast_node_far_away(self) -> None:
        snapshot = one_service_snapshot([Endpoint(speed=0.5), Endpoint("ap-1", speed=2)])
        assert ranking(EarliestCompletion(), snapshot) == [1, 0]

    def test_own_picks_count(self) -> None:
        snapshot = one_service_snapshot([Endpoint(), Endpoint("ap-1")])
        counts = Counter(picks_one_by_one(EarliestCompletion(), snapshot, 12))
        # The first four find a free slot near; from then on both fill alike.
        assert counts[0] in (6, 7, 8)


@pytest.mark.parametrize("count", [1, 6])
def test_random_scores_are_equal(count: int) -> None:
    snapshot = one_service_snapshot([Endpoint(running=row) for row in range(3)])
    scores = scores_of(RandomDispatch(), snapshot, repeated_query(count), Ledger(snapshot.topology))
    assert scores.tolist() == [0.0] * (3 * count)
