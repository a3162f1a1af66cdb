"""The safety of recommendations, field notes U16 among it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy_server.cluster.containers import UNLIMITED, MeasurementHistory
from policy_server.policies.scaling import (
    PercentileScaling,
    Recommendation,
    ScalingPolicy,
    StaticScaling,
    ThresholdScaling,
)
from policy_server.policies.scaling.actor import ActorScaling
from policy_server.policies.scaling.safety import (
    DEFAULT_SETTINGS,
    Constraints,
    ScalingReason,
    ScalingSettings,
    fit_nodes,
    memory_floor,
    safe_decisions,
    share_nodes,
)
from tests.policy_server.policies.scaling_fleets import (
    MEBIBYTE,
    Controller,
    fleet_of,
    history_of,
    measured,
    wants,
)

CONSTANT_ACTOR = ActorScaling(lambda features: np.full((len(features), 2), -0.3, np.float32))
EVERY_POLICY = pytest.mark.parametrize(
    "policy",
    [StaticScaling(), ThresholdScaling(), PercentileScaling(), CONSTANT_ACTOR],
    ids=lambda policy: policy.name,
)


# Field notes U16, row by row; resize states and classes of service are in test_scaling_resize.py.


@pytest.mark.parametrize(("use", "target"), [(200, 220), (240, 264), (100, 128)])
def test_memory_never_below_use_plus_headroom(use: float, target: float) -> None:
    history = history_of(memory_usage_bytes=use * MEBIBYTE)
    decision = safe_decisions(wants(1.0, 64), fleet_of(1), history).memory_bytes
    # 256 MiB may be halved at most, to 128 MiB.
    assert decision.target[0] == pytest.approx(target * MEBIBYTE)
    in_use = use * 1.1 > 128
    assert decision.reason[0] == (ScalingReason.MEMORY_IN_USE if in_use else ScalingReason.STEP_LIMITED)


def test_memory_headroom_is_configurable_and_may_raise_above_the_limit() -> None:
    generous = replace(DEFAULT_SETTINGS, memory_headroom=1.5)
    history = history_of(memory_usage_bytes=250 * MEBIBYTE)
    decision = safe_decisions(wants(1.0, 256), fleet_of(1), history, generous).memory_bytes
    assert decision.target[0] == pytest.approx(375 * MEBIBYTE)
    assert decision.reason[0] == ScalingReason.MEMORY_IN_USE


@EVERY_POLICY
def test_five_percent_of_noise_changes_nothing_in_a_hundred_intervals(policy: ScalingPolicy) -> None:
    random = np.random.default_rng(5)
    controller = Controller(policy, cpu=1.0, memory_mebibytes=400)
    for _ in range(60):
        controller.interval(0.5, 250)
    controller.changes = 0
    for _ in range(100):
        controller.interval(0.5 * random.uniform(0.95, 1.05), 250 * random.uniform(0.95, 1.05))
    assert controller.changes == 0


@pytest.mark.parametrize("use", [0.2, 0.5])
def test_a_step_to_twice_the_load_is_exactly_one_change(use: float) -> None:
    controller = Controller(ThresholdScaling(target_utilisation=0.5), cpu=2 * use, memory_mebibytes=400)
    for _ in range(20):
        controller.interval(use, 310)
    assert controller.changes == 0
    for _ in range(20):
        controller.interval(2 * use, 310)
    assert controller.changes == 1
    assert controller.cpu == pytest.approx(4 * use)


@EVERY_POLICY
def test_a_restarted_controller_changes_nothing_in_its_first_interval(policy: ScalingPolicy) -> None:
    controller = Controller(policy, cpu=1.0, memory_mebibytes=400)
    for _ in range(60):
        controller.interval(0.5, 250)
    controller.restart()
    controller.changes = 0
    controller.interval(0.5, 250)
    assert controller.changes == 0


def test_no_burst_after_a_restart_even_where_the_limits_are_far_off() -> None:
    """Mass changes right after a redeploy come from believing one sample."""
    history = MeasurementHistory.of([measured(50)])
    decisions = safe_decisions(wants(1.9, 1000, 50), fleet_of(50), history)
    for decision, limit in ((decisions.cpu_cores, 1.0), (decisions.memory_bytes, 256 * MEBIBYTE)):
        np.testing.assert_array_equal(decision.target, limit)
        assert (decision.reason == ScalingReason.FIRST_INTERVAL).all()


def test_a_kill_raises_memory_above_the_limit_of_that_time() -> None:
    history = history_of(intervals=3).extended(
        measured(memory_usage_bytes=256 * MEBIBYTE, oom_kills=1.0, cpu_usage_cores=0.1), 48
    )
    decision = safe_decisions(wants(1.0, 100), fleet_of(1), history).memory_bytes
    assert decision.target[0] > 256 * MEBIBYTE
    assert decision.target[0] == pytest.approx(1.2 * 256 * MEBIBYTE)
    assert decision.reason[0] == ScalingReason.OUT_OF_MEMORY


def test_a_kill_is_remembered_as_long_as_the_history() -> None:
    """Or else the limit falls back to where the container died, and it dies again."""
    controller = Controller(ThresholdScaling(), cpu=1.0, memory_mebibytes=256)
    controller.interval(0.5, 120)
    controller.interval(0.5, 256, oom_kills=1.0)
    raised = controller.memory
    assert raised > 256 * MEBIBYTE
    for _ in range(46):
        controller.interval(0.5, 100)
        assert controller.memory > 256 * MEBIBYTE
    for _ in range(10):
        controller.interval(0.5, 100)
    assert controller.memory < 256 * MEBIBYTE


def test_a_kill_counts_even_in_the_first_interval_after_a_restart() -> None:
    history = MeasurementHistory.of([measured(memory_usage_bytes=256 * MEBIBYTE, oom_kills=1.0)])
    decision = safe_decisions(wants(1.0, 300), fleet_of(1), history).memory_bytes
    assert decision.target[0] > 256 * MEBIBYTE
    assert decision.reason[0] == ScalingReason.OUT_OF_MEMORY


def test_a_target_above_the_whole_node_is_capped_and_says_so() -> None:
    history = history_of(cpu_limit_cores=0.9, memory_limit_bytes=400 * MEBIBYTE)
    decisions = safe_decisions(wants(1.9, 1500), fleet_of(1, cores=1.5, memory=1000 * MEBIBYTE), history)
    assert decisions.cpu_cores.target[0] == pytest.approx(1.5)
    assert decisions.memory_bytes.target[0] == pytest.approx(1000 * MEBIBYTE)
    assert decisions.cpu_cores.reason[0] == decisions.memory_bytes.reason[0] == ScalingReason.NODE_SIZE
    assert decisions.cpu_cores.uncapped_target[0] == 1.9


def test_a_bound_below_the_memory_in_use_does_not_cut_into_it() -> None:
    history = history_of(memory_usage_bytes=3000 * MEBIBYTE, memory_limit_bytes=4096 * MEBIBYTE)
    decision = safe_decisions(wants(1.0, 2048), fleet_of(1), history).memory_bytes
    assert decision.target[0] == pytest.approx(3300 * MEBIBYTE)
    tight = history_of(memory_usage_bytes=4000 * MEBIBYTE, memory_limit_bytes=4096 * MEBIBYTE)
    decision = safe_decisions(wants(1.0, 2048), fleet_of(1, memory=1024 * MEBIBYTE), tight).memory_bytes
    assert decision.target[0] == 4096 * MEBIBYTE
    assert decision.reason[0] == ScalingReason.BOUNDED


def test_a_kill_at_the_largest_limit_cuts_nothing() -> None:
    history = history_of(memory_limit_bytes=2048 * MEBIBYTE, oom_kills=1.0)
    decision = safe_decisions(wants(1.0, 100), fleet_of(1), history).memory_bytes
    assert decision.target[0] == 2048 * MEBIBYTE
    assert decision.reason[0] == ScalingReason.BOUNDED


# Containers with constraints of their own.


def constrained(count: int = 1, **columns: Any) -> Constraints:
    return replace(
        Constraints.of(DEFAULT_SETTINGS, count),
        **{name: np.broadcast_to(value, count).copy() for name, value in columns.items()},
    )


def test_bounds_of_its_own_go_before_those_of_the_settings() -> None:
    constraints = constrained(
        2,
        smallest_cpu_cores=[1.5, 0.1],
        largest_cpu_cores=[3.0, 1.2],
        largest_memory_bytes=[300 * MEBIBYTE, 9e9],
    )
    decisions = safe_decisions(wants([0.7, 1.9], 700, 2), fleet_of(2), history_of(2), constraints=constraints)
    np.testing.assert_allclose(decisions.cpu_cores.target, [1.5, 1.2])
    np.testing.assert_allclose(decisions.memory_bytes.target, np.array([300, 700]) * MEBIBYTE)
    assert decisions.cpu_cores.reason.tolist() == [ScalingReason.BOUNDED] * 2


@pytest.mark.parametrize("reason", [ScalingReason.STALE_SAMPLE, ScalingReason.RESTARTED])
def test_a_held_container_keeps_its_limits(reason: ScalingReason) -> None:
    constraints = constrained(2, hold=np.array([reason, 0], np.uint8))
    decisions = safe_decisions(wants(1.9, 700, 2), fleet_of(2), history_of(2), constraints=constraints)
    np.testing.assert_allclose(decisions.cpu_cores.target, [1.0, 1.9])
    np.testing.assert_allclose(decisions.memory_bytes.target, np.array([256, 700]) * MEBIBYTE)
    assert decisions.cpu_cores.reason[0] == decisions.memory_bytes.reason[0] == reason


def test_memory_safety_goes_before_a_hold() -> None:
    constraints = constrained(hold=np.array([ScalingReason.RESTARTED], np.uint8))
    history = history_of(memory_usage_bytes=250 * MEBIBYTE)
    decision = safe_decisions(wants(1.0, 100), fleet_of(1), history, constraints=constraints).memory_bytes
    assert decision.target[0] == pytest.approx(275 * MEBIBYTE)
    assert decision.lower_bound[0] == decision.target[0]


def test_a_best_effort_container_gets_no_recommendation() -> None:
    constraints = constrained(hold=np.array([ScalingReason.BEST_EFFORT], np.uint8))
    history = history_of(cpu_limit_cores=np.nan, memory_limit_bytes=np.nan)
    decisions = safe_decisions(wants(1.0, 100), fleet_of(1), history, constraints=constraints)
    for decision in (decisions.cpu_cores, decisions.memory_bytes):
        for column in ("target", "lower_bound", "upper_bound", "uncapped_target"):
            assert np.isnan(getattr(decision, column)[0])
        assert decision.reason[0] == ScalingReason.BEST_EFFORT


# Unusable measurements.


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_without_usage_everything_is_held(bad: float) -> None:
    history = history_of(cpu_usage_cores=bad, memory_usage_bytes=bad)
    decisions = safe_decisions(wants(1.9, 1500), fleet_of(1), history)
    assert decisions.cpu_cores.target[0] == 1.0
    assert decisions.memory_bytes.target[0] == 256 * MEBIBYTE
    assert decisions.cpu_cores.reason[0] == decisions.memory_bytes.reason[0] == ScalingReason.NOT_MEASURED


def test_zero_memory_in_use_is_no_measurement() -> None:
    decisions = safe_decisions(wants(1.9, 64), fleet_of(1), history_of(memory_usage_bytes=0.0))
    assert decisions.memory_bytes.reason[0] == ScalingReason.NOT_MEASURED
    assert decisions.memory_bytes.target[0] == 256 * MEBIBYTE
    assert decisions.cpu_cores.target[0] == pytest.approx(1.9)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0, 0.0])
def test_a_recommendation_that_is_no_number_above_zero_is_ignored(bad: float) -> None:
    decisions = safe_decisions(Recommendation(np.array([bad]), np.array([bad])), fleet_of(1), history_of())
    assert decisions.cpu_cores.target[0] == 1.0
    assert decisions.memory_bytes.target[0] == 256 * MEBIBYTE
    assert decisions.cpu_cores.reason[0] == ScalingReason.NOT_MEASURED


def test_an_unmeasured_container_harms_no_neighbour() -> None:
    history = history_of(2, cpu_usage_cores=[np.nan, 0.5])
    decisions = safe_decisions(wants(1.9, 500, 2), fleet_of(2), history)
    np.testing.assert_allclose(decisions.cpu_cores.target, [1.0, 1.9])


@pytest.mark.parametrize("limit", [np.nan, np.inf, 0.0])
def test_a_container_without_a_limit_gets_the_recommendation_within_bounds(limit: float) -> None:
    history = history_of(cpu_limit_cores=limit, memory_limit_bytes=limit)
    decisions = safe_decisions(wants(5.0, 500), fleet_of(1), history)
    assert decisions.cpu_cores.target[0] == 2.0
    assert decisions.memory_bytes.target[0] == pytest.approx(500 * MEBIBYTE)


def test_a_container_of_which_nothing_is_known_gets_no_target() -> None:
    nothing = dict.fromkeys(
        ("cpu_usage_cores", "memory_usage_bytes", "cpu_limit_cores", "memory_limit_bytes"), np.nan
    )
    decisions = safe_decisions(wants(1.0, 500), fleet_of(1), history_of(**nothing))
    assert np.isnan(decisions.cpu_cores.target[0])
    assert np.isnan(decisions.memory_bytes.target[0])


# Steps, bounds, dead band, nodes.


@pytest.mark.parametrize(
    ("wanted", "target", "reason"),
    [
        (0.95, 1.0, ScalingReason.WITHIN_DEAD_BAND),
        (1.1, 1.0, ScalingReason.WITHIN_DEAD_BAND),
        (1.12, 1.12, ScalingReason.RECOMMENDED),
        (0.84, 0.84, ScalingReason.RECOMMENDED),
        (0.2, 0.5, ScalingReason.STEP_LIMITED),
        (2.5, 2.0, ScalingReason.BOUNDED),
    ],
)
def test_a_limit_of_one_core(wanted: float, target: float, reason: ScalingReason) -> None:
    decision = safe_decisions(wants(wanted, 256), fleet_of(1), history_of()).cpu_cores
    assert decision.target[0] == pytest.approx(target)
    assert decision.reason[0] == reason


def test_the_bounds_are_the_edges_of_the_dead_band() -> None:
    decision = safe_decisions(wants(1.2, 256), fleet_of(1), history_of()).cpu_cores
    assert decision.lower_bound[0] == pytest.approx(1.2 / 1.11)
    assert decision.upper_bound[0] == pytest.approx(1.2 / 0.85)
    for limit, stays in ((1.2 / 1.10, True), (1.2 / 1.12, False), (1.2 / 0.86, True), (1.2 / 0.84, False)):
        held = safe_decisions(wants(1.2, 256), fleet_of(1), history_of(cpu_limit_cores=limit)).cpu_cores
        assert (held.target[0] == limit) == stays
        assert (decision.lower_bound[0] <= limit <= decision.upper_bound[0]) == stays


def test_a_limit_outside_the_bounds_does_not_rest() -> None:
    decision = safe_decisions(wants(2.1, 256), fleet_of(1), history_of(cpu_limit_cores=2.2)).cpu_cores
    assert decision.target[0] == 2.0


def test_containers_share_a_node_in_proportion_to_what_exceeds_their_use() -> None:
    history = history_of(3, cpu_usage_cores=[0.8, 0.2, 0.0], cpu_limit_cores=[0.7, 0.3, 0.1])
    decision = safe_decisions(wants([1.6, 0.6, 0.3], 256, 3), fleet_of(3, cores=2.0), history).cpu_cores
    # 1.0 is in use, so 1.0 is left for what exceeds it, 0.8 + 0.4 + 0.3.
    np.testing.assert_allclose(decision.target, np.array([0.8, 0.2, 0.0]) + np.array([0.8, 0.4, 0.3]) / 1.5)
    assert (decision.reason == ScalingReason.NODE_SHARED).all()


def test_raises_wait_for_what_neighbours_still_hold() -> None:
    history = history_of(2, cpu_limit_cores=[1.0, 1.0])
    decision = safe_decisions(wants([1.8, 0.9], 256, 2), fleet_of(2, cores=2.75), history).cpu_cores
    # 0.9 is near enough to 1.0, which leaves 1.75.
    np.testing.assert_allclose(decision.target, [1.75, 1.0])
    np.testing.assert_array_equal(
        decision.reason, [ScalingReason.NODE_SHARED, ScalingReason.WITHIN_DEAD_BAND]
    )


def test_a_raise_that_hardly_fits_is_not_worth_it() -> None:
    history = history_of(2, cpu_limit_cores=[1.0, 1.0])
    decision = safe_decisions(wants([1.3, 0.9], 256, 2), fleet_of(2, cores=2.2), history).cpu_cores
    np.testing.assert_allclose(decision.target, [1.2, 1.0])
    decision = safe_decisions(wants([1.15, 0.9], 256, 2), fleet_of(2, cores=2.05), history).cpu_cores
    np.testing.assert_array_equal(decision.target, [1.0, 1.0])


def reference_share(target: list[float], use: list[float], capacity: float) -> list[float]:
    kept = [min(t, u) for t, u in zip(target, use, strict=True)]
    if sum(target) <= capacity:
        return target
    if sum(kept) > capacity:
        return [k * capacity / sum(kept) for k in kept]
    share = (capacity - sum(kept)) / (sum(target) - sum(kept))
    return [k + (t - k) * share for t, k in zip(target, kept, strict=True)]


amounts = st.lists(st.tuples(st.floats(0.1, 2), st.floats(0, 2)), min_size=1, max_size=6)


@given(st.lists(amounts, min_size=1, max_size=4), st.floats(0.5, 6))
def test_sharing_nodes_against_a_plain_reference(
    nodes: list[list[tuple[float, float]]], capacity: float
) -> None:
    target = np.array([t for rows in nodes for t, _ in rows])
    use = np.array([u for rows in nodes for _, u in rows])
    node = np.repeat(np.arange(len(nodes)), [len(rows) for rows in nodes])
    shared = share_nodes(target, use, node, np.full(len(nodes), capacity))
    expected = [
        x for rows in nodes for x in reference_share([t for t, _ in rows], [u for _, u in rows], capacity)
    ]
    np.testing.assert_allclose(shared, expected, rtol=1e-9, atol=1e-9)


@given(amounts, st.floats(0.5, 6))
def test_fitting_a_node_cuts_only_raises(rows: list[tuple[float, float]], capacity: float) -> None:
    target, limit = (np.array(column) for column in zip(*rows, strict=True))
    node = np.zeros(len(rows), np.int64)
    fitted = fit_nodes(target, limit, np.zeros(len(rows), bool), node, np.array([capacity]))
    raised = target > limit
    np.testing.assert_allclose(fitted[~raised], target[~raised])
    assert (fitted[raised] >= limit[raised] - 1e-9).all()
    assert (fitted <= target + 1e-9).all()
    floor = np.minimum(target, np.maximum(limit, 0)).sum()
    assert fitted.sum() <= max(capacity, floor) + 1e-9
    assert np.isclose(fitted.sum(), min(target.sum(), max(capacity, floor)))


@st.composite
def situations(draw: st.DrawFn) -> tuple[Recommendation, MeasurementHistory, list[int], float]:
    """Anything, sensible or not, from a seed: drawn value by value, failures would take minutes to shrink."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = draw(st.integers(1, 6))

    def column(low: float, high: float) -> np.ndarray:
        values = np.exp(random.uniform(np.log(low), np.log(high), count))
        return np.where(random.random(count) < 0.1, np.nan, values)

    def cores() -> np.ndarray:
        return column(0.02, 4)

    def memory() -> np.ndarray:
        return column(20, 4000) * MEBIBYTE

    history = MeasurementHistory.of(
        [
            measured(
                count,
                cpu_usage_cores=cores(),
                memory_usage_bytes=memory(),
                cpu_limit_cores=cores(),
                memory_limit_bytes=memory(),
                oom_kills=(random.random(count) < 0.1).astype(float),
            )
            for _ in range(draw(st.integers(1, 3)))
        ]
    )
    node = random.integers(2, size=count).tolist()
    return Recommendation(cores(), memory()), history, node, draw(st.sampled_from([UNLIMITED, 1.0, 3.0]))


@given(situations())
@settings(max_examples=300)
def test_what_holds_whatever_comes_in(
    situation: tuple[Recommendation, MeasurementHistory, list[int], float],
) -> None:
    wanted, history, node, cores = situation
    fleet = fleet_of(history.containers, node=node, cores=cores, memory=cores * 1024 * MEBIBYTE)
    decisions = safe_decisions(wanted, fleet, history)
    floor, _ = memory_floor(history, DEFAULT_SETTINGS)
    bounds = ((0.1, 2.0), (64 * MEBIBYTE, 2048 * MEBIBYTE))
    for decision, (low, high), limit, capacity, least in (
        (
            decisions.cpu_cores,
            bounds[0],
            history.newest("cpu_limit_cores"),
            fleet.node_cpu_cores,
            np.zeros(len(fleet)),
        ),
        (
            decisions.memory_bytes,
            bounds[1],
            history.newest("memory_limit_bytes"),
            fleet.node_memory_bytes,
            floor,
        ),
    ):
        target = decision.target
        known = np.isfinite(target)
        assert np.isfinite(limit[~known]).sum() == 0
        assert (decision.lower_bound[known] <= target[known]).all()
        assert (target[known] <= decision.upper_bound[known]).all()
        changed = known & (target != limit)
        in_use = np.fmin(np.where(limit > 0, limit, 0.0), least)
        most = np.maximum(np.minimum(high, capacity[fleet.node]), in_use)
        assert (target[changed] >= np.minimum(low, most)[changed] - 1e-9).all()
        assert (target[changed] <= most[changed] * (1 + 1e-9)).all()
        assert (target[changed] >= np.minimum(least, most)[changed] * (1 - 1e-9)).all()
        stepped = changed & np.isfinite(limit) & (limit >= low) & (limit <= most)
        assert (target[stepped] <= np.maximum(limit * 3.0, least)[stepped] * (1 + 1e-9)).all()
        if cores == UNLIMITED:
            assert (target[stepped] >= limit[stepped] * 0.5 * (1 - 1e-9)).all()


@given(situations(), st.randoms())
def test_the_order_of_containers_does_not_matter(situation, random) -> None:  # type: ignore[no-untyped-def]
    wanted, history, node, cores = situation
    order = list(range(history.containers))
    random.shuffle(order)
    there = safe_decisions(wanted, fleet_of(len(node), node=[*node], cores=cores), history)
    shuffled_history = MeasurementHistory(
        np.stack([history.column(name)[:, order] for name in measured().__dataclass_fields__])
    )
    shuffled = Recommendation(wanted.cpu_cores[order], wanted.memory_bytes[order])
    shuffled_node = [node[row] for row in order]
    if max(shuffled_node) != max(node):
        return
    back = safe_decisions(shuffled, fleet_of(len(node), node=shuffled_node, cores=cores), shuffled_history)
    np.testing.assert_allclose(back.cpu_cores.target, there.cpu_cores.target[order])
    np.testing.assert_array_equal(back.memory_bytes.reason, there.memory_bytes.reason[order])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("smallest_cpu_cores", 0.0),
        ("smallest_cpu_cores", 3.0),
        ("largest_cut", 1.5),
        ("raise_band", 2.5),
        ("cut_band", 0.6),
        ("largest_raise", 1.0),
        ("memory_headroom", 0.9),
        ("out_of_memory_raise", 1.0),
    ],
)
def test_settings_that_make_no_sense_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        ScalingSettings(**{field: value})
