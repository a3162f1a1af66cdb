"""Containers of several callers decided together get what each caller alone would get."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy_server.cluster.containers import MEASURED, MeasurementHistory
from policy_server.policies.scaling import RULE_SCALING_NAMES, rule_scaling
from policy_server.policies.scaling.actor import ActorScaling
from policy_server.policies.scaling.batch import ScalingTask, join_tasks
from policy_server.policies.scaling.guard import GuardedScaling
from policy_server.policies.scaling.safety import ScalingReason
from tests.policy_server.policies.scaling_fleets import task_of

ACTOR = ActorScaling(lambda features: np.tanh(features[:, :2] - features.mean(axis=1, keepdims=True)))
POLICIES = [*map(rule_scaling, RULE_SCALING_NAMES), ACTOR]


def random_task(random: np.random.Generator) -> ScalingTask:
    """Anything a caller may know, gaps included."""
    count, intervals, nodes = random.integers(1, 5), random.integers(1, 9), random.integers(1, 4)
    values = np.exp(random.uniform(-3, 1, (len(MEASURED), intervals, count)))
    for name in ("memory_usage_bytes", "memory_limit_bytes"):
        values[MEASURED.index(name)] *= 4e8
    values[MEASURED.index("oom_kills")] = random.random((intervals, count)) < 0.1
    values[random.random(values.shape) < 0.1] = np.nan
    task = task_of(int(count), economy=random.random(count))
    fleet = replace(
        task.fleet,
        application=random.integers(3, size=count),
        node=random.integers(nodes, size=count),
        node_cpu_cores=random.uniform(0.5, 4, nodes),
        node_memory_bytes=random.uniform(2e8, 2e9, nodes),
    )
    hold = np.where(random.random(count) < 0.1, ScalingReason.STALE_SAMPLE, 0).astype(np.uint8)
    return replace(
        task,
        fleet=fleet,
        history=MeasurementHistory(values),
        constraints=replace(task.constraints, hold=hold),
        last=replace(task.last, status=random.integers(5, size=count).astype(np.uint8)),
    )


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@given(st.integers(0, 2**32), st.integers(1, 4))
@settings(max_examples=40)
def test_joined_and_one_by_one(policy: ActorScaling, seed: int, callers: int) -> None:
    random = np.random.default_rng(seed)
    tasks = [random_task(random) for _ in range(callers)]
    guarded = GuardedScaling(policy)
    together = guarded.decide(join_tasks(tasks))
    first = 0
    for task in tasks:
        alone, part = guarded.decide(task), together.rows(first, first + len(task))
        first += len(task)
        for resource in ("cpu_cores", "memory_bytes"):
            here, there = getattr(part.decisions, resource), getattr(alone.decisions, resource)
            for column in fields(here):
                np.testing.assert_allclose(getattr(here, column.name), getattr(there, column.name), rtol=1e-6)
        for column in fields(part.plan):
            np.testing.assert_allclose(
                getattr(part.plan, column.name), getattr(alone.plan, column.name), rtol=1e-6
            )
        assert [part.origins[row] for row in part.origin] == [alone.origins[row] for row in alone.origin]
    assert first == len(together.origin)


def test_one_task_is_not_copied() -> None:
    task = task_of(3)
    assert join_tasks([task]) is task


def test_nodes_of_different_callers_are_different_nodes() -> None:
    tasks = [task_of(1, cores=1.2, cpu_usage_cores=0.99) for _ in range(2)]
    together = GuardedScaling(rule_scaling("threshold")).decide(join_tasks(tasks))
    np.testing.assert_allclose(together.decisions.cpu_cores.target, 1.2)
