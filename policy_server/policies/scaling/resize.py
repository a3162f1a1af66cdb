"""From a target to what is written into a pod, and when: quality of service classes and the states of a resize.

Pure functions on arrays, for whatever applies the decisions. Axis 1 of resources is CPU in cores, memory in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from policy_server.cluster.snapshot import BoolArray, Float64Array, Int64Array

CPU_QUANTUM_CORES = 0.001
MEMORY_QUANTUM_BYTES = 2.0**20
_QUANTA = np.array((CPU_QUANTUM_CORES, MEMORY_QUANTUM_BYTES))


class QosClass(IntEnum):
    """Quality of service class of a pod; Kubernetes refuses a resize that would change it."""

    GUARANTEED = 0
    BURSTABLE = 1
    BEST_EFFORT = 2


class ResizeStatus(IntEnum):
    """State of the last resize, from the pod's conditions ``PodResizePending`` and ``PodResizeInProgress``."""

    NONE = 0
    """No resize is under way."""
    DEFERRED = 1
    """Pending: the node has no room now."""
    INFEASIBLE = 2
    """Pending: the node will never have room."""
    IN_PROGRESS = 3
    """Being applied."""
    ERROR = 4
    """In progress, but failed; it may well work later."""


@dataclass(frozen=True, slots=True)
class BackOff:
    """How long to wait before an attempt that failed is repeated.

    Attributes:
        first_seconds: after the first failure; doubles with each further one.
        longest_seconds: at most.
    """

    first_seconds: float = 10.0
    longest_seconds: float = 300.0


def quantised(resources: Float64Array) -> Float64Array:
    """float64 [C, 2]: rounded up to whole millicores and mebibytes, so that quantities compare and print exactly."""
    # Binary fractions of a core are not exact: 0.3 / 0.001 is a little below 300.
    units = np.ceil(np.round(resources / _QUANTA, 6))
    rounded: Float64Array = units * _QUANTA
    return rounded


def requests_and_limits(
    qos: NDArray[np.uint8], target: Float64Array, requests: Float64Array, limits: Float64Array
) -> tuple[Float64Array, Float64Array]:
    """What to write so that the class of the pod stays what it is and no field comes or goes.

    Guaranteed: request = limit = target. Burstable: limit = target, and the request keeps its share of the limit, at
    least one quantum below where it was below, so that rounding never makes the pod Guaranteed; a container with a
    request alone gets the target as its request. Best effort: nothing.

    Args:
        qos: uint8 [C], a :class:`QosClass`.
        target: float64 [C, 2]; NaN where there is no recommendation.
        requests: float64 [C, 2], as they are; NaN where there is none.
        limits: float64 [C, 2], as they are; NaN where there is none.

    Returns:
        Requests and limits, float64 [C, 2] each, NaN where nothing is to be written.
    """
    wanted = quantised(target)
    share = np.where(np.isnan(limits), 1.0, np.minimum(requests / limits, 1.0))
    below = requests < limits
    request = quantised(wanted * share)
    request = np.where(below, np.minimum(request, wanted - _QUANTA), request)
    request = np.where((qos == QosClass.GUARANTEED)[:, None], wanted, request)
    written = (qos != QosClass.BEST_EFFORT)[:, None] & np.isfinite(target)
    return (
        np.where(written & np.isfinite(requests), request, np.nan),
        np.where(written & np.isfinite(limits), wanted, np.nan),
    )


def should_patch(
    status: NDArray[np.uint8],
    wanted: Float64Array,
    current: Float64Array,
    attempted: Float64Array,
    failures: Int64Array,
    seconds_since_attempt: Float64Array,
    back_off: BackOff | None = None,
) -> BoolArray:
    """Whether to patch each container now.

    A target that is pending, infeasible or in progress is not patched again; a changed target is. After an error the
    same target is tried again, with back-off: an error says nothing about whether the target is feasible.

    Args:
        status: uint8 [C], a :class:`ResizeStatus`.
        wanted: float64 [C, 2], targets; NaN: nothing is wanted.
        current: float64 [C, 2], what the specification holds.
        attempted: float64 [C, 2], what the last resize asked for; NaN where there was none.
        failures: int64 [C], errors in a row.
        seconds_since_attempt: float64 [C].
        back_off: waiting times.
    """
    waits = back_off or BackOff()
    wait = np.minimum(
        waits.first_seconds * 2.0 ** np.clip(failures - 1, 0, 60).astype(np.float64), waits.longest_seconds
    )
    is_wanted = np.isfinite(wanted).any(axis=1)
    repeated = _same(wanted, attempted)
    done = _same(wanted, current) & (status == ResizeStatus.NONE)
    retry = (status == ResizeStatus.ERROR) & (seconds_since_attempt >= wait)
    settled = (status == ResizeStatus.NONE) | retry
    patch: BoolArray = is_wanted & ~done & (~repeated | settled)
    return patch


def _same(first: Float64Array, second: Float64Array) -> BoolArray:
    """bool [C]: equal to within less than a quantum in all that the first one names."""
    close = np.abs(first - second) < 0.5 * _QUANTA
    same: BoolArray = np.asarray((close | np.isnan(first)).all(axis=1))
    return same
