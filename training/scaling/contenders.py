"""The policies that are compared, each at its best: rules as tuned, learned policies from their bundles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from policy_server.features.scaling import DEFAULT_ECONOMY
from policy_server.policies.scaling import RULE_SCALING_NAMES, ScalingPolicy, rule_scaling
from policy_server.policies.scaling.onnx import onnx_scaling
from policy_server.runtime.bundle import find_bundles
from training.scaling.config import Algorithm
from training.scaling.loop import PROVISIONED_HEADROOM

STATIC_HEADROOM = 3.0
"""Provisioning of the static policy, as tuned by :mod:`training.scaling.tuning`."""
LEARNED_NAMES: tuple[str, ...] = tuple(Algorithm)
CONTENDER_NAMES: tuple[str, ...] = (*RULE_SCALING_NAMES, *reversed(LEARNED_NAMES))


@dataclass(frozen=True)
class Contender:
    """A policy and how its containers are provisioned before it takes over.

    Attributes:
        policy: decides.
        provisioned_headroom: see :func:`training.scaling.loop.provisioned_limits`.
    """

    policy: ScalingPolicy
    provisioned_headroom: float = PROVISIONED_HEADROOM


def contender(name: str, models: Path | None = None, economy: float = DEFAULT_ECONOMY) -> Contender:
    """The contender of that name.

    Args:
        name: one of ``CONTENDER_NAMES``.
        models: root of the model bundles; None: those shipped with the package.
        economy: of learned policies.

    Raises:
        LookupError: there is none, or no bundle of it; the message says what to do.
        BundleError: the bundle is refused.
    """
    if name in LEARNED_NAMES:
        locations = find_bundles(models).get(name)
        if not locations:
            raise LookupError(
                f"policy: {name!r} has no bundle; train it with `policy-train scale --algorithm {name}` and export it"
            )
        return Contender(onnx_scaling(locations[0].load(), economy))
    if name == "static":
        return Contender(rule_scaling(name), STATIC_HEADROOM)
    return Contender(rule_scaling(name))
