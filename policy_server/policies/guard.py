"""The guard: whatever a policy does, the caller gets a decision, and learns who made it.

A policy that raises, returns NaN, takes too long, or would have to judge stale state is stood in for by a fallback
heuristic. What the guard promises on time, where a budget is set:

- A policy is *on probation* when it is new and after every overrun. Its calls are then made on a separate thread
  and waited for no longer than the budget; the fallback answers when it is spent. Never more than one call of a
  policy is under way there, and while it is, the fallback answers at once.
- After ``probation_calls`` calls in a row within the budget it is *trusted*: its calls are made in place, which
  spares the two thread switches. A call in place cannot be cut short. If one overruns, that one decision is late,
  made by the model, counted as a fault, and the policy goes back on probation.

So a hanging model makes at most one decision late by more than its budget.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from policy_server.cluster.ledger import Ledger
from policy_server.cluster.queries import DispatchQueries, DispatchQuery
from policy_server.cluster.snapshot import BoolArray, Float32Array, Int64Array
from policy_server.features.candidates import Candidates
from policy_server.policies.circuit_breaker import BreakerState
from policy_server.policies.decision_origin import (
    DecisionOrigin,
    DecisionSource,
    FallbackReason,
    GuardedDecision,
    GuardedDecisions,
)
from policy_server.policies.dispatch import (
    NO_DECISION,
    DispatchDecisions,
    DispatchPolicy,
    DispatchView,
    no_decisions,
    pick,
    pick_one,
    record_pick,
    record_picks,
)
from policy_server.policies.finite_inputs import FiniteInputs, all_finite, impute
from policy_server.policies.heuristics import EarliestCompletion
from policy_server.policies.model_calls import DEFAULT_SETTINGS, GuardObserver, GuardSettings, ModelCalls
from policy_server.policies.patience import OutOfPatienceError

__all__ = [
    "DEFAULT_FALLBACK",
    "DEFAULT_SETTINGS",
    "DecisionOrigin",
    "DecisionSource",
    "FallbackReason",
    "GuardObserver",
    "GuardSettings",
    "GuardedDecision",
    "GuardedDecisions",
    "GuardedDispatch",
    "MissingModel",
]

DEFAULT_FALLBACK = EarliestCompletion()
_NO_SCORES: Float32Array = np.empty(0, np.float32)
_RANK_LAST = np.float32(-1e30)


class MissingModel:
    """Stands for a learned policy of which no version could be loaded. The guard never asks it."""

    version = ""
    learned = True
    sampling_temperature = 0.0
    shares_picks = False

    def __init__(self, name: str) -> None:
        self.name = name

    def prepare(self, table: Any) -> None:
        """Nothing to prepare."""

    def score(self, candidates: Candidates, prepared: None, random: np.random.Generator) -> Float32Array:
        """NaN for all, float32 [C]."""
        return np.full(len(candidates), np.nan, np.float32)


class GuardedDispatch:
    """A dispatch policy that always answers. The module says what it promises.

    Safe to use from several threads, as far as the ledger and the random generator given to a call are.

    Attributes:
        policy: asked first.
        fallback: answers where the policy cannot.
        origin: of decisions the policy makes itself.
    """

    def __init__(
        self,
        policy: DispatchPolicy,
        *,
        fallback: DispatchPolicy = DEFAULT_FALLBACK,
        settings: GuardSettings = DEFAULT_SETTINGS,
        observer: GuardObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Guards ``policy``.

        Args:
            policy: learned or heuristic.
            fallback: a heuristic that does not raise; should its own scores be non-finite, those rank last.
            settings: limits.
            observer: is told what happens.
            clock: seconds; of the budget and the circuit breaker.
        """
        self.policy = policy
        self.fallback = fallback
        source = DecisionSource.LEARNED if policy.learned else DecisionSource.HEURISTIC
        self.origin = DecisionOrigin(policy.name, policy.version, source)
        self._fallback_origins = {
            reason: DecisionOrigin(fallback.name, fallback.version, DecisionSource.FALLBACK, reason)
            for reason in FallbackReason
        }
        self._settings = settings
        self._observer = observer or GuardObserver()
        self._found_non_finite_inputs = partial(self._observer.found_non_finite_inputs, policy.name)
        self._calls = ModelCalls(policy.name, settings, self._observer, clock)
        self._missing = isinstance(policy, MissingModel)
        self._learned = policy.learned
        self._asked: DispatchPolicy = policy
        self._maximum_age_seconds = math.inf
        self._minimum_remaining_seconds = -math.inf
        if policy.learned:
            self._asked = FiniteInputs(policy, self._found_non_finite_inputs)
            self._maximum_age_seconds = settings.maximum_state_age_seconds
            self._minimum_remaining_seconds = settings.minimum_remaining_seconds

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

    def prepare(self, view: DispatchView) -> None:
        """Prepares a snapshot ahead of its first decision, off the decision path and without a time limit.

        A failure counts as a fault of the policy and is not raised.
        """
        if self.degraded:
            return
        try:
            view.prepared(self._asked)
        except Exception as error:
            self._calls.failed(error)

    def decide(
        self,
        view: DispatchView,
        queries: DispatchQueries,
        ledger: Ledger,
        now_seconds: float,
        random: np.random.Generator,
        *,
        alternatives: int = 0,
        record: bool = True,
        remaining_seconds: float = math.inf,
    ) -> GuardedDecisions:
        """Masks, scores, checks, picks, and counts the picks; never fails because of the policy.

        Args:
            view: of the snapshot to decide on.
            queries: the Q queries.
            ledger: own picks; bound to the snapshot's topology.
            now_seconds: on the clock of the snapshot.
            random: the only source of randomness.
            alternatives: K.
            record: whether the picks count in the ledger.
            remaining_seconds: until the caller stops waiting for the decision.
        """
        candidates = view.candidates(queries, ledger, now_seconds)
        if not len(candidates):
            decisions, _ = no_decisions(candidates, alternatives)
            return GuardedDecisions(decisions, self.origin, candidates.age_seconds)
        scores, trouble = self._scores(view, candidates, random, remaining_seconds)
        if trouble is not None:
            call = _Call(view, candidates, ledger, now_seconds, random, alternatives, record)
            return self._stand_in(call, scores, trouble)
        decisions, positions = pick(
            scores,
            candidates,
            random,
            sampling_temperature=self._asked.sampling_temperature,
            alternatives=alternatives,
        )
        if record:
            record_picks(candidates, positions, ledger, now_seconds)
        return GuardedDecisions(decisions, self.origin, candidates.age_seconds)

    def decide_one(
        self,
        view: DispatchView,
        query: DispatchQuery,
        ledger: Ledger,
        now_seconds: float,
        random: np.random.Generator,
        *,
        alternatives: int = 0,
        remaining_seconds: float = math.inf,
        malformed: bool = False,
    ) -> GuardedDecision:
        """The same for a single query, in plain numbers from end to end; arguments as in :meth:`decide`.

        Args:
            malformed: parts of the request could not be read; the fallback decides on what is left of it.
        """
        candidates = view.candidates(query, ledger, now_seconds)
        if not len(candidates):
            return GuardedDecision(NO_DECISION, self.origin, candidates.age_seconds)
        scores, trouble = (
            (_NO_SCORES, _Trouble(FallbackReason.MALFORMED_REQUEST))
            if malformed
            else self._scores(view, candidates, random, remaining_seconds)
        )
        if trouble is not None:
            call = _Call(view, candidates, ledger, now_seconds, random, alternatives, record=True)
            return self._stand_in(call, scores, trouble).row(0)
        decision, position = pick_one(
            scores,
            candidates,
            random,
            sampling_temperature=self._asked.sampling_temperature,
            alternatives=alternatives,
        )
        record_pick(candidates, position, ledger, now_seconds)
        return GuardedDecision(decision, self.origin, candidates.age_seconds)

    def _scores(
        self,
        view: DispatchView,
        candidates: Candidates,
        random: np.random.Generator,
        remaining_seconds: float,
    ) -> tuple[Float32Array, _Trouble | None]:
        """The policy's scores, float32 [C], and what is the matter with them, or why there are none."""
        if self._missing:
            return _NO_SCORES, _Trouble(FallbackReason.NO_MODEL)
        if candidates.age_seconds > self._maximum_age_seconds:
            return _NO_SCORES, _Trouble(FallbackReason.STALE_STATE)
        if remaining_seconds < self._minimum_remaining_seconds:
            return _NO_SCORES, _Trouble(FallbackReason.BUDGET_SPENT)
        if not self._calls.allowed():
            return _NO_SCORES, _Trouble(FallbackReason.CIRCUIT_OPEN)
        asked = self._asked
        imputed = impute(candidates.features) if self._learned else None
        in_time = True
        try:
            if self._settings.budget_seconds is None:
                scores = asked.score(candidates, view.prepared(asked), random)
            else:
                scores, in_time = self._calls.make(
                    lambda: asked.score(candidates, view.prepared(asked), random),
                    self._settings.budget_seconds,
                    remaining_seconds,
                )
            if scores.shape != candidates.segment.shape:
                raise ValueError(f"scores: shape {scores.shape} for {len(candidates)} candidates")
            finite = all_finite(scores)
        except OutOfPatienceError as error:
            return _NO_SCORES, _Trouble(FallbackReason.BUDGET_SPENT, error)
        except Exception as error:
            self._calls.failed(error)
            return _NO_SCORES, _Trouble(FallbackReason.MODEL_ERROR, error)
        if not finite or imputed is not None:
            return scores, _Trouble(
                FallbackReason.NON_FINITE_OUTPUT, finite=np.isfinite(scores), imputed=imputed, in_time=in_time
            )
        if in_time:
            self._calls.succeeded()
        return scores, None

    def _stand_in(self, call: _Call, scores: Float32Array, trouble: _Trouble) -> GuardedDecisions:
        """The decisions in spite of the trouble."""
        if trouble.finite is None:
            return self._fall_back(call, trouble.reason, trouble.error)
        return self._fall_back_where(call, scores, trouble.finite, trouble)

    def _fall_back(
        self, call: _Call, reason: FallbackReason, error: Exception | None = None
    ) -> GuardedDecisions:
        """The fallback answers all queries."""
        decisions = self._decide_by_fallback(call)
        self._observer.fell_back(self.name, reason, len(decisions), error)
        return GuardedDecisions(decisions, self._fallback_origins[reason], call.candidates.age_seconds)

    def _fall_back_where(
        self, call: _Call, scores: Float32Array, finite: BoolArray, trouble: _Trouble
    ) -> GuardedDecisions:
        """The fallback answers the queries with a non-finite score or feature; the others keep their scores."""
        candidates = call.candidates
        reasons = np.zeros(len(candidates.queries), np.int64)
        reasons[candidates.segment[~finite]] = FallbackReason.NON_FINITE_OUTPUT
        if trouble.imputed is not None:
            self._found_non_finite_inputs(int(trouble.imputed.sum()))
            reasons[candidates.segment[trouble.imputed.any(axis=1)]] = FallbackReason.NON_FINITE_INPUT
        if (reasons == FallbackReason.NON_FINITE_OUTPUT).any():
            self._calls.failed(ValueError("scores: NaN or an infinity"))
        elif trouble.in_time:
            self._calls.succeeded()
        affected = np.flatnonzero(reasons)
        first = FallbackReason(int(reasons[affected[0]]))
        if (reasons[np.diff(candidates.offsets) > 0] == first).all():
            return self._fall_back(call, first)

        # Distinct stand-ins, lest ties among them draw random numbers.
        stand_ins = -np.arange(len(scores), dtype=np.float32)
        own, positions = pick(
            np.where(reasons[candidates.segment] > 0, stand_ins, scores),
            candidates,
            call.random,
            sampling_temperature=self._asked.sampling_temperature,
            alternatives=call.alternatives,
        )
        positions[affected] = -1
        if call.record:
            record_picks(candidates, positions, call.ledger, call.now_seconds)
        subset = candidates.queries.select(affected)
        replacements = self._decide_by_fallback(
            call._replace(candidates=call.view.candidates(subset, call.ledger, call.now_seconds))
        )
        for reason in np.unique(reasons[affected]).tolist():
            count = int(np.count_nonzero(reasons == reason))
            self._observer.fell_back(self.name, FallbackReason(reason), count)
        return GuardedDecisions(
            _merge(own, replacements, affected),
            self.origin,
            candidates.age_seconds,
            {
                query: self._fallback_origins[FallbackReason(int(reasons[query]))]
                for query in affected.tolist()
            },
        )

    def _decide_by_fallback(self, call: _Call) -> DispatchDecisions:
        fallback, candidates = self.fallback, call.candidates
        scores = fallback.score(candidates, call.view.prepared(fallback), call.random)
        if not all_finite(scores):
            scores = np.where(np.isfinite(scores), scores, _RANK_LAST)
        decisions, positions = pick(
            scores,
            candidates,
            call.random,
            sampling_temperature=fallback.sampling_temperature,
            alternatives=call.alternatives,
        )
        if call.record:
            record_picks(candidates, positions, call.ledger, call.now_seconds)
        return decisions


class _Trouble(NamedTuple):
    """Why the fallback has to answer.

    Attributes:
        reason: as far as known before looking at single queries.
        error: that the policy raised.
        finite: bool [C], which scores are finite; None where the policy gave none.
        imputed: bool [C, features], which features were replaced; None if none.
        in_time: whether the scores, if any, came within the budget.
    """

    reason: FallbackReason
    error: Exception | None = None
    finite: BoolArray | None = None
    imputed: BoolArray | None = None
    in_time: bool = True


class _Call(NamedTuple):
    """What a decision is made of, once the candidates are known."""

    view: DispatchView
    candidates: Candidates
    ledger: Ledger
    now_seconds: float
    random: np.random.Generator
    alternatives: int
    record: bool


def _merge(own: DispatchDecisions, replacements: DispatchDecisions, rows: Int64Array) -> DispatchDecisions:
    """``own`` with the decisions at ``rows`` replaced."""
    merged = {}
    for column in fields(DispatchDecisions):
        merged[column.name] = getattr(own, column.name).copy()
        merged[column.name][rows] = getattr(replacements, column.name)
    return DispatchDecisions(**merged)
