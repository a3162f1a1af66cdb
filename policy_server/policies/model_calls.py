"""Calls of a policy that may fail, hang or be late: a time budget, and a circuit breaker for what keeps failing.

- A policy is *on probation* when it is new and after every overrun. Its calls are then made on a separate thread
  and waited for no longer than the budget. Never more than one call of a policy is under way there.
- After ``probation_calls`` calls in a row within the budget it is *trusted*: its calls are made in place, which
  spares the two thread switches. A call in place cannot be cut short; if one overruns, it counts as a fault, and the
  policy goes back on probation.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from policy_server.policies.circuit_breaker import BreakerSettings, BreakerState, CircuitBreaker
from policy_server.policies.decision_origin import FallbackReason
from policy_server.policies.patience import OutOfPatienceError, PatientWorker

Result = TypeVar("Result")

_LOGGER = logging.getLogger(__name__)


class GuardObserver:
    """Is told what a guard meets. Does nothing by itself; telemetry overrides what it counts.

    Called on the deciding thread, so it must be quick and must not raise.
    """

    def fell_back(
        self, policy: str, reason: FallbackReason, queries: int, error: Exception | None = None
    ) -> None:
        """The fallback answered ``queries`` queries of one call in place of ``policy``."""

    def found_non_finite_inputs(self, policy: str, values: int) -> None:
        """NaN or infinite features, imputed before ``policy`` saw them."""

    def overran(self, policy: str, seconds: float) -> None:
        """``policy`` answered in place, but late: after ``seconds``."""

    def breaker_changed(self, policy: str, state: BreakerState) -> None:
        """The circuit breaker of ``policy`` opened or closed."""


@dataclass(frozen=True)
class GuardSettings:
    """Limits of a guard."""

    maximum_state_age_seconds: float = math.inf
    """Learned policies do not judge older state. Heuristics do: they count their own picks."""
    budget_seconds: float | None = None
    """Time a policy has for one call; None: as long as it takes."""
    probation_calls: int = 5
    """Calls in a row within the budget after which a policy is trusted."""
    minimum_remaining_seconds: float = 0.001
    """A policy is not asked when the caller's own deadline is nearer than this."""
    breaker: BreakerSettings = field(default_factory=BreakerSettings)


DEFAULT_SETTINGS = GuardSettings()


class ModelCalls:
    """The calls of one policy.

    Args:
        name: of the policy.
        settings: limits.
        observer: is told of overruns and of the breaker.
        clock: seconds; of the budget and the circuit breaker.
    """

    def __init__(
        self, name: str, settings: GuardSettings, observer: GuardObserver, clock: Callable[[], float]
    ) -> None:
        self._name = name
        self._settings = settings
        self._observer = observer
        self._clock = clock
        self._breaker = CircuitBreaker(settings.breaker, clock)
        self._in_place = not settings.probation_calls
        self._calls_in_time = 0
        self._worker = PatientWorker(f"probation of {name}")

    @property
    def breaker_state(self) -> BreakerState:
        """Whether the policy is being asked."""
        return self._breaker.state

    def allowed(self) -> bool:
        """Whether the circuit breaker lets a call through."""
        return self._breaker.allows()

    def make(
        self, call: Callable[[], Result], budget_seconds: float, remaining_seconds: float = math.inf
    ) -> tuple[Result, bool]:
        """What the call returns, and whether it came within the budget. An overrun counts as a fault.

        Args:
            call: of the policy.
            budget_seconds: time it has.
            remaining_seconds: until the caller stops waiting; being in more of a hurry than the budget is not the
                policy's fault.

        Raises:
            OutOfPatienceError: on probation, and neither within the budget nor within the remaining time.
        """
        if not self._in_place:
            try:
                result = self._worker.call(call, min(budget_seconds, remaining_seconds))
            except OutOfPatienceError as error:
                if remaining_seconds >= budget_seconds:
                    self._overran(error)
                raise
            self._calls_in_time += 1
            self._in_place = self._calls_in_time >= self._settings.probation_calls
            return result, True
        started = self._clock()
        result = call()
        seconds = self._clock() - started
        if seconds <= budget_seconds:
            return result, True
        self._observer.overran(self._name, seconds)
        self._overran(OutOfPatienceError(f"{seconds:.3g} s instead of {budget_seconds:g} s"))
        return result, False

    def succeeded(self) -> None:
        """The call was sound and in time."""
        if self._breaker.succeeded():
            _LOGGER.info("policy %s: sound again", self._name)
            self._observer.breaker_changed(self._name, BreakerState.CLOSED)

    def failed(self, error: Exception) -> None:
        """The call was at fault."""
        if self._breaker.failed():
            _LOGGER.warning("policy %s: fails repeatedly, not asked for a while: %s", self._name, error)
            self._observer.breaker_changed(self._name, BreakerState.OPEN)

    def _overran(self, error: Exception) -> None:
        self._in_place = False
        self._calls_in_time = 0
        self.failed(error)
