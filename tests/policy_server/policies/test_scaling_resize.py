"""Resize states and classes of service: the other rows of field notes U16."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.policies.scaling.resize import (
    BackOff,
    QosClass,
    ResizeStatus,
    quantised,
    requests_and_limits,
    should_patch,
)
from tests.policy_server.policies.scaling_fleets import MEBIBYTE

NOTHING = [np.nan, np.nan]
SMALL = [0.5, 256 * MEBIBYTE]
LARGE = [1.0, 512 * MEBIBYTE]


def patched(
    status: ResizeStatus,
    wanted: list[float],
    attempted: list[float],
    *,
    current: list[float] = SMALL,
    failures: int = 0,
    seconds: float = 1e9,
) -> bool:
    return bool(
        should_patch(
            np.array([status], np.uint8),
            np.array([wanted]),
            np.array([current]),
            np.array([attempted]),
            np.array([failures]),
            np.array([seconds]),
            BackOff(first_seconds=10, longest_seconds=60),
        )[0]
    )


@pytest.mark.parametrize("status", [ResizeStatus.DEFERRED, ResizeStatus.INFEASIBLE, ResizeStatus.IN_PROGRESS])
def test_a_target_that_is_under_way_is_not_patched_again(status: ResizeStatus) -> None:
    assert not patched(status, LARGE, attempted=LARGE, current=LARGE)


@pytest.mark.parametrize("status", [ResizeStatus.DEFERRED, ResizeStatus.INFEASIBLE, ResizeStatus.IN_PROGRESS])
def test_a_changed_target_is_allowed(status: ResizeStatus) -> None:
    assert patched(status, [0.8, 400 * MEBIBYTE], attempted=LARGE, current=LARGE)


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
    error = ResizeStatus.ERROR
    assert patched(error, LARGE, attempted=LARGE, current=LARGE, failures=failures, seconds=seconds) == again


def test_an_error_is_not_remembered_as_infeasible() -> None:
    assert patched(ResizeStatus.ERROR, LARGE, attempted=LARGE, current=LARGE, failures=1)
    assert not patched(ResizeStatus.INFEASIBLE, LARGE, attempted=LARGE, current=LARGE, failures=1)


def test_nothing_is_patched_where_nothing_is_to_change() -> None:
    assert not patched(ResizeStatus.NONE, SMALL, attempted=NOTHING)
    assert not patched(ResizeStatus.NONE, SMALL, attempted=SMALL)
    assert not patched(ResizeStatus.NONE, NOTHING, attempted=NOTHING)
    assert patched(ResizeStatus.NONE, LARGE, attempted=NOTHING)
    # Somebody else has set it back.
    assert patched(ResizeStatus.NONE, LARGE, attempted=LARGE, current=SMALL)


def written(
    qos: QosClass, target: list[float], requests: list[float], limits: list[float]
) -> tuple[list[float], list[float]]:
    request, limit = requests_and_limits(
        np.array([qos], np.uint8), np.array([target]), np.array([requests]), np.array([limits])
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
