"""A real model behind the orchestration policy."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policy_server.cluster.actions import AddReplica
from policy_server.cluster.snapshot import Snapshot, disjoint_union
from policy_server.policies.decision_origin import FallbackReason
from policy_server.policies.orchestration.memory import FrameMemory
from policy_server.policies.orchestration.onnx import OnnxOrchestration
from policy_server.policies.orchestration.plan import OrchestrationOptions, PlannedAction
from policy_server.policies.orchestration.policy import OrchestrationPolicy
from tests.support.models import loaded_orchestration_bundle, orchestration_head_model
from tests.support.orchestrating import (
    assert_feasible,
    crowded_snapshots,
    option_sets,
    query_of,
    strange_systems,
)
from tests.support.systems import (
    example_snapshot,
    example_topology,
    random_order,
    reordered,
    systems_of_same_services,
)

POLICY = OnnxOrchestration(loaded_orchestration_bundle())
relaxed = settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)


def random_numbers(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def in_names(snapshot: Snapshot, actions: list[PlannedAction]) -> list[tuple[str, str, str]]:
    """Kind, node and service of each action. Which of two equal replicas goes may depend on their order."""
    topology = snapshot.topology
    return [
        (
            type(planned.action).__name__,
            topology.nodes.names[planned.node],
            topology.services.names[planned.service],
        )
        for planned in actions
    ]


def test_it_is_a_policy() -> None:
    assert isinstance(POLICY, OrchestrationPolicy)
    assert (POLICY.name, POLICY.version, POLICY.learned) == ("gpg", "1.0.0", True)


@relaxed
@given(crowded_snapshots(), st.data())
def test_actions_of_a_frame_are_feasible_together(snapshot: Snapshot, data: st.DataObject) -> None:
    options = data.draw(option_sets(len(snapshot.topology.services.names)))
    memory, actions = FrameMemory(), []
    for _ in range(3):
        (decision,) = POLICY.decide([query_of(snapshot, options, memory)], random_numbers())
        assert len(decision.plan.actions) <= (options.maximum_actions or 2)
        memory.record(decision.plan.given_actions(100.0), 100.0)
        actions += decision.plan.actions
    assert_feasible(snapshot, replace(options, maximum_actions=None), actions)


@relaxed
@given(systems_of_same_services())
def test_a_batch_is_decided_as_one_by_one(systems: list[Snapshot]) -> None:
    together = POLICY.decide([query_of(system) for system in systems], random_numbers())
    united = POLICY.decide([query_of(disjoint_union(systems))], random_numbers())[0].plan.actions
    of_members = []
    for position, (decision, system) in enumerate(zip(together, systems, strict=True)):
        (alone,) = POLICY.decide([query_of(system)], random_numbers())
        assert in_names(system, decision.plan.actions) == in_names(system, alone.plan.actions)
        for planned, other in zip(decision.plan.actions, alone.plan.actions, strict=True):
            assert planned.score == pytest.approx(other.score, abs=1e-5)
        of_members += [
            (kind, f"{position}/{node}", service)
            for kind, node, service in in_names(system, alone.plan.actions)
        ]
    assert sorted(in_names(disjoint_union(systems), united)) == sorted(of_members)


def test_systems_of_different_services_are_decided_together() -> None:
    systems = [example_snapshot(example_topology(services=count, seed=count), count) for count in (1, 3, 7)]
    together = POLICY.decide([query_of(system) for system in systems], random_numbers())
    for decision, system in zip(together, systems, strict=True):
        (alone,) = POLICY.decide([query_of(system)], random_numbers())
        assert decision.plan.actions
        assert in_names(system, decision.plan.actions) == in_names(system, alone.plan.actions)


@relaxed
@given(crowded_snapshots(), st.integers(0, 2**16))
def test_the_order_of_rows_does_not_matter(snapshot: Snapshot, seed: int) -> None:
    shuffled = reordered(snapshot, random_order(snapshot.topology, seed))
    (first,) = POLICY.decide([query_of(snapshot)], random_numbers())
    (second,) = POLICY.decide([query_of(shuffled)], random_numbers())
    assert in_names(snapshot, first.plan.actions) == in_names(shuffled, second.plan.actions)


@pytest.mark.parametrize("name", strange_systems())
def test_strange_systems_get_a_sensible_answer(name: str) -> None:
    snapshot = strange_systems()[name]
    (decision,) = POLICY.decide([query_of(snapshot)], random_numbers())
    assert decision.trouble is FallbackReason.UNSPECIFIED
    assert_feasible(snapshot, OrchestrationOptions(), decision.plan.actions)
    if name == "full nodes":
        assert not any(isinstance(planned.action, AddReplica) for planned in decision.plan.actions)


def test_doing_nothing_is_a_choice() -> None:
    content = OnnxOrchestration(loaded_orchestration_bundle(orchestration_head_model(nothing=1e3)))
    (decision,) = content.decide([query_of(example_snapshot(example_topology()))], random_numbers())
    assert decision.plan.actions == []
    assert decision.trouble is FallbackReason.UNSPECIFIED


def test_actions_are_scored_above_doing_nothing() -> None:
    (decision,) = POLICY.decide([query_of(example_snapshot(example_topology()))], random_numbers())
    assert all(planned.score > 0 for planned in decision.plan.actions)


def test_sampling_explores_and_repeats_with_its_seed() -> None:
    sampling = OnnxOrchestration(loaded_orchestration_bundle(sampling_temperature=2.0))
    query = query_of(example_snapshot(example_topology()))

    def answers(seed: int) -> list[list[PlannedAction]]:
        random = random_numbers(seed)
        return [sampling.decide([query], random)[0].plan.actions for _ in range(5)]

    first = answers(1)
    assert first == answers(1)
    assert len({tuple(actions) for actions in first}) > 1


@pytest.mark.parametrize("fault", [math.nan, math.inf])
def test_scores_that_are_not_finite_are_no_answer(fault: float) -> None:
    broken = OnnxOrchestration(loaded_orchestration_bundle(orchestration_head_model(fault=fault)))
    (decision,) = broken.decide([query_of(example_snapshot(example_topology()))], random_numbers())
    assert decision.trouble is FallbackReason.NON_FINITE_OUTPUT
    assert decision.plan.actions == []


def test_features_that_are_not_finite_are_no_ground_for_an_answer() -> None:
    sound, odd = (query_of(example_snapshot(example_topology(seed=seed), seed)) for seed in (1, 2))
    odd.graph.node_features[0, 0] = np.nan
    decisions = POLICY.decide([odd, sound], random_numbers())
    assert [decision.trouble for decision in decisions] == [
        FallbackReason.NON_FINITE_INPUT,
        FallbackReason.UNSPECIFIED,
    ]
    assert decisions[1].plan.actions == POLICY.decide([sound], random_numbers())[0].plan.actions


def test_a_snapshot_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = OnnxOrchestration(loaded_orchestration_bundle())
    runs = []
    encoder = policy._encoder
    monkeypatch.setattr(
        policy,
        "_encoder",
        type("Counted", (), {"run": lambda _, feeds: runs.append(1) or encoder.run(feeds)})(),
    )
    query = query_of(example_snapshot(example_topology()))
    policy.decide([query, query], random_numbers())
    policy.decide([query], random_numbers())
    policy.score_additions(query, 0)
    assert len(runs) == 1


@given(crowded_snapshots(), st.data())
def test_additions_are_scored_where_they_are_feasible(snapshot: Snapshot, data: st.DataObject) -> None:
    service = data.draw(st.integers(0, len(snapshot.topology.services.names) - 1))
    query = query_of(snapshot)
    scores = POLICY.score_additions(query, service)
    (decision,) = POLICY.decide(
        [query_of(snapshot, OrchestrationOptions(maximum_actions=1))], random_numbers()
    )
    fresh = replace(decision.plan.options, maximum_actions=None)
    plan = type(decision.plan)(query_of(snapshot, fresh))
    feasible = plan.additions(np.arange(len(scores)))[:, service]
    np.testing.assert_array_equal(np.isfinite(scores), feasible)
