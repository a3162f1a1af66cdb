from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy_server.cluster.containers import MEASURED, MeasurementHistory
from policy_server.features.scaling import ECONOMY_COLUMN, SCALING_SCHEMA
from policy_server.policies.scaling import (
    RULE_SCALING_NAMES,
    AutothrottleScaling,
    PercentileScaling,
    ScalingPolicy,
    StaticScaling,
    ThresholdScaling,
    UnknownPolicyError,
    rule_scaling,
)
from policy_server.policies.scaling.actor import (
    CPU_FACTORS,
    MEMORY_FACTORS,
    ActorScaling,
    action_to_recommendation,
    recommendation_to_action,
)
from policy_server.policies.scaling.percentile import weighted_percentile
from tests.policy_server.policies.scaling_fleets import MEBIBYTE, fleet_of, history_of, measured, wants

MEAN_ACTOR = ActorScaling(
    lambda features: np.tanh(features[:, [0, 4]] - features.mean(axis=1, keepdims=True))
)
EVERY_RULE = pytest.mark.parametrize("name", RULE_SCALING_NAMES)


def usages(*cores: float, **columns: float) -> MeasurementHistory:
    return MeasurementHistory.of([measured(cpu_usage_cores=c, **columns) for c in cores])


def test_the_names() -> None:
    assert RULE_SCALING_NAMES == ("static", "threshold", "percentile", "autothrottle")


@EVERY_RULE
def test_a_rule_is_found_by_its_name(name: str) -> None:
    policy = rule_scaling(name)
    assert isinstance(policy, ScalingPolicy)
    assert policy.name == name
    assert policy.version
    assert not policy.learned
    assert policy.history_intervals >= 1


@pytest.mark.parametrize("name", ["td3", "", "Static"])
def test_an_unknown_name_is_answered_with_the_known_ones(name: str) -> None:
    with pytest.raises(UnknownPolicyError) as refusal:
        rule_scaling(name)
    assert str(refusal.value) == (
        f"policy: {name!r} is unknown; choose one of static, threshold, percentile, autothrottle"
    )


def test_rules_need_numpy_only() -> None:
    script = (
        "import sys, policy_server.policies.scaling, policy_server.policies.scaling.safety; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'scipy', 'numba', 'training')))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@EVERY_RULE
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 5))
def test_whatever_was_measured_the_answer_has_one_row_per_container(
    name: str, seed: int, intervals: int, containers: int
) -> None:
    random = np.random.default_rng(seed)
    values = np.exp(random.uniform(-5, 5, (len(MEASURED), intervals, containers)))
    values[random.random(values.shape) < 0.3] = np.nan
    recommendation = rule_scaling(name).recommend(fleet_of(containers), MeasurementHistory(values))
    assert recommendation.cpu_cores.shape == recommendation.memory_bytes.shape == (containers,)


@EVERY_RULE
def test_containers_do_not_influence_each_other(name: str) -> None:
    random = np.random.default_rng(4)
    values = random.random((len(MEASURED), 50, 2))
    values[0, :, 1] *= 0.9  # of similar usage, so that both are in Autothrottle's same group
    both = rule_scaling(name).recommend(fleet_of(2), MeasurementHistory(values))
    for row in range(2):
        alone = rule_scaling(name).recommend(fleet_of(1), MeasurementHistory(values[:, :, row : row + 1]))
        assert alone.cpu_cores[0] == pytest.approx(both.cpu_cores[row])
        assert alone.memory_bytes[0] == pytest.approx(both.memory_bytes[row])


@pytest.mark.parametrize("policy", [*map(rule_scaling, RULE_SCALING_NAMES), MEAN_ACTOR], ids=lambda p: p.name)
@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 30))
@settings(max_examples=30)
def test_unmeasured_intervals_at_the_old_end_make_no_difference(
    policy: ScalingPolicy, seed: int, intervals: int, padding: int
) -> None:
    random = np.random.default_rng(seed)
    values = random.random((len(MEASURED), intervals, 4))
    values[random.random(values.shape) < 0.1] = np.nan
    padded = np.concatenate((np.full((len(MEASURED), padding, 4), np.nan), values), axis=1)
    short = policy.recommend(fleet_of(4), MeasurementHistory(values))
    long = policy.recommend(fleet_of(4), MeasurementHistory(padded))
    np.testing.assert_allclose(long.cpu_cores, short.cpu_cores, rtol=1e-6)
    np.testing.assert_allclose(long.memory_bytes, short.memory_bytes, rtol=1e-6)


def test_static_keeps_the_limits() -> None:
    recommendation = StaticScaling().recommend(fleet_of(1), usages(0.9, 0.1))
    assert (recommendation.cpu_cores[0], recommendation.memory_bytes[0]) == (1.0, 256 * MEBIBYTE)


def test_threshold_follows_the_largest_need_of_its_window() -> None:
    rule = ThresholdScaling(target_utilisation=0.5, target_memory_utilisation=0.8, history_intervals=3)
    recommendation = rule.recommend(fleet_of(1), usages(0.9, 0.2, 0.4, 0.3))
    assert recommendation.cpu_cores[0] == pytest.approx(0.8)
    assert recommendation.memory_bytes[0] == pytest.approx(160 * MEBIBYTE)
    assert rule.recommend(fleet_of(1), usages(0.2, np.nan)).cpu_cores[0] == pytest.approx(0.4)
    assert np.isnan(rule.recommend(fleet_of(1), usages(np.nan, np.nan)).cpu_cores[0])


def reference_percentile(values: list[float], weights: list[float], percentile: float) -> float:
    known = sorted((v, w) for v, w in zip(values, weights, strict=True) if not np.isnan(v))
    total = sum(w for _, w in known)
    reached = 0.0
    for value, weight in known:
        reached += weight
        if reached >= percentile * total * (1 - 1e-12):
            return value
    return float("nan")


@given(st.integers(0, 2**32), st.integers(1, 20), st.floats(0, 1))
def test_weighted_percentile_against_a_plain_reference(seed: int, count: int, percentile: float) -> None:
    random = np.random.default_rng(seed)
    values = np.where(random.random((count, 3)) < 0.2, np.nan, random.integers(0, 5, (count, 3)))
    weights = random.random(count) + 0.01
    expected = [reference_percentile(list(column), list(weights), percentile) for column in values.T]
    np.testing.assert_array_equal(weighted_percentile(values, weights, percentile), expected)


def test_percentile_weighs_recent_usage_more() -> None:
    rule = PercentileScaling(percentile=0.5, margin=0.0, half_life_intervals=1.0)
    assert rule.recommend(fleet_of(1), usages(0.9, 0.9, 0.9, 0.1, 0.1)).cpu_cores[0] == pytest.approx(0.1)
    patient = PercentileScaling(percentile=0.5, margin=0.0, half_life_intervals=1e6)
    assert patient.recommend(fleet_of(1), usages(0.9, 0.9, 0.9, 0.1, 0.1)).cpu_cores[0] == pytest.approx(0.9)


def test_percentile_adds_its_margins() -> None:
    recommendation = PercentileScaling(margin=0.5, memory_margin=0.25).recommend(fleet_of(1), history_of())
    assert recommendation.cpu_cores[0] == pytest.approx(0.75)
    assert recommendation.memory_bytes[0] == pytest.approx(160 * MEBIBYTE)


AUTOTHROTTLE = AutothrottleScaling(throttle_target=0.05, low_throttle_target=0.05, first_margin=2.0)


def test_autothrottle_raises_by_how_much_it_is_throttled() -> None:
    history = history_of(throttled_fraction=0.4)
    assert AUTOTHROTTLE.recommend(fleet_of(1), history).cpu_cores[0] == pytest.approx(1 + 0.4 - 3 * 0.05)


def test_autothrottle_undoes_a_cut_twofold() -> None:
    history = MeasurementHistory.of(
        [measured(cpu_limit_cores=1.0), measured(cpu_limit_cores=0.8, throttled_fraction=0.4)]
    )
    assert AUTOTHROTTLE.recommend(fleet_of(1), history).cpu_cores[0] == pytest.approx(2 * 1.0 - 0.8)


def test_autothrottle_cuts_to_the_usage_and_a_margin_of_deviations() -> None:
    history = usages(0.3, 0.4, 0.5, 0.4)
    margin = 2.0 - 4 * 0.05
    deviation = np.std([0.3, 0.4, 0.5, 0.4], ddof=1)
    assert AUTOTHROTTLE.recommend(fleet_of(1), history).cpu_cores[0] == pytest.approx(
        0.5 + margin * deviation
    )


def test_autothrottle_cuts_at_most_by_half_and_not_for_less_than_a_tenth() -> None:
    assert AUTOTHROTTLE.recommend(fleet_of(1), usages(0.1, 0.1)).cpu_cores[0] == pytest.approx(0.5)
    assert AUTOTHROTTLE.recommend(fleet_of(1), usages(0.95, 0.95)).cpu_cores[0] == pytest.approx(1.0)


def test_autothrottle_learns_its_margin_from_throttling() -> None:
    calm = MeasurementHistory.of([measured(cpu_usage_cores=u) for u in (0.4, 0.6) * 3])
    stressed = MeasurementHistory.of(
        [measured(cpu_usage_cores=0.4, throttled_fraction=0.9)] * 4
        + [measured(cpu_usage_cores=u) for u in (0.4, 0.6)]
    )
    rule = AutothrottleScaling(
        throttle_target=0.05, low_throttle_target=0.05, first_margin=0.0, usage_intervals=2
    )
    assert rule.recommend(fleet_of(1), stressed).cpu_cores[0] > rule.recommend(fleet_of(1), calm).cpu_cores[0]


def test_autothrottle_has_a_target_for_busy_and_one_for_quiet_services() -> None:
    rule = AutothrottleScaling(throttle_target=0.0, low_throttle_target=0.2)
    history = history_of(2, cpu_usage_cores=[0.9, 0.3], throttled_fraction=0.3, cpu_limit_cores=1.0)
    wanted = rule.recommend(fleet_of(2), history).cpu_cores
    assert wanted[0] == pytest.approx(1.3)
    assert wanted[1] < 1.0


@given(st.integers(0, 2**32))
def test_actions_and_recommendations_are_inverse_to_each_other(seed: int) -> None:
    random = np.random.default_rng(seed)
    history = history_of(
        4, cpu_usage_cores=random.random(4) + 0.01, memory_usage_bytes=random.random(4) * 1e9 + 1e6
    )
    action = random.uniform(-1, 1, (4, 2)).astype(np.float32)
    there = action_to_recommendation(action, history)
    np.testing.assert_allclose(recommendation_to_action(there, history), action, atol=1e-5)


def test_the_ends_of_the_action_range() -> None:
    history = history_of(cpu_usage_cores=0.25, memory_usage_bytes=100 * MEBIBYTE)
    for end, position in ((-1.0, 0), (1.0, 1), (-7.0, 0), (9.0, 1)):
        wanted = action_to_recommendation(np.full((1, 2), end, np.float32), history)
        assert wanted.cpu_cores[0] == pytest.approx(0.25 * CPU_FACTORS[position])
        assert wanted.memory_bytes[0] == pytest.approx(100 * MEBIBYTE * MEMORY_FACTORS[position])


def test_recommendations_out_of_reach_become_the_nearest_action_and_unknown_ones_the_middle() -> None:
    history = history_of(3, cpu_usage_cores=0.1)
    action = recommendation_to_action(wants([100.0, 1e-6, np.nan], 1e-3, 3), history)
    np.testing.assert_array_equal(action[:, 0], [1, -1, 0])
    np.testing.assert_array_equal(action[:, 1], -1)


def test_the_actor_sees_the_features_and_its_economy() -> None:
    seen = []

    def act(features: np.ndarray) -> np.ndarray:
        seen.append(features)
        return np.zeros((len(features), 2), np.float32)

    policy = ActorScaling(act, economy=0.8)
    recommendation = policy.recommend(fleet_of(3), history_of(3))
    assert isinstance(policy, ScalingPolicy)
    assert seen[0].shape == (3, len(SCALING_SCHEMA.container))
    np.testing.assert_allclose(seen[0][:, ECONOMY_COLUMN], 0.8)
    np.testing.assert_allclose(recommendation.cpu_cores, 0.5 * np.sqrt(0.8 * 6.0))


def test_an_actor_that_returns_nan_recommends_nothing_for_that_container() -> None:
    policy = ActorScaling(lambda features: np.array([[np.nan, 0.0], [0.0, 0.0]], np.float32))
    recommendation = policy.recommend(fleet_of(2), history_of(2))
    assert np.isnan(recommendation.cpu_cores[0])
    assert np.isfinite(recommendation.cpu_cores[1])
    assert np.isfinite(recommendation.memory_bytes).all()


def test_documentation_says_how_far_each_policy_looks_back() -> None:
    page = (Path(__file__).parents[3] / "docs" / "scaling-service.md").read_text()
    rows = re.findall(r"^\| (`[a-z0-9`, ]+`)(?: and other models)? \| (\d+) \|$", page, re.MULTILINE)
    documented = {name: int(count) for names, count in rows for name in re.findall(r"`(\w+)`", names)}
    expected = {name: rule_scaling(name).history_intervals for name in RULE_SCALING_NAMES}
    assert documented == {"td3": MEAN_ACTOR.history_intervals, **expected}
