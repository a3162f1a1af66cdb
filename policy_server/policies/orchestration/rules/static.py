"""The placement stays as it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policy_server.cluster.snapshot import Float64Array
from policy_server.policies.orchestration.plan import FramePlan, OrchestrationQuery
from policy_server.policies.orchestration.rules.base import OrchestrationRule


@dataclass(frozen=True)
class Static(OrchestrationRule):
    """Never acts. To add a replica one node is as good as another to it."""

    name: str = "static"

    def fill(self, plan: FramePlan, query: OrchestrationQuery, random: np.random.Generator) -> None:
        """Nothing."""

    def addition_values(self, plan: FramePlan, service: int) -> Float64Array:
        """Zero for all, float64 [N]."""
        return np.zeros(len(plan.graph.snapshot.topology.nodes.names))
