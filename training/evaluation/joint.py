"""Dispatch and orchestration together on held-out systems.

A combination ``DISPATCH+ORCHESTRATION`` plays whole episodes of the orchestration scenario
(:mod:`training.orchestration_scenarios`). All combinations meet the same systems, placements and requests, seed by
seed. Costs are relative to ``native+native`` (round robin and horizontal pod autoscaler) on the same seed.

Systems of several workloads are simulated side by side, which costs a fraction of one after another. Ties are broken by
one stream of random numbers for all, so which systems are side by side matters as much as another seed for ties.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from policy_server.cluster.actions import AddReplica, OrchestrationAction
from policy_server.cluster.snapshot import Float64Array, Int64Array, Topology
from policy_server.policies.dispatch import DispatchPolicy
from policy_server.policies.heuristics import UnknownPolicyError, heuristic_dispatch
from policy_server.policies.orchestration.onnx import OnnxOrchestration
from policy_server.policies.orchestration.plan import OrchestrationOptions
from policy_server.policies.orchestration.policy import OrchestrationPolicy
from policy_server.policies.orchestration.rules import heuristic_orchestration
from policy_server.runtime.bundle import find_bundles, manifest_digest
from training.bundle_names import JOINT_DISPATCH_BUNDLE, ORCHESTRATION_BUNDLE
from training.environments.compiled_dispatch import slot_stepper
from training.environments.orchestration import OrchestrationEnvironment, decided
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

ALONE = f"{LEARNED}-alone"
"""Dispatch that was trained without orchestration, on other scenarios."""
OURS = f"{LEARNED}+{LEARNED}"
REFERENCE = f"{NATIVE}+{NATIVE}"
DEFAULT_COMBINATIONS = (
    OURS,
    f"{LEARNED}+gsp-ss",
    f"{LEARNED}+{NATIVE}",
    f"{LEARNED}+greedy",
    f"{LEARNED}+static",
    f"{ALONE}+{LEARNED}",
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
        others: further names of learned halves, in other folders of bundles (for ablations).
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
    """One combination on all seeds of one evaluation.

    Attributes:
        throughput_rate: float64 [seeds].
        forwarded_bytes: float64 [seeds].
        pulled_bytes: float64 [seeds].
        actions_per_frame: float64 [seeds], replicas added and deleted.
        decision_seconds: float64 [n], of single decisions about one system.
    """

    throughput_rate: Float64Array
    forwarded_bytes: Float64Array
    pulled_bytes: Float64Array
    actions_per_frame: Float64Array
    decision_seconds: Float64Array

    @property
    def cost_bytes(self) -> Float64Array:
        """float64 [seeds]: forwarded and pulled."""
        return self.forwarded_bytes + self.pulled_bytes


@dataclass(frozen=True)
class CombinationFigures:
    """What is reported of a combination.

    Attributes:
        throughput_rate: requests answered within their deadline / requests arrived.
        scheduling_cost: bytes forwarded and pulled, relative to ``native+native`` on the same seed.
        pulled_cost: the part of it that was pulled.
        actions_per_frame: replicas added and deleted per system and 25 s.
        decision_p50_seconds: of one orchestration decision about one system in this process, features included.
        decision_p99_seconds: likewise.
        learned_advantage: throughput rate of ``kais+kais`` minus this one's, paired by seed; None for itself.
        learned_cost_ratio: cost of ``kais+kais`` over this one's, paired by seed; None for itself.
    """

    throughput_rate: Estimate
    scheduling_cost: Estimate
    pulled_cost: Estimate
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
            "pulled_cost": self.pulled_cost.to_json(),
            "decision_seconds": {"p50": self.decision_p50_seconds, "p99": self.decision_p99_seconds},
            "actions_per_frame": self.actions_per_frame,
        }
        if self.learned_advantage is not None and self.learned_cost_ratio is not None:
            figures["kais_advantage"] = self.learned_advantage.to_json()
            figures["kais_cost_ratio"] = self.learned_cost_ratio.to_json()
        return figures


@dataclass(frozen=True)
class OutcomeStore:
    """A folder with one file per combination and evaluation that was run, to go on where a run was interrupted.

    A file is found by everything that decides the outcome but the code of simulator and rules: start with an empty
    folder when that has changed.

    Attributes:
        folder: made when something is written.
    """

    folder: Path

    def read(self, evaluation: JointEvaluation, name: str) -> CombinationOutcome | None:
        """The outcome, or None if it was not run yet."""
        path = self._path(self._key(evaluation, name))
        if not path.exists():
            return None
        stored = json.loads(path.read_text())["outcome"]
        return CombinationOutcome(**{figure: np.array(values) for figure, values in stored.items()})

    def write(self, evaluation: JointEvaluation, name: str, outcome: CombinationOutcome) -> None:
        """Keeps an outcome."""
        key = self._key(evaluation, name)
        values = {figure: array.tolist() for figure, array in vars(outcome).items()}
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(key)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({"key": key, "outcome": values}) + "\n")
        partial.replace(path)

    def _path(self, key: dict[str, Any]) -> Path:
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        return self.folder / f"{digest[:24]}.json"

    def _key(self, evaluation: JointEvaluation, name: str) -> dict[str, Any]:
        halves = combination(evaluation, name)
        trace = evaluation.trace
        return {
            "combination": name,
            "preset": evaluation.preset,
            "workload": evaluation.workload_name,
            "trace_sha256": _file_sha256(trace) if trace is not None else None,
            "seeds": evaluation.seeds,
            "load": evaluation.load,
            "setting": asdict(evaluation.setting),
            "maximum_actions": halves.maximum_actions,
            "models": halves.models,
        }


@lru_cache(maxsize=8)
def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
        models: SHA-256 of the manifests of the learned halves, which hold those of their files.
    """

    dispatch: DispatchPolicy
    orchestration: OrchestrationPolicy
    maximum_actions: int | None
    models: tuple[str, ...]


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
    folders = {**evaluation.others, LEARNED: evaluation.models}
    models: list[str] = []
    requests: DispatchPolicy
    if dispatch in folders or dispatch == ALONE:
        folder = folders[LEARNED if dispatch == ALONE else dispatch]
        bundle = LEARNED if dispatch == ALONE else joint_dispatch(folder)
        requests = learned_dispatch(folder, bundle)
        models.append(_digest(bundle, folder))
    else:
        requests = heuristic_dispatch(dispatch)
    policy: OrchestrationPolicy
    if orchestration in folders:
        policy = learned_orchestration(folders[orchestration])
        models.append(_digest(ORCHESTRATION_BUNDLE, folders[orchestration]))
    else:
        policy = heuristic_orchestration(orchestration)
    limited = policy.learned or policy.name == "greedy"
    return Combination(
        requests, policy, int(steps) if at else evaluation.steps if limited else None, tuple(models)
    )


def joint_dispatch(models: Path | None) -> str:
    """The bundle behind ``kais`` dispatch: the half trained with orchestration; without one that trained alone."""
    return JOINT_DISPATCH_BUNDLE if find_bundles(models).get(JOINT_DISPATCH_BUNDLE) else LEARNED


def _digest(name: str, models: Path | None) -> str:
    return manifest_digest(find_bundles(models)[name][0].path)


def evaluate(
    evaluations: Sequence[JointEvaluation],
    *,
    processes: int = 2,
    outcomes: OutcomeStore | None = None,
    on_done: Callable[[str], None] = lambda name: None,
) -> list[dict[str, CombinationFigures]]:
    """Runs every combination on every seed of all evaluations and condenses the figures.

    Args:
        evaluations: they differ in workload or trace alone.
        processes: combinations evaluated side by side.
        outcomes: holds what was run before and takes what is run now; None: nothing is kept.
        on_done: called with the name of each combination that has finished.

    Returns:
        Figures by combination, for each evaluation.

    Raises:
        ValueError: the evaluations differ in more.
        LookupError: no bundle for a learned half.
        UnknownPolicyError: an unknown half.
    """
    alike = [replace(evaluation, workload=None, trace=None) for evaluation in evaluations]
    if not alike or any(other != alike[0] for other in alike):
        raise ValueError("evaluations: give one or more that differ in workload or trace alone")
    for name in evaluations[0].combinations:
        combination(evaluations[0], name)
    # Slow dispatch first, so that no process works alone at the end.
    names = sorted(evaluations[0].runs, key=lambda name: _SLOWEST_FIRST.get(name.partition("+")[0], 2))
    found: dict[str, list[CombinationOutcome]] = {}
    with ExitStack() as stack:
        if processes > 1:
            pool = stack.enter_context(ProcessPoolExecutor(processes, mp_context=get_context("spawn")))
            pending: dict[Future[list[CombinationOutcome]], str] = {
                pool.submit(combination_outcomes, evaluations, name, outcomes): name for name in names
            }
            for future in as_completed(pending):
                found[pending[future]] = future.result()
                on_done(pending[future])
        else:
            for name in names:
                found[name] = combination_outcomes(evaluations, name, outcomes)
                on_done(name)
    return [
        {
            name: _figures(name, {run: found[run][row] for run in names})
            for name in evaluations[0].combinations
        }
        for row in range(len(evaluations))
    ]


_SLOWEST_FIRST = {"firmament": 0, LEARNED: 1, "prequal": 1}


def combination_outcomes(
    evaluations: Sequence[JointEvaluation], name: str, outcomes: OutcomeStore | None
) -> list[CombinationOutcome]:
    """What one combination comes to in each evaluation; only what ``outcomes`` lacks is run."""
    found = {row: outcomes.read(e, name) if outcomes else None for row, e in enumerate(evaluations)}
    missing = [row for row, outcome in found.items() if outcome is None]
    if missing:
        fresh = run_combination([evaluations[row] for row in missing], name)
        for row, outcome in zip(missing, fresh, strict=True):
            found[row] = outcome
            if outcomes:
                outcomes.write(evaluations[row], name, outcome)
    return [outcome for outcome in found.values() if outcome is not None]


def run_combination(evaluations: Sequence[JointEvaluation], name: str) -> list[CombinationOutcome]:
    """One combination on all seeds of all evaluations side by side."""
    evaluation = evaluations[0]
    halves = combination(evaluation, name)
    orchestration, setting = halves.orchestration, evaluation.setting
    scenarios = [scenario for each in evaluations for scenario in _scenarios(each)]
    environment = _environment(evaluation, scenarios, halves.dispatch, halves.maximum_actions)
    simulator = environment.simulator
    random = np.random.default_rng(0)
    slots = simulator.config.slots_per_frame
    if orchestration.name == NATIVE:
        slots = round(_NATIVE_SECONDS / simulator.config.slot_seconds)
    environment.step([], slots=setting.settle_slots)
    end = simulator.slot + setting.frames * simulator.config.slots_per_frame
    actions = np.zeros(simulator.systems)
    while simulator.slot < end:
        query = environment.query(rates_to_come=orchestration.name in GIVEN_RATES)
        chosen = decided(orchestration, query, random)
        actions += np.bincount(systems_of(chosen, query.graph.snapshot.topology), minlength=simulator.systems)
        environment.step(chosen, slots=min(slots, end - simulator.slot), observer=orchestration)
    while not simulator.done:
        environment.step([], slots=1)
    results = simulator.results()
    seconds = _time_decisions(evaluation, halves)
    bounds = [(row * evaluation.seeds, (row + 1) * evaluation.seeds) for row in range(len(evaluations))]
    return [
        CombinationOutcome(
            throughput_rate=np.array([result.throughput_rate for result in results[first:last]]),
            forwarded_bytes=np.array([result.forwarded_bytes for result in results[first:last]]),
            pulled_bytes=np.array([result.pulled_bytes for result in results[first:last]]),
            actions_per_frame=actions[first:last] / setting.frames,
            decision_seconds=seconds,
        )
        for first, last in bounds
    ]


def systems_of(actions: Sequence[OrchestrationAction], topology: Topology) -> Int64Array:
    """int64 [n]: system that each action is about."""
    nodes = [
        action.node if isinstance(action, AddReplica) else int(topology.replicas.node[action.replica])
        for action in actions
    ]
    access_point = topology.nodes.access_point[np.array(nodes, np.int64)]
    return topology.access_points.system[access_point].astype(np.int64)


def _environment(
    evaluation: JointEvaluation,
    scenarios: Sequence[Scenario],
    dispatch: DispatchPolicy,
    maximum_actions: int | None,
) -> OrchestrationEnvironment:
    simulator = orchestration_simulator(scenarios, evaluation.setting)
    return OrchestrationEnvironment(
        simulator,
        slot_stepper(simulator, dispatch),
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
        pulled_cost=estimate(outcome.pulled_bytes / outcomes[REFERENCE].cost_bytes),
        actions_per_frame=float(outcome.actions_per_frame.mean()),
        decision_p50_seconds=float(p50),
        decision_p99_seconds=float(p99),
        learned_advantage=advantage,
        learned_cost_ratio=cost_ratio,
    )
