"""The guard of vertical scaling: whatever a policy does, every container gets a safe decision, and who made it is told.

A policy that raises, returns NaN or takes too long is stood in for by a rule. What is promised on time is that of
:mod:`policy_server.policies.model_calls`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from policy_server.cluster.containers import Fleet, MeasurementHistory
from policy_server.cluster.snapshot import BoolArray, Float64Array, Int64Array
from policy_server.policies.circuit_breaker import BreakerState
from policy_server.policies.decision_origin import DecisionOrigin, DecisionSource, FallbackReason
from policy_server.policies.model_calls import DEFAULT_SETTINGS, GuardObserver, GuardSettings, ModelCalls
from policy_server.policies.patience import OutOfPatienceError
from policy_server.policies.scaling import safety
from policy_server.policies.scaling.actor import ActorScaling
from policy_server.policies.scaling.batch import ScalingOutcome, ScalingTask
from policy_server.policies.scaling.policy import Recommendation, ScalingPolicy
from policy_server.policies.scaling.resize import plan_resizes
from policy_server.policies.scaling.safety import (
    ResourceDecision,
    ScalingDecisions,
    ScalingSettings,
    memory_floor,
    safe_decisions,
)
from policy_server.policies.scaling.threshold import ThresholdScaling

DEFAULT_FALLBACK = ThresholdScaling()
"""It needs nothing but usage, however short the history."""
CONTAINERS_PER_BUDGET = 1000
"""A policy has the budget of one call for every so many containers, or part of them."""


@dataclass(frozen=True)
class MissingScaling:
    """Stands for a learned policy of which no version could be loaded. The guard never asks it."""

    name: str
    version: str = ""
    learned: bool = True
    history_intervals: int = 1

    def recommend(self, fleet: Fleet, history: MeasurementHistory) -> Recommendation:
        """Nothing."""
        unknown = np.full(len(fleet), np.nan)
        return Recommendation(unknown, unknown)


class GuardedScaling:
    """A scaling policy that always answers, and safely. The module says what it promises.

    Args:
        policy: learned or rule.
        fallback: a rule that does not raise; answers where the policy cannot.
        settings: limits of the policy's calls.
        safety_settings: limits of what may be recommended.
        observer: is told what happens.
        clock: seconds; of the budget and the circuit breaker.

    Attributes:
        policy: asked first.
        fallback: answers where the policy cannot.
        origin: of decisions the policy makes itself.
    """

    def __init__(
        self,
        policy: ScalingPolicy,
        *,
        fallback: ScalingPolicy = DEFAULT_FALLBACK,
        settings: GuardSettings = DEFAULT_SETTINGS,
        safety_settings: ScalingSettings = safety.DEFAULT_SETTINGS,
        observer: GuardObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy = policy
        self.fallback = fallback
        source = DecisionSource.LEARNED if policy.learned else DecisionSource.HEURISTIC
        self.origin = DecisionOrigin(policy.name, policy.version, source)
        self._settings = settings
        self._safety_settings = safety_settings
        self._observer = observer or GuardObserver()
        self._calls = ModelCalls(policy.name, settings, self._observer, clock)
        self._missing = isinstance(policy, MissingScaling)

    @property
    def name(self) -> str:
        """Of the policy."""
        return self.policy.name

    @property
    def version(self) -> str:
        """Of the policy."""
        return self.policy.version

    @property
    def breaker_state(self) -> BreakerState:
        """Whether the policy is being asked."""
        return self._calls.breaker_state

    @property
    def degraded(self) -> bool:
        """Whether the fallback answers everything for the time being."""
        return self._missing or self._calls.breaker_state is not BreakerState.CLOSED

    def decide(self, task: ScalingTask, remaining_seconds: float = math.inf) -> ScalingOutcome:
        """Recommends, makes it safe, and plans the resizes; never fails because of the policy.

        Args:
            task: C containers.
            remaining_seconds: until the caller stops waiting for the decision.
        """
        wanted, origins, origin = self._recommend(task, remaining_seconds)
        decisions = safe_decisions(wanted, task.fleet, task.history, self._safety_settings, task.constraints)
        floor, _ = memory_floor(task.history, self._safety_settings)
        plan = plan_resizes(decisions, task.pods, task.last, floor)
        return ScalingOutcome(_rounded(decisions, plan.target), plan, origins, origin)

    def _recommend(
        self, task: ScalingTask, remaining_seconds: float
    ) -> tuple[Recommendation, tuple[DecisionOrigin, ...], Int64Array]:
        """What is wanted, by whom, and int64 [C] by which of them."""
        nobody_else = np.zeros(len(task), np.int64)
        if self._missing:
            return self._fall_back(task, FallbackReason.NO_MODEL)
        if self.policy.learned and remaining_seconds < self._settings.minimum_remaining_seconds:
            return self._fall_back(task, FallbackReason.BUDGET_SPENT)
        if not self._calls.allowed():
            return self._fall_back(task, FallbackReason.CIRCUIT_OPEN)
        try:
            wanted, in_time = self._ask(task, remaining_seconds)
        except OutOfPatienceError as error:
            return self._fall_back(task, FallbackReason.BUDGET_SPENT, error)
        except Exception as error:
            self._calls.failed(error)
            return self._fall_back(task, FallbackReason.MODEL_ERROR, error)
        # A rule may say that it does not know; a model always knows.
        lost = ~(np.isfinite(wanted.cpu_cores) & np.isfinite(wanted.memory_bytes))
        if self.policy.learned and lost.any():
            self._calls.failed(ValueError("action: NaN or an infinity"))
            return self._fall_back_where(task, wanted, lost)
        if in_time:
            self._calls.succeeded()
        return wanted, (self.origin,), nobody_else

    def _ask(self, task: ScalingTask, remaining_seconds: float) -> tuple[Recommendation, bool]:
        policy = self.policy
        if isinstance(policy, ActorScaling):
            policy = replace(policy, economy=task.economy)
        budget_seconds = self._settings.budget_seconds
        if budget_seconds is None:
            wanted, in_time = policy.recommend(task.fleet, task.history), True
        else:
            wanted, in_time = self._calls.make(
                lambda: policy.recommend(task.fleet, task.history),
                budget_seconds * max(1, math.ceil(len(task) / CONTAINERS_PER_BUDGET)),
                remaining_seconds,
            )
        for values in (wanted.cpu_cores, wanted.memory_bytes):
            if values.shape != (len(task),):
                raise ValueError(f"recommendation: shape {values.shape} for {len(task)} containers")
        return wanted, in_time

    def _fall_back(
        self, task: ScalingTask, reason: FallbackReason, error: Exception | None = None
    ) -> tuple[Recommendation, tuple[DecisionOrigin, ...], Int64Array]:
        self._observer.fell_back(self.name, reason, len(task), error)
        wanted = self.fallback.recommend(task.fleet, task.history)
        return wanted, (self._fallback_origin(reason),), np.zeros(len(task), np.int64)

    def _fall_back_where(
        self, task: ScalingTask, wanted: Recommendation, lost: BoolArray
    ) -> tuple[Recommendation, tuple[DecisionOrigin, ...], Int64Array]:
        reason = FallbackReason.NON_FINITE_OUTPUT
        self._observer.fell_back(self.name, reason, int(np.count_nonzero(lost)))
        instead = self.fallback.recommend(task.fleet, task.history)
        merged = Recommendation(
            np.where(lost, instead.cpu_cores, wanted.cpu_cores),
            np.where(lost, instead.memory_bytes, wanted.memory_bytes),
        )
        return merged, (self.origin, self._fallback_origin(reason)), lost.astype(np.int64)

    def _fallback_origin(self, reason: FallbackReason) -> DecisionOrigin:
        return DecisionOrigin(self.fallback.name, self.fallback.version, DecisionSource.FALLBACK, reason)


def _rounded(decisions: ScalingDecisions, target: Float64Array) -> ScalingDecisions:
    """The decisions with targets as they are planned, float64 [C, 2], and bounds around them."""
    return ScalingDecisions(
        _with_target(decisions.cpu_cores, target[:, 0]), _with_target(decisions.memory_bytes, target[:, 1])
    )


def _with_target(decision: ResourceDecision, target: Float64Array) -> ResourceDecision:
    return ResourceDecision(
        target,
        np.minimum(decision.lower_bound, target),
        np.maximum(decision.upper_bound, target),
        decision.uncapped_target,
        decision.reason,
    )
