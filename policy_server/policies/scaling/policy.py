"""Vertical scaling: the contract of a policy.

A policy says what every container should have; whatever keeps that safe to apply (bounds, steps, dead band, memory in
use, node capacity) is the same for all policies: :mod:`policy_server.policies.scaling.safety`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from policy_server.cluster.containers import Fleet, MeasurementHistory
from policy_server.cluster.snapshot import Float64Array


@dataclass(frozen=True, slots=True, eq=False)
class Recommendation:
    """What a policy wants, before any safety.

    Attributes:
        cpu_cores: float64 [C]; NaN where the policy cannot tell.
        memory_bytes: float64 [C]; NaN where the policy cannot tell.
    """

    cpu_cores: Float64Array
    memory_bytes: Float64Array


@runtime_checkable
class ScalingPolicy(Protocol):
    """Recommends CPU and memory for containers. A pure function: everything it remembers is in the history.

    Attributes:
        name: what callers ask for, in lower case with hyphens.
        version: of the model or of the rule.
        learned: whether a model is behind it.
        history_intervals: how many intervals it looks back; a shorter history is not an error.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def version(self) -> str: ...  # noqa: D102

    @property
    def learned(self) -> bool: ...  # noqa: D102

    @property
    def history_intervals(self) -> int: ...  # noqa: D102

    def recommend(self, fleet: Fleet, history: MeasurementHistory) -> Recommendation:
        """What each of the fleet's C containers should have.

        Args:
            fleet: C containers.
            history: of the same containers, of any length; NaN where something was not measured. Intervals at the
                old end in which nothing was measured make no difference, so that histories of different lengths
                can be decided together.
        """
        ...


def peak(history: MeasurementHistory, name: str, intervals: int) -> Float64Array:
    """float64 [C]: largest value of a column in the newest ``intervals``; NaN where nothing was measured."""
    largest: Float64Array = np.fmax.reduce(history.column(name, intervals), axis=0)
    return largest
