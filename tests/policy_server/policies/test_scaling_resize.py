"""Resize states and classes of service: the other rows of field notes U16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.policies.scaling.resize import (
    BackOff,
    HoldReason,
    LastResizes,
    PodResources,
    QosClass,
    ResizePlan,
    ResizeStatus,
    plan_resizes,
    qos_of_resources,
    quantised,
    requests_and_limits,
)
from policy_server.policies.scaling.safety import ResourceDecision, ScalingDecisions, ScalingReason
from tests.policy_server.policies.scaling_fleets import MEBIBYTE

NOTHING = [np.nan, np.nan]
SMALL = [0.5, 256 * MEBIBYTE]
LARGE = [1.0, 512 * MEBIBYTE]
UNDER_WAY = pytest.mark.parametrize(
    "status", [ResizeStatus.DEFERRED, ResizeStatus.INFEASIBLE, ResizeStatus.IN_PROGRESS]
)


def decided(target: list[float], reason: ScalingReason = ScalingReason.RECOMMENDED) -> ScalingDecisions:
    """Decisions for one container, with the bounds that safety puts around a target."""

    def resource(value: float) -> ResourceDecision:
        values = np.array([value])
        return ResourceDecision(values, values / 1.11, values / 0.85, values, np.array([reason], np.uint8))

    return ScalingDecisions(resource(target[0]), resource(target[1]))


def planned(
    target: list[float],
    *,
    status: ResizeStatus = ResizeStatus.NONE,
    specified: list[float] = SMALL,
    requests: list[float] | None = None,
    in_force: list[float] = SMALL,
    attempted: list[float] = NOTHING,
    qos: QosClass = QosClass.GUARANTEED,
    reason: ScalingReason = ScalingReason.RECOMMENDED,
    failures: int = 0,
    seconds: float = 1e9,
    memory_floor: float = 0.0,
) -> ResizePlan:
    return plan_resizes(
        decided(target, reason),
        PodResources(
            np.array([qos], np.uint8),
            np.array([specified if requests is None else requests]),
            np.array([specified]),
            np.array([in_force]),
        ),
        LastResizes(
            np.array([status], np.uint8), np.array([attempted]), np.array([failures]), np.array([seconds])
        ),
        np.array([memory_floor]),
        BackOff(first_seconds=10, longest_seconds=60),
    )


def verdict(*arguments: Any, **changes: Any) -> tuple[bool, HoldReason]:
    plan = planned(*arguments, **changes)
    return bool(plan.apply[0]), HoldReason(int(plan.hold[0]))


HOLD_OF = {
    ResizeStatus.DEFERRED: HoldReason.RESIZE_DEFERRED,
    ResizeStatus.INFEASIBLE: HoldReason.RESIZE_INFEASIBLE,
    ResizeStatus.IN_PROGRESS: HoldReason.RESIZE_IN_PROGRESS,
}


@UNDER_WAY
def test_a_target_that_is_under_way_is_not_patched_again(status: ResizeStatus) -> None:
    assert verdict(LARGE, status=status, specified=LARGE) == (False, HOLD_OF[status])


@UNDER_WAY
def test_noise_does_not_make_another_target_of_it(status: ResizeStatus) -> None:
    for share in (0.95, 1.05):
        target = [value * share for value in LARGE]
        assert verdict(target, status=status, specified=LARGE) == (False, HOLD_OF[status])


@UNDER_WAY
def test_a_changed_target_is_allowed(status: ResizeStatus) -> None:
    plan = planned([0.7, 512 * MEBIBYTE], status=status, specified=LARGE)
    assert plan.apply[0]
    # What was attempted and is still right stays as it is.
    np.testing.assert_allclose(plan.limits[0], [0.7, 512 * MEBIBYTE])


def test_an_infeasible_target_that_was_taken_back_is_remembered_by_what_was_attempted() -> None:
    infeasible = ResizeStatus.INFEASIBLE
    assert verdict(LARGE, status=infeasible, attempted=LARGE) == (False, HoldReason.RESIZE_INFEASIBLE)
    assert verdict(LARGE, status=infeasible, attempted=[4.0, 512 * MEBIBYTE])[0]


def test_a_pending_resize_that_nobody_wants_any_more_is_taken_back() -> None:
    plan = planned(SMALL, status=ResizeStatus.DEFERRED, specified=LARGE)
    assert plan.apply[0]
    np.testing.assert_allclose(plan.limits[0], SMALL)


@pytest.mark.parametrize(
    ("failures", "seconds", "again"),
    [
        (1, 9.9, False),
        (1, 10.0, True),
        (2, 19.0, False),
        (2, 20.0, True),
        (3, 41.0, True),
        (50, 59.0, False),
        (50, 60.0, True),
    ],
)
def test_an_error_is_retried_with_back_off(failures: int, seconds: float, again: bool) -> None:
    found = verdict(LARGE, status=ResizeStatus.ERROR, specified=LARGE, failures=failures, seconds=seconds)
    assert found == (again, HoldReason.UNSPECIFIED if again else HoldReason.RESIZE_BACK_OFF)


def test_nothing_is_patched_where_nothing_is_to_change() -> None:
    assert verdict(SMALL) == (False, HoldReason.UNCHANGED)
    assert verdict(LARGE) == (True, HoldReason.UNSPECIFIED)
    assert verdict(NOTHING) == (False, HoldReason.UNCHANGED)


@pytest.mark.parametrize(
    "reason",
    [
        ScalingReason.NOT_MEASURED,
        ScalingReason.FIRST_INTERVAL,
        ScalingReason.STALE_SAMPLE,
        ScalingReason.RESTARTED,
    ],
)
@pytest.mark.parametrize("status", ResizeStatus)
def test_what_was_not_decided_is_not_written_even_if_the_pod_specifies_something_else(
    reason: ScalingReason, status: ResizeStatus
) -> None:
    plan = planned(SMALL, specified=LARGE, status=status, reason=reason, failures=1)
    assert not plan.apply[0]
    np.testing.assert_array_equal(plan.limits[0], LARGE)


def test_a_resource_that_does_not_change_is_written_as_it_is() -> None:
    plan = planned([0.5, 512 * MEBIBYTE], specified=[0.50001, 256 * MEBIBYTE], in_force=[0.5, 256 * MEBIBYTE])
    assert plan.apply[0]
    np.testing.assert_array_equal(plan.limits[0], [0.50001, 512 * MEBIBYTE])


def test_targets_are_whole_quanta_where_they_change() -> None:
    plan = planned([0.75001, 300.2 * MEBIBYTE])
    np.testing.assert_allclose(plan.target[0], [0.751, 301 * MEBIBYTE])
    held = planned([0.50000001, 256.1 * MEBIBYTE], in_force=[0.50000001, 256.1 * MEBIBYTE])
    np.testing.assert_array_equal(held.target[0], [0.50000001, 256.1 * MEBIBYTE])


def test_what_a_node_caps_is_rounded_down_but_not_below_the_memory_in_use() -> None:
    capped = planned([0.75099, 300.9 * MEBIBYTE], reason=ScalingReason.NODE_SHARED)
    np.testing.assert_allclose(capped.target[0], [0.75, 300 * MEBIBYTE])
    in_use = planned(
        [0.75, 300.9 * MEBIBYTE], reason=ScalingReason.NODE_SHARED, memory_floor=300.5 * MEBIBYTE
    )
    assert in_use.target[0, 1] == 301 * MEBIBYTE


def test_a_limit_is_never_written_as_zero() -> None:
    tiny = planned([1e-5, 100.0], reason=ScalingReason.NODE_SHARED)
    np.testing.assert_allclose(tiny.limits[0], [0.001, MEBIBYTE])


def test_best_effort_and_containers_without_fields_get_nothing() -> None:
    assert verdict(NOTHING, specified=NOTHING, qos=QosClass.BEST_EFFORT) == (False, HoldReason.BEST_EFFORT)
    plan = planned(LARGE, specified=NOTHING, qos=QosClass.BURSTABLE)
    assert (bool(plan.apply[0]), plan.hold[0]) == (False, HoldReason.NOTHING_TO_SET)
    assert np.isnan([*plan.requests[0], *plan.limits[0]]).all()


@given(st.data())
def test_a_plan_keeps_the_class_and_adds_and_removes_no_field(data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))

    def resources() -> np.ndarray:
        values = np.exp(random.uniform(np.log([0.01, 2 * MEBIBYTE]), np.log([4, 4096 * MEBIBYTE])))
        return quantised(values[None])[0]

    limits = resources()
    requests = np.maximum(limits * random.choice([0.3, 0.99, 1.0], 2), [0.001, MEBIBYTE])
    limits[random.random(2) < 0.2] = np.nan
    requests[random.random(2) < 0.2] = np.nan
    before = qos_of_resources(requests[None], limits[None])
    if before[0] == QosClass.GUARANTEED:
        requests = limits
    specified = np.where(np.isnan(limits), requests, limits)
    plan = plan_resizes(
        decided(resources().tolist()),
        PodResources(before, requests[None], limits[None], specified[None]),
        LastResizes(
            np.array([random.integers(5)], np.uint8), np.array([NOTHING]), np.array([1]), np.array([5.0])
        ),
        np.zeros(1),
    )
    np.testing.assert_array_equal(np.isnan(plan.requests[0]), np.isnan(requests))
    np.testing.assert_array_equal(np.isnan(plan.limits[0]), np.isnan(limits))
    assert qos_of_resources(plan.requests, plan.limits)[0] == before[0]
    both = np.isfinite(requests) & np.isfinite(limits)
    assert (plan.requests[0] <= plan.limits[0])[both].all()


def written(
    qos: QosClass, target: list[float], requests: list[float], limits: list[float]
) -> tuple[list[float], list[float]]:
    request, limit = requests_and_limits(
        np.array([qos], np.uint8), quantised(np.array([target])), np.array([requests]), np.array([limits])
    )
    return request[0].tolist(), limit[0].tolist()


def test_guaranteed_stays_guaranteed() -> None:
    requests, limits = written(QosClass.GUARANTEED, [0.7501, 300.2 * MEBIBYTE], SMALL, SMALL)
    assert requests == limits == pytest.approx([0.751, 301 * MEBIBYTE])


def test_burstable_keeps_the_share_of_its_requests() -> None:
    requests, limits = written(QosClass.BURSTABLE, [1.0, 400 * MEBIBYTE], [0.25, 256 * MEBIBYTE], SMALL)
    assert limits == pytest.approx([1.0, 400 * MEBIBYTE])
    assert requests == pytest.approx([0.5, 400 * MEBIBYTE])


def test_best_effort_gets_no_recommendation() -> None:
    requests, limits = written(QosClass.BEST_EFFORT, LARGE, NOTHING, NOTHING)
    assert np.isnan([*requests, *limits]).all()


def test_no_field_comes_or_goes() -> None:
    requests, limits = written(QosClass.BURSTABLE, LARGE, [0.5, np.nan], [np.nan, 256 * MEBIBYTE])
    assert requests[0] == pytest.approx(1.0)
    assert limits[1] == pytest.approx(512 * MEBIBYTE)
    assert np.isnan(requests[1])
    assert np.isnan(limits[0])


@given(
    st.floats(0.001, 4),
    st.floats(1, 4096),
    st.tuples(st.floats(0.001, 4), st.floats(0.01, 0.99999)),
    st.tuples(st.floats(2, 4096), st.floats(0.01, 1)),
)
def test_burstable_never_becomes_guaranteed(cpu: float, memory: float, cpu_now, memory_now) -> None:  # type: ignore[no-untyped-def]
    limits = [cpu_now[0] + 0.001, memory_now[0] * MEBIBYTE]
    requests = [limits[0] * cpu_now[1], limits[1] * memory_now[1]]
    new_requests, new_limits = written(QosClass.BURSTABLE, [cpu + 0.001, memory * MEBIBYTE], requests, limits)
    assert new_requests != new_limits
    assert all(0 <= request <= limit for request, limit in zip(new_requests, new_limits, strict=True))


def test_quantities_are_whole_millicores_and_mebibytes() -> None:
    np.testing.assert_allclose(
        quantised(np.array([[0.3, 256 * MEBIBYTE], [0.2501, 256.5 * MEBIBYTE]])),
        [[0.3, 256 * MEBIBYTE], [0.251, 257 * MEBIBYTE]],
    )
    every_millicore = np.arange(1, 5000) / 1000.0
    amounts = np.stack((every_millicore, np.arange(1, 5000) * MEBIBYTE), axis=1)
    np.testing.assert_array_equal(quantised(amounts), amounts)


@pytest.mark.parametrize(
    ("requests", "limits", "qos"),
    [
        (NOTHING, NOTHING, QosClass.BEST_EFFORT),
        (SMALL, SMALL, QosClass.GUARANTEED),
        (NOTHING, SMALL, QosClass.GUARANTEED),
        (SMALL, LARGE, QosClass.BURSTABLE),
        (SMALL, NOTHING, QosClass.BURSTABLE),
        (SMALL, [0.5, np.nan], QosClass.BURSTABLE),
        ([0.5, np.nan], [0.5, np.nan], QosClass.BURSTABLE),
    ],
)
def test_the_class_of_resources(requests: list[float], limits: list[float], qos: QosClass) -> None:
    assert qos_of_resources(np.array([requests]), np.array([limits]))[0] == qos
