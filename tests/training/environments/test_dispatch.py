"""Rounds, staleness and reproducibility of the environment that training and evaluation share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.cluster.snapshot import Int32Array
from policy_server.policies.dispatch import DispatchPolicy
from policy_server.policies.heuristics import EarliestCompletion, RandomDispatch, RoundRobin
from training.environments.dispatch import DispatchEnvironment, Round, rounds_of
from training.scenarios import Scenario, training_simulator
from training.simulator.simulator import SlotRequests, VectorSimulator
from training.workloads.patterns import Pattern

SLOTS = 12


def two_systems(load: float = 0.2) -> VectorSimulator:
    return training_simulator(
        [Scenario(preset="testbed-40", seed=seed, load=load, pattern=Pattern.P4) for seed in (1, 2)], SLOTS
    )


def environment_of(
    simulator: VectorSimulator, *, seed: int = 0, staleness_slots: int = 0
) -> DispatchEnvironment:
    return DispatchEnvironment(simulator, random=np.random.default_rng(seed), staleness_slots=staleness_slots)


def requests_at(system: Int32Array, access_point: Int32Array) -> SlotRequests:
    count = len(system)
    return SlotRequests(
        system=system,
        access_point=access_point,
        service=np.zeros(count, np.int32),
        deadline_seconds=np.ones(count, np.float32),
        payload_bytes=np.ones(count, np.float32),
        arrival_seconds=np.arange(count, dtype=np.float64),
        index=np.arange(count),
    )


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3))), st.booleans())
def test_rounds_take_one_request_of_each_dispatcher_in_order_of_arrival(
    places: list[tuple[int, int]], central: bool
) -> None:
    places = sorted(places, key=lambda place: place[0])
    system = np.array([place[0] for place in places], np.int32)
    access_point = np.array([4 * place[0] + place[1] for place in places], np.int32)
    dispatcher = (system if central else access_point).tolist()
    expected: list[list[int]] = []
    seen: dict[int, int] = {}
    for position, owner in enumerate(dispatcher):
        turn = seen.get(owner, 0)
        seen[owner] = turn + 1
        if turn == len(expected):
            expected.append([])
        expected[turn].append(position)
    rounds = [sorted(rows.tolist()) for rows in rounds_of(requests_at(system, access_point), central)]
    assert rounds == expected


@pytest.mark.parametrize("policy", [RoundRobin(), RandomDispatch(), EarliestCompletion(shares_picks=True)])
def test_every_request_is_decided_once(policy: DispatchPolicy) -> None:
    simulator = two_systems()
    environment = environment_of(simulator)
    while simulator.slot < SLOTS:
        arrivals = simulator.arrivals()
        made: list[Round] = []
        environment.step(policy, made.append)
        decided = np.concatenate([made_round.request for made_round in made])
        assert sorted(decided.tolist()) == list(range(len(arrivals)))
        for made_round in made:
            dispatcher = arrivals.system if policy.shares_picks else arrivals.access_point
            owners = dispatcher[made_round.request]
            assert len(set(owners.tolist())) == len(owners)
            queries = made_round.candidates.queries
            np.testing.assert_array_equal(queries.service, arrivals.service[made_round.request])
            chosen = made_round.candidates.segment[made_round.position]
            np.testing.assert_array_equal(chosen, np.arange(len(owners)))


def test_requests_go_where_the_policy_sends_them() -> None:
    simulator = two_systems()
    environment = environment_of(simulator)
    expected: dict[tuple[int, int], int] = {}
    while simulator.slot < SLOTS:
        arrivals = simulator.arrivals()
        made: list[Round] = []
        environment.step(RandomDispatch(), made.append)
        for made_round in made:
            nodes = made_round.candidates.node[made_round.position]
            for row, node in zip(made_round.request, nodes, strict=True):
                expected[int(arrivals.system[row]), int(arrivals.index[row])] = int(node)
    for system in range(simulator.systems):
        sent = simulator.outcomes(system).node
        assert {(system, row): int(node) for row, node in enumerate(sent) if node >= 0} == {
            key: node for key, node in expected.items() if key[0] == system
        }


def test_own_picks_are_known_to_their_own_access_point_only() -> None:
    simulator = two_systems(load=1.0)
    environment = environment_of(simulator)
    made: list[Round] = []
    environment.step(EarliestCompletion(), made.append)
    own: dict[tuple[int, int], int] = {}
    for made_round in made:
        candidates = made_round.candidates
        point = candidates.queries.access_point[candidates.segment]
        expected = [own.get((int(a), int(r)), 0) for a, r in zip(point, candidates.replica, strict=True)]
        assert candidates.replica_pending.tolist() == expected
        for position in made_round.position:
            key = int(point[position]), int(candidates.replica[position])
            own[key] = own.get(key, 0) + 1


def test_central_picks_are_known_to_all_access_points() -> None:
    simulator = training_simulator(
        [Scenario(preset="testbed-40", seed=1, load=0.5, pattern=Pattern.P4)], SLOTS
    )
    made: list[Round] = []
    environment_of(simulator).step(EarliestCompletion(shares_picks=True), made.append)
    picked: dict[int, int] = {}
    for made_round in made:
        candidates = made_round.candidates
        expected = [picked.get(int(replica), 0) for replica in candidates.replica]
        assert candidates.replica_pending.tolist() == expected
        chosen = int(candidates.replica[made_round.position[0]])
        picked[chosen] = picked.get(chosen, 0) + 1


def test_stale_views_are_within_bounds_and_never_go_back_in_time() -> None:
    simulator = training_simulator(
        [Scenario(preset="testbed-40", seed=1, load=0.05, pattern=Pattern.P1)], 200
    )
    environment = environment_of(simulator, seed=3, staleness_slots=3)
    taken: list[int] = []
    while simulator.slot < 200:
        slot = simulator.slot
        environment.step(RoundRobin())
        taken.append(environment.view.snapshot.version)
        assert 0 <= slot - taken[-1] <= 3
    assert taken == sorted(taken)
    ages = np.arange(200) - taken
    assert set(ages.tolist()) == {0, 1, 2, 3}


def test_without_staleness_the_view_is_of_now() -> None:
    simulator = two_systems()
    environment = environment_of(simulator)
    for slot in range(SLOTS):
        environment.step(RoundRobin())
        assert environment.view.snapshot.version == slot


def test_a_changed_topology_is_seen_at_once_however_stale_views_are() -> None:
    simulator = two_systems()
    environment = environment_of(simulator, seed=3, staleness_slots=5)
    changes = 0
    previous = simulator.topology
    for slot in range(SLOTS):
        simulator.delete_replica(slot)
        changed = simulator.topology is not previous
        changes += changed
        previous = simulator.topology
        environment.step(EarliestCompletion())
        assert environment.view.snapshot.topology is previous
        if changed:
            assert environment.view.snapshot.version == slot
    assert 0 < changes < SLOTS


def nodes_chosen(policy: DispatchPolicy, seed: int) -> list[list[int]]:
    simulator = two_systems()
    environment = environment_of(simulator, seed=seed, staleness_slots=2)
    while not simulator.done:
        environment.step(policy)
    return [simulator.outcomes(system).node.tolist() for system in range(simulator.systems)]


@pytest.mark.parametrize("policy", [RandomDispatch(), RoundRobin(), EarliestCompletion()])
def test_the_same_seed_gives_the_same_run(policy: DispatchPolicy) -> None:
    assert nodes_chosen(policy, 4) == nodes_chosen(policy, 4)


def test_another_seed_gives_another_run() -> None:
    assert nodes_chosen(RandomDispatch(), 4) != nodes_chosen(RandomDispatch(), 5)


def test_slots_left_undecided_are_rejected() -> None:
    simulator = two_systems()
    environment = environment_of(simulator)
    first = next(iter(environment.rounds(shares_picks=True)))
    environment.decide(first, np.full(len(first.request), -1, np.int64))
    outcome = environment.finish_slot()
    np.testing.assert_array_equal(outcome.failed, outcome.arrived)
