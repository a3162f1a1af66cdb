"""The logic below the transports, with a model and a clock that stands still."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from policy_server.api.dispatch_logic import DispatchLimits, DispatchLogic
from policy_server.api.errors import InvalidArgumentError, OverloadedError, RequestError
from policy_server.api.questions import DispatchQuestion
from policy_server.cluster.state_store import StateStore
from policy_server.policies.dispatch import DispatchView
from policy_server.policies.guard import DecisionSource
from policy_server.runtime.registry import PolicyRegistry
from policy_server.telemetry.metrics import ServerMetrics
from tests.support.models import write_example_bundle
from tests.support.systems import example_snapshot, example_topology

NOW_SECONDS = 500.0


def clock() -> float:
    return NOW_SECONDS


def logic_of(models: Path, policy: str) -> DispatchLogic:
    # So many nodes that no two replicas of a service share one: no ties.
    topology = example_topology(nodes=300, services=8, replicas_per_service=6, seed=2)
    snapshot = example_snapshot(topology, seed=2, ready_probability=0.7)
    store = StateStore(DispatchView, clock=clock)
    store.replace(snapshot.topology, snapshot.load, age_seconds=0.2)
    registry = PolicyRegistry(models, active=policy)
    return DispatchLogic(store, registry, ServerMetrics(), limits=DispatchLimits(), clock=clock)


@pytest.mark.parametrize("policy", ["kais", "earliest-completion"])
async def test_ragged_batch_gives_the_same_answers_as_one_by_one(tmp_path: Path, policy: str) -> None:
    write_example_bundle(tmp_path)
    questions = [
        DispatchQuestion(
            f"service-{service}",
            f"ap-{access_point}",
            deadline_seconds=0.5 + service,
            payload_bytes=1000.0 * service,
            alternatives=service % 4,
            subset=[f"10.0.0.{row}:8080" for row in range(56 if service % 2 else 30)],
        )
        for service in range(8)
        for access_point in range(3)
    ]
    logic = logic_of(tmp_path, policy)
    # The first crowd is decided one by one, and makes the batcher collect the second.
    await asyncio.gather(*(logic.dispatch(question) for question in questions), return_exceptions=True)
    logic = logic_of(tmp_path, policy)
    logic._batcher._arrived_before = len(questions)
    together = await asyncio.gather(
        *(logic.dispatch(question) for question in questions), return_exceptions=True
    )
    decided = 0
    for question, batched in zip(questions, together, strict=True):
        # A fresh logic each time: own picks change what comes after them.
        asked = logic_of(tmp_path, policy).dispatch(question)
        (alone,) = await asyncio.gather(asked, return_exceptions=True)
        assert type(batched) is type(alone)
        if isinstance(batched, BaseException) or isinstance(alone, BaseException):
            assert str(batched) == str(alone)
            continue
        decided += 1
        assert batched.endpoint == alone.endpoint
        assert batched.score == pytest.approx(alone.score, abs=1e-6)
        assert batched.candidate_count == alone.candidate_count
        assert [other[:2] for other in batched.alternatives] == [other[:2] for other in alone.alternatives]
        assert batched.origin == alone.origin
        assert batched.origin.source is (
            DecisionSource.LEARNED if policy == "kais" else DecisionSource.HEURISTIC
        )
    assert decided > 12


async def test_questions_of_one_batch_may_ask_different_policies(tmp_path: Path) -> None:
    write_example_bundle(tmp_path)
    logic = logic_of(tmp_path, "kais")
    policies = ["", "random", "kais", "wishful", "round-robin", "earliest-completion"] * 3
    logic._batcher._arrived_before = len(policies)
    answers = await asyncio.gather(
        *(logic.dispatch(DispatchQuestion("service-1", "ap-1", policy=policy)) for policy in policies),
        return_exceptions=True,
    )
    for policy, answer in zip(policies, answers, strict=True):
        if policy == "wishful":
            assert isinstance(answer, RequestError)
        else:
            assert not isinstance(answer, BaseException)
            assert answer.origin.policy == (policy or "kais")


async def test_seeded_questions_of_one_batch_repeat(tmp_path: Path) -> None:
    write_example_bundle(tmp_path)
    question = DispatchQuestion("service-1", "ap-1", policy="random", seed=3)
    chosen = []
    for crowd in (1, 10):
        logic = logic_of(tmp_path, "kais")
        logic._batcher._arrived_before = 10
        answers = await asyncio.gather(*(logic.dispatch(question) for _ in range(crowd)))
        chosen += [answer.endpoint for answer in answers]
    assert len(set(chosen)) == 1


def test_no_more_are_admitted_than_allowed(tmp_path: Path) -> None:
    write_example_bundle(tmp_path)
    logic = logic_of(tmp_path, "kais")
    for _ in range(logic.limits.in_flight):
        logic.enter()
    with pytest.raises(OverloadedError) as refused:
        logic.enter()
    assert refused.value.retry_after_milliseconds == logic.limits.retry_after_milliseconds
    logic.leave()
    logic.enter()


async def test_longest_subset_and_one_endpoint_more(tmp_path: Path) -> None:
    write_example_bundle(tmp_path)
    logic = logic_of(tmp_path, "kais")
    endpoints = [f"10.0.0.{row}:8080" for row in range(logic.limits.subset_endpoints + 1)]
    assert (await logic.dispatch(DispatchQuestion("service-1", "ap-1", subset=endpoints[:-1]))).endpoint
    with pytest.raises(InvalidArgumentError, match=r"endpoint_subset\.endpoints: 10001 endpoints"):
        await logic.dispatch(DispatchQuestion("service-1", "ap-1", subset=endpoints))
