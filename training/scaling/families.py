"""Every policy as a family along the setting that trades latency for allocation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from training.scaling.contenders import LEARNED_NAMES, Contender, contender

_BISECTIONS = 7


@dataclass(frozen=True)
class Family:
    """A policy for every value of a setting.

    Attributes:
        name: of the setting.
        generous: value that allocates most.
        stingy: value that allocates least.
        make: the policy for a value.
        logarithmic: whether values are spread evenly on a logarithmic scale.
    """

    name: str
    generous: float
    stingy: float
    make: Callable[[float], Contender]
    logarithmic: bool = False

    def setting(self, position: float) -> float:
        """The value at a position from 0, generous, to 1, stingy."""
        if self.logarithmic:
            return math.exp((1 - position) * math.log(self.generous) + position * math.log(self.stingy))
        return (1 - position) * self.generous + position * self.stingy

    def settings(self, count: int) -> list[float]:
        """Values from generous to stingy."""
        return [self.setting(float(position)) for position in np.linspace(0.0, 1.0, count)]

    def setting_for(self, cpu_cores: float, allocated: Callable[[Contender], float]) -> float | None:
        """The stingiest value that still allocates so much, by bisection: allocation falls from generous to stingy.

        Args:
            cpu_cores: to be allocated.
            allocated: by a policy.

        Returns:
            None where the most generous value allocates less.
        """
        enough, below = 0.0, 1.0
        if allocated(self.make(self.setting(enough))) < cpu_cores:
            return None
        for _ in range(_BISECTIONS):
            middle = (enough + below) / 2
            if allocated(self.make(self.setting(middle))) >= cpu_cores:
                enough = middle
            else:
                below = middle
        return self.setting(enough)


def family(name: str, models: Path | None = None) -> Family:
    """The family of a contender.

    Learned policies vary in their economy, static limits in the headroom, the threshold in the target utilisation,
    the percentile in the margin, Autothrottle in its targets with their ratio kept.

    Raises:
        LookupError: see :func:`training.scaling.contenders.contender`.
    """
    tuned = contender(name, models)
    policy: Any = tuned.policy

    def varied(**settings: float) -> Contender:
        return replace(tuned, policy=replace(policy, **settings))

    if name in LEARNED_NAMES:
        return Family("economy", 0.0, 1.0, lambda value: varied(economy=value))
    if name == "static":
        return Family("headroom", 6.0, 1.0, lambda value: Contender(policy, value))
    if name == "threshold":
        return Family("target_utilisation", 0.35, 0.85, lambda value: varied(target_utilisation=value))
    if name == "percentile":
        return Family("margin", 1.6, 0.1, lambda value: varied(margin=value))
    ratio = policy.low_throttle_target / policy.throttle_target
    return Family(
        "throttle_target",
        0.001,
        0.15,
        lambda value: varied(throttle_target=value, low_throttle_target=min(value * ratio, 0.3)),
        logarithmic=True,
    )
