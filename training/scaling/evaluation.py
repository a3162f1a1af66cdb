"""Held-out evaluation: windows and seeds that neither training nor tuning has seen.

One seed is three instances: a held-out window of the diurnal and of the Azure trace and a window of the bursty trace,
with arrivals, work and variation of the services drawn from held-out seeds. The figures of a seed are those of its
three instances together; means and 95 % intervals are over seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from policy_server.cluster.snapshot import Float64Array
from policy_server.features.scaling import DEFAULT_ECONOMY
from training.evaluation.statistics import Estimate, estimate
from training.scaling.application import Application
from training.scaling.contenders import CONTENDER_NAMES, Contender, contender
from training.scaling.episodes import Episode
from training.scaling.families import family
from training.scaling.simulation import latency_quantile
from training.scaling.sock_shop import sock_shop
from training.scaling.trials import Trials, run_trials
from training.scaling.workload import LEVELS, Load, load_curves, offered_rates
from training.workloads.seeds import held_out_seed
from training.workloads.traces.windows import Split

HELD_OUT_CURVES = ("diurnal", "azure", "bursty")
OURS = "td3"
_CURVE_POINTS = 8
_MATCHING_SEEDS = 4


@dataclass(frozen=True)
class ScalingEvaluation:
    """What to evaluate.

    Attributes:
        load: normal or high.
        seeds: how many.
        seconds: simulated per seed and curve.
        models: root of the model bundles; None: those shipped with the package.
        policies: names.
        application: under control.
    """

    load: Load
    seeds: int
    seconds: int = 900
    models: Path | None = None
    policies: tuple[str, ...] = CONTENDER_NAMES
    application: Application | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SeedFigures:
    """Figures per seed, all float64 [seeds].

    Attributes:
        mean_latency_seconds: over all requests; a failed request counts with the client's timeout.
        p99_latency_seconds: of all requests.
        slo_violation_rate: share of requests slower than the objective or failed.
        cpu_cores: mean sum of an application's CPU limits.
        memory_mib: mean sum of an application's memory limits.
        changes: limits changed per application and hour.
    """

    mean_latency_seconds: Float64Array
    p99_latency_seconds: Float64Array
    slo_violation_rate: Float64Array
    cpu_cores: Float64Array
    memory_mib: Float64Array
    changes: Float64Array

    @property
    def estimates(self) -> dict[str, Estimate]:
        """Mean and interval of each figure."""
        return {name: estimate(getattr(self, name)) for name in self.__dataclass_fields__}

    def to_json(self) -> dict[str, Any]:
        """``latency_seconds`` {mean, p99}, the other figures, and ``ci95`` with the interval of each in its place."""
        found = self.estimates
        means = {name: e.mean for name, e in found.items()}
        intervals = {name: [e.low, e.high] for name, e in found.items()}
        return {**_nested(means), "ci95": _nested(intervals)}


def _nested(figures: dict[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in figures.items() if not name.endswith("_latency_seconds")}
    return {
        "latency_seconds": {"mean": figures["mean_latency_seconds"], "p99": figures["p99_latency_seconds"]},
        **rest,
    }


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours against another policy that was moved along its trade-off to the CPU allocation of ours.

    Attributes:
        policy: the other one.
        setting: chosen for it, of what :func:`trade_off` sweeps.
        other: its figures.
        latency_reduction: 1 - ours / other, of the mean latency, paired by seed.
        p99_reduction: the same of the 99th percentile.
        cpu_ratio: ours / other.
        memory_ratio: ours / other.
        violation_difference: ours - other.
    """

    policy: str
    setting: float
    other: SeedFigures
    latency_reduction: Estimate
    p99_reduction: Estimate
    cpu_ratio: Estimate
    memory_ratio: Estimate
    violation_difference: Estimate

    @staticmethod
    def of(policy: str, setting: float, ours: SeedFigures, other: SeedFigures) -> Comparison:
        """Pairs the figures by seed."""
        return Comparison(
            policy,
            setting,
            other,
            latency_reduction=estimate(1.0 - ours.mean_latency_seconds / other.mean_latency_seconds),
            p99_reduction=estimate(1.0 - ours.p99_latency_seconds / other.p99_latency_seconds),
            cpu_ratio=estimate(ours.cpu_cores / other.cpu_cores),
            memory_ratio=estimate(ours.memory_mib / other.memory_mib),
            violation_difference=estimate(ours.slo_violation_rate - other.slo_violation_rate),
        )

    def to_json(self) -> dict[str, Any]:
        """Everything."""
        compared = ("latency_reduction", "p99_reduction", "cpu_ratio", "memory_ratio", "violation_difference")
        return {
            "policy": self.policy,
            "setting": self.setting,
            self.policy: self.other.to_json(),
            **{name: getattr(self, name).to_json() for name in compared},
        }


def held_out_episode(application: Application, evaluation: ScalingEvaluation) -> Episode:
    """Instances seed by seed, the curves of ``HELD_OUT_CURVES`` within a seed."""
    curves = load_curves()
    mean_rate = application.mean_rate_per_second * LEVELS[evaluation.load]
    seeds, rates = [], []
    for index in range(evaluation.seeds):
        for position, name in enumerate(HELD_OUT_CURVES):
            seed = held_out_seed(len(HELD_OUT_CURVES) * index + position)
            window = curves[name].window(Split.HELD_OUT, index, evaluation.seconds)
            seeds.append(seed)
            rates.append(offered_rates(window, mean_rate, seed))
    return Episode(tuple(seeds), np.stack(rates))


def evaluate_policy(
    evaluation: ScalingEvaluation, name: str, economy: float = DEFAULT_ECONOMY
) -> SeedFigures:
    """One policy on the held-out episode.

    Raises:
        LookupError: see :func:`training.scaling.contenders.contender`.
        BundleError: see :func:`training.scaling.contenders.contender`.
    """
    return evaluate_contender(evaluation, contender(name, evaluation.models, economy))


def evaluate_contender(evaluation: ScalingEvaluation, chosen: Contender) -> SeedFigures:
    """Any contender on the held-out episode."""
    application = evaluation.application or sock_shop()
    trials = _trials(application, evaluation.load, chosen, held_out_episode(application, evaluation))
    return _by_seed(trials, len(HELD_OUT_CURVES))


def evaluate(
    evaluation: ScalingEvaluation, *, processes: int = 1, on_done: Callable[[str], None] = lambda _: None
) -> dict[str, SeedFigures]:
    """All policies of an evaluation, by name.

    Args:
        evaluation: what to evaluate.
        processes: that share the policies.
        on_done: told the name of each policy that is done.

    Raises:
        LookupError: see :func:`evaluate_policy`.
        BundleError: see :func:`evaluate_policy`.
    """
    for name in evaluation.policies:
        contender(name, evaluation.models)
    jobs = [(evaluation, name, DEFAULT_ECONOMY) for name in evaluation.policies]
    return dict(zip(evaluation.policies, _run(jobs, processes, on_done), strict=True))


def compare_at_equal_allocation(
    evaluation: ScalingEvaluation, ours: SeedFigures, *, on_done: Callable[[str], None] = lambda _: None
) -> list[Comparison]:
    """Ours against each other policy of an evaluation, which is given as much CPU as ours allocates, or a little more.

    The setting that does it is found by bisection on the loads of the first seeds; nothing but the allocation is looked
    at. A policy that cannot be moved so far is left out.

    Args:
        evaluation: what was evaluated.
        ours: what came out for ours.
        on_done: told about each policy.
    """
    matching = replace(evaluation, seeds=min(evaluation.seeds, _MATCHING_SEEDS))
    cores = float(ours.cpu_cores[: matching.seeds].mean())

    def allocated(chosen: Contender) -> float:
        return float(evaluate_contender(matching, chosen).cpu_cores.mean())

    compared = []
    for name in evaluation.policies:
        if name == OURS:
            continue
        along = family(name, evaluation.models)
        setting = along.setting_for(cores, allocated)
        if setting is not None:
            other = evaluate_contender(evaluation, along.make(setting))
            compared.append(Comparison.of(name, setting, ours, other))
        on_done(name)
    return compared


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One point of a trade-off curve, means over seeds.

    Attributes:
        setting: of the policy.
        cpu_cores: allocated.
        mean_latency_seconds: of requests.
        p99_latency_seconds: of requests.
        slo_violation_rate: share of requests.
    """

    setting: float
    cpu_cores: float
    mean_latency_seconds: float
    p99_latency_seconds: float
    slo_violation_rate: float


def trade_off(
    evaluation: ScalingEvaluation, *, on_done: Callable[[str], None] = lambda _: None
) -> dict[str, list[CurvePoint]]:
    """Latency against allocation: every policy swept along the setting that trades one for the other.

    What is swept is said by :func:`training.scaling.families.family`.
    """
    curves: dict[str, list[CurvePoint]] = {}
    for name in evaluation.policies:
        curves[name] = []
        along = family(name, evaluation.models)
        for setting in along.settings(_CURVE_POINTS):
            found = evaluate_contender(evaluation, along.make(setting))
            curves[name].append(
                CurvePoint(
                    setting,
                    *(
                        float(getattr(found, column).mean())
                        for column in (
                            "cpu_cores",
                            "mean_latency_seconds",
                            "p99_latency_seconds",
                            "slo_violation_rate",
                        )
                    ),
                )
            )
        on_done(name)
    return curves


def curves_to_json(curves: dict[str, list[CurvePoint]]) -> dict[str, list[dict[str, float]]]:
    """Points by policy."""
    return {name: [asdict(point) for point in points] for name, points in curves.items()}


def _trials(application: Application, load: Load, chosen: Contender, episode: Episode) -> Trials:
    return run_trials(
        application,
        chosen.policy,
        episode,
        provisioned_headroom=chosen.provisioned_headroom,
        provisioned_level=LEVELS[load],
    )


def _by_seed(trials: Trials, instances: int) -> SeedFigures:
    def pooled(column: Any) -> Any:
        return column.reshape(-1, instances, *column.shape[1:]).sum(axis=1)

    requests = pooled(trials.requests)
    return SeedFigures(
        mean_latency_seconds=pooled(trials.latency_seconds) / requests,
        p99_latency_seconds=latency_quantile(pooled(trials.latency_counts), 0.99),
        slo_violation_rate=pooled(trials.violations) / requests,
        cpu_cores=pooled(trials.cpu_cores) / instances,
        memory_mib=pooled(trials.memory_mebibytes) / instances,
        changes=pooled(trials.changes_per_hour) / instances,
    )


def _run(
    jobs: Sequence[tuple[ScalingEvaluation, str, float]], processes: int, on_done: Callable[[str], None]
) -> list[SeedFigures]:
    if processes == 1 or len(jobs) < 2:
        results = []
        for job in jobs:
            results.append(evaluate_policy(*job))
            on_done(job[1])
        return results
    with ProcessPoolExecutor(min(processes, len(jobs)), mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(evaluate_policy, *job) for job in jobs]
        results = []
        for job, future in zip(jobs, futures, strict=True):
            results.append(future.result())
            on_done(job[1])
        return results
