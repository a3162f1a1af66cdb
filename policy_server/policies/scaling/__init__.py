"""Vertical-scaling policies: rules that need no training, the learned actor, and the safety they share."""

from __future__ import annotations

from policy_server.policies.heuristics import UnknownPolicyError
from policy_server.policies.scaling.autothrottle import AutothrottleScaling
from policy_server.policies.scaling.percentile import PercentileScaling
from policy_server.policies.scaling.policy import Recommendation, ScalingPolicy
from policy_server.policies.scaling.static import StaticScaling
from policy_server.policies.scaling.threshold import ThresholdScaling

__all__ = [
    "RULE_SCALING_NAMES",
    "AutothrottleScaling",
    "PercentileScaling",
    "Recommendation",
    "ScalingPolicy",
    "StaticScaling",
    "ThresholdScaling",
    "UnknownPolicyError",
    "rule_scaling",
]

_RULES = (StaticScaling, ThresholdScaling, PercentileScaling, AutothrottleScaling)
_RULE_BY_NAME = {rule.name: rule for rule in _RULES}

RULE_SCALING_NAMES: tuple[str, ...] = tuple(_RULE_BY_NAME)
"""Names that :func:`rule_scaling` knows."""


def rule_scaling(name: str) -> ScalingPolicy:
    """The scaling rule of that name.

    Raises:
        UnknownPolicyError: there is none; the message lists those there are.
    """
    try:
        rule = _RULE_BY_NAME[name]
    except KeyError:
        known = ", ".join(RULE_SCALING_NAMES)
        raise UnknownPolicyError(f"policy: {name!r} is unknown; choose one of {known}") from None
    return rule()
