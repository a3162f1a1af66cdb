"""The state store: reports, outcomes, and what is kept between them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.cluster.snapshot import Float32Array, Load, Snapshot, Topology, idle_load
from policy_server.cluster.state_store import LATENCY_WEIGHT, StateConflictError, StateStore
from policy_server.policies.dispatch import DispatchView, decide
from policy_server.policies.heuristics import EarliestCompletion
from tests.support.dispatching import repeated_query
from tests.support.systems import Endpoint, example_topology, one_service_snapshot, random_order, reordered

LIFETIME_SECONDS = 60.0


class Clock:
    """A clock the test sets."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def store_with(clock: Clock) -> StateStore[DispatchView]:
    return StateStore(DispatchView, latency_lifetime_seconds=LIFETIME_SECONDS, clock=clock)


def take(store: StateStore[DispatchView], snapshot: Snapshot, age_seconds: float = 0.0) -> int:
    return store.replace(snapshot.topology, snapshot.load, age_seconds=age_seconds)


def latencies(store: StateStore[DispatchView]) -> Float32Array:
    assert store.held is not None
    return store.held.snapshot.load.replica_latency_seconds


def unknown_latencies(load: Load) -> Load:
    return replace(load, replica_latency_seconds=np.full_like(load.replica_latency_seconds, np.nan))


def pick(store: StateStore[DispatchView], clock: Clock, dispatcher: int | None = 0) -> int:
    assert store.held is not None
    decisions = decide(
        EarliestCompletion(),
        store.held.view,
        repeated_query(1, dispatcher=dispatcher),
        store.held.ledger,
        clock(),
        np.random.default_rng(0),
    )
    return int(decisions.replica[0])


def test_age_runs_on_the_clock_from_when_the_load_was_true() -> None:
    clock = Clock()
    store = store_with(clock)
    assert np.isnan(store.age_seconds())
    assert store.version == 0
    assert take(store, one_service_snapshot([Endpoint()]), age_seconds=2.0) == 1
    clock.seconds += 3
    assert store.age_seconds() == 5.0


@given(st.lists(st.integers(0, 30), max_size=12))
def test_version_only_ever_grows(versions: list[int]) -> None:
    snapshot = one_service_snapshot([Endpoint()])
    store = store_with(Clock())
    for version in versions:
        held = store.version
        if 0 < version <= held:
            with pytest.raises(StateConflictError, match=f"version {held} is held already"):
                store.replace(snapshot.topology, snapshot.load, version=version)
            assert store.version == held
        else:
            taken = store.replace(snapshot.topology, snapshot.load, version=version)
            assert taken == store.version == (version or held + 1)


def test_equal_topology_is_taken_for_the_same() -> None:
    store = store_with(Clock())
    take(store, Snapshot(topology := example_topology(), idle_load(topology)))
    first = store.held
    again = example_topology()
    take(store, Snapshot(again, idle_load(again)))
    assert first is not None
    assert store.held is not None
    assert store.held.snapshot.topology is first.snapshot.topology
    assert store.held.view.sets is first.view.sets
    assert store.held.ledger is first.ledger


def changed(topology: Topology) -> list[Topology]:
    faster = replace(topology.nodes, speed=topology.nodes.speed * 2)
    moved = replace(topology.replicas, node=topology.replicas.node[::-1].copy())
    return [
        replace(topology, nodes=faster),
        replace(topology, replicas=moved),
        replace(topology, local_delay_seconds=0.5),
        example_topology(nodes=9),
    ]


@pytest.mark.parametrize("number", range(4))
def test_changed_topology_is_a_new_one(number: int) -> None:
    store = store_with(Clock())
    topology = example_topology()
    take(store, Snapshot(topology, idle_load(topology)))
    other = changed(topology)[number]
    take(store, Snapshot(other, idle_load(other)))
    assert store.held is not None
    assert store.held.snapshot.topology is other


def test_picks_stay_pending_until_a_report_can_show_them() -> None:
    clock = Clock()
    store = store_with(clock)
    snapshot = one_service_snapshot([Endpoint(), Endpoint("ap-1")])
    take(store, snapshot)
    assert store.held is not None
    ledger = store.held.ledger
    pick(store, clock)
    take(store, snapshot, age_seconds=1.0)
    assert ledger.pending == 1
    clock.seconds += 1
    take(store, snapshot)
    assert ledger.pending == 0


def test_picks_survive_a_change_of_the_replicas() -> None:
    clock = Clock()
    store = store_with(clock)
    snapshot = one_service_snapshot([Endpoint(speed=1 - row / 10) for row in range(4)])
    take(store, snapshot)
    chosen = snapshot.topology.replicas.endpoints[pick(store, clock)]
    order = replace(random_order(snapshot.topology, 1), access_points=np.arange(3))
    take(store, reordered(snapshot, order), age_seconds=1.0)
    assert store.held is not None
    row = store.held.snapshot.topology.replica_index[chosen]
    assert store.held.ledger.replica_pending[0, row] == 1
    assert store.held.ledger.pending == 1


def test_outcome_settles_the_pick_of_its_access_point() -> None:
    clock = Clock()
    store = store_with(clock)
    take(store, one_service_snapshot([Endpoint()]))
    assert store.held is not None
    ledger = store.held.ledger
    for dispatcher in (0, 1, 1):
        pick(store, clock, dispatcher)
    assert store.settle("10.0.0.0:8080", "ap-1", None)
    assert ledger.replica_pending[:, 0].tolist() == [1, 1, 0]


def test_outcome_settles_a_shared_pick() -> None:
    clock = Clock()
    store = store_with(clock)
    take(store, one_service_snapshot([Endpoint()]))
    assert store.held is not None
    pick(store, clock, dispatcher=None)
    assert store.settle("10.0.0.0:8080", "ap-1", None)
    assert store.held.ledger.pending == 0


def test_outcome_the_state_does_not_know() -> None:
    store = store_with(Clock())
    assert not store.settle("10.0.0.0:8080", "ap-0", 1.0)
    take(store, one_service_snapshot([Endpoint()]))
    assert not store.settle("elsewhere:1", "ap-0", 1.0)
    assert not store.settle("10.0.0.0:8080", "nowhere", 1.0)
    assert store.settle("10.0.0.0:8080", "ap-0", 1.0)


@given(st.lists(st.floats(0, 10, width=32), min_size=1, max_size=10))
def test_latency_is_the_moving_average_of_outcomes(seconds: list[float]) -> None:
    store = store_with(Clock())
    take(store, one_service_snapshot([Endpoint(), Endpoint()]))
    average = None
    for latency in seconds:
        store.settle("10.0.0.1:8080", "ap-0", latency)
        average = latency if average is None else (1 - LATENCY_WEIGHT) * average + LATENCY_WEIGHT * latency
    assert latencies(store)[1] == pytest.approx(average, rel=1e-5, abs=1e-6)
    assert np.isnan(latencies(store)[0])


def test_report_is_not_touched_by_outcomes() -> None:
    store = store_with(Clock())
    snapshot = one_service_snapshot([Endpoint(latency_seconds=0.5)])
    take(store, snapshot)
    store.settle("10.0.0.0:8080", "ap-0", 5.0)
    assert snapshot.load.replica_latency_seconds[0] == 0.5
    assert latencies(store)[0] == pytest.approx(1.4)


def test_learned_latency_lasts_until_a_report_brings_one() -> None:
    store = store_with(Clock())
    silent = one_service_snapshot([Endpoint(), Endpoint()])
    take(store, silent)
    store.settle("10.0.0.0:8080", "ap-0", 2.0)
    store.update(unknown_latencies(silent.load), base_version=1)
    assert latencies(store)[0] == 2.0
    take(store, silent)
    assert latencies(store)[0] == 2.0
    take(store, one_service_snapshot([Endpoint(latency_seconds=0.25), Endpoint()]))
    assert latencies(store)[0] == 0.25


def test_learned_latency_fades_and_a_reported_one_does_not() -> None:
    clock = Clock()
    store = store_with(clock)
    snapshot = one_service_snapshot([Endpoint(), Endpoint(latency_seconds=0.5)])
    take(store, snapshot)
    store.settle("10.0.0.0:8080", "ap-0", 2.0)
    clock.seconds += LIFETIME_SECONDS + 1
    store.update(unknown_latencies(snapshot.load), base_version=1)
    assert np.isnan(latencies(store)[0])
    assert latencies(store)[1] == 0.5


def test_learned_latency_follows_its_endpoint_to_another_row() -> None:
    store = store_with(Clock())
    snapshot = one_service_snapshot([Endpoint() for _ in range(5)])
    take(store, snapshot)
    store.settle("10.0.0.3:8080", "ap-0", 2.0)
    moved = reordered(snapshot, random_order(snapshot.topology, 3))
    take(store, moved)
    row = moved.topology.replica_index["10.0.0.3:8080"]
    known = latencies(store)
    assert known[row] == 2.0
    assert np.isnan(np.delete(known, row)).all()


def test_delta_needs_the_version_it_builds_on() -> None:
    snapshot = one_service_snapshot([Endpoint()])
    store = store_with(Clock())
    with pytest.raises(StateConflictError, match="no state is held"):
        store.update(snapshot.load, base_version=1)
    take(store, snapshot)
    with pytest.raises(StateConflictError, match="version 1 is held"):
        store.update(snapshot.load, base_version=2)


def test_large_systems_share_one_ledger_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policy_server.cluster.state_store.MAXIMUM_LEDGER_CELLS", 5)
    clock = Clock()
    store = store_with(clock)
    take(store, one_service_snapshot([Endpoint(), Endpoint()]))
    assert store.held is not None
    assert not store.held.ledger_row_per_access_point
    pick(store, clock, dispatcher=None)
    assert store.settle("10.0.0.0:8080", "ap-1", None)
    assert store.settle("10.0.0.1:8080", "ap-1", None)
    assert store.held.ledger.pending == 0
