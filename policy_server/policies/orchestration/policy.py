"""Orchestration: the contract of a policy.

Every policy runs through one pipeline: *mask* (what is feasible:
:class:`~policy_server.policies.orchestration.plan.FramePlan`) -> *score* (the policy) -> *pick*
(:mod:`policy_server.policies.orchestration.stepwise`, or a rule's own order) -> *guard*
(:mod:`policy_server.policies.orchestration.guard`). Whatever a policy proposes enters its answer through a plan, so
an action that is not feasible cannot get there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from policy_server.cluster.snapshot import Float64Array, Snapshot
from policy_server.policies.decision_origin import FallbackReason
from policy_server.policies.orchestration.memory import FrameMemory
from policy_server.policies.orchestration.plan import FramePlan, OrchestrationQuery


@dataclass(frozen=True, eq=False)
class FrameDecision:
    """The answer to one query.

    Attributes:
        plan: holds the actions, in order.
        trouble: why the policy could not judge this query: NON_FINITE_INPUT or NON_FINITE_OUTPUT; its plan is then
            empty. UNSPECIFIED where it could.
    """

    plan: FramePlan
    trouble: FallbackReason = FallbackReason.UNSPECIFIED


@runtime_checkable
class OrchestrationPolicy(Protocol):
    """Decides where to add and delete replicas. A pure function: what it remembers is in the query's memory.

    Attributes:
        name: what callers ask for, in lower case with hyphens.
        version: of the model or of the rule.
        learned: whether a model is behind it.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def version(self) -> str: ...  # noqa: D102

    @property
    def learned(self) -> bool: ...  # noqa: D102

    def observe(self, snapshot: Snapshot, memory: FrameMemory) -> None:
        """Sees a snapshot between two decisions (every slot, or every report); most policies need not."""
        ...

    def decide(
        self, queries: Sequence[OrchestrationQuery], random: np.random.Generator
    ) -> list[FrameDecision]:
        """The answer to each query, as it would be without the others.

        Args:
            queries: at least one; their systems have nothing to do with each other.
            random: the only source of randomness.
        """
        ...

    def score_additions(self, query: OrchestrationQuery, service: int) -> Float64Array:
        """float64 [N]: how good it is to add one replica of a service (row) to each node, -inf where not feasible.

        Larger is better; comparable only within one call. What places a single replica, such as a Kubernetes
        scheduler's extender, asks this instead of :meth:`decide`.
        """
        ...
