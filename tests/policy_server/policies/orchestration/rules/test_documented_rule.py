"""The rule that the documentation shows how to add."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policy_server.cluster.actions import AddReplica
from policy_server.cluster.snapshot import Float64Array
from policy_server.policies.orchestration.plan import FramePlan, OrchestrationOptions, OrchestrationQuery
from policy_server.policies.orchestration.policy import OrchestrationPolicy
from policy_server.policies.orchestration.rules.base import OrchestrationRule, free_share
from tests.support.orchestrating import assert_feasible, query_of, strange_systems

PAGE = Path(__file__).parents[5] / "docs" / "architecture.md"


@pytest.fixture
def rule() -> OrchestrationPolicy:
    (code,) = (
        block
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "OrchestrationRule" in block
    )
    names: dict[str, Any] = {
        known.__name__: known
        for known in (dataclass, FramePlan, OrchestrationQuery, OrchestrationRule, free_share)
    }
    exec(code, names | {"np": np, "Float64Array": Float64Array}, names)
    made: OrchestrationPolicy = names["OneOfEach"]()
    return made


@pytest.mark.parametrize("name", strange_systems())
def test_it_works(rule: OrchestrationPolicy, name: str) -> None:
    snapshot = strange_systems()[name]
    (decision,) = rule.decide([query_of(snapshot)], np.random.default_rng(0))
    assert_feasible(snapshot, OrchestrationOptions(), decision.plan.actions)
    added = sorted(p.action.service for p in decision.plan.actions if isinstance(p.action, AddReplica))
    if name == "no replicas":
        assert added == [0, 1]
    if name == "a service without replicas":
        assert added == [0]
