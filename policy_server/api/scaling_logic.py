"""Vertical scaling, below every transport: the containers of all who wait are decided together."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np

from policy_server.api.errors import DeadlineSpentError, OverloadedError, RequestError, UnknownPolicyError
from policy_server.api.scaling_messages import ScalingLimits
from policy_server.api.scaling_questions import ScalingAnswer, ScalingQuestion
from policy_server.policies import heuristics
from policy_server.policies.scaling.batch import ScalingOutcome, join_tasks
from policy_server.policies.scaling.guard import GuardedScaling
from policy_server.runtime.batcher import ExpiredError, MicroBatcher
from policy_server.runtime.scaling_registry import ScalingRegistry
from policy_server.telemetry.metrics import ServerMetrics

BATCH_PAYS_FROM = 2
"""Most of what a small question costs is the same for a large one."""
MOST_CONTAINERS_TOGETHER = 2000
"""Questions are joined up to this many containers. Beyond it a batch saves little and makes its first callers wait."""


class ScalingLogic:
    """Answers questions. All methods run on one event loop.

    Args:
        policies: by name.
        metrics: counts decisions and shed requests.
        limits: what is taken for granted where a request does not say.
        most_in_flight: requests handled at the same time; more are shed.
        retry_after_milliseconds: how long a shed caller is told to wait.
        clock: monotonic seconds.

    Attributes:
        limits: as given.
        in_flight: requests admitted and not answered yet.
    """

    def __init__(
        self,
        policies: ScalingRegistry,
        metrics: ServerMetrics,
        *,
        limits: ScalingLimits,
        most_in_flight: int = 1024,
        retry_after_milliseconds: int = 100,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self.in_flight = 0
        self._policies = policies
        self._metrics = metrics
        self._most_in_flight = most_in_flight
        self._retry_after_milliseconds = retry_after_milliseconds
        self._batcher: MicroBatcher[ScalingQuestion, ScalingAnswer] = MicroBatcher(
            self._decide_one, self._decide_many, batch_pays_from=BATCH_PAYS_FROM, clock=clock
        )

    def enter(self) -> None:
        """Admits one more request; :meth:`leave` must follow.

        Raises:
            OverloadedError: as many are in flight as are allowed.
        """
        if self.in_flight >= self._most_in_flight:
            self._metrics.shed()
            raise OverloadedError(
                f"{self.in_flight} scaling requests are in flight; retry later or elsewhere",
                self._retry_after_milliseconds,
            )
        self.in_flight += 1

    def leave(self) -> None:
        """One request less is in flight."""
        self.in_flight -= 1

    async def scale(self, question: ScalingQuestion, remaining_seconds: float = math.inf) -> ScalingAnswer:
        """The decisions for all containers of a question.

        Args:
            question: the containers.
            remaining_seconds: until the caller stops waiting for the decisions.

        Raises:
            RequestError: see its subclasses.
        """
        try:
            return await self._batcher.decide(question, remaining_seconds)
        except ExpiredError:
            raise DeadlineSpentError from None

    def _decide_one(self, question: ScalingQuestion, remaining_seconds: float) -> ScalingAnswer:
        if remaining_seconds <= 0:
            raise DeadlineSpentError
        outcome = self._decide(self._policy(question.policy), [question], remaining_seconds)
        return ScalingAnswer(outcome, question.sample_age_seconds)

    def _decide_many(self, questions: Sequence[ScalingQuestion]) -> list[ScalingAnswer | Exception]:
        """Decides questions of the micro-batcher, those for the same policy together."""
        results: dict[int, ScalingAnswer | Exception] = {}
        batches: dict[GuardedScaling, list[list[int]]] = {}
        for position, question in enumerate(questions):
            try:
                policy = self._policy(question.policy)
            except RequestError as error:
                results[position] = error
                continue
            of_policy = batches.setdefault(policy, [[]])
            together = sum(len(questions[other].task) for other in of_policy[-1])
            if of_policy[-1] and together + len(question.task) > MOST_CONTAINERS_TOGETHER:
                of_policy.append([])
            of_policy[-1].append(position)
        for policy, of_policy in batches.items():
            for positions in of_policy:
                outcome = self._decide(policy, [questions[position] for position in positions], math.inf)
                first = 0
                for position in positions:
                    question, start = questions[position], first
                    first += len(question.task)
                    results[position] = ScalingAnswer(outcome.rows(start, first), question.sample_age_seconds)
        return [results[position] for position in range(len(questions))]

    def _decide(
        self, policy: GuardedScaling, questions: Sequence[ScalingQuestion], remaining_seconds: float
    ) -> ScalingOutcome:
        started = perf_counter()
        outcome = policy.decide(join_tasks([question.task for question in questions]), remaining_seconds)
        seconds = perf_counter() - started
        counts = np.bincount(outcome.origin, minlength=len(outcome.origins)).tolist()
        for origin, count in zip(outcome.origins, counts, strict=True):
            self._metrics.decided(origin, count, seconds)
        return outcome

    def _policy(self, name: str) -> GuardedScaling:
        try:
            return self._policies.get(name)
        except heuristics.UnknownPolicyError as error:
            raise UnknownPolicyError(*error.args) from None
