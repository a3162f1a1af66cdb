from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from scipy.optimize import linprog

from policy_server.cluster.ledger import Ledger
from policy_server.cluster.snapshot import (
    NO_LINK,
    Float64Array,
    ReplicaState,
    Snapshot,
    disjoint_union,
)
from policy_server.features.load_table import LoadTable, TopologyTable
from policy_server.policies.dispatch import DispatchView, decide
from policy_server.policies.heuristics import GspSs
from policy_server.policies.heuristics.shadow_schedule import ShadowSchedule, shadow_schedule
from tests.support.dispatching import NOW_SECONDS, picks_one_by_one, repeated_query
from tests.support.systems import (
    Endpoint,
    example_snapshot,
    example_topology,
    one_service_snapshot,
    random_order,
    reordered,
    snapshots,
    systems_of_same_services,
)


def schedule_of(snapshot: Snapshot) -> ShadowSchedule:
    return shadow_schedule(LoadTable(snapshot, TopologyTable(snapshot.topology)))


def shares(snapshot: Snapshot) -> tuple[Float64Array, Float64Array]:
    """Share of its node, and of its slots, that one request per second at each replica takes."""
    topology = snapshot.topology
    service, node = topology.replicas.service, topology.replicas.node
    execution = topology.services.execution_seconds[service] / topology.nodes.speed[node].astype(np.float64)
    cpu = topology.services.cpu_millicores[service] / topology.nodes.cpu_millicores[node].astype(np.float64)
    return execution * cpu, execution / topology.replicas.concurrency


def reachable(snapshot: Snapshot, access_point: int, replica: int) -> bool:
    topology = snapshot.topology
    other = topology.nodes.access_point[topology.replicas.node[replica]]
    system = topology.access_points.system
    return bool(
        snapshot.load.replica_state[replica] == ReplicaState.READY
        and system[access_point] == system[other]
        and (other == access_point or topology.link_row[access_point, other] != NO_LINK)
    )


def system_access_points(snapshot: Snapshot, replica: int) -> list[int]:
    """Rows of the access points of a replica's system."""
    topology = snapshot.topology
    system = topology.access_points.system
    own = system[topology.nodes.access_point[topology.replicas.node[replica]]]
    return np.flatnonzero(system == own).tolist()


def assert_feasible(snapshot: Snapshot) -> None:
    topology = snapshot.topology
    schedule = schedule_of(snapshot)
    node_share, replica_share = shares(snapshot)
    rate = schedule.rate_per_second.sum(axis=0)
    used = np.bincount(topology.replicas.node, rate * node_share, len(topology.nodes.names))
    assert (schedule.rate_per_second >= 0).all()
    assert (used <= 0.9 + 1e-6).all()
    assert (rate * replica_share <= 0.9 + 1e-6).all()
    for access_point in range(len(topology.access_points.names)):
        row = schedule.access_point_rank[access_point]
        for service in range(len(topology.services.names)):
            own = [
                replica
                for replica in np.flatnonzero(topology.replicas.service == service).tolist()
                if access_point in system_access_points(snapshot, replica)
            ]
            allowed = [replica for replica in own if reachable(snapshot, access_point, replica)]
            forbidden = [replica for replica in own if replica not in allowed]
            demand = float(snapshot.load.arrival_rate_per_second[access_point, service])
            assert schedule.rate_per_second[row, own].sum() <= demand * (1 + 1e-9) + 2e-9
            assert not schedule.fraction[row, forbidden].any()
            assert not schedule.rate_per_second[row, forbidden].any()
            if allowed:
                assert schedule.fraction[row, own].sum() == pytest.approx(1, abs=1e-5)


@given(snapshots())
def test_schedules_respect_capacities_rates_and_reach(snapshot: Snapshot) -> None:
    assert_feasible(snapshot)


@given(systems_of_same_services())
def test_schedules_of_a_union_do_too(systems: list[Snapshot]) -> None:
    assert_feasible(disjoint_union(systems))


@given(systems_of_same_services())
def test_a_union_is_scheduled_like_each_system_alone(systems: list[Snapshot]) -> None:
    union = schedule_of(disjoint_union(systems))
    access_point = replica = 0
    for system in systems:
        alone = schedule_of(system)
        rows, columns = alone.fraction.shape
        own = slice(access_point, access_point + rows)
        np.testing.assert_array_equal(union.access_point_rank[own], alone.access_point_rank)
        np.testing.assert_allclose(
            union.fraction[:rows, replica : replica + columns], alone.fraction, rtol=1e-5
        )
        assert not union.fraction[rows:, replica : replica + columns].any()
        access_point, replica = access_point + rows, replica + columns


@given(snapshots())
def test_schedules_move_with_their_rows(snapshot: Snapshot) -> None:
    order = random_order(snapshot.topology, seed=2)
    before, after = schedule_of(snapshot), schedule_of(reordered(snapshot, order))
    np.testing.assert_allclose(
        after.fraction, before.fraction[order.access_points][:, order.replicas], rtol=1e-4, atol=1e-6
    )


def test_what_rounding_leaves_of_a_full_node_is_not_room() -> None:
    """Under overload nodes fill up exactly; which way the last bit falls depends on the order of the rows."""
    for seed in range(200):
        topology = example_topology(nodes=4, access_points=3, services=4, replicas_per_service=3, seed=seed)
        calm = example_snapshot(topology, seed)
        rates = calm.load.arrival_rate_per_second * np.float32(100)
        snapshot = replace(calm, load=replace(calm.load, arrival_rate_per_second=rates))
        order = random_order(topology, seed)
        before, after = schedule_of(snapshot), schedule_of(reordered(snapshot, order))
        np.testing.assert_allclose(
            after.fraction, before.fraction[order.access_points][:, order.replicas], rtol=1e-4, atol=1e-6
        )


def best_edge_rate(snapshot: Snapshot) -> float:
    """Requests per second that edge nodes can serve at most, by a linear program: what GSP-SS maximises."""
    topology, load = snapshot.topology, snapshot.load
    on_edge = ~topology.access_points.is_cloud[topology.nodes.access_point[topology.replicas.node]]
    routes = [
        (access_point, replica)
        for access_point in range(len(topology.access_points.names))
        for replica in np.flatnonzero(on_edge).tolist()
        if reachable(snapshot, access_point, replica)
    ]
    node_share, replica_share = shares(snapshot)
    services, nodes = len(topology.services.names), len(topology.nodes.names)
    pairs = len(topology.access_points.names) * services
    upper = np.zeros((pairs + nodes + len(on_edge), len(routes)))
    for column, (access_point, replica) in enumerate(routes):
        upper[access_point * services + topology.replicas.service[replica], column] = 1
        upper[pairs + topology.replicas.node[replica], column] = node_share[replica]
        upper[pairs + nodes + replica, column] = replica_share[replica]
    bounds = np.concatenate([load.arrival_rate_per_second.ravel(), np.full(nodes + len(on_edge), 0.9)])
    solution = linprog(-np.ones(len(routes)), A_ub=upper, b_ub=bounds).x
    assert solution is not None
    return float(solution.sum())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rate_factor", [0.5, 1.5, 5.0])
def test_nearly_as_much_is_served_at_the_edge_as_can_be(seed: int, rate_factor: float) -> None:
    topology = example_topology(nodes=12, access_points=3, services=6, replicas_per_service=5, seed=seed)
    patient = replace(
        topology, services=replace(topology.services, deadline_seconds=np.full(6, 9, np.float32))
    )
    snapshot = example_snapshot(patient, seed)
    rates = snapshot.load.arrival_rate_per_second * np.float32(rate_factor)
    snapshot = replace(snapshot, load=replace(snapshot.load, arrival_rate_per_second=rates))
    on_edge = topology.replicas.node < 12
    served = schedule_of(snapshot).rate_per_second[:, on_edge].sum()
    best = best_edge_rate(snapshot)
    assert 0.85 * best <= served <= best * (1 + 1e-6)


class TestTiers:
    """A default node is planned for 36 requests/s: four at once, 0.1 s each, nine tenths of the time."""

    ENDPOINTS = (Endpoint(), Endpoint("ap-1"), Endpoint("cloud", cpu_millicores=64_000, concurrency=64))

    def rates(self, first: float, second: float) -> list[list[float]]:
        snapshot = one_service_snapshot(self.ENDPOINTS, arrival_rates_per_second=(first, second))
        rates: list[list[float]] = schedule_of(snapshot).rate_per_second[:2].round(3).tolist()
        return rates

    def test_own_nodes_first(self) -> None:
        assert self.rates(30, 36) == [[30, 0, 0], [0, 36, 0]]

    def test_then_other_edge_nodes(self) -> None:
        assert self.rates(50, 20) == [[36, 14, 0], [0, 20, 0]]

    def test_then_the_cloud(self) -> None:
        assert self.rates(70, 30) == [[36, 6, 28], [0, 30, 0]]

    def test_what_exceeds_everything_is_split_like_the_rest(self) -> None:
        snapshot = one_service_snapshot(self.ENDPOINTS[:2], arrival_rates_per_second=(120, 0))
        schedule = schedule_of(snapshot)
        assert schedule.rate_per_second[0].tolist() == pytest.approx([36, 36], rel=1e-6)
        assert schedule.fraction[0].tolist() == pytest.approx([0.5, 0.5], rel=1e-6)

    def test_a_place_too_far_for_the_deadline_comes_last(self) -> None:
        snapshot = one_service_snapshot(self.ENDPOINTS, arrival_rates_per_second=(60, 36))
        services = replace(snapshot.topology.services, deadline_seconds=np.array([0.15], np.float32))
        snapshot = replace(snapshot, topology=replace(snapshot.topology, services=services))
        assert schedule_of(snapshot).rate_per_second[0].tolist() == pytest.approx([36, 0, 24], abs=1e-6)

    def test_nodes_of_one_tier_fill_in_proportion_to_their_room(self) -> None:
        snapshot = one_service_snapshot(
            [Endpoint(), Endpoint(cpu_millicores=3000, concurrency=12)], arrival_rates_per_second=(40, 0)
        )
        assert schedule_of(snapshot).rate_per_second[0].tolist() == pytest.approx([10, 30], rel=1e-6)

    def test_slots_bound_the_rate_too(self) -> None:
        snapshot = one_service_snapshot(
            [Endpoint(concurrency=1), Endpoint("cloud", cpu_millicores=64_000, concurrency=64)],
            arrival_rates_per_second=(30, 0),
        )
        assert schedule_of(snapshot).rate_per_second[0].tolist() == pytest.approx([9, 21], rel=1e-6)

    def test_without_any_request_expected_near_places_are_scheduled(self) -> None:
        snapshot = one_service_snapshot(self.ENDPOINTS)
        assert schedule_of(snapshot).fraction[:2].tolist() == [[1, 0, 0], [0, 1, 0]]


def test_picks_follow_the_fractions() -> None:
    snapshot = one_service_snapshot(TestTiers.ENDPOINTS, arrival_rates_per_second=(70, 30))
    counts = Counter(picks_one_by_one(GspSs(), snapshot, 70))
    for replica, rate in enumerate((36, 6, 28)):
        assert abs(counts[replica] - rate) <= 2


@pytest.mark.parametrize("batches", [[70], [1, 9, 60], [35, 35]])
def test_batches_follow_them_as_one_by_one_does(batches: list[int]) -> None:
    snapshot = one_service_snapshot(TestTiers.ENDPOINTS, arrival_rates_per_second=(70, 30))
    view, ledger, random = DispatchView(snapshot), Ledger(snapshot.topology), np.random.default_rng(0)
    picked: list[int] = []
    for count in batches:
        decisions = decide(GspSs(), view, repeated_query(count), ledger, NOW_SECONDS, random)
        picked += decisions.replica.tolist()
    assert picked == picks_one_by_one(GspSs(), snapshot, 70)


def test_a_new_schedule_is_followed_at_once() -> None:
    before = one_service_snapshot(TestTiers.ENDPOINTS, arrival_rates_per_second=(30, 0))
    after = one_service_snapshot(TestTiers.ENDPOINTS, arrival_rates_per_second=(80, 0))
    ledger = Ledger(before.topology)
    assert Counter(picks_one_by_one(GspSs(), before, 500, ledger)) == {0: 500}
    ledger.bind(after.topology)
    counts = Counter(picks_one_by_one(GspSs(), after, 40, ledger))
    assert abs(counts[0] - 20) <= 2
    assert abs(counts[1] - 20) <= 2
