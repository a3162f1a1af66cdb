"""What the orchestration rules have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policy_server.cluster.snapshot import Float64Array, Int64Array, Snapshot
from policy_server.policies.orchestration.memory import FrameMemory
from policy_server.policies.orchestration.plan import FramePlan, OrchestrationQuery
from policy_server.policies.orchestration.policy import FrameDecision


@dataclass(frozen=True)
class OrchestrationRule(ABC):
    """An :class:`~policy_server.policies.orchestration.policy.OrchestrationPolicy` without a model.

    A rule fills plans, one query at a time, and remembers nothing unless it says so.
    """

    name: str = ""
    version: str = "1"
    learned: bool = False

    def observe(self, snapshot: Snapshot, memory: FrameMemory) -> None:
        """Nothing to see."""
        return

    def decide(
        self, queries: Sequence[OrchestrationQuery], random: np.random.Generator
    ) -> list[FrameDecision]:
        """The answer to each query."""
        decisions = []
        for query in queries:
            plan = FramePlan(query)
            self.fill(plan, query, random)
            decisions.append(FrameDecision(plan))
        return decisions

    def score_additions(self, query: OrchestrationQuery, service: int) -> Float64Array:
        """float64 [N]: :meth:`addition_values` where an addition is feasible, -inf elsewhere."""
        plan = FramePlan(query)
        nodes = np.arange(len(query.graph.snapshot.topology.nodes.names), dtype=np.int64)
        feasible = plan.additions(nodes)[:, service]
        return np.where(feasible, self.addition_values(plan, service), -np.inf)

    @abstractmethod
    def fill(self, plan: FramePlan, query: OrchestrationQuery, random: np.random.Generator) -> None:
        """Enters the actions, best first."""

    @abstractmethod
    def addition_values(self, plan: FramePlan, service: int) -> Float64Array:
        """float64 [N], finite: how good it is to add a replica of a service to each node, feasible or not."""


def node_power(plan: FramePlan, nodes: Int64Array) -> Float64Array:
    """float64 [K]: CPU x speed of each node, millicores of a reference machine."""
    machines = plan.graph.snapshot.topology.nodes
    power: Float64Array = machines.cpu_millicores[nodes].astype(np.float64) * machines.speed[nodes]
    return power


def free_share(plan: FramePlan, nodes: Int64Array | None = None) -> Float64Array:
    """float64 [K]: the smaller of the free shares of memory and of CPU, what is planned included.

    Args:
        plan: of the snapshot.
        nodes: int64 [K], rows; None: all nodes.
    """
    chosen = slice(None) if nodes is None else nodes
    return np.minimum(plan.free_memory_share(chosen), plan.free_cpu_share(chosen))
