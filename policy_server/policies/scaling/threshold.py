"""A utilisation threshold, as the Horizontal Pod Autoscaler's, applied to limits instead of replicas."""

from __future__ import annotations

from dataclasses import dataclass

from policy_server.cluster.containers import Fleet, MeasurementHistory
from policy_server.policies.scaling.policy import Recommendation, peak


@dataclass(frozen=True)
class ThresholdScaling:
    """limit = max over the stabilisation window of usage / target utilisation.

    The HPA's formula, desired = current x utilisation / target, with its scale-down stabilisation (the largest
    desired value of the window counts). Its tolerance of 10 % is the dead band that all policies share.

    Attributes:
        target_utilisation: of CPU.
        target_memory_utilisation: of memory.
        history_intervals: the stabilisation window.
    """

    target_utilisation: float = 0.6
    target_memory_utilisation: float = 0.8
    history_intervals: int = 12
    name: str = "threshold"
    version: str = "1"
    learned: bool = False

    def recommend(self, fleet: Fleet, history: MeasurementHistory) -> Recommendation:
        """See the class."""
        window = self.history_intervals
        return Recommendation(
            peak(history, "cpu_usage_cores", window) / self.target_utilisation,
            peak(history, "memory_usage_bytes", window) / self.target_memory_utilisation,
        )
