from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.cluster.ledger import Ledger
from policy_server.cluster.queries import DispatchQueries, single_query
from policy_server.cluster.snapshot import Float32Array, Snapshot, disjoint_union
from policy_server.features.candidates import Candidates
from policy_server.features.load_table import LoadTable
from policy_server.policies.dispatch import (
    NO_CANDIDATE,
    DispatchDecisions,
    DispatchPolicy,
    DispatchView,
    decide,
)
from policy_server.policies.heuristics import EarliestCompletion
from tests.support.systems import (
    Endpoint,
    example_queries,
    example_snapshot,
    example_topology,
    one_service_snapshot,
    systems_of_same_services,
    united_queries,
)


@dataclass
class Highest:
    """Prefers the replica of the highest row, and counts how often it is prepared."""

    name: str = "highest"
    version: str = "1"
    learned: bool = False
    sampling_temperature: float = 0.0
    shares_picks: bool = False
    prepared: list[LoadTable] = field(default_factory=list)

    def prepare(self, table: LoadTable) -> int:
        self.prepared.append(table)
        return len(self.prepared)

    def score(self, candidates: Candidates, prepared: int, random: np.random.Generator) -> Float32Array:
        return candidates.replica.astype(np.float32)


def test_the_example_policy_is_one() -> None:
    assert isinstance(Highest(), DispatchPolicy)


def test_a_policy_is_prepared_once_per_snapshot_and_version() -> None:
    first, second = Highest(), Highest(version="2")
    topology = example_topology()
    view = DispatchView(example_snapshot(topology, 1))
    for _ in range(3):
        assert view.prepared(first) == 1
        assert view.prepared(second) == 1
    following = DispatchView(example_snapshot(topology, 2), view)
    assert following.prepared(first) == 2
    assert [table.snapshot.version for table in first.prepared] == [1, 2]


def test_views_share_what_depends_on_the_topology_alone() -> None:
    topology = example_topology()
    view = DispatchView(example_snapshot(topology, 1))
    following = DispatchView(example_snapshot(topology, 2), view)
    other = DispatchView(example_snapshot(example_topology(seed=1), 3), following)
    assert following.static is view.static
    assert following.sets is view.sets
    assert other.static is not view.static
    assert other.sets is not view.sets


@pytest.mark.parametrize("count", [1, 4])
def test_without_candidates_there_is_no_choice(count: int) -> None:
    topology = example_topology(replicas_per_service=0, link_probability=0.0)
    queries = replace(example_queries(topology, count), access_point=np.zeros(count, np.int32))
    ledger = Ledger(topology)
    decisions = decide(
        Highest(),
        DispatchView(example_snapshot(topology)),
        queries,
        ledger,
        100.0,
        np.random.default_rng(0),
        alternatives=2,
    )
    assert decisions.replica.tolist() == [NO_CANDIDATE] * count
    assert decisions.alternatives.tolist() == [[NO_CANDIDATE] * 2] * count
    assert decisions.score.tolist() == [0] * count
    assert decisions.candidate_counts.tolist() == [0] * count
    assert ledger.pending == 0


@pytest.mark.parametrize("record", [False, True])
def test_picks_are_counted_when_asked(record: bool) -> None:
    snapshot = one_service_snapshot([Endpoint(), Endpoint()])
    ledger = Ledger(snapshot.topology)
    decide(
        Highest(),
        DispatchView(snapshot),
        single_query(0, 0, 1.0),
        ledger,
        100.0,
        np.random.default_rng(0),
        record=record,
    )
    assert ledger.replica_picks.tolist() == [[0, int(record)]]


def test_a_pick_shows_once_the_request_has_reached_the_replica() -> None:
    snapshot = one_service_snapshot([Endpoint("ap-1")])
    ledger = Ledger(snapshot.topology)
    arguments = DispatchView(snapshot), single_query(0, 0, 1.0, 1e6), ledger, 100.0, np.random.default_rng(0)
    decide(Highest(), *arguments)
    link = snapshot.topology.link_row[0, 1]
    assert ledger.link_pending_bytes[link] == 1e6
    # 10 ms of delay and 1 MB at 1 GB/s.
    ledger.refresh(100.0109)
    assert ledger.pending == 1
    ledger.refresh(100.0111)
    assert ledger.pending == 0


def test_only_choices_that_were_made_are_counted_and_for_their_dispatcher() -> None:
    topology = example_topology(services=1, replicas_per_service=0, link_probability=0.0)
    cloud = len(topology.access_points.names) - 1
    queries = DispatchQueries(
        service=np.zeros(3, np.int32),
        access_point=np.array([0, cloud, cloud], np.int32),
        deadline_seconds=np.ones(3, np.float32),
        payload_bytes=np.zeros(3, np.float32),
        dispatcher=np.array([2, 0, 1], np.int32),
    )
    ledger = Ledger(topology, 3)
    view = DispatchView(example_snapshot(topology))
    decisions = decide(Highest(), view, queries, ledger, 100.0, np.random.default_rng(0))
    assert decisions.replica.tolist() == [NO_CANDIDATE, 0, 0]
    assert ledger.replica_picks.tolist() == [[1], [1], [0]]


@given(systems_of_same_services(), st.sampled_from([Highest(), EarliestCompletion()]))
def test_decisions_on_a_union_are_those_on_each_system_alone(
    systems: list[Snapshot], policy: DispatchPolicy
) -> None:
    parts = [example_queries(s.topology, 3, seed=row) for row, s in enumerate(systems)]
    together = decisions_on(disjoint_union(systems), united_queries(systems, parts), policy)
    first_replica = 0
    for row, (system, part) in enumerate(zip(systems, parts, strict=True)):
        alone = decisions_on(system, part, policy)
        rows = slice(3 * row, 3 * row + 3)
        np.testing.assert_array_equal(together.candidate_counts[rows], alone.candidate_counts)
        if policy.name == "highest":
            # Scores without ties, so that the choice is certain.
            for listed, own in (
                (together.replica[rows], alone.replica),
                (together.alternatives[rows], alone.alternatives),
            ):
                expected = np.where(own == NO_CANDIDATE, NO_CANDIDATE, own + first_replica)
                np.testing.assert_array_equal(listed, expected)
        else:
            np.testing.assert_array_equal(together.score[rows], alone.score)
            np.testing.assert_array_equal(together.alternative_scores[rows], alone.alternative_scores)
        first_replica += len(system.topology.replicas.endpoints)


def decisions_on(snapshot: Snapshot, queries: DispatchQueries, policy: DispatchPolicy) -> DispatchDecisions:
    return decide(
        policy,
        DispatchView(snapshot),
        queries,
        Ledger(snapshot.topology),
        100.0,
        np.random.default_rng(0),
        alternatives=2,
    )
