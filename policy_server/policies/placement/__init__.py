"""Placement: on which node one more replica of a service should start. Policies behind one small protocol."""

from __future__ import annotations

from policy_server.policies.heuristics import UnknownPolicyError
from policy_server.policies.placement.allocation import LeastAllocated, MostAllocated
from policy_server.policies.placement.near_demand import NearDemand
from policy_server.policies.placement.policy import PlacementPolicy, PlacementQuery

__all__ = [
    "PLACEMENT_POLICY_NAMES",
    "LeastAllocated",
    "MostAllocated",
    "NearDemand",
    "PlacementPolicy",
    "PlacementQuery",
    "placement_policy",
]

_POLICIES = (NearDemand, LeastAllocated, MostAllocated)
_POLICY_BY_NAME: dict[str, type[PlacementPolicy]] = {policy.name: policy for policy in _POLICIES}

PLACEMENT_POLICY_NAMES: tuple[str, ...] = tuple(_POLICY_BY_NAME)
"""Names that :func:`placement_policy` knows."""


def placement_policy(name: str) -> PlacementPolicy:
    """The placement policy of that name.

    Raises:
        UnknownPolicyError: there is none; the message lists those there are.
    """
    try:
        return _POLICY_BY_NAME[name]()
    except KeyError:
        known = ", ".join(PLACEMENT_POLICY_NAMES)
        raise UnknownPolicyError(f"placement policy: {name!r} is unknown; choose one of {known}") from None
