"""Candidates against a loop over the documented rules and formulas, one request and one replica at a time."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.cluster.ledger import Ledger
from policy_server.cluster.queries import DispatchQueries, DispatchQuery, single_query
from policy_server.cluster.snapshot import (
    NO_LINK,
    Int32Array,
    ReplicaState,
    Snapshot,
    disjoint_union,
)
from policy_server.features import candidates as candidates_module
from policy_server.features.candidates import Candidates, CandidateSets
from policy_server.features.load_table import LoadTable, TopologyTable
from policy_server.features.schema import SCHEMA
from tests.support.systems import (
    Endpoint,
    example_queries,
    example_snapshot,
    example_topology,
    one_service_snapshot,
    random_order,
    reordered,
    reordered_queries,
    snapshots,
    systems_of_same_services,
)

DISPATCHERS = 3
NOW_SECONDS = 100.75
PER_CANDIDATE = (
    "replica",
    "node",
    "link",
    "local",
    "delay_seconds",
    "network_seconds",
    "wait_seconds",
    "completion_seconds",
    "execution_seconds",
    "cpu_fraction",
    "inverse_concurrency",
    "committed",
    "outstanding",
    "replica_pending",
    "node_pending_cpu",
    "features",
)


def sets_of(snapshot: Snapshot) -> tuple[LoadTable, CandidateSets]:
    static = TopologyTable(snapshot.topology)
    return LoadTable(snapshot, static), CandidateSets(static)


def candidates_of(snapshot: Snapshot, queries: DispatchQueries, ledger: Ledger | None = None) -> Candidates:
    ledger = Ledger(snapshot.topology, DISPATCHERS) if ledger is None else ledger
    return Candidates(*sets_of(snapshot), ledger, queries, NOW_SECONDS)


def used_ledger(snapshot: Snapshot, seed: int) -> Ledger:
    topology = snapshot.topology
    ledger = Ledger(topology, DISPATCHERS)
    random = np.random.default_rng(seed)
    count = int(random.integers(0, 12)) if topology.replicas.endpoints else 0
    ledger.record(
        random.integers(DISPATCHERS, size=count),
        random.integers(max(len(topology.replicas.endpoints), 1), size=count),
        random.integers(-1, len(topology.links.source), size=count),
        random.exponential(1e5, count).astype(np.float32),
        np.full(count, 200.0),
    )
    return ledger


def row_of(queries: DispatchQueries, row: int) -> DispatchQueries:
    rows = slice(row, row + 1)
    return DispatchQueries(
        service=queries.service[rows],
        access_point=queries.access_point[rows],
        deadline_seconds=queries.deadline_seconds[rows],
        payload_bytes=queries.payload_bytes[rows],
        subset=None if queries.subset is None else [queries.subset[row]],
        dispatcher=None if queries.dispatcher is None else queries.dispatcher[rows],
    )


@st.composite
def situations(draw: st.DrawFn) -> tuple[Snapshot, DispatchQueries, Ledger]:
    snapshot = draw(snapshots() | systems_of_same_services().map(disjoint_union))
    topology = snapshot.topology
    seed = draw(st.integers(0, 2**16))
    queries = example_queries(
        topology, draw(st.integers(1, 6)), seed, dispatchers=draw(st.sampled_from([1, DISPATCHERS]))
    )
    if draw(st.booleans()):
        random = np.random.default_rng(seed)
        replicas = len(topology.replicas.endpoints)
        subset: list[Int32Array | None] = [
            None if random.random() < 0.3 else np.flatnonzero(random.random(replicas) < 0.5).astype(np.int32)
            for _ in range(len(queries))
        ]
        queries = replace(queries, subset=subset)
    return snapshot, queries, used_ledger(snapshot, seed)


@dataclass
class Reference:
    """What is known of one candidate of one query."""

    snapshot: Snapshot
    queries: DispatchQueries
    ledger: Ledger
    query: int
    replica: int

    def __post_init__(self) -> None:
        topology, load = self.snapshot.topology, self.snapshot.load
        self.dispatcher = 0 if self.queries.dispatcher is None else int(self.queries.dispatcher[self.query])
        self.access_point = int(self.queries.access_point[self.query])
        self.node = int(topology.replicas.node[self.replica])
        self.replica_access_point = int(topology.nodes.access_point[self.node])
        self.local = self.access_point == self.replica_access_point
        ends = list(zip(topology.links.source.tolist(), topology.links.target.tolist(), strict=True))
        way = self.access_point, self.replica_access_point
        self.link = ends.index(way) if way in ends else NO_LINK
        self.concurrency = int(topology.replicas.concurrency[self.replica])
        self.execution_seconds = self.execution_seconds_of(self.replica)
        self.cpu_fraction = self.cpu_fraction_of(self.replica)
        self.replica_pending = float(self.ledger.replica_pending[self.dispatcher, self.replica])
        self.node_pending_cpu = float(self.ledger.node_pending_cpu[self.dispatcher, self.node])
        self.outstanding = self.outstanding_of(self.replica) + self.replica_pending
        self.deadline_seconds = float(self.queries.deadline_seconds[self.query])
        if self.local:
            self.delay_seconds = topology.local_delay_seconds
            self.network_seconds = self.delay_seconds
        elif self.link != NO_LINK:
            self.delay_seconds = float(topology.links.delay_seconds[self.link])
            waiting = float(self.queries.payload_bytes[self.query])
            waiting += float(load.link_backlog_bytes[self.link])
            waiting += float(self.ledger.link_pending_bytes[self.link])
            bandwidth = float(topology.links.bandwidth_bytes_per_second[self.link])
            self.network_seconds = self.delay_seconds + waiting / bandwidth

    def execution_seconds_of(self, replica: int) -> float:
        topology = self.snapshot.topology
        execution = float(topology.services.execution_seconds[topology.replicas.service[replica]])
        return execution / float(topology.nodes.speed[topology.replicas.node[replica]])

    def cpu_fraction_of(self, replica: int) -> float:
        topology = self.snapshot.topology
        cpu = float(topology.services.cpu_millicores[topology.replicas.service[replica]])
        return cpu / float(topology.nodes.cpu_millicores[topology.replicas.node[replica]])

    def outstanding_of(self, replica: int) -> float:
        return float(self.snapshot.load.replica_queued[replica] + self.snapshot.load.replica_running[replica])

    @property
    def allowed(self) -> bool:
        topology = self.snapshot.topology
        system = topology.access_points.system
        subset = None if self.queries.subset is None else self.queries.subset[self.query]
        return (
            topology.replicas.service[self.replica] == self.queries.service[self.query]
            and system[self.access_point] == system[self.replica_access_point]
            and self.snapshot.load.replica_state[self.replica] == ReplicaState.READY
            and (self.local or self.link != NO_LINK)
            and (subset is None or self.replica in subset.tolist())
        )

    @property
    def committed(self) -> float:
        on_node = np.flatnonzero(self.snapshot.topology.replicas.node == self.node).tolist()
        return sum(self.outstanding_of(r) * self.cpu_fraction_of(r) for r in on_node) + self.node_pending_cpu

    @property
    def wait_seconds(self) -> float:
        on_node = np.flatnonzero(self.snapshot.topology.replicas.node == self.node).tolist()
        held = [self.outstanding_of(r) * self.cpu_fraction_of(r) for r in on_node]
        times = [self.execution_seconds_of(r) for r in on_node]
        mean = self.execution_seconds
        if sum(held) > 0:
            mean = sum(h * t for h, t in zip(held, times, strict=True)) / sum(held)
        cpu_wait = max(0.0, self.committed + self.cpu_fraction - 1) * mean
        slot_wait = max(0.0, (self.outstanding + 1) / self.concurrency - 1) * self.execution_seconds
        return max(cpu_wait, slot_wait)

    @property
    def completion_seconds(self) -> float:
        return self.network_seconds + self.wait_seconds + self.execution_seconds + self.delay_seconds

    @property
    def features(self) -> list[float]:
        slack = self.deadline_seconds - self.completion_seconds
        return [
            self.network_seconds,
            self.delay_seconds,
            self.wait_seconds,
            self.completion_seconds,
            slack,
            slack / self.deadline_seconds,
            self.node_pending_cpu,
            self.replica_pending / self.concurrency,
            self.committed + self.cpu_fraction - 1,
            self.deadline_seconds,
            NOW_SECONDS - self.snapshot.taken_at_seconds,
            float(self.local),
        ]


@given(situations())
def test_candidates_follow_the_rules_and_formulas(
    situation: tuple[Snapshot, DispatchQueries, Ledger],
) -> None:
    snapshot, queries, ledger = situation
    candidates = candidates_of(snapshot, queries, ledger)
    position = 0
    for query in range(len(queries)):
        assert candidates.offsets[query] == position
        for replica in range(len(snapshot.topology.replicas.endpoints)):
            expected = Reference(snapshot, queries, ledger, query, replica)
            if not expected.allowed:
                continue
            assert candidates.segment[position] == query
            assert candidates.replica[position] == replica
            assert candidates.node[position] == expected.node
            assert candidates.link[position] == (NO_LINK if expected.local else expected.link)
            assert candidates.local[position] == expected.local
            assert 1 / candidates.inverse_concurrency[position] == pytest.approx(expected.concurrency)
            for name in (
                "delay_seconds",
                "network_seconds",
                "wait_seconds",
                "completion_seconds",
                "execution_seconds",
                "cpu_fraction",
                "committed",
                "outstanding",
                "replica_pending",
                "node_pending_cpu",
                "features",
            ):
                np.testing.assert_allclose(
                    getattr(candidates, name)[position],
                    getattr(expected, name),
                    rtol=1e-4,
                    atol=2e-6,
                    err_msg=name,
                )
            position += 1
    assert len(candidates) == candidates.offsets[-1] == position
    assert len(candidates.offsets) == len(queries) + 1


@given(situations(), st.booleans())
def test_a_single_query_is_bit_for_bit_the_row_of_a_batch(
    situation: tuple[Snapshot, DispatchQueries, Ledger], as_batch: bool
) -> None:
    snapshot, queries, ledger = situation
    table, sets = sets_of(snapshot)
    batch = Candidates(table, sets, ledger, queries, NOW_SECONDS)
    for query in range(len(queries)):
        asked = row_of(queries, query) if as_batch else queries.row(query)
        single = Candidates(table, sets, ledger, asked, NOW_SECONDS)
        rows = slice(int(batch.offsets[query]), int(batch.offsets[query + 1]))
        for name in PER_CANDIDATE:
            of_batch = getattr(batch, name)
            assert getattr(single, name).dtype == of_batch.dtype
            np.testing.assert_array_equal(getattr(single, name), of_batch[rows], err_msg=name)
        assert single.offsets.tolist() == [0, rows.stop - rows.start]
        assert not single.segment.any()
        for name in ("service", "access_point", "deadline_seconds", "payload_bytes"):
            assert getattr(single.queries, name).tolist() == [getattr(queries, name)[query]]


@given(snapshots(), st.integers(0, 2**16))
def test_a_repeated_query_sees_the_same(snapshot: Snapshot, seed: int) -> None:
    """Blocks are laid out on first use and prepared per snapshot; the second use must not differ."""
    table, sets = sets_of(snapshot)
    ledger = used_ledger(snapshot, seed)
    queries = example_queries(snapshot.topology, 4, seed)
    first, second = (Candidates(table, sets, ledger, queries, NOW_SECONDS) for _ in range(2))
    for name in PER_CANDIDATE:
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


@given(snapshots(), st.integers(0, 2**16))
def test_candidates_move_with_their_rows(snapshot: Snapshot, seed: int) -> None:
    order = random_order(snapshot.topology, seed)
    queries = example_queries(snapshot.topology, 5, seed)
    before = candidates_of(snapshot, queries)
    after = candidates_of(reordered(snapshot, order), reordered_queries(queries, order))
    np.testing.assert_array_equal(before.offsets, after.offsets)
    new_row = np.argsort(order.replicas)
    moved = np.lexsort((new_row[before.replica], before.segment))
    np.testing.assert_array_equal(new_row[before.replica][moved], after.replica)
    np.testing.assert_allclose(before.features[moved], after.features, rtol=1e-4, atol=1e-6)


def test_features_match_the_schema() -> None:
    snapshot = example_snapshot(example_topology())
    features = candidates_of(snapshot, example_queries(snapshot.topology, 10)).features
    assert features.dtype == np.float32
    assert features.shape[1] == len(SCHEMA.request)


@pytest.mark.parametrize("state", [ReplicaState.STARTING, ReplicaState.DRAINING])
def test_only_ready_replicas_are_candidates(state: ReplicaState) -> None:
    snapshot = one_service_snapshot([Endpoint(), Endpoint(state=state), Endpoint("ap-1")])
    for queries in (single_query(0, 0, 1.0), example_queries(snapshot.topology, 7)):
        assert 1 not in candidates_of(snapshot, queries).replica


def test_without_a_link_only_own_nodes_are_candidates() -> None:
    topology = example_topology(nodes=4, access_points=3, link_probability=0.0)
    snapshot = example_snapshot(topology)
    candidates = candidates_of(snapshot, example_queries(topology, 60))
    assert len(candidates) > 0
    access_point = topology.nodes.access_point[candidates.node]
    np.testing.assert_array_equal(access_point, candidates.queries.access_point[candidates.segment])


def test_a_link_leads_one_way() -> None:
    snapshot = one_service_snapshot([Endpoint("ap-0"), Endpoint("ap-1")])
    links = snapshot.topology.links
    keep = ~((links.source == 0) & (links.target == 1))
    one_way = replace(
        snapshot,
        topology=replace(
            snapshot.topology,
            links=replace(
                links,
                source=links.source[keep],
                target=links.target[keep],
                delay_seconds=links.delay_seconds[keep],
                bandwidth_bytes_per_second=links.bandwidth_bytes_per_second[keep],
            ),
        ),
        load=replace(snapshot.load, link_backlog_bytes=snapshot.load.link_backlog_bytes[keep]),
    )
    assert candidates_of(one_way, single_query(0, 0, 1.0)).replica.tolist() == [0]
    assert candidates_of(one_way, single_query(0, 1, 1.0)).replica.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("subset", "expected"), [([], []), ([1], [1]), ([0, 2], [0, 2]), ([0, 1, 2], [0, 1, 2]), ([77], [])]
)
def test_subset(subset: list[int], expected: list[int]) -> None:
    snapshot = one_service_snapshot([Endpoint(), Endpoint(), Endpoint("ap-1")])
    rows = np.array(subset, np.int32)
    single = candidates_of(snapshot, single_query(0, 0, 1.0, subset=rows))
    assert single.replica.tolist() == expected
    free = single_query(0, 0, 1.0)
    batch = replace(
        free,
        service=np.zeros(2, np.int32),
        access_point=np.zeros(2, np.int32),
        deadline_seconds=np.ones(2, np.float32),
        payload_bytes=np.zeros(2, np.float32),
        subset=[rows, None],
    )
    both = candidates_of(snapshot, batch)
    assert both.replica.tolist() == [*expected, 0, 1, 2]


def test_a_subset_does_not_outlive_its_request() -> None:
    snapshot = one_service_snapshot([Endpoint(), Endpoint()])
    table, sets = sets_of(snapshot)
    ledger = Ledger(snapshot.topology)
    for subset, expected in (
        (np.array([0], np.int32), [0]),
        (None, [0, 1]),
        (np.zeros(0, np.int32), []),
        (None, [0, 1]),
    ):
        candidates = Candidates(table, sets, ledger, single_query(0, 0, 1.0, subset=subset), NOW_SECONDS)
        assert candidates.replica.tolist() == expected


def test_some_queries_without_candidates() -> None:
    topology = example_topology(services=2, replicas_per_service=0, link_probability=0.0)
    snapshot = example_snapshot(topology)
    cloud = len(topology.access_points.names) - 1
    queries = DispatchQueries(
        service=np.array([0, 1, 0, 1], np.int32),
        access_point=np.array([0, cloud, 1, cloud], np.int32),
        deadline_seconds=np.ones(4, np.float32),
        payload_bytes=np.zeros(4, np.float32),
    )
    candidates = candidates_of(snapshot, queries)
    assert candidates.offsets.tolist() == [0, 0, 1, 1, 2]
    assert candidates.segment.tolist() == [1, 3]


@pytest.mark.parametrize("count", [1, 3])
def test_no_candidate_at_all(count: int) -> None:
    topology = example_topology(replicas_per_service=0, link_probability=0.0)
    queries = replace(example_queries(topology, count), access_point=np.zeros(count, np.int32))
    candidates = candidates_of(example_snapshot(topology), queries)
    assert len(candidates) == 0
    assert candidates.offsets.tolist() == [0] * (count + 1)
    assert candidates.features.shape == (0, len(SCHEMA.request))


def test_many_candidates_of_many_pairs() -> None:
    topology = example_topology(nodes=50, access_points=5, services=3, replicas_per_service=400, seed=1)
    snapshot = example_snapshot(topology)
    table, sets = sets_of(snapshot)
    for access_point in range(6):
        for service in range(3):
            query = single_query(service, access_point, 1.0)
            candidates = Candidates(table, sets, Ledger(topology), query, NOW_SECONDS)
            np.testing.assert_array_equal(
                candidates.replica, np.flatnonzero(topology.replicas.service == service)
            )
            access_points = topology.nodes.access_point[topology.replicas.node[candidates.replica]]
            np.testing.assert_array_equal(candidates.local, access_points == access_point)


def test_a_dispatcher_sees_its_own_picks_only() -> None:
    snapshot = one_service_snapshot([Endpoint(), Endpoint()])
    ledger = Ledger(snapshot.topology, 2)
    picked = np.array([1]), np.array([0]), np.array([-1])
    ledger.record(*picked, np.zeros(1, np.float32), np.array([200.0]))
    queries = replace(single_query(0, 0, 1.0), dispatcher=np.array([0], np.int32))
    assert candidates_of(snapshot, queries, ledger).outstanding.tolist() == [0, 0]
    queries = replace(queries, dispatcher=np.array([1], np.int32))
    assert candidates_of(snapshot, queries, ledger).outstanding.tolist() == [1, 0]


def test_a_snapshot_from_the_future_has_age_zero() -> None:
    snapshot = replace(example_snapshot(example_topology()), taken_at_seconds=NOW_SECONDS + 5)
    candidates = candidates_of(snapshot, example_queries(snapshot.topology, 3))
    assert (candidates.features[:, SCHEMA.request.index("snapshot_age_seconds")] == 0).all()


@given(snapshots(), st.integers(0, 2**16))
def test_later_requests_leave_earlier_candidates_alone(snapshot: Snapshot, seed: int) -> None:
    """What single requests share is shared for reading only."""
    if not snapshot.topology.replicas.endpoints:
        return
    table, sets = sets_of(snapshot)
    ledger = used_ledger(snapshot, seed)
    query = example_queries(snapshot.topology, 1, seed, dispatchers=DISPATCHERS).row(0)
    first = Candidates(table, sets, ledger, query, NOW_SECONDS)
    before = {name: getattr(first, name).copy() for name in PER_CANDIDATE}
    ledger.record_one(query.dispatcher or 0, 0, -1, 0.0, 200.0)
    for dispatcher in range(DISPATCHERS):
        other = query._replace(deadline_seconds=9.0, payload_bytes=3e6, dispatcher=dispatcher)
        assert Candidates(table, sets, ledger, other, NOW_SECONDS + 1).features is not first.features
    for name, values in before.items():
        np.testing.assert_array_equal(getattr(first, name), values, err_msg=name)


def test_candidates_are_kept_per_access_point_and_service_of_a_snapshot() -> None:
    snapshot = one_service_snapshot([Endpoint(), Endpoint("ap-1")])
    table, sets = sets_of(snapshot)
    ledger = Ledger(snapshot.topology)

    def kept(query: DispatchQuery) -> object | None:
        return Candidates(table, sets, ledger, query, NOW_SECONDS).kept

    first = kept(DispatchQuery(0, 0, 1.0))
    assert first is not None
    assert kept(DispatchQuery(0, 0, 2.0, 5e6)) is first
    assert kept(DispatchQuery(0, 1, 1.0)) is not first
    subset = kept(DispatchQuery(0, 0, 1.0, subset=np.array([0], np.int32)))
    assert subset not in (None, first)
    assert kept(DispatchQuery(0, 0, 2.0, subset=np.array([0], np.int32))) is subset
    assert kept(DispatchQuery(0, 0, 1.0, subset=np.array([1], np.int32))) is not subset
    assert candidates_of(snapshot, DispatchQuery(0, 0, 1.0).as_batch()).kept is not first


def test_no_end_of_subsets_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates_module, "MAXIMUM_BLOCKS_WITH_SUBSETS", 3)
    snapshot = one_service_snapshot([Endpoint()] * 8)
    table, sets = sets_of(snapshot)
    ledger = Ledger(snapshot.topology)
    for row in range(8):
        query = DispatchQuery(0, 0, 1.0, subset=np.array([row], np.int32))
        candidates = Candidates(table, sets, ledger, query, NOW_SECONDS)
        assert candidates.replica.tolist() == [row]
        assert (candidates.kept is None) == (row >= 3)
    assert Candidates(table, sets, ledger, DispatchQuery(0, 0, 1.0), NOW_SECONDS).kept is not None


@given(situations(), st.integers(0, 2**16))
def test_stale_candidates_are_left_out_where_there_are_fresh_ones(
    situation: tuple[Snapshot, DispatchQueries, Ledger], seed: int
) -> None:
    snapshot, queries, ledger = situation
    random = np.random.default_rng(seed)
    replicas = len(snapshot.topology.replicas.endpoints)
    ages = random.choice([0.0, 1.0, 2.0, 3.0, np.inf], replicas)
    aged = replace(snapshot, sampled_at_seconds=NOW_SECONDS - ages)
    static = TopologyTable(aged.topology)
    table, sets = LoadTable(aged, static, maximum_sample_age_seconds=2.5), CandidateSets(static)
    for now_seconds in (NOW_SECONDS, NOW_SECONDS + 1, NOW_SECONDS + 2, NOW_SECONDS + 3):
        stale = np.isfinite(ages) & (ages + (now_seconds - NOW_SECONDS) > 2.5)
        assert table.stale_count(now_seconds) == stale.sum()
        together = Candidates(table, sets, ledger, queries, now_seconds)
        for row in range(len(queries)):
            everyone = candidates_of(snapshot, row_of(queries, row), ledger).replica.tolist()
            fresh = [replica for replica in everyone if not stale[replica]]
            expected = fresh or everyone
            part = slice(together.offsets[row], together.offsets[row + 1])
            assert together.replica[part].tolist() == expected
            alone = Candidates(table, sets, ledger, queries.row(row), now_seconds)
            assert alone.replica.tolist() == expected


def test_figures_of_one_age_leave_nobody_out() -> None:
    snapshot = one_service_snapshot([Endpoint()] * 3)
    table = LoadTable(snapshot, TopologyTable(snapshot.topology), maximum_sample_age_seconds=0.1)
    assert table.fresh(np.arange(3), NOW_SECONDS) == (None, math.inf)
    assert table.stale_count(NOW_SECONDS) == 3
    assert table.stale_count(snapshot.taken_at_seconds) == 0
