import itertools
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy_server.cluster.ledger import Ledger
from policy_server.cluster.queries import DispatchQueries
from policy_server.cluster.snapshot import Snapshot
from policy_server.features.candidates import Candidates
from policy_server.policies.dispatch import DispatchView
from policy_server.policies.heuristics import (
    EarliestCompletion,
    Firmament,
    UnknownPolicyError,
    heuristic_dispatch,
)
from tests.support.dispatching import NOW_SECONDS, ranking, repeated_query, scores_of
from tests.support.systems import (
    Endpoint,
    example_queries,
    example_snapshot,
    example_topology,
    one_service_snapshot,
)


def assignment_of(candidates: Candidates, policy: Firmament) -> list[int]:
    """Position on the candidate axis chosen for each query that has candidates."""
    scores = policy.score(candidates, None, np.random.default_rng(0))
    return [
        int(start + scores[start:stop].argmax())
        for start, stop in itertools.pairwise(candidates.offsets.tolist())
        if start < stop
    ]


class Reference:
    """Cost of assignments, straight from the description of the flow network.

    Each query counts with its best replica on a node: that replicas of a node take turns is not part of the network.
    """

    def __init__(self, candidates: Candidates) -> None:
        self.candidates = candidates
        self.best_on_node: list[dict[int, int]] = []
        reaching: dict[int, list[float]] = {}
        for start, stop in itertools.pairwise(candidates.offsets.tolist()):
            best: dict[int, int] = {}
            for position in range(start, stop):
                node = int(candidates.node[position])
                first = best.setdefault(node, position)
                if candidates.completion_seconds[position] < candidates.completion_seconds[first]:
                    best[node] = position
            for node, position in best.items():
                reaching.setdefault(node, []).append(float(candidates.cpu_fraction[position]))
            if best:
                self.best_on_node.append(best)
        self.mean_cpu = {node: sum(cpu) / len(cpu) for node, cpu in reaching.items()}

    def completion_seconds(self, position: int, before: int) -> float:
        c = self.candidates
        node = int(c.node[position])
        execution = float(c.execution_seconds[position])
        mean_execution = float(c.table.node_mean_execution_seconds[node]) or execution
        cpu_excess = float(c.committed[position] + c.cpu_fraction[position]) - 1
        cpu_wait = max(0.0, cpu_excess + before * self.mean_cpu[node]) * mean_execution
        slots = (float(c.outstanding[position]) + 1 + before) * float(c.inverse_concurrency[position])
        slot_wait = max(0.0, slots - 1) * execution
        return float(c.completion_seconds[position] - c.wait_seconds[position]) + max(cpu_wait, slot_wait)

    def cost(self, nodes: tuple[int, ...]) -> tuple[int, float]:
        """Requests that are late, and the sum of completion times, in the best order at each node."""
        late, total = 0, 0.0
        for node in set(nodes):
            positions = [
                best[node] for best, own in zip(self.best_on_node, nodes, strict=True) if own == node
            ]
            first = min(self.cost_in_order(order) for order in itertools.permutations(positions))
            late, total = late + first[0], total + first[1]
        return late, total

    def cost_in_order(self, positions: tuple[int, ...]) -> tuple[int, float]:
        seconds = [self.completion_seconds(position, before) for before, position in enumerate(positions)]
        deadline = np.broadcast_to(self.candidates.deadline_seconds, len(self.candidates))
        late = sum(s > deadline[position] for s, position in zip(seconds, positions, strict=True))
        return int(late), sum(seconds)

    def least_cost(self) -> tuple[int, float]:
        return min(self.cost(nodes) for nodes in itertools.product(*self.best_on_node))


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**16),
    count=st.integers(2, 5),
    nodes=st.integers(1, 3),
    replicas=st.integers(1, 3),
    deadline_factor=st.sampled_from([0.3, 1.0, 10.0]),
)
def test_assignments_cost_as_little_as_any(
    seed: int, count: int, nodes: int, replicas: int, deadline_factor: float
) -> None:
    topology = example_topology(
        nodes=nodes, access_points=2, services=2, replicas_per_service=replicas, seed=seed
    )
    snapshot = example_snapshot(topology, seed)
    queries = example_queries(topology, count, seed)
    queries = replace(queries, deadline_seconds=queries.deadline_seconds * np.float32(deadline_factor))
    candidates = DispatchView(snapshot).candidates(queries, Ledger(topology), NOW_SECONDS)
    reference = Reference(candidates)
    chosen = candidates.node[assignment_of(candidates, Firmament())]
    found, least = reference.cost(tuple(chosen.tolist())), reference.least_cost()
    assert found[0] == least[0]
    assert found[1] == pytest.approx(least[1], rel=1e-5)


def test_one_request_takes_the_earliest_completion() -> None:
    for seed in range(20):
        snapshot = example_snapshot(example_topology(seed=seed), seed)
        queries = example_queries(snapshot.topology, 1, seed)
        queries = replace(queries, deadline_seconds=np.array([1e4], np.float32))
        alone = scores_of(Firmament(), snapshot, queries)
        assert alone.argmax() == scores_of(EarliestCompletion(), snapshot, queries).argmax()


def test_alternatives_rank_by_cost() -> None:
    snapshot = one_service_snapshot([Endpoint("cloud"), Endpoint(), Endpoint("ap-1")])
    assert ranking(Firmament(), snapshot) == [1, 2, 0]


def chosen_rows(snapshot: Snapshot, queries: DispatchQueries, policy: Firmament | None = None) -> list[int]:
    candidates = DispatchView(snapshot).candidates(queries, Ledger(snapshot.topology), NOW_SECONDS)
    positions = assignment_of(candidates, policy or Firmament())
    rows: list[int] = candidates.replica[positions].tolist()
    return rows


def test_a_batch_spreads_over_equal_endpoints() -> None:
    snapshot = one_service_snapshot([Endpoint()] * 4)
    assert Counter(chosen_rows(snapshot, repeated_query(40))) == {0: 10, 1: 10, 2: 10, 3: 10}


def test_all_to_one_node_when_there_is_no_other() -> None:
    assert chosen_rows(one_service_snapshot([Endpoint()]), repeated_query(30)) == [0] * 30


def test_an_urgent_request_gets_the_place_that_a_patient_one_can_spare() -> None:
    """One slot near, the cloud answers in 0.2 s. One by one, the patient request that comes first would take it."""
    snapshot = one_service_snapshot(
        [Endpoint(concurrency=1), Endpoint("cloud", cpu_millicores=64_000, concurrency=64)]
    )
    queries = replace(repeated_query(2), deadline_seconds=np.array([10, 0.11], np.float32))
    assert chosen_rows(snapshot, queries) == [1, 0]


def test_replicas_of_one_service_on_one_node_take_turns() -> None:
    snapshot = one_service_snapshot([Endpoint(cpu_millicores=8000)] * 3)
    replicas = snapshot.topology.replicas
    together = replace(
        snapshot,
        topology=replace(snapshot.topology, replicas=replace(replicas, node=np.zeros(3, np.int32))),
    )
    assert Counter(chosen_rows(together, repeated_query(12))) == {0: 4, 1: 4, 2: 4}


def test_later_waves_know_of_earlier_ones() -> None:
    snapshot = one_service_snapshot([Endpoint()] * 4)
    waves = Firmament(wave_size=6)
    assert Counter(chosen_rows(snapshot, repeated_query(40), waves)) == {0: 10, 1: 10, 2: 10, 3: 10}


def test_a_large_batch_is_answered() -> None:
    snapshot = example_snapshot(
        example_topology(nodes=20, access_points=3, services=5, replicas_per_service=6)
    )
    queries = example_queries(snapshot.topology, 700)
    assert len(chosen_rows(snapshot, queries)) == 700


def test_without_scipy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(ImportError) as refusal:
        heuristic_dispatch("firmament")
    assert str(refusal.value) == (
        "dispatch policy 'firmament': scipy is not installed; install policy-server[firmament]"
    )
    assert not isinstance(refusal.value, UnknownPolicyError)
