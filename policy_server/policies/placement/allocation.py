"""Placement by free resources alone, as the strategies of the same names in kube-scheduler's NodeResourcesFit."""

from __future__ import annotations

from dataclasses import dataclass

from policy_server.cluster.snapshot import Float64Array, Snapshot
from policy_server.policies.placement.policy import PlacementQuery
from policy_server.policies.placement.shares import cpu_share, memory_share


@dataclass(frozen=True)
class LeastAllocated:
    """The node with the most room left, CPU and memory alike: spreads load, ignores where requests arrive."""

    name: str = "least-allocated"
    version: str = "1"
    learned: bool = False

    def score(self, snapshot: Snapshot, query: PlacementQuery) -> Float64Array:
        """Minus the mean of CPU and memory share after placement, float64 [M]."""
        return -(cpu_share(snapshot, query) + memory_share(snapshot, query)) / 2


@dataclass(frozen=True)
class MostAllocated:
    """The fullest node that still holds the replica: fills nodes one after another, so that others can be let go."""

    name: str = "most-allocated"
    version: str = "1"
    learned: bool = False

    def score(self, snapshot: Snapshot, query: PlacementQuery) -> Float64Array:
        """The mean of CPU and memory share after placement, float64 [M]."""
        return (cpu_share(snapshot, query) + memory_share(snapshot, query)) / 2
