"""The guard of orchestration: whatever a policy does, the caller gets feasible actions, and learns who chose them.

As the guard of dispatch (:mod:`policy_server.policies.guard`), for calls that come once per frame: a learned policy is
always asked on a thread of its own and waited for no longer than its budget. A batch that fails is asked again query
by query, so that one that a policy cannot digest costs its neighbours nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from policy_server.cluster.snapshot import Float64Array, Snapshot
from policy_server.policies.circuit_breaker import BreakerSettings, BreakerState, CircuitBreaker
from policy_server.policies.decision_origin import DecisionOrigin, DecisionSource, FallbackReason
from policy_server.policies.guard import GuardObserver
from policy_server.policies.orchestration.memory import FrameMemory
from policy_server.policies.orchestration.plan import FramePlan, OrchestrationQuery
from policy_server.policies.orchestration.policy import FrameDecision, OrchestrationPolicy
from policy_server.policies.patience import OutOfPatienceError, PatientWorker

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class OrchestrationGuardSettings:
    """Limits of the guard."""

    maximum_state_age_seconds: float = 30.0
    """Learned policies do not judge older state."""
    budget_seconds: float = 2.0
    """Time a learned policy has for one call."""
    breaker: BreakerSettings = field(default_factory=BreakerSettings)


DEFAULT_ORCHESTRATION_SETTINGS = OrchestrationGuardSettings()


class MissingOrchestration:
    """Stands for a learned policy of which no version could be loaded. The guard never asks it."""

    version = ""
    learned = True

    def __init__(self, name: str) -> None:
        self.name = name

    def observe(self, snapshot: Snapshot, memory: FrameMemory) -> None:
        """Nothing to see."""

    def decide(
        self, queries: Sequence[OrchestrationQuery], random: np.random.Generator
    ) -> list[FrameDecision]:
        """Nothing at all."""
        return [FrameDecision(FramePlan(query), FallbackReason.NO_MODEL) for query in queries]

    def score_additions(self, query: OrchestrationQuery, service: int) -> Float64Array:
        """-inf for all, float64 [N]."""
        return np.full(len(query.graph.snapshot.topology.nodes.names), -np.inf)


class GuardedPlan(NamedTuple):
    """The answer to one query and who gave it."""

    plan: FramePlan
    origin: DecisionOrigin


class GuardedOrchestration:
    """An orchestration policy that always answers. For one thread at a time.

    Attributes:
        policy: asked first.
        fallback: answers where the policy cannot.
        origin: of answers the policy gives itself.
    """

    def __init__(
        self,
        policy: OrchestrationPolicy,
        *,
        fallback: OrchestrationPolicy,
        settings: OrchestrationGuardSettings = DEFAULT_ORCHESTRATION_SETTINGS,
        observer: GuardObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Guards ``policy``.

        Args:
            policy: learned or a rule.
            fallback: a rule that does not raise.
            settings: limits.
            observer: is told what happens.
            clock: seconds, of the circuit breaker.
        """
        self.policy = policy
        self.fallback = fallback
        source = DecisionSource.LEARNED if policy.learned else DecisionSource.HEURISTIC
        self.origin = DecisionOrigin(policy.name, policy.version, source)
        self._settings = settings
        self._observer = observer or GuardObserver()
        self._breaker = CircuitBreaker(settings.breaker, clock)
        self._missing = isinstance(policy, MissingOrchestration)
        self._worker = PatientWorker(f"orchestration by {policy.name}")

    @property
    def name(self) -> str:
        """Of the policy."""
        return self.policy.name

    @property
    def version(self) -> str:
        """Of the policy."""
        return self.policy.version

    @property
    def degraded(self) -> bool:
        """Whether the fallback answers everything for the time being."""
        return self._missing or self._breaker.state is not BreakerState.CLOSED

    def observe(self, snapshot: Snapshot, memory: FrameMemory) -> None:
        """Shows the policy a snapshot between two decisions."""
        self.policy.observe(snapshot, memory)

    def decide(
        self, queries: Sequence[OrchestrationQuery], now_seconds: float, random: np.random.Generator
    ) -> list[GuardedPlan]:
        """The answer to each query; never fails because of the policy.

        Args:
            queries: at least one; no two share a memory.
            now_seconds: on the clock of the snapshots.
            random: the only source of randomness.
        """
        reasons = [self._reason_not_to_ask(query, now_seconds) for query in queries]
        asked = [position for position, reason in enumerate(reasons) if not reason]
        if asked and not self._breaker.allows():
            reasons = [reason or FallbackReason.CIRCUIT_OPEN for reason in reasons]
            asked = []
        decisions = self._ask([queries[position] for position in asked], random) if asked else []
        answers: dict[int, GuardedPlan] = {}
        for position, decision in zip(asked, decisions, strict=True):
            if isinstance(decision, FallbackReason):
                reasons[position] = decision
            else:
                answers[position] = GuardedPlan(decision.plan, self.origin)
        for reason in FallbackReason:
            affected = [p for p, given in enumerate(reasons) if given is reason and p not in answers]
            if affected:
                self._fall_back(queries, affected, reason, random, answers)
        return [answers[position] for position in range(len(queries))]

    def _reason_not_to_ask(self, query: OrchestrationQuery, now_seconds: float) -> FallbackReason:
        if self._missing:
            return FallbackReason.NO_MODEL
        age_seconds = query.graph.snapshot.age_seconds(now_seconds)
        if self.policy.learned and age_seconds > self._settings.maximum_state_age_seconds:
            return FallbackReason.STALE_STATE
        return FallbackReason.UNSPECIFIED

    def _ask(
        self, queries: Sequence[OrchestrationQuery], random: np.random.Generator
    ) -> list[FrameDecision | FallbackReason]:
        """The policy's decisions, or why there is none."""
        results: list[FrameDecision | FallbackReason] = []
        try:
            decisions = self._call(queries, random)
        except OutOfPatienceError as error:
            self._observer.overran(self.name, self._settings.budget_seconds)
            self._count_fault(error)
            return [FallbackReason.BUDGET_SPENT] * len(queries)
        except Exception as error:
            if len(queries) > 1:
                return [result for query in queries for result in self._ask([query], random)]
            self._count_fault(error)
            return [FallbackReason.MODEL_ERROR]
        for decision in decisions:
            results.append(decision.trouble or decision)
            if decision.trouble is FallbackReason.NON_FINITE_OUTPUT:
                self._count_fault(ValueError("scores: NaN or an infinity"))
        if FallbackReason.NON_FINITE_OUTPUT not in results and self._breaker.succeeded():
            _LOGGER.info("policy %s: sound again", self.name)
            self._observer.breaker_changed(self.name, BreakerState.CLOSED)
        return results

    def _call(
        self, queries: Sequence[OrchestrationQuery], random: np.random.Generator
    ) -> list[FrameDecision]:
        if not self.policy.learned:
            return self.policy.decide(queries, random)
        # A call that was given up on may still draw numbers.
        own = np.random.default_rng(random.integers(2**63))
        return self._worker.call(lambda: self.policy.decide(queries, own), self._settings.budget_seconds)

    def _fall_back(
        self,
        queries: Sequence[OrchestrationQuery],
        affected: Sequence[int],
        reason: FallbackReason,
        random: np.random.Generator,
        answers: dict[int, GuardedPlan],
    ) -> None:
        fallback = self.fallback
        origin = DecisionOrigin(fallback.name, fallback.version, DecisionSource.FALLBACK, reason)
        decisions = fallback.decide([queries[position] for position in affected], random)
        for position, decision in zip(affected, decisions, strict=True):
            answers[position] = GuardedPlan(decision.plan, origin)
        self._observer.fell_back(self.name, reason, len(affected))

    def _count_fault(self, error: Exception) -> None:
        _LOGGER.warning("policy %s: %s", self.name, error)
        if self._breaker.failed():
            _LOGGER.warning("policy %s: fails repeatedly, not asked for a while: %s", self.name, error)
            self._observer.breaker_changed(self.name, BreakerState.OPEN)
