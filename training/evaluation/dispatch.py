"""Dispatch policies on held-out systems.

All policies meet the same systems, placements and requests, seed by seed. Throughput rate and scheduling cost are per
seed; scheduling cost is bytes forwarded and pulled, divided by what Native (round robin and horizontal pod
autoscaler) moves on the same seed. Replicas stay where the preset puts them, except under Native, whose autoscaler
adds and deletes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from policy_server.cluster.ledger import Ledger
from policy_server.cluster.queries import single_query
from policy_server.cluster.snapshot import Float64Array, Snapshot
from policy_server.policies.dispatch import DispatchPolicy, DispatchView, decide
from policy_server.policies.heuristics import HEURISTIC_DISPATCH_NAMES, heuristic_dispatch
from policy_server.policies.onnx_dispatch import OnnxDispatch
from policy_server.policies.orchestration.autoscaler import HorizontalPodAutoscaler
from policy_server.runtime.bundle import find_bundles
from training.environments.dispatch import DispatchEnvironment
from training.evaluation.statistics import Estimate, estimate
from training.scenarios import Scenario, build_simulator
from training.simulator.simulator import VectorSimulator
from training.workloads.patterns import Pattern
from training.workloads.seeds import held_out_seed
from training.workloads.traces.windows import Split

LEARNED = "kais"
NATIVE = "native"
_TIMED_DECISIONS = 400
_AUTOSCALER_SECONDS = 15.0
_SLOW = frozenset({"firmament", "prequal"})


@dataclass(frozen=True, kw_only=True)
class DispatchEvaluation:
    """What to evaluate.

    Attributes:
        preset: name of the system configuration.
        workload: arrival pattern; None with a trace.
        trace: path of a recorded trace; None with a pattern.
        seeds: number of held-out seeds (with a trace: held-out windows).
        load: mean request rate as a multiple of the preset's reference rate.
        duration_seconds: simulated time per seed.
        policies: names of rules, of bundles, and those of ``others``; ``kais`` is the learned one that others are
            compared with.
        staleness_slots: decisions are based on reports that are 0 to this many slots late, drawn per slot for all
            systems alike; a change of replicas is known at once.
        models: root of the model bundles; None: those shipped.
        others: further names of learned policies, in other folders of bundles (for ablations).
    """

    preset: str
    workload: Pattern | None = None
    trace: Path | None = None
    seeds: int = 20
    load: float = 1.0
    duration_seconds: float = 25.0
    policies: tuple[str, ...] = (LEARNED, *HEURISTIC_DISPATCH_NAMES)
    staleness_slots: int = 0
    models: Path | None = None
    others: Mapping[str, Path] = field(default_factory=dict)

    @property
    def runs(self) -> tuple[str, ...]:
        """The policies to run: those asked for, and Native, which costs are relative to."""
        return self.policies if NATIVE in self.policies else (*self.policies, NATIVE)

    @property
    def workload_name(self) -> str:
        """Pattern, or file name of the trace."""
        return self.workload.value if self.workload is not None else self.trace.name if self.trace else ""


@dataclass(frozen=True)
class PolicyOutcome:
    """One policy on all seeds: float64 [seeds] figures and float64 [decisions] times of single decisions."""

    throughput_rate: Float64Array
    cost_bytes: Float64Array
    decision_seconds: Float64Array


@dataclass(frozen=True)
class PolicyFigures:
    """What is reported of a policy.

    Attributes:
        throughput_rate: requests answered within their deadline / requests arrived.
        scheduling_cost: bytes forwarded and pulled, relative to Native on the same seed.
        decision_p50_seconds: of one decision in this process, features included.
        decision_p99_seconds: likewise.
        learned_advantage: throughput rate of the learned policy minus this one's, paired by seed; None for itself.
    """

    throughput_rate: Estimate
    scheduling_cost: Estimate
    decision_p50_seconds: float
    decision_p99_seconds: float
    learned_advantage: Estimate | None

    def to_json(self) -> dict[str, Any]:
        """The figures under the names of the command's JSON output."""
        figures: dict[str, Any] = {
            "throughput_rate": self.throughput_rate.to_json(),
            "scheduling_cost": self.scheduling_cost.to_json(),
            "decision_seconds": {"p50": self.decision_p50_seconds, "p99": self.decision_p99_seconds},
        }
        if self.learned_advantage is not None:
            figures["kais_advantage"] = self.learned_advantage.to_json()
        return figures


def learned_dispatch(models: Path | None, policy: str = LEARNED) -> OnnxDispatch:
    """The latest version of a learned policy.

    Raises:
        LookupError: there is none, or it decides something else.
        BundleError: it cannot be loaded.
    """
    bundles = find_bundles(models)
    if not bundles.get(policy):
        raise LookupError(
            f"policies: no model bundle {policy!r} in {models or 'the package'}; export one with "
            "`policy-train export`, or leave it out with --policies"
        )
    bundle = bundles[policy][0].load()
    if bundle.manifest.kind != "dispatch":
        raise LookupError(f"policies: {policy!r} is for {bundle.manifest.kind}; name a dispatch policy")
    return OnnxDispatch(bundle)


def evaluate(
    evaluation: DispatchEvaluation, *, processes: int = 2, on_done: Callable[[str], None] = lambda name: None
) -> dict[str, PolicyFigures]:
    """Runs every policy on every seed and condenses the figures.

    Args:
        evaluation: what to run.
        processes: policies evaluated side by side.
        on_done: called with the name of each policy that has finished.

    Raises:
        LookupError: an unknown policy, or no bundle for the learned one.
    """
    for name in evaluation.policies:
        _policy(name, evaluation)
    runs = evaluation.runs
    outcomes: dict[str, PolicyOutcome] = {}
    if processes <= 1:
        for name in runs:
            outcomes[name] = run_policy(evaluation, name)
            on_done(name)
    else:
        # Slow policies first, so that no process works alone at the end.
        ordered = sorted(runs, key=lambda name: name in HEURISTIC_DISPATCH_NAMES and name not in _SLOW)
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            pending: dict[Future[PolicyOutcome], str] = {
                pool.submit(run_policy, evaluation, name): name for name in ordered
            }
            for future in as_completed(pending):
                outcomes[pending[future]] = future.result()
                on_done(pending[future])
    return {name: _figures(name, outcomes) for name in evaluation.policies}


def run_policy(evaluation: DispatchEvaluation, name: str) -> PolicyOutcome:
    """One policy on all seeds side by side."""
    simulator = build_simulator(_scenarios(evaluation), evaluation.duration_seconds)
    environment = DispatchEnvironment(
        simulator, random=np.random.default_rng(0), staleness_slots=evaluation.staleness_slots
    )
    policy = _policy(name, evaluation)
    autoscaler = HorizontalPodAutoscaler() if name == NATIVE else None
    busiest: Snapshot | None = None
    halfway = int(evaluation.duration_seconds / simulator.config.slot_seconds / 2)
    while not simulator.done:
        if autoscaler is not None:
            _autoscale(simulator, autoscaler)
        environment.step(policy)
        if simulator.slot == halfway:
            busiest = simulator.snapshot()
    results = simulator.results()
    return PolicyOutcome(
        throughput_rate=np.array([result.throughput_rate for result in results]),
        cost_bytes=np.array([result.scheduling_cost_bytes for result in results]),
        decision_seconds=_time_decisions(policy, busiest or simulator.snapshot()),
    )


def _autoscale(simulator: VectorSimulator, autoscaler: HorizontalPodAutoscaler) -> None:
    """Observes every slot and acts every 15 s, the default sync period of Kubernetes."""
    snapshot = simulator.snapshot()
    if simulator.slot == 0 or simulator.slot % round(_AUTOSCALER_SECONDS / simulator.config.slot_seconds):
        autoscaler.observe(snapshot)
    else:
        simulator.apply(autoscaler.decide(snapshot), snapshot.topology)


def _scenarios(evaluation: DispatchEvaluation) -> Sequence[Scenario]:
    return [
        Scenario(
            preset=evaluation.preset,
            seed=held_out_seed(index),
            load=evaluation.load,
            pattern=evaluation.workload,
            trace=evaluation.trace,
            trace_split=Split.HELD_OUT,
            trace_window=index,
        )
        for index in range(evaluation.seeds)
    ]


def _policy(name: str, evaluation: DispatchEvaluation) -> DispatchPolicy:
    if name in evaluation.others:
        return learned_dispatch(evaluation.others[name])
    if name == LEARNED or (
        name not in HEURISTIC_DISPATCH_NAMES and find_bundles(evaluation.models).get(name)
    ):
        return learned_dispatch(evaluation.models, name)
    return heuristic_dispatch(name)


def _time_decisions(policy: DispatchPolicy, snapshot: Snapshot) -> Float64Array:
    """float64 [n]: seconds of single decisions on a snapshot, from names resolved to choice recorded."""
    random = np.random.default_rng(0)
    topology = snapshot.topology
    view, ledger = DispatchView(snapshot), Ledger(topology)
    view.prepared(policy)
    entries = np.flatnonzero(~topology.access_points.is_cloud)
    seconds = []
    for _ in range(_TIMED_DECISIONS):
        service = int(random.integers(len(topology.services.names)))
        query = single_query(
            service,
            int(random.choice(entries)),
            float(topology.services.deadline_seconds[service]),
            10_000.0,
        )
        started = time.perf_counter()
        decide(policy, view, query, ledger, snapshot.taken_at_seconds, random)
        seconds.append(time.perf_counter() - started)
    return np.array(seconds[_TIMED_DECISIONS // 10 :])


def _figures(name: str, outcomes: dict[str, PolicyOutcome]) -> PolicyFigures:
    outcome = outcomes[name]
    advantage = None
    if name != LEARNED and LEARNED in outcomes:
        advantage = estimate(outcomes[LEARNED].throughput_rate - outcome.throughput_rate)
    p50, p99 = np.percentile(outcome.decision_seconds, (50, 99))
    return PolicyFigures(
        throughput_rate=estimate(outcome.throughput_rate),
        scheduling_cost=estimate(outcome.cost_bytes / outcomes[NATIVE].cost_bytes),
        decision_p50_seconds=float(p50),
        decision_p99_seconds=float(p99),
        learned_advantage=advantage,
    )
