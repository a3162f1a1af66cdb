"""Orchestration, below every transport: states are read, policies decide, actions are checked once more and explained.

A decision on a large system takes far longer than one of dispatch, so all of it happens on a thread of its own.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
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
from policy_server.api.orchestration_questions import (
    AnsweredAction,
    OrchestrationAnswer,
    OrchestrationQuestion,
)
from policy_server.cluster.actions import AddReplica
from policy_server.cluster.snapshot import Float32Array, Int64Array, Snapshot, SnapshotError, Topology
from policy_server.cluster.state_store import HeldState, StateStore
from policy_server.features.graph import OrchestrationGraph
from policy_server.policies import heuristics
from policy_server.policies.dispatch import DispatchView
from policy_server.policies.orchestration.effects import expected_effects
from policy_server.policies.orchestration.guard import GuardedOrchestration, GuardedPlan
from policy_server.policies.orchestration.memory import (
    DEFAULT_FRAME_SECONDS,
    FrameMemory,
    GivenAddition,
    GivenDeletion,
)
from policy_server.policies.orchestration.plan import (
    FramePlan,
    OrchestrationOptions,
    OrchestrationQuery,
    PlannedAction,
)
from policy_server.runtime.background_batcher import BackgroundBatcher
from policy_server.runtime.batcher import ExpiredError
from policy_server.runtime.orchestration_registry import OrchestrationRegistry
from policy_server.telemetry.metrics import ServerMetrics

MAXIMUM_ACTIONS = 1000
MAXIMUM_NODE_SERVICES = 4_000_000
"""Nodes x services; there are tables over them."""
_REMEMBERED_CLUSTERS = 1024

Held = HeldState[DispatchView]


@dataclass(frozen=True)
class OrchestrationLimits:
    """How much one caller may ask for, and all callers together."""

    nodes: int = 20_000
    in_flight: int = 64
    retry_after_milliseconds: int = 1000
    frame_seconds: float = DEFAULT_FRAME_SECONDS


@dataclass(eq=False, slots=True)
class _Case:
    """A question on its way to an answer.

    Attributes:
        question: as asked.
        policy: to ask.
        held: the state it is decided on, where it is the held one.
        query: for the policy.
        memory: that the answer enters; None: none.
        remembered: what of the answer entered it, one for each action.
    """

    question: OrchestrationQuestion
    policy: GuardedOrchestration
    held: Held | None
    query: OrchestrationQuery
    memory: FrameMemory | None
    remembered: list[GivenAddition | GivenDeletion] = field(default_factory=list)


class OrchestrationLogic:
    """Answers questions. Public methods run on the event loop that owns the state.

    Args:
        store: the server-held state.
        policies: by name.
        metrics: counts answers, actions and shed requests.
        limits: on one caller and on all.
        clock: monotonic seconds, the clock of the snapshots.

    Attributes:
        limits: as given.
        in_flight: questions admitted and not answered yet.
    """

    def __init__(
        self,
        store: StateStore[DispatchView],
        policies: OrchestrationRegistry,
        metrics: ServerMetrics,
        *,
        limits: OrchestrationLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self.in_flight = 0
        self._store = store
        self._policies = policies
        self._metrics = metrics
        self._clock = clock
        self._random = np.random.default_rng()
        self._graph: OrchestrationGraph | None = None
        self._memory_of_held = FrameMemory(limits.frame_seconds)
        self._memories: OrderedDict[str, FrameMemory] = OrderedDict()
        self._batcher: BackgroundBatcher[OrchestrationQuestion | _Stale, _Answered] = BackgroundBatcher(
            self._decide_many, _forget, name="orchestration", clock=clock
        )

    async def orchestrate(
        self, question: OrchestrationQuestion, remaining_seconds: float = math.inf
    ) -> OrchestrationAnswer:
        """What to do to one system.

        Args:
            question: about the held state, or one brought along.
            remaining_seconds: until the caller stops waiting for the answer.

        Raises:
            RequestError: see its subclasses.
            SnapshotError: the state brought along contradicts itself.
        """
        self._check(question, remaining_seconds)
        if self.in_flight >= self.limits.in_flight:
            self._metrics.shed()
            raise OverloadedError(
                f"{self.in_flight} orchestration requests are in flight; retry later or elsewhere",
                self.limits.retry_after_milliseconds,
            )
        self.in_flight += 1
        try:
            return await self._answer(question, self._clock() + remaining_seconds)
        except ExpiredError:
            raise DeadlineSpentError from None
        finally:
            self.in_flight -= 1

    def observe(self, snapshot: Snapshot) -> None:
        """Shows the active policy a new held state."""
        policy, memory = self._policies.get(), self._memory_of_held
        if not policy.policy.learned:
            self._batcher.post(lambda: policy.observe(snapshot, memory))

    def close(self) -> None:
        """Decides nothing any more."""
        self._batcher.close()

    async def _answer(self, question: OrchestrationQuestion, expires_at: float) -> OrchestrationAnswer:
        answered = await self._batcher.decide(question, expires_at - self._clock())
        try:
            while answered.case.held is not None and answered.case.held is not self._store.held:
                answered = await self._batcher.decide(_Stale(answered), expires_at - self._clock())
        except BaseException:
            self._batcher.post(partial(_forget, answered))
            raise
        self._metrics.orchestrated(
            answered.answer.origin, answered.seconds, [action.planned for action in answered.answer.actions]
        )
        return answered.answer

    def _check(self, question: OrchestrationQuestion, remaining_seconds: float) -> None:
        if remaining_seconds <= 0:
            raise DeadlineSpentError
        most = question.maximum_actions
        if most is not None and not 1 <= most <= MAXIMUM_ACTIONS:
            raise InvalidArgumentError(
                "max_actions", most, f"ask for 1 to {MAXIMUM_ACTIONS}, or leave it out"
            )
        if question.cluster and question.read_state is None:
            raise InvalidArgumentError(
                "cluster", question.cluster, "names the system of inline_state; leave it out or send that"
            )
        self._policy(question.policy)
        if question.read_state is None and self._store.held is None:
            raise NothingCanServeError(
                "no state is held yet; report it with StateService.ReportState, "
                "or send the request with inline_state"
            )

    def _policy(self, name: str) -> GuardedOrchestration:
        try:
            return self._policies.get(name)
        except heuristics.UnknownPolicyError as error:
            raise UnknownPolicyError(*error.args) from None

    def _decide_many(
        self, questions: Sequence[OrchestrationQuestion | _Stale]
    ) -> list[_Answered | Exception]:
        """On the thread: answers what was waiting, questions that share neither policy nor memory at once."""
        results: dict[int, _Answered | Exception] = {}
        waiting: list[tuple[int, OrchestrationQuestion]] = []
        for position, question in enumerate(questions):
            if isinstance(question, _Stale):
                results[position] = self._checked_again(question.answered)
            else:
                waiting.append((position, question))
        while waiting:
            together: dict[GuardedOrchestration, list[tuple[int, _Case]]] = {}
            taken: set[FrameMemory] = set()
            later = []
            for position, question in waiting:
                memory = self._memory(question)
                if memory in taken:
                    later.append((position, question))
                    continue
                if memory is not None:
                    taken.add(memory)
                try:
                    case = self._case(question, memory)
                    together.setdefault(case.policy, []).append((position, case))
                except (RequestError, SnapshotError) as error:
                    results[position] = error
            for policy, cases in together.items():
                answered = self._decide(policy, [case for _, case in cases])
                results.update((position, one) for (position, _), one in zip(cases, answered, strict=True))
            waiting = later
        return [results[position] for position in range(len(questions))]

    def _decide(self, policy: GuardedOrchestration, cases: Sequence[_Case]) -> list[_Answered]:
        started = perf_counter()
        # A seed is a promise about one question, whatever it is decided together with.
        alone = [case for case in cases if case.question.seed is not None]
        batch = [case for case in cases if case.question.seed is None]
        plans: dict[_Case, GuardedPlan] = {}
        now = self._clock()
        if batch:
            decided = policy.decide([case.query for case in batch], now, self._random)
            plans.update(zip(batch, decided, strict=True))
        for case in alone:
            random = np.random.default_rng(case.question.seed)
            plans[case] = policy.decide([case.query], now, random)[0]
        answered = []
        for case in cases:
            guarded = plans[case]
            if case.memory is not None and not case.question.dry_run:
                case.remembered = guarded.plan.given_actions(now)
                case.memory.record(case.remembered, now)
            answered.append(self._answered(case, guarded))
        seconds = perf_counter() - started
        for one in answered:
            one.seconds = seconds
        return answered

    def _checked_again(self, answered: _Answered) -> _Answered:
        """The answer without what the state that is held by now does not allow any more."""
        case = answered.case
        held = self._store.held
        assert held is not None
        query = OrchestrationQuery(
            self._graph_of(held),
            OrchestrationOptions(
                case.query.options.maximum_actions,
                _rows_of_known_services(case.question.protected_services, held.snapshot.topology),
            ),
            pending_requests=_pending_requests(held),
        )
        plan = FramePlan(query)
        kept = [
            _plan_again(plan, action.planned, answered.answer.topology) for action in answered.answer.actions
        ]
        if case.memory is not None and case.remembered:
            case.memory.forget(
                [given for given, stays in zip(case.remembered, kept, strict=True) if not stays]
            )
            case.remembered = [given for given, stays in zip(case.remembered, kept, strict=True) if stays]
        self._metrics.withdrew(answered.answer.origin, kept.count(False))
        case.held, case.query = held, query
        checked = self._answered(case, GuardedPlan(plan, answered.answer.origin))
        checked.seconds = answered.seconds
        return checked

    def _memory(self, question: OrchestrationQuestion) -> FrameMemory | None:
        if question.read_state is None:
            return self._memory_of_held
        if not question.cluster:
            return None
        memory = self._memories.setdefault(question.cluster, FrameMemory(self.limits.frame_seconds))
        self._memories.move_to_end(question.cluster)
        if len(self._memories) > _REMEMBERED_CLUSTERS:
            self._memories.popitem(last=False)
        return memory

    def _case(self, question: OrchestrationQuestion, memory: FrameMemory | None) -> _Case:
        held = None
        pending = None
        if question.read_state is None:
            held = self._store.held
            assert held is not None
            graph = self._graph_of(held)
            pending = _pending_requests(held)
            where = "state"
        else:
            graph = OrchestrationGraph.of(question.read_state())
            where = "inline_state"
        topology = graph.snapshot.topology
        self._check_size(where, topology)
        read = FrameMemory() if memory is None else memory
        query = OrchestrationQuery(
            graph,
            OrchestrationOptions(
                question.maximum_actions,
                _rows_of_services(question.protected_services, topology),
                MAXIMUM_ACTIONS,
            ),
            read.copy() if question.dry_run else read,
            pending,
            self._clock(),
        )
        return _Case(question, self._policy(question.policy), held, query, memory)

    def _check_size(self, where: str, topology: Topology) -> None:
        nodes, pairs = len(topology.nodes.names), len(topology.nodes.names) * len(topology.services.names)
        if nodes > self.limits.nodes:
            raise too_many_nodes(f"{where}.topology.nodes", nodes, self.limits.nodes)
        if pairs > MAXIMUM_NODE_SERVICES:
            raise InvalidArgumentError(
                f"{where}.topology.services",
                Count(pairs, "nodes x services"),
                f"at most {MAXIMUM_NODE_SERVICES} are accepted; split the system over several requests",
            )

    def _graph_of(self, held: Held) -> OrchestrationGraph:
        if self._graph is None or self._graph.table is not held.view.table:
            self._graph = OrchestrationGraph(held.view.table, self._graph)
        return self._graph

    def _answered(self, case: _Case, guarded: GuardedPlan) -> _Answered:
        graph, snapshot = case.query.graph, case.query.graph.snapshot
        actions = guarded.plan.actions
        answer = OrchestrationAnswer(
            actions=[
                AnsweredAction(planned, effect, _feasibility(planned, snapshot.topology))
                for planned, effect in zip(actions, expected_effects(graph, actions), strict=True)
            ],
            topology=snapshot.topology,
            origin=guarded.origin,
            snapshot_version=0 if case.held is None else snapshot.version,
            snapshot_age_seconds=snapshot.age_seconds(self._clock()),
        )
        return _Answered(case, answer)


@dataclass(slots=True)
class _Answered:
    """An answer and how it came about.

    Attributes:
        case: what was asked.
        answer: to the question.
        seconds: it took.
    """

    case: _Case
    answer: OrchestrationAnswer
    seconds: float = 0.0


def _forget(answered: _Answered) -> None:
    """An answer that reaches nobody was not given."""
    case = answered.case
    if case.memory is not None:
        case.memory.forget(case.remembered)


@dataclass(frozen=True, slots=True)
class _Stale:
    """An answer on a state that is not the held one any more."""

    answered: _Answered


def _plan_again(plan: FramePlan, planned: PlannedAction, before: Topology) -> bool:
    """Enters an action on rows of an earlier topology in a plan; False if it is not feasible any more."""
    topology = plan.graph.snapshot.topology
    if not isinstance(planned.action, AddReplica):
        replica = topology.replica_index.get(before.replicas.endpoints[planned.action.replica])
        return replica is not None and plan.delete(replica, planned.score)
    node = topology.node_index.get(before.nodes.names[planned.node])
    service = topology.service_index.get(before.services.names[planned.service])
    return node is not None and service is not None and plan.add(node, service, planned.score)


def too_many_nodes(field: str, nodes: int, limit: int) -> InvalidArgumentError:
    """The error for a system that is too large."""
    return InvalidArgumentError(
        field,
        Count(nodes, "nodes"),
        f"at most {limit} are accepted; split the system over several requests",
    )


def _rows_of_services(names: Sequence[str], topology: Topology) -> Int64Array:
    index = topology.service_index
    for position, name in enumerate(names):
        if name not in index:
            raise InvalidArgumentError(
                f"protected_services[{position}]",
                name,
                "is not among the services of the state; add it there or correct the name",
            )
    return _rows_of_known_services(names, topology)


def _rows_of_known_services(names: Sequence[str], topology: Topology) -> Int64Array:
    index = topology.service_index
    return np.array([index[name] for name in names if name in index], np.int64)


def _pending_requests(held: Held) -> Float32Array:
    pending: Float32Array = held.ledger.replica_pending.sum(axis=0)
    return pending


def _feasibility(planned: PlannedAction, topology: Topology) -> str:
    nodes, node, service = topology.nodes, planned.node, topology.services.names[planned.service]
    name = nodes.names[node]
    if isinstance(planned.action, AddReplica):
        return (
            f"{name} would hold {planned.node_memory_bytes:.0f} of {nodes.memory_bytes[node]:.0f} bytes of memory and, "
            f"with one request of {service} running, {planned.node_cpu_millicores:.0f} of "
            f"{nodes.cpu_millicores[node]:.0f} millicores"
        )
    endpoint = topology.replicas.endpoints[planned.action.replica]
    state = "has requests and must drain first" if planned.drain_first else "is idle"
    others = f"replica of {service} remains" if planned.replicas == 1 else f"replicas of {service} remain"
    return f"{endpoint} {state}; {planned.replicas} other {others}"
