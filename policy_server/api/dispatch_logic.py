"""Dispatch, below every transport: names become rows, the policy decides, rows become names.

A transport translates its messages to :mod:`policy_server.api.questions` and back, and the errors of
:mod:`policy_server.api.errors` to its status codes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from policy_server.api.errors import (
    Count,
    DeadlineSpentError,
    InvalidArgumentError,
    NothingCanServeError,
    OverloadedError,
    RequestError,
    UnknownPolicyError,
)
from policy_server.api.figures import BYTES, OPTIONAL_DEADLINE_SECONDS
from policy_server.api.questions import BatchAnswer, BatchQuestion, DispatchAnswer, DispatchQuestion
from policy_server.api.resolution import (
    SubsetRows,
    explain_no_candidate,
    rows_of_endpoints,
    rows_of_indices,
    rows_of_vocabulary,
    unknown_name,
    zero_filled,
)
from policy_server.cluster.lease import Lease
from policy_server.cluster.ledger import Ledger
from policy_server.cluster.queries import DispatchQueries, DispatchQuery
from policy_server.cluster.snapshot import Int32Array, Snapshot
from policy_server.cluster.state_store import HeldState, StateStore
from policy_server.policies import heuristics
from policy_server.policies.dispatch import NO_CANDIDATE, DispatchView
from policy_server.policies.guard import (
    DecisionOrigin,
    DecisionSource,
    GuardedDecision,
    GuardedDecisions,
    GuardedDispatch,
)
from policy_server.runtime.batcher import ExpiredError, MicroBatcher
from policy_server.runtime.registry import PolicyRegistry
from policy_server.runtime.rounds import decide_in_rounds
from policy_server.telemetry.metrics import ServerMetrics

MAXIMUM_ALTERNATIVES = 16
_LONGEST_DEADLINE_SECONDS = OPTIONAL_DEADLINE_SECONDS.largest
_LARGEST_PAYLOAD_BYTES = BYTES.largest

Held = HeldState[DispatchView]


@dataclass(frozen=True)
class DispatchLimits:
    """How much one caller may ask for, and all callers together."""

    inline_candidates: int = 10_000
    subset_endpoints: int = 10_000
    batch_requests: int = 4096
    in_flight: int = 1024
    retry_after_milliseconds: int = 100


class DispatchLogic:
    """Answers questions. All methods run on the event loop that owns the state.

    Args:
        store: the server-held state.
        policies: by name.
        metrics: counts decisions and shed requests.
        limits: on one caller and on all.
        batch_window_seconds: see :class:`~policy_server.runtime.batcher.MicroBatcher`.
        clock: monotonic seconds, the clock of the snapshots.

    Attributes:
        limits: as given.
        in_flight: questions admitted and not answered yet.
    """

    def __init__(
        self,
        store: StateStore[DispatchView],
        policies: PolicyRegistry,
        metrics: ServerMetrics,
        *,
        limits: DispatchLimits,
        batch_window_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self.in_flight = 0
        self._store = store
        self._policies = policies
        self._metrics = metrics
        self._random = np.random.default_rng()
        self._subsets = SubsetRows(limits.subset_endpoints)
        self._clock = clock
        self._batcher: MicroBatcher[DispatchQuestion, DispatchAnswer] = MicroBatcher(
            self._decide_one, self._decide_many, window_seconds=batch_window_seconds, clock=clock
        )

    def enter(self) -> None:
        """Admits one more question; :meth:`leave` must follow.

        Raises:
            OverloadedError: as many are in flight as are allowed.
        """
        if self.in_flight >= self.limits.in_flight:
            self._metrics.shed()
            raise OverloadedError(
                f"{self.in_flight} dispatch requests are in flight; retry later or elsewhere",
                self.limits.retry_after_milliseconds,
            )
        self.in_flight += 1

    def leave(self) -> None:
        """One question less is in flight."""
        self.in_flight -= 1

    async def dispatch(
        self, question: DispatchQuestion, remaining_seconds: float = math.inf
    ) -> DispatchAnswer:
        """The decision on one request, from the server-held state.

        Args:
            question: the request.
            remaining_seconds: until the caller stops waiting for the decision.

        Raises:
            RequestError: see its subclasses.
        """
        try:
            return await self._batcher.decide(question, remaining_seconds, alone=self.in_flight <= 1)
        except ExpiredError:
            raise DeadlineSpentError from None

    def dispatch_leased(
        self, question: DispatchQuestion, remaining_seconds: float = math.inf
    ) -> tuple[list[str], Lease]:
        """The endpoints for one request, best first, at once, and the lease to end when the request has ended.

        Args:
            question: the request.
            remaining_seconds: until the caller stops waiting for the decision.

        Raises:
            RequestError: see its subclasses.
        """
        guarded, held = self._decide_held(question, remaining_seconds)
        endpoint_of, decision = held.snapshot.topology.replicas.endpoints, guarded.decision
        endpoints = [endpoint_of[decision.replica], *[endpoint_of[row] for row in decision.alternatives]]
        return endpoints, Lease(held.ledger)

    def saturation(self, question: DispatchQuestion) -> float:
        """Requests queued, running and picked over the slots of all endpoints that could serve a request.

        Raises:
            InvalidArgumentError: the service or the access point is unknown.
            NothingCanServeError: there is no such endpoint.
        """
        held = self._held()
        service, access_point, deadline_seconds, subset = self._resolve(question, held)
        candidates = held.view.candidates(
            DispatchQuery(service, access_point, deadline_seconds, 0.0, subset), held.ledger, self._clock()
        )
        if not len(candidates):
            raise NothingCanServeError(explain_no_candidate(held.snapshot, question))
        picked = held.ledger.replica_pending.sum(axis=0)[candidates.replica]
        outstanding = held.view.table.outstanding[candidates.replica] + picked
        return float(outstanding.sum() / (1 / candidates.inverse_concurrency).sum())

    def dispatch_inline(
        self,
        question: DispatchQuestion,
        snapshot: Snapshot,
        node_names: Sequence[str],
        remaining_seconds: float = math.inf,
    ) -> DispatchAnswer:
        """The decision on one request, from candidates the caller brought along.

        Own picks are not remembered between such requests: the caller's figures are taken to be current.

        Args:
            question: the request; service and access point are not looked up.
            snapshot: of the candidates, with one service and the origin as its first access point.
            node_names: node of each candidate, in the caller's words.
            remaining_seconds: until the caller stops waiting for the decision.

        Raises:
            RequestError: see its subclasses.
        """
        policy = self._check(question, remaining_seconds)
        topology = snapshot.topology
        subset = None
        if question.subset is not None:
            subset = rows_of_endpoints(question.subset, topology, self.limits.subset_endpoints)
        deadline_seconds = question.deadline_seconds or float(topology.services.deadline_seconds[0])
        guarded = self._decide(
            policy,
            DispatchView(snapshot),
            DispatchQuery(0, 0, deadline_seconds, question.payload_bytes, subset),
            Ledger(topology),
            snapshot.taken_at_seconds,
            question,
            remaining_seconds,
        )
        if guarded.decision.replica == NO_CANDIDATE:
            raise NothingCanServeError(
                "endpoint_subset: none of its endpoints is among the inline candidates"
            )
        return _answer(guarded, topology.replicas.endpoints, node_names, 0)

    def dispatch_batch(self, question: BatchQuestion) -> BatchAnswer:
        """The decisions on many requests, from the server-held state.

        Raises:
            RequestError: see its subclasses. A request that no endpoint can serve is no error of the batch.
        """
        held = self._held()
        policy = self._policy(question.policy)
        _check_alternatives(question.alternatives)
        snapshot, count = held.snapshot, len(question.service)
        topology = snapshot.topology
        if count > self.limits.batch_requests:
            raise InvalidArgumentError(
                "service",
                Count(count, "requests"),
                f"at most {self.limits.batch_requests} are accepted; send fewer",
            )
        service = rows_of_indices(
            "service",
            question.service,
            "services",
            rows_of_vocabulary("services", question.services, topology.service_index, snapshot.version),
        )
        access_point = rows_of_indices(
            "access_point",
            question.access_point,
            "access_points",
            rows_of_vocabulary(
                "access_points", question.access_points, topology.access_point_index, snapshot.version
            ),
        )
        if len(access_point) != count:
            raise InvalidArgumentError(
                "access_point",
                Count(len(access_point), "values"),
                f"send one per request, {count} as in service",
            )
        deadline_seconds = OPTIONAL_DEADLINE_SECONDS.check_values(
            "deadline_seconds", zero_filled("deadline_seconds", question.deadline_seconds, count)
        )
        payload_bytes = BYTES.check_values(
            "payload_bytes", zero_filled("payload_bytes", question.payload_bytes, count)
        )
        typical = topology.services.deadline_seconds[service]
        queries = DispatchQueries(
            service=service,
            access_point=access_point,
            deadline_seconds=np.where(deadline_seconds > 0, deadline_seconds, typical).astype(np.float32),
            payload_bytes=payload_bytes.astype(np.float32),
            dispatcher=access_point if _counts_per_access_point(policy, held) else None,
        )
        guarded = self._decide_batch(
            policy, held, queries, self._generator(question.seed), question.alternatives
        )
        return BatchAnswer(
            decisions=guarded.decisions,
            endpoints=topology.replicas.endpoints,
            origin=_origin_of_all(guarded),
            snapshot_version=snapshot.version,
            snapshot_age_seconds=guarded.snapshot_age_seconds,
        )

    def _decide_one(self, question: DispatchQuestion, remaining_seconds: float) -> DispatchAnswer:
        guarded, held = self._decide_held(question, remaining_seconds)
        return _answer(
            guarded, held.snapshot.topology.replicas.endpoints, held.node_names, held.snapshot.version
        )

    def _decide_held(
        self, question: DispatchQuestion, remaining_seconds: float
    ) -> tuple[GuardedDecision, Held]:
        """The decision on one request from the held state, and that state."""
        policy = self._check(question, remaining_seconds)
        held = self._held()
        service, access_point, deadline_seconds, subset = self._resolve(question, held)
        dispatcher = access_point if _counts_per_access_point(policy, held) else None
        guarded = self._decide(
            policy,
            held.view,
            DispatchQuery(
                service, access_point, deadline_seconds, question.payload_bytes, subset, dispatcher
            ),
            held.ledger,
            self._clock(),
            question,
            remaining_seconds,
        )
        if guarded.decision.replica == NO_CANDIDATE:
            raise NothingCanServeError(explain_no_candidate(held.snapshot, question))
        return guarded, held

    def _decide_many(self, questions: Sequence[DispatchQuestion]) -> list[DispatchAnswer | Exception]:
        """Decides questions of the micro-batcher together, those for the same policy at once."""
        results: dict[int, DispatchAnswer | Exception] = {}
        resolved: dict[GuardedDispatch, list[tuple[int, int, int, float, Int32Array | None]]] = {}
        for position, question in enumerate(questions):
            try:
                if question.seed is not None:
                    results[position] = self._decide_one(question, math.inf)
                    continue
                policy = self._check(question, math.inf)
                held = self._held()
                resolved.setdefault(policy, []).append((position, *self._resolve(question, held)))
            except RequestError as error:
                results[position] = error
        for policy, members in resolved.items():
            held = self._held()
            positions, service, access_point, deadline_seconds, subset = zip(*members, strict=True)
            rows = np.array(access_point, np.int32)
            asked = [questions[position] for position in positions]
            queries = DispatchQueries(
                service=np.array(service, np.int32),
                access_point=rows,
                deadline_seconds=np.array(deadline_seconds, np.float32),
                payload_bytes=np.array([question.payload_bytes for question in asked], np.float32),
                subset=subset if any(rows is not None for rows in subset) else None,
                dispatcher=rows if _counts_per_access_point(policy, held) else None,
            )
            alternatives = max(question.alternatives for question in asked)
            guarded = self._decide_batch(policy, held, queries, self._random, alternatives)
            endpoints, snapshot = held.snapshot.topology.replicas.endpoints, held.snapshot
            for row, (position, question) in enumerate(zip(positions, asked, strict=True)):
                of_one = guarded.row(row)
                if of_one.decision.replica == NO_CANDIDATE:
                    results[position] = NothingCanServeError(explain_no_candidate(snapshot, question))
                else:
                    answer = _answer(of_one, endpoints, held.node_names, snapshot.version)
                    del answer.alternatives[question.alternatives :]
                    results[position] = answer
        return [results[position] for position in range(len(questions))]

    def _decide(
        self,
        policy: GuardedDispatch,
        view: DispatchView,
        query: DispatchQuery,
        ledger: Ledger,
        now_seconds: float,
        question: DispatchQuestion,
        remaining_seconds: float,
    ) -> GuardedDecision:
        started = perf_counter()
        guarded = policy.decide_one(
            view,
            query,
            ledger,
            now_seconds,
            self._random if question.seed is None else np.random.default_rng(question.seed),
            alternatives=question.alternatives,
            remaining_seconds=remaining_seconds,
            malformed=question.malformed,
        )
        self._metrics.decided(guarded.origin, 1, perf_counter() - started)
        return guarded

    def _decide_batch(
        self,
        policy: GuardedDispatch,
        held: Held,
        queries: DispatchQueries,
        random: np.random.Generator,
        alternatives: int,
    ) -> GuardedDecisions:
        started = perf_counter()
        guarded = decide_in_rounds(
            policy, held.view, queries, held.ledger, self._clock(), random, alternatives=alternatives
        )
        self._metrics.decided(guarded.origin, len(queries), perf_counter() - started)
        return guarded

    def _check(self, question: DispatchQuestion, remaining_seconds: float) -> GuardedDispatch:
        """The policy asked for, once it is sure that the question can be put to it."""
        if remaining_seconds <= 0:
            raise DeadlineSpentError
        if not 0.0 <= question.deadline_seconds <= _LONGEST_DEADLINE_SECONDS:
            OPTIONAL_DEADLINE_SECONDS.check("deadline_seconds", question.deadline_seconds)
        if not 0.0 <= question.payload_bytes <= _LARGEST_PAYLOAD_BYTES:
            BYTES.check("payload_bytes", question.payload_bytes)
        _check_alternatives(question.alternatives)
        return self._policy(question.policy)

    def _resolve(self, question: DispatchQuestion, held: Held) -> tuple[int, int, float, Int32Array | None]:
        """Service row, access point row, deadline in seconds, and the rows of the subset."""
        topology = held.snapshot.topology
        service = topology.service_index.get(question.service)
        access_point = topology.access_point_index.get(question.access_point)
        if service is None:
            raise unknown_name("service", question.service, held.snapshot.version)
        if access_point is None:
            raise unknown_name("access_point", question.access_point, held.snapshot.version)
        deadline_seconds = question.deadline_seconds or float(topology.services.deadline_seconds[service])
        subset = None
        if question.subset is not None:
            subset = self._subsets.rows(question.subset, topology)
        return service, access_point, deadline_seconds, subset

    def _held(self) -> Held:
        held = self._store.held
        if held is None:
            raise NothingCanServeError(
                "no state is held yet; report it with StateService.ReportState, "
                "or send the request with inline_candidates"
            )
        return held

    def _policy(self, name: str) -> GuardedDispatch:
        try:
            return self._policies.get(name)
        except heuristics.UnknownPolicyError as error:
            raise UnknownPolicyError(*error.args) from None

    def _generator(self, seed: int | None) -> np.random.Generator:
        return self._random if seed is None else np.random.default_rng(seed)


def _check_alternatives(count: int) -> None:
    if count > MAXIMUM_ALTERNATIVES:
        raise InvalidArgumentError("max_alternatives", count, f"ask for at most {MAXIMUM_ALTERNATIVES}")


def _counts_per_access_point(policy: GuardedDispatch, held: Held) -> bool:
    return held.ledger_row_per_access_point and not policy.policy.shares_picks


def _answer(
    guarded: GuardedDecision, endpoints: Sequence[str], node_names: Sequence[str], snapshot_version: int
) -> DispatchAnswer:
    decision, origin, age_seconds = guarded
    return DispatchAnswer(
        endpoints[decision.replica],
        node_names[decision.replica],
        decision.score,
        [
            (endpoints[row], node_names[row], score)
            for row, score in zip(decision.alternatives, decision.alternative_scores, strict=True)
        ],
        origin,
        snapshot_version,
        age_seconds,
        decision.candidate_count,
    )


def _origin_of_all(guarded: GuardedDecisions) -> DecisionOrigin:
    for origin in guarded.exceptions.values():
        if origin.source is DecisionSource.FALLBACK:
            return origin
    return guarded.origin
