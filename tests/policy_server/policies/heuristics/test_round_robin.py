from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from policy_server.cluster.ledger import Ledger
from policy_server.cluster.snapshot import ReplicaState, Snapshot
from policy_server.policies.dispatch import DispatchView, decide
from policy_server.policies.heuristics import Native, RoundRobin, heuristic_dispatch
from tests.support.dispatching import NOW_SECONDS, picks_one_by_one, ranking, repeated_query
from tests.support.systems import (
    Endpoint,
    example_queries,
    example_snapshot,
    example_topology,
    one_service_snapshot,
)

RULES = pytest.mark.parametrize("policy", [RoundRobin(), Native()], ids=lambda policy: policy.name)


def picks_in_batches(
    policy: RoundRobin, snapshot: Snapshot, batches: list[int], dispatcher: int | None = None
) -> list[int]:
    view, ledger, random = DispatchView(snapshot), Ledger(snapshot.topology, 3), np.random.default_rng(0)
    picked: list[int] = []
    for count in batches:
        queries = repeated_query(count, dispatcher=dispatcher)
        picked += decide(policy, view, queries, ledger, NOW_SECONDS, random).replica.tolist()
    return picked


@RULES
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_endpoints_take_turns(policy: RoundRobin, count: int) -> None:
    snapshot = one_service_snapshot([Endpoint(running=row) for row in range(count)])
    assert picks_one_by_one(policy, snapshot, 3 * count) == [*range(count)] * 3


@RULES
@pytest.mark.parametrize("batches", [[12], [5, 7], [1, 3, 8], [4, 4, 4]])
def test_a_batch_of_one_dispatcher_takes_turns_too(policy: RoundRobin, batches: list[int]) -> None:
    snapshot = one_service_snapshot([Endpoint()] * 5)
    assert picks_in_batches(policy, snapshot, batches) == [*range(5), *range(5), 0, 1]


def test_alternatives_are_next_in_turn() -> None:
    snapshot = one_service_snapshot([Endpoint()] * 4)
    assert ranking(RoundRobin(), snapshot) == [0, 1, 2, 3]


def test_services_take_turns_independently() -> None:
    topology = example_topology(nodes=6, access_points=1, services=2, replicas_per_service=3)
    view, ledger = DispatchView(example_snapshot(topology)), Ledger(topology)
    random = np.random.default_rng(0)
    queries = replace(
        example_queries(topology, 16),
        service=np.array([0, 1, 1, 0, 0, 0, 1, 1, 0, 1, 0, 1, 0, 1, 1, 0], np.int32),
        access_point=np.zeros(16, np.int32),
    )
    picked = decide(RoundRobin(), view, queries, ledger, NOW_SECONDS, random).replica
    for service in (0, 1):
        own = picked[queries.service == service].tolist()
        assert own == [*np.flatnonzero(topology.replicas.service == service)] * 2


def test_dispatchers_take_turns_independently_and_start_apart() -> None:
    snapshot = one_service_snapshot([Endpoint()] * 8)
    firsts = set()
    for dispatcher in range(3):
        picked = picks_in_batches(RoundRobin(), snapshot, [1] * 16, dispatcher)
        firsts.add(picked[0])
        assert picked == [(picked[0] + turn) % 8 for turn in range(16)]
    assert len(firsts) == 3


def test_dispatchers_in_one_batch() -> None:
    snapshot = one_service_snapshot([Endpoint()] * 4)
    view, ledger, random = DispatchView(snapshot), Ledger(snapshot.topology, 2), np.random.default_rng(0)
    queries = replace(repeated_query(8), dispatcher=np.array([0, 1, 0, 0, 1, 1, 0, 1], np.int32))
    picked = decide(RoundRobin(), view, queries, ledger, NOW_SECONDS, random).replica
    for dispatcher in (0, 1):
        own = picked[queries.dispatcher == dispatcher].tolist()
        assert own == [(own[0] + turn) % 4 for turn in range(4)]


def test_a_new_replica_enters_the_cycle_and_is_not_flooded() -> None:
    small = one_service_snapshot([Endpoint()] * 3)
    large = one_service_snapshot([Endpoint()] * 4)
    ledger = Ledger(small.topology)
    picks_one_by_one(RoundRobin(), small, 300, ledger)
    ledger.bind(large.topology)
    assert Counter(picks_one_by_one(RoundRobin(), large, 8, ledger)) == {0: 2, 1: 2, 2: 2, 3: 2}


def test_a_replica_that_comes_back_is_not_flooded() -> None:
    snapshot = one_service_snapshot([Endpoint(), Endpoint(), Endpoint(state=ReplicaState.STARTING)])
    ledger = Ledger(snapshot.topology)
    picks_one_by_one(RoundRobin(), snapshot, 200, ledger)
    ready = replace(
        snapshot, load=replace(snapshot.load, replica_state=np.full(3, ReplicaState.READY, np.uint8))
    )
    assert Counter(picks_one_by_one(RoundRobin(), ready, 9, ledger)) == {0: 3, 1: 3, 2: 3}


def test_native_is_round_robin_by_another_name() -> None:
    snapshot = example_snapshot(example_topology())
    queries = example_queries(snapshot.topology, 50)
    native, round_robin = (
        decide(
            heuristic_dispatch(name),
            DispatchView(snapshot),
            queries,
            Ledger(snapshot.topology),
            NOW_SECONDS,
            np.random.default_rng(0),
        ).replica
        for name in ("native", "round-robin")
    )
    np.testing.assert_array_equal(native, round_robin)
