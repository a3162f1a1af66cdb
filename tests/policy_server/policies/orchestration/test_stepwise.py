"""The pick: probabilities against their definition, and the same choices in any order of rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.cluster.snapshot import Float64Array, Snapshot, disjoint_union
from policy_server.policies.orchestration.plan import FramePlan, OrchestrationOptions
from policy_server.policies.orchestration.stepwise import (
    NO_NODE,
    action_scores,
    by_system,
    pick_actions,
    pick_best_actions,
    pick_nodes,
)
from tests.support.orchestrating import assert_feasible, crowded_snapshots, query_of, strange_systems
from tests.support.systems import example_snapshot, example_topology, systems_of_same_services


def plan_of(snapshot: Snapshot) -> FramePlan:
    return FramePlan(query_of(snapshot))


def log_softmax(values: Float64Array) -> Float64Array:
    return values - np.log(np.exp(values).sum())


@given(crowded_snapshots(), st.integers(0, 2**16), st.sampled_from([0.0, 0.5, 1.0]))
def test_log_probabilities_are_those_of_a_masked_softmax(
    snapshot: Snapshot, seed: int, temperature: float
) -> None:
    random = np.random.default_rng(seed)
    plan = plan_of(snapshot)
    nodes, width = len(snapshot.topology.nodes.names), 2 * plan.graph.services + 1
    node_scores = random.normal(size=nodes).astype(np.float32)
    picks = pick_nodes(node_scores, plan, random, steps=3, temperature=temperature)
    allowed = np.flatnonzero(picks.allowed).tolist()
    assert (picks.node[0] != NO_NODE).sum() == min(3, len(allowed))
    for node, log_probability in zip(picks.node[0].tolist(), picks.log_probability[0], strict=True):
        if node == NO_NODE:
            assert log_probability == 0
            continue
        left = log_softmax(node_scores[allowed].astype(np.float64) / (temperature or 1))
        assert log_probability == pytest.approx(left[allowed.index(node)], abs=1e-6)
        if not temperature:
            assert node_scores[node] == node_scores[allowed].max()
        allowed.remove(node)

    scores = random.normal(size=(1, 3, width)).astype(np.float32)
    fresh = plan_of(snapshot)
    actions = pick_actions(scores, picks, fresh, random, temperature=temperature)
    assert_feasible(snapshot, OrchestrationOptions(), fresh.actions)
    again = plan_of(snapshot)
    for step, node in enumerate(picks.node[0].tolist()):
        if node == NO_NODE:
            assert not actions.mask[0, step].any()
            continue
        mask = again.mask(np.array([node]))[0]
        np.testing.assert_array_equal(actions.mask[0, step], mask)
        chosen = int(actions.choice[0, step])
        feasible = np.flatnonzero(mask)
        values = log_softmax(scores[0, step, feasible].astype(np.float64) / (temperature or 1))
        position = feasible.tolist().index(chosen)
        assert actions.log_probability[0, step] == pytest.approx(values[position], abs=1e-6)
        if not temperature:
            assert scores[0, step, chosen] == scores[0, step, feasible].max()
        assert again.choose(node, chosen)


@given(
    st.one_of(crowded_snapshots(), systems_of_same_services().map(disjoint_union)),
    st.integers(0, 2**16),
    st.integers(1, 12),
)
def test_the_best_actions_are_those_picked_step_by_step(snapshot: Snapshot, seed: int, steps: int) -> None:
    random = np.random.default_rng(seed)
    plan, other = plan_of(snapshot), plan_of(snapshot)
    picks = pick_nodes(
        random.normal(size=len(snapshot.topology.nodes.names)).astype(np.float32), plan, random, steps=steps
    )
    scores = random.normal(size=(*picks.node.shape, 2 * plan.graph.services + 1)).astype(np.float32)
    scores[..., : plan.graph.services] += 1  # deletions are what earlier actions make infeasible
    pick_actions(scores, picks, plan, random)
    pick_best_actions(scores, picks, other, random)
    assert other.actions == plan.actions


@given(crowded_snapshots(), st.integers(0, 2**16), st.sampled_from([0.0, 1.0]))
def test_picks_are_the_same_when_nobody_learns_from_them(
    snapshot: Snapshot, seed: int, temperature: float
) -> None:
    plans = [plan_of(snapshot), plan_of(snapshot)]
    nodes, width = len(snapshot.topology.nodes.names), 2 * plans[0].graph.services + 1
    of_scores = np.random.default_rng(seed)
    node_scores = of_scores.normal(size=nodes).astype(np.float32)
    scores = of_scores.normal(size=(1, 3, width)).astype(np.float32)
    made = []
    for plan, learning in zip(plans, (True, False), strict=True):
        random = np.random.default_rng(seed)
        picks = pick_nodes(
            node_scores, plan, random, steps=3, temperature=temperature, with_log_probability=learning
        )
        actions = pick_actions(
            scores, picks, plan, random, temperature=temperature, with_log_probability=learning
        )
        made.append((picks, actions))
    (learnt, learnt_actions), (served, served_actions) = made
    np.testing.assert_array_equal(served.node, learnt.node)
    np.testing.assert_array_equal(served_actions.choice, learnt_actions.choice)
    assert plans[0].actions == plans[1].actions
    assert not served.log_probability.any()
    assert not served_actions.log_probability.any()


def test_samples_come_as_often_as_their_probability_says() -> None:
    snapshot = example_snapshot(
        example_topology(nodes=3, access_points=1, services=1, replicas_per_service=3)
    )
    scores = np.array([0.0, 1.0, 0.5, 0.0], np.float32)
    random = np.random.default_rng(0)
    plan = plan_of(snapshot)
    allowed = np.flatnonzero(plan.actionable()).tolist()
    assert len(allowed) == 3
    draws = 4000
    seen: Counter[tuple[int, ...]] = Counter()
    for _ in range(draws):
        seen[tuple(pick_nodes(scores, plan, random, steps=2, temperature=1.0).node[0].tolist())] += 1
    for first, second in permutations(allowed, 2):
        weights = {node: np.exp(float(scores[node])) for node in allowed}
        total = sum(weights.values())
        expected = weights[first] / total * weights[second] / (total - weights[first])
        assert seen[first, second] / draws == pytest.approx(expected, abs=0.03)


def test_equal_nodes_are_picked_equally_often() -> None:
    snapshot = example_snapshot(example_topology(nodes=4, access_points=1))
    plan, random = plan_of(snapshot), np.random.default_rng(1)
    scores = np.zeros(5, np.float32)
    seen = Counter(int(pick_nodes(scores, plan, random, steps=1).node[0, 0]) for _ in range(2000))
    assert set(seen) == set(np.flatnonzero(plan.actionable()).tolist())
    assert min(seen.values()) > 2000 / len(seen) * 0.8


@given(systems_of_same_services(), st.integers(0, 2**16))
def test_systems_of_a_union_pick_as_if_alone(systems: list[Snapshot], seed: int) -> None:
    random = np.random.default_rng(seed)
    united = plan_of(disjoint_union(systems))
    scores = random.normal(size=len(united.graph.topology.node_system)).astype(np.float32)
    width = 2 * united.graph.services + 1
    picks = pick_nodes(scores, united, random, steps=2)
    given_scores = random.normal(size=(len(systems), 2, width)).astype(np.float32)
    actions = pick_actions(given_scores, picks, united, random)
    first = 0
    for row, system in enumerate(systems):
        count = len(system.topology.nodes.names)
        plan = plan_of(system)
        alone = pick_nodes(scores[first : first + count], plan, random, steps=2)
        shifted = np.where(alone.node == NO_NODE, NO_NODE, alone.node + first)
        np.testing.assert_array_equal(picks.node[row], shifted[0])
        np.testing.assert_allclose(picks.log_probability[row], alone.log_probability[0])
        of_one = pick_actions(given_scores[row : row + 1], alone, plan, random)
        np.testing.assert_array_equal(actions.choice[row], of_one.choice[0])
        np.testing.assert_array_equal(actions.mask[row], of_one.mask[0])
        first += count


@pytest.mark.parametrize("name", strange_systems())
def test_strange_systems_are_picked_from(name: str) -> None:
    snapshot = strange_systems()[name]
    plan, random = plan_of(snapshot), np.random.default_rng(0)
    scores = random.normal(size=len(snapshot.topology.nodes.names)).astype(np.float32)
    picks = pick_nodes(scores, plan, random, temperature=1.0)
    shape = (*picks.node.shape, 2 * plan.graph.services + 1)
    pick_actions(random.normal(size=shape).astype(np.float32), picks, plan, random, temperature=1.0)
    assert_feasible(snapshot, OrchestrationOptions(), plan.actions)


def test_no_node_is_picked_where_there_is_nothing_to_do() -> None:
    snapshot = strange_systems()["full nodes"]
    options = OrchestrationOptions(protected_services=np.array([0, 1]))
    plan = FramePlan(query_of(snapshot, options))
    picks = pick_nodes(np.zeros(5, np.float32), plan, np.random.default_rng(0))
    assert (picks.node == NO_NODE).all()
    actions = pick_actions(np.zeros((1, 2, 5), np.float32), picks, plan, np.random.default_rng(0))
    assert plan.actions == []
    assert not actions.mask.any()


def test_scores_of_the_head_fall_into_the_columns_of_the_mask() -> None:
    delete, add = np.arange(4, dtype=np.float32), np.arange(10, 14, dtype=np.float32)
    scores = action_scores(delete, np.array([-1, -2], np.float32), add, services=2)
    assert scores.tolist() == [[0, 1, -1, 10, 11], [2, 3, -2, 12, 13]]


def test_scores_of_picked_nodes_are_padded_by_system() -> None:
    large = example_topology(nodes=4)
    small = replace(example_topology(nodes=1), services=large.services)
    united = disjoint_union([example_snapshot(small, 1), example_snapshot(large, 1)])
    plan = plan_of(united)
    picks = pick_nodes(np.zeros(7, np.float32), plan, np.random.default_rng(0), steps=2)
    assert (picks.node != NO_NODE).tolist() == [[True, False], [True, True]]
    padded = by_system(picks, np.arange(6, dtype=np.float32).reshape(3, 2))
    assert padded.tolist() == [[[0, 1], [0, 0]], [[2, 3], [4, 5]]]
