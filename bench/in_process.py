"""Decisions inside the process, without gRPC, beside a bare reference in the same run.

Everything runs on the calling thread, on the service's own logic layer and a state of the scenario.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

import numpy as np

from bench.load.errors import LoadError
from bench.reference_head import reference_decision
from bench.report import BatchFigures, InProcessFigures, InProcessResult
from bench.scenario import CANDIDATES, generate_request, generate_state
from policy_server.api.dispatch_logic import DispatchLimits, DispatchLogic
from policy_server.api.messages import full_load_from_message, topology_from_message
from policy_server.api.questions import BatchQuestion, DispatchQuestion
from policy_server.cluster.queries import DispatchQuery
from policy_server.cluster.snapshot import Int64Array, Snapshot
from policy_server.cluster.state_store import HeldState, StateStore
from policy_server.policies.dispatch import DispatchView
from policy_server.policies.guard import DecisionSource, GuardSettings
from policy_server.runtime.bundle import BundleError
from policy_server.runtime.registry import PolicyRegistry, UnknownPolicyError
from policy_server.settings import Settings
from policy_server.telemetry.metrics import ServerMetrics

CANDIDATE_COUNTS = (10, 100, 1000)
BATCH_SIZE = 256
_ALTERNATIVES = 2
_ROUNDS = 10
_ROUND_SECONDS = 0.05
_WARM_UP_CALLS = 50


def measure_policy(name: str, models: Path | None = None) -> InProcessResult:
    """Times decisions of a policy among 10, 100 and 1000 candidates, and batches of 256 requests with 10 each.

    Args:
        name: of the policy.
        models: directory of model bundles; None: those shipped with the package.

    Raises:
        LoadError: there is no such policy, its model cannot be loaded, or the fallback answers instead of it.
    """
    try:
        registry = PolicyRegistry(
            models, active=name, settings=GuardSettings(budget_seconds=Settings().model_budget_seconds)
        )
    except (UnknownPolicyError, BundleError) as error:
        raise LoadError(f"inside the process: {error}") from None
    decisions = {
        str(count): asyncio.run(_decision_figures(_Service(registry, count), count))
        for count in CANDIDATE_COUNTS
    }
    return InProcessResult(decisions, _batch_figures(_Service(registry, CANDIDATES)))


class _Service:
    """The logic layer of a server that holds the scenario's state."""

    def __init__(self, registry: PolicyRegistry, candidates: int) -> None:
        state = generate_state(candidates)
        self._topology = topology_from_message(state.topology, "topology")
        self._load = full_load_from_message(state.load, self._topology, "load")
        self._registry = registry
        self._store = StateStore(self._prepare)
        self._logic = DispatchLogic(self._store, registry, ServerMetrics(), limits=DispatchLimits())
        self._random = np.random.default_rng(0)
        request = generate_request()
        self._question = DispatchQuestion(
            service=request.service,
            access_point=request.access_point,
            deadline_seconds=request.deadline_seconds,
            payload_bytes=request.payload_bytes,
            alternatives=_ALTERNATIVES,
        )
        self._rows = (
            self._topology.service_index[request.service],
            self._topology.access_point_index[request.access_point],
        )
        self.report_state()

    def _prepare(self, snapshot: Snapshot, previous: DispatchView | None) -> DispatchView:
        view = DispatchView(snapshot, previous)
        self._registry.get().prepare(view)
        return view

    @property
    def _held(self) -> HeldState[DispatchView]:
        held = self._store.held
        assert held is not None
        return held

    def report_state(self) -> None:
        """As a full report does: the encoder runs, and own picks are forgotten."""
        self._store.replace(self._topology, self._load)

    def check(self) -> None:
        """Raises LoadError when the fallback answers."""
        source = self.decide()
        if source is DecisionSource.FALLBACK:
            raise LoadError(f"inside the process the fallback answers instead of {self._registry.active!r}")

    def decide(self) -> DecisionSource:
        """Masking, features, model, checks, picking and the count of the own pick, for one request."""
        held = self._held
        service, access_point = self._rows
        query = DispatchQuery(
            service,
            access_point,
            self._question.deadline_seconds,
            self._question.payload_bytes,
            dispatcher=access_point if held.ledger_row_per_access_point else None,
        )
        guarded = self._registry.get().decide_one(
            held.view, query, held.ledger, time.monotonic(), self._random, alternatives=_ALTERNATIVES
        )
        return guarded.origin.source

    async def answer(self) -> None:
        """From names to names: looks up, decides, counts."""
        await self._logic.dispatch(self._question)

    def answer_batch(self, question: BatchQuestion) -> None:
        """As :meth:`answer`, for many requests at once."""
        self._logic.dispatch_batch(question)

    def mixed_batch(self, size: int) -> BatchQuestion:
        """Requests for all services, from all access points but the cloud."""
        names = self._topology.access_points.names
        edges = [
            name
            for name, cloud in zip(names, self._topology.access_points.is_cloud, strict=True)
            if not cloud
        ]
        services = self._topology.services.names
        return BatchQuestion(
            services=services,
            access_points=edges,
            service=self._random.integers(len(services), size=size),
            access_point=self._random.integers(len(edges), size=size),
            deadline_seconds=np.zeros(0),
            payload_bytes=np.zeros(0),
        )


async def _decision_figures(service: _Service, candidates: int) -> InProcessFigures:
    reference = reference_decision(candidates)
    for _ in range(_WARM_UP_CALLS):
        service.check()
        await service.answer()
        reference()
    decisions, answers, references = [], [], []
    for _ in range(_ROUNDS):
        service.report_state()
        decisions.append(_durations_nanoseconds(service.decide))
        service.report_state()
        answers.append(await _await_durations_nanoseconds(service.answer))
        references.append(_durations_nanoseconds(reference))
    return InProcessFigures(
        p50_us=_percentile_microseconds(decisions, 50),
        p99_us=_percentile_microseconds(decisions, 99),
        answer_p50_us=_percentile_microseconds(answers, 50),
        reference_p50_us=_percentile_microseconds(references, 50),
    )


def _batch_figures(service: _Service) -> BatchFigures:
    question = service.mixed_batch(BATCH_SIZE)
    service.answer_batch(question)
    rates = []
    for _ in range(_ROUNDS):
        service.report_state()
        spent = _durations_nanoseconds(lambda: service.answer_batch(question))
        rates.append(BATCH_SIZE / float(np.median(spent)) * 1e9)
    return BatchFigures(BATCH_SIZE, CANDIDATES, round(median(rates), 1))


def _percentile_microseconds(rounds: list[Int64Array], percentile: float) -> float:
    return round(float(np.percentile(np.concatenate(rounds), percentile)) / 1000, 1)


def _durations_nanoseconds(call: Callable[[], object]) -> Int64Array:
    durations: list[int] = []
    end = time.perf_counter_ns() + int(_ROUND_SECONDS * 1e9)
    while (started := time.perf_counter_ns()) < end or not durations:
        call()
        durations.append(time.perf_counter_ns() - started)
    return np.array(durations, np.int64)


async def _await_durations_nanoseconds(call: Callable[[], Awaitable[None]]) -> Int64Array:
    durations: list[int] = []
    end = time.perf_counter_ns() + int(_ROUND_SECONDS * 1e9)
    while (started := time.perf_counter_ns()) < end or not durations:
        await call()
        durations.append(time.perf_counter_ns() - started)
    return np.array(durations, np.int64)
