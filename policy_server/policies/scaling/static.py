"""Static limits: what most deployments have."""

from __future__ import annotations

from dataclasses import dataclass

from policy_server.cluster.containers import Fleet, MeasurementHistory
from policy_server.policies.scaling.policy import Recommendation


@dataclass(frozen=True)
class StaticScaling:
    """Keeps the limits in force, whatever they are."""

    name: str = "static"
    version: str = "1"
    learned: bool = False
    history_intervals: int = 1

    def recommend(self, fleet: Fleet, history: MeasurementHistory) -> Recommendation:
        """The newest limits."""
        return Recommendation(history.newest("cpu_limit_cores"), history.newest("memory_limit_bytes"))
