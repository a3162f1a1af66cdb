"""Dispatch rules that need no training. Each is a score over the same candidates that models see."""

from __future__ import annotations

from policy_server.policies.dispatch import DispatchPolicy
from policy_server.policies.heuristics.base import HeuristicDispatch
from policy_server.policies.heuristics.earliest_completion import EarliestCompletion
from policy_server.policies.heuristics.firmament import Firmament
from policy_server.policies.heuristics.greedy import Greedy
from policy_server.policies.heuristics.gsp_ss import GspSs
from policy_server.policies.heuristics.least_loaded import LeastLoaded, PowerOfTwo
from policy_server.policies.heuristics.local_first import LocalFirst
from policy_server.policies.heuristics.prequal import Prequal
from policy_server.policies.heuristics.round_robin import Native, RoundRobin
from policy_server.policies.heuristics.uniform import RandomDispatch

__all__ = [
    "HEURISTIC_DISPATCH_NAMES",
    "EarliestCompletion",
    "Firmament",
    "Greedy",
    "GspSs",
    "HeuristicDispatch",
    "LeastLoaded",
    "LocalFirst",
    "Native",
    "PowerOfTwo",
    "Prequal",
    "RandomDispatch",
    "RoundRobin",
    "UnknownPolicyError",
    "heuristic_dispatch",
]

_RULES = (
    RandomDispatch,
    RoundRobin,
    LocalFirst,
    LeastLoaded,
    PowerOfTwo,
    Prequal,
    EarliestCompletion,
    Greedy,
    Native,
    GspSs,
    Firmament,
)
_RULE_BY_NAME = {rule.name: rule for rule in _RULES}

HEURISTIC_DISPATCH_NAMES: tuple[str, ...] = tuple(_RULE_BY_NAME)
"""Names that :func:`heuristic_dispatch` knows."""


class UnknownPolicyError(LookupError):
    """No policy has that name. The message lists the known ones."""


def heuristic_dispatch(name: str) -> DispatchPolicy:
    """The dispatch rule of that name.

    Raises:
        UnknownPolicyError: there is none; the message lists those there are.
        ImportError: the rule needs a package that is not installed; the message names the extra to install.
    """
    try:
        rule = _RULE_BY_NAME[name]
    except KeyError:
        known = ", ".join(HEURISTIC_DISPATCH_NAMES)
        raise UnknownPolicyError(f"policy: {name!r} is unknown; choose one of {known}") from None
    return rule()
