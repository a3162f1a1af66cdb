from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policy_server.api.errors import DeadlineSpentError, OverloadedError, UnknownPolicyError
from policy_server.api.scaling_logic import MOST_CONTAINERS_TOGETHER, ScalingLogic
from policy_server.api.scaling_messages import ScalingLimits
from policy_server.api.scaling_questions import ScalingQuestion
from policy_server.policies.scaling.batch import ScalingOutcome, ScalingTask
from policy_server.policies.scaling.guard import GuardedScaling
from policy_server.runtime.scaling_registry import ScalingRegistry
from policy_server.telemetry.metrics import ServerMetrics
from tests.policy_server.policies.scaling_fleets import task_of


@pytest.fixture
def metrics() -> ServerMetrics:
    return ServerMetrics()


@pytest.fixture
def logic(tmp_path: Path, metrics: ServerMetrics) -> ScalingLogic:
    return ScalingLogic(ScalingRegistry(tmp_path), metrics, limits=ScalingLimits(), most_in_flight=2)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Containers of each call of a policy."""
    sizes: list[int] = []
    decide = GuardedScaling.decide

    def counted(self: GuardedScaling, task: ScalingTask, *arguments: Any) -> ScalingOutcome:
        sizes.append(len(task))
        return decide(self, task, *arguments)

    monkeypatch.setattr(GuardedScaling, "decide", counted)
    return sizes


def question(containers: int = 1, policy: str = "", **columns: Any) -> ScalingQuestion:
    return ScalingQuestion(policy, task_of(containers, **columns), 0.0)


async def test_a_lone_question_is_decided_at_once(logic: ScalingLogic, batches: list[int]) -> None:
    answer = await logic.scale(question(3))
    assert len(answer.outcome.plan.apply) == 3
    assert batches == [3]


async def test_questions_that_wait_are_decided_together(logic: ScalingLogic, batches: list[int]) -> None:
    usages = np.linspace(0.2, 0.9, 12)
    for _ in range(2):
        del batches[:]
        answers = await asyncio.gather(*(logic.scale(question(2, cpu_usage_cores=usage)) for usage in usages))
    # The first turn told that there are many.
    assert batches == [24]
    for usage, answer in zip(usages, answers, strict=True):
        alone = await logic.scale(question(2, cpu_usage_cores=usage))
        np.testing.assert_allclose(
            answer.outcome.decisions.cpu_cores.target, alone.outcome.decisions.cpu_cores.target
        )


async def test_questions_for_different_policies_and_large_ones_are_decided_apart(
    logic: ScalingLogic, batches: list[int]
) -> None:
    asked = [
        question(MOST_CONTAINERS_TOGETHER - 1),
        question(1),
        question(5),
        question(2, "static"),
        question(1, "no-such"),
    ]
    for _ in range(2):
        del batches[:]
        answers = await asyncio.gather(*map(logic.scale, asked), return_exceptions=True)
    assert batches == [MOST_CONTAINERS_TOGETHER, 5, 2]
    *decided, refused = answers
    assert isinstance(refused, UnknownPolicyError)
    for answer, one in zip(decided, asked, strict=False):
        assert not isinstance(answer, BaseException)
        assert len(answer.outcome.plan.apply) == len(one.task)


async def test_a_caller_that_gave_up_harms_nobody(logic: ScalingLogic) -> None:
    await asyncio.gather(*(logic.scale(question()) for _ in range(3)))
    patient, hasty = (asyncio.ensure_future(logic.scale(question())) for _ in range(2))
    await asyncio.sleep(0)
    hasty.cancel()
    assert (await patient).outcome.origins


async def test_a_spent_deadline_asks_no_policy(logic: ScalingLogic, batches: list[int]) -> None:
    with pytest.raises(DeadlineSpentError):
        await logic.scale(question(), remaining_seconds=0.0)
    assert not batches


async def test_decisions_are_counted_by_origin(logic: ScalingLogic, metrics: ServerMetrics) -> None:
    await logic.scale(question(3))
    await logic.scale(question(2, "static"), math.inf)
    counts = {origin.policy: series.decisions for origin, series in metrics._decisions.items()}
    assert counts == {"threshold": 3, "static": 2}


def test_more_than_the_limit_are_shed(logic: ScalingLogic, metrics: ServerMetrics) -> None:
    logic.enter()
    logic.enter()
    with pytest.raises(OverloadedError, match="2 scaling requests are in flight"):
        logic.enter()
    assert metrics._shed == 1
    logic.leave()
    logic.enter()
    assert logic.in_flight == 2
