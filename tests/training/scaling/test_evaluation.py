from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from policy_server.cluster.snapshot import Float64Array
from tests.training.scaling.small import small_application
from training.scaling.contenders import contender
from training.scaling.evaluation import (
    Comparison,
    CurvePoint,
    ScalingEvaluation,
    SeedFigures,
    compare_at_equal_allocation,
    evaluate,
    evaluate_contender,
    held_out_episode,
    trade_off,
)
from training.scaling.families import Family, family
from training.scaling.plot import plot_learning, plot_trade_off
from training.scaling.simulation import latency_quantile
from training.scaling.trials import run_trials
from training.scaling.workload import LEVELS, Load

RULES = ("static", "threshold", "percentile", "autothrottle")
SHORT = ScalingEvaluation(
    Load.HIGH, 3, seconds=120, policies=("threshold", "static"), application=small_application()
)


def figures(**columns: Float64Array) -> SeedFigures:
    ones = {name: np.ones(3) for name in SeedFigures.__dataclass_fields__}
    return SeedFigures(**{**ones, **columns})


def test_figures_of_a_seed_are_those_of_its_three_applications_together() -> None:
    found = evaluate_contender(SHORT, contender("threshold"))
    trials = run_trials(
        small_application(),
        contender("threshold").policy,
        held_out_episode(small_application(), SHORT),
        provisioned_level=LEVELS[Load.HIGH],
    )
    assert len(trials.requests) == 9
    for seed in range(3):
        rows = slice(3 * seed, 3 * seed + 3)
        requests = trials.requests[rows].sum()
        assert found.mean_latency_seconds[seed] == pytest.approx(
            trials.latency_seconds[rows].sum() / requests
        )
        assert found.slo_violation_rate[seed] == trials.violations[rows].sum() / requests
        assert found.p99_latency_seconds[seed] == latency_quantile(
            trials.latency_counts[rows].sum(axis=0), 0.99
        )
        assert found.cpu_cores[seed] == pytest.approx(trials.cpu_cores[rows].mean())
        assert found.memory_mib[seed] == pytest.approx(trials.memory_mebibytes[rows].mean())
        assert found.changes[seed] == pytest.approx(trials.changes_per_hour[rows].mean())


def test_processes_do_not_change_the_figures() -> None:
    alone, shared = evaluate(SHORT), evaluate(SHORT, processes=2)
    assert list(alone) == list(shared) == ["threshold", "static"]
    for name, found in alone.items():
        np.testing.assert_array_equal(found.mean_latency_seconds, shared[name].mean_latency_seconds)
    assert (alone["static"].changes == 0).all()


def test_comparisons_are_paired_by_seed() -> None:
    ours = figures(
        mean_latency_seconds=np.array([0.8, 1.6, 3.2]), slo_violation_rate=np.array([0.1, 0.2, 0.3])
    )
    other = figures(
        mean_latency_seconds=np.array([1.0, 2.0, 4.0]), slo_violation_rate=np.array([0.2, 0.3, 0.4])
    )
    compared = Comparison.of("threshold", 0.4, ours, other)
    assert compared.latency_reduction.mean == pytest.approx(0.2)
    assert compared.latency_reduction.half_width == pytest.approx(0.0, abs=1e-12)
    assert compared.violation_difference.high == pytest.approx(-0.1)
    assert compared.cpu_ratio.mean == 1.0
    document = compared.to_json()
    assert document["threshold"]["slo_violation_rate"] == pytest.approx(0.3)


@pytest.mark.parametrize("name", RULES)
def test_a_family_allocates_from_much_to_little(name: str) -> None:
    along = family(name)
    cores = [
        float(evaluate_contender(SHORT, along.make(setting)).cpu_cores.mean())
        for setting in along.settings(3)
    ]
    assert cores[0] > cores[1] > cores[2]


def test_bisection_finds_the_stingiest_setting_that_is_enough() -> None:
    straight = Family(
        "headroom", 10.0, 2.0, lambda value: replace(contender("static"), provisioned_headroom=value)
    )
    found = straight.setting_for(5.0, lambda chosen: chosen.provisioned_headroom)
    assert found is not None
    assert 5.0 <= found < 5.07
    assert straight.setting_for(1.0, lambda chosen: chosen.provisioned_headroom) == pytest.approx(
        2.0, abs=0.07
    )
    assert straight.setting_for(11.0, lambda chosen: chosen.provisioned_headroom) is None


def test_others_get_as_much_cpu_as_ours() -> None:
    ours = evaluate_contender(SHORT, family("threshold").make(0.5))
    (compared,) = compare_at_equal_allocation(replace(SHORT, policies=("percentile",)), ours)
    assert 0.9 < compared.cpu_ratio.mean <= 1.0
    assert compared.policy == "percentile"


def test_logarithmic_families_are_evenly_spread_in_the_exponent() -> None:
    along = Family("target", 0.001, 0.1, lambda value: contender("static"), logarithmic=True)
    np.testing.assert_allclose(along.settings(3), [0.001, 0.01, 0.1])


def test_pictures_are_drawn(tmp_path: Path) -> None:
    curves = trade_off(replace(SHORT, policies=("static",)))
    assert [point.setting for point in curves["static"]] == family("static").settings(8)
    assert all(isinstance(point, CurvePoint) and point.cpu_cores > 0 for point in curves["static"])
    assert plot_trade_off(tmp_path / "new" / "curve.png", curves, 0.0047, "small").stat().st_size > 10_000
    history = [{"transitions": 1e5 * n, "validation_cost": 1.0 / n} for n in range(1, 4)]
    assert (
        plot_learning(tmp_path / "learning.png", {"td3": history}, {"threshold": 0.9}, "small").stat().st_size
        > 10_000
    )
