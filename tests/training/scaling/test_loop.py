from __future__ import annotations

import numpy as np
import pytest

from policy_server.policies.scaling import Recommendation, StaticScaling
from policy_server.policies.scaling.safety import DEFAULT_SETTINGS
from tests.training.scaling.small import small_application
from training.scaling.application import CallGraph
from training.scaling.loop import HISTORY_KEPT_INTERVALS, ScalingLoop, provisioned_limits
from training.scaling.objective import COST_PARTS, CostParts, cost_parts, prices
from training.scaling.sock_shop import sock_shop


def shop_loop(instances: int = 2, intervals: int = 10) -> ScalingLoop:
    return ScalingLoop(sock_shop(), range(instances), np.full((instances, intervals * 5), 120.0))


def keep(loop: ScalingLoop) -> Recommendation:
    return StaticScaling().recommend(loop.fleet, loop.history)


def test_containers_of_all_instances_are_one_fleet() -> None:
    loop = shop_loop()
    assert len(loop.fleet) == 28
    np.testing.assert_array_equal(loop.fleet.application, np.repeat([0, 1], 14))
    np.testing.assert_array_equal(loop.fleet.node[:14] + 3, loop.fleet.node[14:])
    assert len(loop.fleet.node_cpu_cores) == 6


def test_what_is_measured_is_what_happened() -> None:
    loop = shop_loop()
    step = loop.step(keep(loop))
    for name, happened in (
        ("cpu_usage_cores", step.outcome.cpu_usage_cores),
        ("memory_usage_bytes", step.outcome.memory_usage_bytes),
        ("latency_seconds", step.outcome.container_latency_seconds),
        ("cpu_limit_cores", loop.simulation.cpu_cores),
        ("oom_kills", step.outcome.kills),
    ):
        np.testing.assert_array_equal(loop.history.newest(name), happened.ravel())


def test_decisions_become_limits_and_changes_are_counted() -> None:
    loop = shop_loop()
    loop.step(keep(loop))
    wanted = keep(loop)
    wanted.cpu_cores[3] *= 1.5
    wanted.memory_bytes[22] *= 0.7
    before = loop.simulation.cpu_cores.copy()
    step = loop.step(wanted)
    assert loop.simulation.cpu_cores[0, 3] == pytest.approx(1.5 * before[0, 3])
    assert step.costs.changes.sum() == 2
    assert step.costs.changes[0, 3] == step.costs.changes[1, 8] == 1
    np.testing.assert_array_equal(step.costs.cpu_cores, loop.simulation.cpu_cores)


def test_costs_add_up_to_latency_violations_and_allocation() -> None:
    loop = shop_loop()
    tight = keep(loop)
    tight.cpu_cores[:] = 0.1
    for _ in range(4):
        step = loop.step(Recommendation(np.full(28, 0.1), tight.memory_bytes))
    outcome = step.outcome
    np.testing.assert_allclose(
        step.costs.latency.sum(axis=1), outcome.wait_seconds.sum(axis=1) / outcome.requests / 0.2
    )
    np.testing.assert_allclose(step.costs.violation.sum(axis=1), outcome.blame.sum(axis=1) / outcome.requests)
    assert step.costs.violation.sum() > 0.1
    stacked = step.costs.stacked()
    assert stacked.shape == (28, len(COST_PARTS))
    np.testing.assert_array_equal(stacked[:, 2], step.costs.cpu_cores.ravel())


def test_prices_of_resources_follow_the_economy() -> None:
    table = prices(np.array([0.0, 0.5, 1.0]))
    assert table.shape == (3, len(COST_PARTS))
    np.testing.assert_allclose(table[:, 2] / table[1, 2], [0.25, 1, 4])
    np.testing.assert_allclose(table[:, 3] / table[1, 3], [0.25, 1, 4])
    for part in (0, 1, 4, 5):
        assert len(set(table[:, part])) == 1


def test_cost_parts_keep_their_order() -> None:
    parts = CostParts(*(np.full((1, 1), float(number)) for number in range(len(COST_PARTS))))
    np.testing.assert_array_equal(parts.stacked(), [list(range(len(COST_PARTS)))])


def test_memory_pressure_begins_before_the_limit() -> None:
    loop = shop_loop(1, 4)
    keep_cpu = loop.simulation.cpu_cores.ravel()
    outcome = loop.step(keep(loop)).outcome
    costs = [
        cost_parts(
            outcome, 0.2, keep_cpu[None], outcome.memory_usage_bytes / used, np.zeros((1, 14, 2), bool)
        )
        for used in (0.5, 0.85, 0.925, 1.0, 1.2)
    ]
    np.testing.assert_allclose([cost.pressure[0, 0] for cost in costs], [0, 0, 0.25, 1, 1], atol=1e-12)


def test_the_history_is_bounded() -> None:
    loop = shop_loop(1, HISTORY_KEPT_INTERVALS + 10)
    while loop.intervals_left:
        loop.step(keep(loop))
    assert loop.history.intervals == HISTORY_KEPT_INTERVALS


def test_provisioned_limits_lie_within_bounds_and_nodes() -> None:
    for application in (sock_shop(), small_application()):
        graph = CallGraph.of(application)
        for headroom, level in ((0.1, 1.0), (2.5, 1.0), (4.0, 1.5), (50.0, 1.5)):
            cpu, memory = provisioned_limits(application, headroom, level, DEFAULT_SETTINGS)
            assert (cpu <= 2.0).all()
            assert (memory >= 64 * 2**20).all()
            assert (np.bincount(graph.service_node, weights=cpu) <= graph.node_cpu_cores * (1 + 1e-9)).all()
    cpu, _ = provisioned_limits(small_application(), 2.0, 1.0, DEFAULT_SETTINGS)
    np.testing.assert_allclose(
        cpu, 2.0 * 40.0 * CallGraph.of(small_application()).mean_cpu_seconds_per_request
    )


@pytest.mark.parametrize("seconds", [5, 12])
def test_loads_that_are_no_whole_number_of_intervals_are_refused(seconds: int) -> None:
    with pytest.raises(ValueError, match="rates"):
        ScalingLoop(small_application(), [1], np.full((1, seconds), 10.0))
