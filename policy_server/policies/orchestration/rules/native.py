"""Kubernetes' own orchestration: the HorizontalPodAutoscaler and the default scheduler."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import numpy as np

from policy_server.cluster.actions import AddReplica
from policy_server.cluster.snapshot import Float64Array, Snapshot
from policy_server.policies.orchestration.autoscaler import AutoscalerConfig, HorizontalPodAutoscaler
from policy_server.policies.orchestration.memory import FrameMemory
from policy_server.policies.orchestration.plan import FramePlan, OrchestrationQuery
from policy_server.policies.orchestration.rules.base import OrchestrationRule, free_share


@dataclass(frozen=True)
class Native(OrchestrationRule):
    """The Native baseline of KaiS: desired = ceil(current x usage / target), stabilised, for each service.

    See :class:`~policy_server.policies.orchestration.autoscaler.HorizontalPodAutoscaler`. Remembers the usage observed
    since the last decision and the recommendations of the stabilisation window. Acts on edge nodes only, and places
    replicas only where the plan finds it feasible.
    """

    name: str = "native"
    config: AutoscalerConfig = field(default_factory=AutoscalerConfig)

    def observe(self, snapshot: Snapshot, memory: FrameMemory) -> None:
        """Takes a sample of the usage of all services."""
        self._autoscaler(snapshot, memory).observe(snapshot)

    def fill(self, plan: FramePlan, query: OrchestrationQuery, random: np.random.Generator) -> None:
        """What the autoscaler wants, as far as it is feasible; an action's score is 1."""
        snapshot = plan.graph.snapshot
        nodes = np.arange(len(snapshot.topology.nodes.names), dtype=np.int64)
        autoscaler = self._autoscaler(snapshot, query.memory)
        most = min(plan.most * plan.graph.systems, sys.maxsize)
        wanted = autoscaler.decide(snapshot, allowed=plan.additions(nodes), pending=plan.pending, most=most)
        for action in wanted:
            if isinstance(action, AddReplica):
                plan.add(action.node, action.service, 1.0)
            else:
                plan.delete(action.replica, 1.0)

    def addition_values(self, plan: FramePlan, service: int) -> Float64Array:
        """Fewest replicas of the service first, then the larger free share, float64 [N]."""
        return free_share(plan) - plan.graph.node_live[:, service]

    def _autoscaler(self, snapshot: Snapshot, memory: FrameMemory) -> HorizontalPodAutoscaler:
        """The one that remembers this system, or a new one if its services are not the same any more."""
        scaled = snapshot.topology.system_count, snapshot.topology.services.names
        known = memory.of_rules.get(self.name)
        if known is None or known[0] != scaled:
            known = memory.of_rules[self.name] = scaled, HorizontalPodAutoscaler(self.config)
        autoscaler: HorizontalPodAutoscaler = known[1]
        return autoscaler
