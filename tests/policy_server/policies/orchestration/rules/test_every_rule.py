"""What holds for every orchestration rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policy_server.cluster.actions import AddReplica
from policy_server.cluster.snapshot import Snapshot
from policy_server.policies.orchestration.memory import FrameMemory
from policy_server.policies.orchestration.plan import OrchestrationOptions
from policy_server.policies.orchestration.policy import OrchestrationPolicy
from policy_server.policies.orchestration.rules import (
    HEURISTIC_ORCHESTRATION_NAMES,
    UnknownPolicyError,
    heuristic_orchestration,
)
from tests.support.orchestrating import (
    assert_feasible,
    crowded_snapshots,
    option_sets,
    query_of,
    strange_systems,
)
from tests.support.systems import random_order, reordered, systems_of_same_services

every_rule = pytest.mark.parametrize("name", HEURISTIC_ORCHESTRATION_NAMES)
relaxed = settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)


def random_numbers() -> np.random.Generator:
    return np.random.default_rng(0)


@every_rule
def test_it_is_a_policy(name: str) -> None:
    rule = heuristic_orchestration(name)
    assert isinstance(rule, OrchestrationPolicy)
    assert (rule.name, rule.learned) == (name, False)


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(
        UnknownPolicyError, match=r"policy: 'wishful' is unknown; choose one of static, greedy"
    ):
        heuristic_orchestration("wishful")


@every_rule
@relaxed
@given(snapshot=crowded_snapshots(), data=st.data())
def test_actions_of_a_frame_are_feasible_together(name: str, snapshot: Snapshot, data: st.DataObject) -> None:
    options = data.draw(option_sets(len(snapshot.topology.services.names)))
    rule, memory, actions = heuristic_orchestration(name), FrameMemory(), []
    for _ in range(3):
        (decision,) = rule.decide([query_of(snapshot, options, memory)], random_numbers())
        if options.maximum_actions is not None:
            assert len(decision.plan.actions) <= options.maximum_actions
        memory.record(decision.plan.given_actions(100.0), 100.0)
        actions += decision.plan.actions
    assert_feasible(snapshot, replace(options, maximum_actions=None), actions)


@every_rule
@relaxed
@given(systems=systems_of_same_services())
def test_a_batch_is_decided_as_one_by_one(name: str, systems: list[Snapshot]) -> None:
    rule = heuristic_orchestration(name)
    together = rule.decide([query_of(system) for system in systems], random_numbers())
    for decision, system in zip(together, systems, strict=True):
        (alone,) = rule.decide([query_of(system)], random_numbers())
        assert decision.plan.actions == alone.plan.actions


@every_rule
@pytest.mark.parametrize("system", strange_systems())
def test_strange_systems_get_a_sensible_answer(name: str, system: str) -> None:
    snapshot = strange_systems()[system]
    (decision,) = heuristic_orchestration(name).decide([query_of(snapshot)], random_numbers())
    assert_feasible(snapshot, OrchestrationOptions(), decision.plan.actions)


@every_rule
@given(snapshot=crowded_snapshots(), data=st.data())
def test_additions_are_scored_where_they_are_feasible(
    name: str, snapshot: Snapshot, data: st.DataObject
) -> None:
    service = data.draw(st.integers(0, len(snapshot.topology.services.names) - 1))
    query = query_of(snapshot)
    scores = heuristic_orchestration(name).score_additions(query, service)
    assert scores.dtype == np.float64
    assert scores.shape == (len(snapshot.topology.nodes.names),)
    (decision,) = heuristic_orchestration("static").decide([query], random_numbers())
    feasible = decision.plan.additions(np.arange(len(scores)))[:, service]
    np.testing.assert_array_equal(np.isfinite(scores), feasible)


@pytest.mark.parametrize("name", ["greedy", "gsp-ss"])
@relaxed
@given(snapshot=crowded_snapshots(), seed=st.integers(0, 2**16))
def test_additions_do_not_depend_on_the_order_of_rows(name: str, snapshot: Snapshot, seed: int) -> None:
    def added(of: Snapshot) -> list[tuple[str, str]]:
        options = OrchestrationOptions(maximum_actions=4)
        (decision,) = heuristic_orchestration(name).decide([query_of(of, options)], random_numbers())
        topology = of.topology
        return [
            (topology.nodes.names[planned.node], topology.services.names[planned.service])
            for planned in decision.plan.actions
            if isinstance(planned.action, AddReplica)
        ]

    assert added(reordered(snapshot, random_order(snapshot.topology, seed))) == added(snapshot)


def test_static_never_acts() -> None:
    for snapshot in strange_systems().values():
        (decision,) = heuristic_orchestration("static").decide([query_of(snapshot)], random_numbers())
        assert decision.plan.actions == []
