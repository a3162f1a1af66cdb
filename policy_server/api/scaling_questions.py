"""What callers ask of vertical scaling and are answered, in words of no transport."""

from __future__ import annotations

from dataclasses import dataclass

from policy_server.policies.scaling.batch import ScalingOutcome, ScalingTask


@dataclass(frozen=True, slots=True)
class ScalingQuestion:
    """C containers to decide for, in the caller's words.

    Attributes:
        policy: to ask; empty: the active one.
        task: the containers.
        sample_age_seconds: age of the oldest of the newest measurements.
    """

    policy: str
    task: ScalingTask
    sample_age_seconds: float


@dataclass(frozen=True, slots=True)
class ScalingAnswer:
    """The decisions on them.

    Attributes:
        outcome: per container.
        sample_age_seconds: as in the question.
    """

    outcome: ScalingOutcome
    sample_age_seconds: float
