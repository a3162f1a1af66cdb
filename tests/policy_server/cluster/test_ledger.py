"""The ledger against a list of picks that is gone through from scratch for every figure."""

import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from policy_server.cluster import ledger as ledger_module
from policy_server.cluster.ledger import Ledger, pending_positions
from policy_server.cluster.snapshot import Replicas, Topology
from tests.support.systems import example_topology

DISPATCHERS = 3
FULL = example_topology(nodes=5, access_points=2, services=2, replicas_per_service=4, seed=3)


def with_replicas(rows: list[int]) -> Topology:
    replicas = FULL.replicas
    return replace(
        FULL,
        replicas=Replicas(
            endpoints=tuple(replicas.endpoints[row] for row in rows),
            service=replicas.service[rows],
            node=replicas.node[rows],
            concurrency=replicas.concurrency[rows],
        ),
    )


@dataclass
class Pick:
    dispatcher: int
    endpoint: str
    link: int
    payload_bytes: float
    visible_at_seconds: float
    ticket: int | None = None


class LedgerMachine(RuleBasedStateMachine):
    @initialize(rows=st.permutations(range(10)).map(lambda order: order[:6]))
    def start(self, rows: list[int]) -> None:
        self.topology = with_replicas(rows)
        self.ledger = Ledger(self.topology, DISPATCHERS)
        self.pending: list[Pick] = []
        self.ended: list[int] = []
        self.picks: Counter[tuple[int, str]] = Counter()

    @rule(data=st.data(), count=st.integers(0, 400) | st.integers(1, 3))
    def record(self, data: st.DataObject, count: int) -> None:
        random = np.random.default_rng(data.draw(st.integers(0, 2**16)))
        dispatcher = random.integers(DISPATCHERS, size=count).astype(np.int32)
        replica = random.integers(len(self.topology.replicas.endpoints), size=count)
        link = random.integers(-1, len(self.topology.links.source), size=count)
        payload_bytes = random.integers(0, 5000, size=count).astype(np.float32)
        visible_at = random.integers(0, 20, size=count).astype(np.float64)
        self.ledger.record(dispatcher, replica, link, payload_bytes, visible_at)
        for row in range(count):
            endpoint = self.topology.replicas.endpoints[replica[row]]
            self.pending.append(
                Pick(
                    int(dispatcher[row]), endpoint, int(link[row]), float(payload_bytes[row]), visible_at[row]
                )
            )
            self.picks[int(dispatcher[row]), endpoint] += 1

    @rule(dispatcher=st.integers(0, DISPATCHERS - 1), data=st.data(), visible_at=st.integers(0, 19))
    def record_one(self, dispatcher: int, data: st.DataObject, visible_at: int) -> None:
        replica = data.draw(st.integers(0, len(self.topology.replicas.endpoints) - 1))
        link = data.draw(st.integers(-1, len(self.topology.links.source) - 1))
        payload_bytes = float(data.draw(st.integers(0, 5000)))
        self.ledger.record_one(dispatcher, replica, link, payload_bytes, float(visible_at))
        endpoint = self.topology.replicas.endpoints[replica]
        self.pending.append(Pick(dispatcher, endpoint, link, payload_bytes, float(visible_at)))
        self.picks[dispatcher, endpoint] += 1

    @rule(dispatcher=st.integers(0, DISPATCHERS - 1), data=st.data(), visible_at=st.integers(0, 19))
    def lease(self, dispatcher: int, data: st.DataObject, visible_at: int) -> None:
        self.record_one(dispatcher, data, visible_at)
        self.pending[-1].ticket = self.ledger.lease_latest()

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        leased = [pick for pick in self.pending if pick.ticket is not None]
        if leased:
            pick = data.draw(st.sampled_from(leased))
            assert pick.ticket is not None
            assert self.ledger.release(pick.ticket)
            self.end([pick])

    @rule(data=st.data())
    def transfer(self, data: st.DataObject) -> None:
        leased = [pick for pick in self.pending if pick.ticket is not None]
        if not leased:
            return
        pick = data.draw(st.sampled_from(leased))
        replica = data.draw(st.integers(0, len(self.topology.replicas.endpoints) - 1))
        endpoint = self.topology.replicas.endpoints[replica]
        assert pick.ticket is not None
        ticket = self.ledger.transfer(pick.ticket, replica)
        assert ticket is not None
        self.end([pick])
        self.pending.append(Pick(pick.dispatcher, endpoint, -1, 0.0, pick.visible_at_seconds, ticket))
        self.picks[pick.dispatcher, endpoint] += 1

    @rule(data=st.data())
    def release_once_more(self, data: st.DataObject) -> None:
        if self.ended:
            ticket = data.draw(st.sampled_from(self.ended))
            assert not self.ledger.release(ticket)
            assert self.ledger.transfer(ticket, 0) is None

    def end(self, picks: list[Pick]) -> None:
        for pick in picks:
            self.pending = [other for other in self.pending if other is not pick]
            if pick.ticket is not None:
                self.ended.append(pick.ticket)

    @rule(dispatcher=st.integers(0, DISPATCHERS - 1), data=st.data())
    def settle(self, dispatcher: int, data: st.DataObject) -> None:
        replica = data.draw(st.integers(0, len(self.topology.replicas.endpoints) - 1))
        endpoint = self.topology.replicas.endpoints[replica]
        oldest = next(
            (p for p in self.pending if p.dispatcher == dispatcher and p.endpoint == endpoint), None
        )
        assert self.ledger.settle(dispatcher, replica) == (oldest is not None)
        if oldest is not None:
            self.end([oldest])

    @rule(taken_at=st.integers(0, 20))
    def refresh(self, taken_at: int) -> None:
        self.ledger.refresh(float(taken_at))
        self.end([pick for pick in self.pending if pick.visible_at_seconds <= taken_at])

    @rule(taken_at=st.integers(0, 20), data=st.data())
    def refresh_some(self, taken_at: int, data: st.DataObject) -> None:
        replicas = len(self.topology.replicas.endpoints)
        ages = st.lists(st.just(math.inf) | st.integers(0, 5), min_size=replicas, max_size=replicas)
        sampled_at = taken_at - np.array(data.draw(ages), np.float64)
        self.ledger.refresh(float(taken_at), sampled_at)
        shown = []
        for pick in self.pending:
            shown_until = sampled_at[self.topology.replica_index[pick.endpoint]]
            if shown_until == -math.inf and pick.ticket is None:
                shown_until = taken_at
            if pick.visible_at_seconds <= shown_until:
                shown.append(pick)
        self.end(shown)

    @rule(rows=st.permutations(range(10)), count=st.integers(1, 10))
    def bind(self, rows: list[int], count: int) -> None:
        self.topology = with_replicas(rows[:count])
        self.ledger.bind(self.topology)
        there = self.topology.replica_index
        self.end([pick for pick in self.pending if pick.endpoint not in there])
        self.pending = [replace(pick, link=-1) for pick in self.pending]
        self.picks = Counter({key: made for key, made in self.picks.items() if key[1] in there})

    @rule()
    def bind_to_the_same_topology(self) -> None:
        self.ledger.bind(self.topology)

    @invariant()
    def figures_are_those_of_the_picks(self) -> None:
        topology, row = self.topology, self.topology.replica_index
        replica_pending = np.zeros((DISPATCHERS, len(topology.replicas.endpoints)))
        node_pending_cpu = np.zeros((DISPATCHERS, len(topology.nodes.names)))
        link_pending_bytes = np.zeros(len(topology.links.source))
        replica_picks = np.zeros_like(replica_pending)
        for pick in self.pending:
            replica = row[pick.endpoint]
            node, service = topology.replicas.node[replica], topology.replicas.service[replica]
            replica_pending[pick.dispatcher, replica] += 1
            node_pending_cpu[pick.dispatcher, node] += (
                topology.services.cpu_millicores[service] / topology.nodes.cpu_millicores[node]
            )
            if pick.link >= 0:
                link_pending_bytes[pick.link] += pick.payload_bytes
        for (dispatcher, endpoint), made in self.picks.items():
            replica_picks[dispatcher, row[endpoint]] = made
        assert self.ledger.pending == len(self.pending)
        np.testing.assert_array_equal(self.ledger.replica_pending, replica_pending)
        np.testing.assert_array_equal(self.ledger.replica_picks, replica_picks)
        np.testing.assert_allclose(self.ledger.node_pending_cpu, node_pending_cpu, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(self.ledger.link_pending_bytes, link_pending_bytes, rtol=1e-6)

    @invariant()
    def one_gather_reads_all_that_is_pending(self) -> None:
        ledger, topology = self.ledger, self.topology
        rows = np.arange(len(topology.replicas.endpoints))
        nodes, links = topology.replicas.node, rows % (len(topology.links.source) + 1) - 1
        for dispatcher in range(DISPATCHERS):
            positions = pending_positions(topology, nodes, rows, links)
            positions[:2] += dispatcher * ledger.dispatcher_stride
            cpu, requests, link_bytes = ledger.pending_values[positions]
            np.testing.assert_array_equal(cpu, ledger.node_pending_cpu[dispatcher, nodes])
            np.testing.assert_array_equal(requests, ledger.replica_pending[dispatcher])
            expected = np.where(links >= 0, np.append(ledger.link_pending_bytes, 0)[links], 0)
            np.testing.assert_array_equal(link_bytes, expected)


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=60, stateful_step_count=15, deadline=None)


def record(ledger: Ledger, replica: int, count: int, visible_at_seconds: float = 1.0) -> None:
    ledger.record(
        np.zeros(count, np.int32),
        np.full(count, replica),
        np.full(count, -1),
        np.zeros(count, np.float32),
        np.full(count, visible_at_seconds),
    )


def test_beyond_the_maximum_the_older_half_is_taken_for_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "MAXIMUM_ENTRIES", 10)
    ledger = Ledger(FULL)
    record(ledger, replica=0, count=6)
    record(ledger, replica=1, count=4)
    assert ledger.pending == 10
    record(ledger, replica=2, count=1)
    assert ledger.replica_pending[0].tolist()[:4] == [1, 4, 1, 0]
    assert ledger.replica_picks[0].tolist()[:4] == [6, 4, 1, 0]
    assert ledger.pending == 6


def test_released_picks_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "MAXIMUM_ENTRIES", 64)
    monkeypatch.setattr(ledger_module, "_MOST_RECENT", 8)
    ledger = Ledger(FULL)
    kept = []
    for position in range(1000):
        ledger.record_one(0, position % 5, -1, 0.0, 1e9)
        ticket = ledger.lease_latest()
        if position % 50:
            assert ledger.release(ticket)
        else:
            kept.append(ticket)
    assert ledger.pending == len(kept) == 20
    assert all(ledger.release(ticket) for ticket in kept)
    assert not ledger.pending_values.any()


def test_a_node_is_exactly_idle_when_its_last_request_has_ended() -> None:
    ledger = Ledger(FULL)
    tickets = []
    for _ in range(7):
        ledger.record_one(0, 0, -1, 0.0, 1e9)
        tickets.append(ledger.lease_latest())
    for ticket in (tickets[3], *tickets[:3], *tickets[4:]):
        assert ledger.release(ticket)
    assert not ledger.pending_values.any()


@pytest.mark.parametrize("single", [False, True])
def test_pending_picks_never_grow_without_bound(monkeypatch: pytest.MonkeyPatch, single: bool) -> None:
    monkeypatch.setattr(ledger_module, "MAXIMUM_ENTRIES", 64)
    ledger = Ledger(FULL)
    for _ in range(1000):
        if single:
            ledger.record_one(0, 0, -1, 0.0, 1.0)
        else:
            record(ledger, replica=0, count=1)
        assert ledger.pending <= 64
        assert ledger.replica_pending[0, 0] == ledger.pending
    assert ledger.replica_picks[0, 0] == 1000


def test_a_pick_is_pending_until_a_state_shows_it() -> None:
    ledger = Ledger(FULL)
    record(ledger, replica=0, count=1, visible_at_seconds=5.0)
    ledger.refresh(4.99)
    assert ledger.replica_pending[0, 0] == 1
    ledger.refresh(5.0)
    assert ledger.replica_pending[0, 0] == 0
    assert ledger.replica_picks[0, 0] == 1
