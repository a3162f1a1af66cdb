"""Orchestration rules that need no training."""

from __future__ import annotations

from policy_server.policies.heuristics import UnknownPolicyError
from policy_server.policies.orchestration.rules.base import OrchestrationRule
from policy_server.policies.orchestration.rules.greedy import Greedy
from policy_server.policies.orchestration.rules.gsp_ss import GspSs
from policy_server.policies.orchestration.rules.native import Native
from policy_server.policies.orchestration.rules.static import Static

__all__ = [
    "HEURISTIC_ORCHESTRATION_NAMES",
    "Greedy",
    "GspSs",
    "Native",
    "OrchestrationRule",
    "Static",
    "UnknownPolicyError",
    "heuristic_orchestration",
]

_RULES = (Static, Greedy, Native, GspSs)
_RULE_BY_NAME: dict[str, type[OrchestrationRule]] = {rule.name: rule for rule in _RULES}

HEURISTIC_ORCHESTRATION_NAMES: tuple[str, ...] = tuple(_RULE_BY_NAME)
"""Names that :func:`heuristic_orchestration` knows."""


def heuristic_orchestration(name: str) -> OrchestrationRule:
    """The orchestration rule of that name.

    Raises:
        UnknownPolicyError: there is none; the message lists those there are.
    """
    try:
        rule = _RULE_BY_NAME[name]
    except KeyError:
        known = ", ".join(HEURISTIC_ORCHESTRATION_NAMES)
        raise UnknownPolicyError(f"policy: {name!r} is unknown; choose one of {known}") from None
    return rule()
