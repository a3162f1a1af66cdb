from __future__ import annotations

import pytest

from bench.budgets import Budget, judge


@pytest.mark.parametrize(
    ("budget", "value", "held"),
    [
        (Budget("a.b", 1.2), 1.2, True),
        (Budget("a.b", 1.2), 1.201, False),
        (Budget("a.b", 0.8, is_upper=False), 0.8, True),
        (Budget("a.b", 0.8, is_upper=False), 0.79, False),
    ],
)
def test_limits_are_inclusive(budget: Budget, value: float, held: bool) -> None:
    verdict = judge((budget,), {"a": {"b": value}})["a.b"]
    assert (verdict.value, verdict.limit, verdict.held) == (value, budget.limit, held)


def test_what_was_not_measured_is_not_judged() -> None:
    assert judge((Budget("a.b", 1.0), Budget("c", 1.0)), {"a": {}, "c": None}) == {}


def test_a_budget_reads_as_a_limit() -> None:
    assert str(Budget("x", 200_000, is_upper=False)) == ">= 200,000"
