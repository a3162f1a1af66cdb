"""Dispatch and orchestration together on held-out systems.

A combination ``DISPATCH+ORCHESTRATION`` plays whole episodes of the orchestration scenario
(:mod:`training.orchestration_scenarios`). All combinations meet the same systems, placements and requests, seed by
seed. Costs are relative to ``native+native`` (round robin and horizontal pod autoscaler) on the same seed.
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

from policy_server.cluster.snapshot import Float64Array
from policy_server.policies.dispatch import DispatchPolicy
from policy_server.policies.heuristics import UnknownPolicyError, heuristic_dispatch
from policy_server.policies.orchestration.onnx import OnnxOrchestration
from policy_server.policies.orchestration.plan import OrchestrationOptions
from policy_server.policies.orchestration.policy import OrchestrationPolicy
from policy_server.policies.orchestration.rules import heuristic_orchestration
from policy_server.runtime.bundle import find_bundles
from training.environments.dispatch import DispatchEnvironment
from training.environments.orchestration import OrchestrationEnvironment, PolicyDispatch, decided
from training.evaluation.dispatch import LEARNED, NATIVE, learned_dispatch
from training.evaluation.statistics import Estimate, estimate
from training.orchestration_scenarios import (
    DEFAULT_SETTING,
    DEFAULT_STEPS,
    OrchestrationSetting,
    orchestration_simulator,
)
from training.scenarios import Scenario
from training.simulator.simulator import SimulatorConfig
from training.workloads.patterns import Pattern
from training.workloads.seeds import held_out_seed
from training.workloads.traces.windows import Split

ORCHESTRATION_BUNDLE = "kais-orchestration"
OURS = f"{LEARNED}+{LEARNED}"
REFERENCE = f"{NATIVE}+{NATIVE}"
DEFAULT_COMBINATIONS = (
    OURS,
    f"{LEARNED}+gsp-ss",
    f"{LEARNED}+{NATIVE}",
    f"{LEARNED}+greedy",
    f"{LEARNED}+static",
    "firmament+native",
    "gsp-ss+gsp-ss",
    "greedy+greedy",
    REFERENCE,
    f"gsp-ss+{LEARNED}",
    f"greedy+{LEARNED}",
    f"{NATIVE}+{LEARNED}",
)
"""The paper's: ours, each half of ours with a simple other half, and the baselines as they are."""

GIVEN_RATES = frozenset({"gsp-ss"})
"""Rules that know the request rates of the coming frame, as the paper gives them to GSP-SS."""

_NATIVE_SECONDS = 15.0
_TIMED_DECISIONS = 30


@dataclass(frozen=True, kw_only=True)
class JointEvaluation:
    """What to evaluate.

    Attributes:
        preset: name of the system configuration.
        workload: arrival pattern; None with a trace.
        trace: path of a recorded trace; None with a pattern.
        seeds: number of held-out seeds (with a trace: held-out windows).
        load: mean request rate as a multiple of the preset's reference rate.
        combinations: names ``DISPATCH+ORCHESTRATION``; ``kais`` is the learned half.
        steps: H, most actions of the learned orchestration and of Greedy per frame; Native and GSP-SS take as many as
            they see fit.
        setting: see its class.
        models: root of the model bundles; None: those shipped.
        others: further names of orchestration halves: learned policies in other folders of bundles (for ablations).
    """

    preset: str
    workload: Pattern | None = None
    trace: Path | None = None
    seeds: int = 20
    load: float = 1.0
    combinations: tuple[str, ...] = DEFAULT_COMBINATIONS
    steps: int = DEFAULT_STEPS
    setting: OrchestrationSetting = DEFAULT_SETTING
    models: Path | None = None
    others: Mapping[str, Path] = field(default_factory=dict)

    @property
    def runs(self) -> tuple[str, ...]:
        """The combinations to run: those asked for, and the one that costs are relative to."""
        return tuple(dict.fromkeys((*self.combinations, REFERENCE)))

    @property
    def duration_seconds(self) -> float:
        """Simulated time per seed."""
        config = SimulatorConfig()
        slots = self.setting.settle_slots + self.setting.frames * config.slots_per_frame
        return slots * config.slot_seconds

    @property
    def workload_name(self) -> str:
        """Pattern, or file name of the trace."""
        return self.workload.value if self.workload is not None else self.trace.name if self.trace else ""


@dataclass(frozen=True)
class CombinationOutcome:
    """One combination on all seeds.

    Attributes:
        throughput_rate: float64 [seeds].
        cost_bytes: float64 [seeds].
        actions: replicas added and deleted per system and frame.
        decision_seconds: float64 [n], of single decisions about one system.
    """

    throughput_rate: Float64Array
    cost_bytes: Float64Array
    actions: float
    decision_seconds: Float64Array


@dataclass(frozen=True)
class CombinationFigures:
    """What is reported of a combination.

    Attributes:
        throughput_rate: requests answered within their deadline / requests arrived.
        scheduling_cost: bytes forwarded and pulled, relative to ``native+native`` on the same seed.
        actions_per_frame: replicas added and deleted per system and 25 s.
        decision_p50_seconds: of one orchestration decision about one system in this process, features included.
        decision_p99_seconds: likewise.
        learned_advantage: throughput rate of ``kais+kais`` minus this one's, paired by seed; None for itself.
        learned_cost_ratio: cost of ``kais+kais`` over this one's, paired by seed; None for itself.
    """

    throughput_rate: Estimate
    scheduling_cost: Estimate
    actions_per_frame: float
    decision_p50_seconds: float
    decision_p99_seconds: float
    learned_advantage: Estimate | None
    learned_cost_ratio: Estimate | None

    def to_json(self) -> dict[str, Any]:
        """The figures under the names of the command's JSON output."""
        figures: dict[str, Any] = {
            "throughput_rate": self.throughput_rate.to_json(),
            "scheduling_cost": self.scheduling_cost.to_json(),
            "decision_seconds": {"p50": self.decision_p50_seconds, "p99": self.decision_p99_seconds},
            "actions_per_frame": self.actions_per_frame,
        }
        if self.learned_advantage is not None and self.learned_cost_ratio is not None:
            figures["kais_advantage"] = self.learned_advantage.to_json()
            figures["kais_cost_ratio"] = self.learned_cost_ratio.to_json()
        return figures


def learned_orchestration(models: Path | None) -> OnnxOrchestration:
    """The latest version of the learned policy.

    Raises:
        LookupError: there is none.
        BundleError: it cannot be loaded.
    """
    bundles = find_bundles(models)
    if not bundles.get(ORCHESTRATION_BUNDLE):
        raise LookupError(
            f"combinations: no model bundle {ORCHESTRATION_BUNDLE!r} in {models or 'the package'}; export one with "
            "`policy-train export`, or leave it out with --policies"
        )
    return OnnxOrchestration(bundles[ORCHESTRATION_BUNDLE][0].load())


@dataclass(frozen=True)
class Combination:
    """Both halves of a combination.

    Attributes:
        dispatch: decides on requests.
        orchestration: decides on replicas.
        maximum_actions: of the orchestration, per frame and system; None: as many as it sees fit.
    """

    dispatch: DispatchPolicy
    orchestration: OrchestrationPolicy
    maximum_actions: int | None


def combination(evaluation: JointEvaluation, name: str) -> Combination:
    """The combination of that name: ``DISPATCH+ORCHESTRATION``, or ``DISPATCH+ORCHESTRATION@H`` for another H.

    Raises:
        UnknownPolicyError: it has another form, or a half is unknown.
        LookupError: no bundle of a learned half.
    """
    dispatch, plus, rest = name.partition("+")
    orchestration, at, steps = rest.partition("@")
    if not plus or (at and not (steps.isdecimal() and int(steps) >= 1)):
        raise UnknownPolicyError(
            f"policy: {name!r} is no combination; write DISPATCH+ORCHESTRATION, for example {OURS}, or "
            f"DISPATCH+ORCHESTRATION@H, for example {OURS}@2"
        )
    policy: OrchestrationPolicy
    if orchestration in evaluation.others:
        policy = learned_orchestration(evaluation.others[orchestration])
    elif orchestration == LEARNED:
        policy = learned_orchestration(evaluation.models)
    else:
        policy = heuristic_orchestration(orchestration)
    limited = policy.learned or policy.name == "greedy"
    return Combination(
        learned_dispatch(evaluation.models) if dispatch == LEARNED else heuristic_dispatch(dispatch),
        policy,
        int(steps) if at else evaluation.steps if limited else None,
    )


def evaluate(
    evaluation: JointEvaluation, *, processes: int = 2, on_done: Callable[[str], None] = lambda name: None
) -> dict[str, CombinationFigures]:
    """Runs every combination on every seed and condenses the figures.

    Args:
        evaluation: what to run.
        processes: combinations evaluated side by side.
        on_done: called with the name of each combination that has finished.

    Raises:
        LookupError: no bundle for a learned half.
        UnknownPolicyError: an unknown half.
    """
    for name in evaluation.combinations:
        combination(evaluation, name)
    outcomes: dict[str, CombinationOutcome] = {}
    if processes <= 1:
        for name in evaluation.runs:
            outcomes[name] = run_combination(evaluation, name)
            on_done(name)
    else:
        # Slow dispatch first, so that no process works alone at the end.
        ordered = sorted(
            evaluation.runs, key=lambda name: name.partition("+")[0] not in {"firmament", "prequal", LEARNED}
        )
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            pending: dict[Future[CombinationOutcome], str] = {
                pool.submit(run_combination, evaluation, name): name for name in ordered
            }
            for future in as_completed(pending):
                outcomes[pending[future]] = future.result()
                on_done(pending[future])
    return {name: _figures(name, outcomes) for name in evaluation.combinations}


def run_combination(evaluation: JointEvaluation, name: str) -> CombinationOutcome:
    """One combination on all seeds side by side."""
    halves = combination(evaluation, name)
    orchestration = halves.orchestration
    environment = _environment(evaluation, _scenarios(evaluation), halves.dispatch, halves.maximum_actions)
    simulator, setting = environment.simulator, evaluation.setting
    random = np.random.default_rng(0)
    slots = simulator.config.slots_per_frame
    if orchestration.name == NATIVE:
        slots = round(_NATIVE_SECONDS / simulator.config.slot_seconds)
    environment.step([], slots=setting.settle_slots)
    end = simulator.slot + setting.frames * simulator.config.slots_per_frame
    actions = 0
    while simulator.slot < end:
        query = environment.query(rates_to_come=orchestration.name in GIVEN_RATES)
        chosen = decided(orchestration, query, random)
        actions += len(chosen)
        environment.step(chosen, slots=min(slots, end - simulator.slot), observer=orchestration)
    while not simulator.done:
        environment.step([], slots=1)
    results = simulator.results()
    return CombinationOutcome(
        throughput_rate=np.array([result.throughput_rate for result in results]),
        cost_bytes=np.array([result.scheduling_cost_bytes for result in results]),
        actions=actions / simulator.systems / setting.frames,
        decision_seconds=_time_decisions(evaluation, halves),
    )


def _environment(
    evaluation: JointEvaluation,
    scenarios: Sequence[Scenario],
    dispatch: DispatchPolicy,
    maximum_actions: int | None,
) -> OrchestrationEnvironment:
    simulator = orchestration_simulator(scenarios, evaluation.setting)
    return OrchestrationEnvironment(
        simulator,
        PolicyDispatch(DispatchEnvironment(simulator, random=np.random.default_rng(0)), dispatch),
        options=OrchestrationOptions(maximum_actions=maximum_actions),
    )


def _scenarios(evaluation: JointEvaluation) -> list[Scenario]:
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


def _time_decisions(evaluation: JointEvaluation, halves: Combination) -> Float64Array:
    """float64 [n]: seconds of single decisions on one system under way, from its snapshot to the actions."""
    random = np.random.default_rng(0)
    dispatch = heuristic_dispatch("earliest-completion")
    environment = _environment(evaluation, _scenarios(evaluation)[:1], dispatch, halves.maximum_actions)
    environment.step([], slots=max(evaluation.setting.settle_slots, 1))
    seconds = []
    for _ in range(_TIMED_DECISIONS):
        started = time.perf_counter()
        decided(halves.orchestration, environment.query(), random)
        seconds.append(time.perf_counter() - started)
    return np.array(seconds[_TIMED_DECISIONS // 10 :])


def _figures(name: str, outcomes: dict[str, CombinationOutcome]) -> CombinationFigures:
    outcome = outcomes[name]
    advantage = cost_ratio = None
    if name != OURS and OURS in outcomes:
        advantage = estimate(outcomes[OURS].throughput_rate - outcome.throughput_rate)
        cost_ratio = estimate(outcomes[OURS].cost_bytes / outcome.cost_bytes)
    p50, p99 = np.percentile(outcome.decision_seconds, (50, 99))
    return CombinationFigures(
        throughput_rate=estimate(outcome.throughput_rate),
        scheduling_cost=estimate(outcome.cost_bytes / outcomes[REFERENCE].cost_bytes),
        actions_per_frame=outcome.actions,
        decision_p50_seconds=float(p50),
        decision_p99_seconds=float(p99),
        learned_advantage=advantage,
        learned_cost_ratio=cost_ratio,
    )
