"""From targets to what is written into a pod, and when: quality of service classes and the states of a resize.

Pure functions on arrays, for whatever applies the decisions. Axis 1 of resources is CPU in cores, memory in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from policy_server.cluster.snapshot import BoolArray, Float64Array, Int64Array
from policy_server.policies.scaling.safety import ScalingDecisions, ScalingReason

CPU_QUANTUM_CORES = 0.001
MEMORY_QUANTUM_BYTES = 2.0**20
_QUANTA = np.array((CPU_QUANTUM_CORES, MEMORY_QUANTUM_BYTES))
_ROUNDING = 1e-6

_UNDECIDED = np.zeros(len(ScalingReason), np.bool_)
_UNDECIDED[
    [
        ScalingReason.NOT_MEASURED,
        ScalingReason.FIRST_INTERVAL,
        ScalingReason.STALE_SAMPLE,
        ScalingReason.RESTARTED,
        ScalingReason.BEST_EFFORT,
    ]
] = True
_CAPPED_BY_NODE = np.zeros(len(ScalingReason), np.bool_)
_CAPPED_BY_NODE[[ScalingReason.NODE_SIZE, ScalingReason.NODE_SHARED]] = True


class QosClass(IntEnum):
    """Quality of service class of a pod; Kubernetes refuses a resize that would change it."""

    UNSPECIFIED = 0
    """Not known: see :func:`qos_of_resources`."""
    GUARANTEED = 1
    BURSTABLE = 2
    BEST_EFFORT = 3


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


class HoldReason(IntEnum):
    """Why a container is not to be resized now."""

    UNSPECIFIED = 0
    """It is to be resized."""
    UNCHANGED = 1
    """What the pod specifies may stay; the reasons of the targets say why."""
    RESIZE_DEFERRED = 2
    """This target is pending until the node has room."""
    RESIZE_INFEASIBLE = 3
    """This target was found infeasible; only another one may be tried."""
    RESIZE_IN_PROGRESS = 4
    """This target is being applied."""
    RESIZE_BACK_OFF = 5
    """This target failed to be applied a moment ago and is tried again later."""
    BEST_EFFORT = 6
    """Requests or limits would change the pod's class."""
    NOTHING_TO_SET = 7
    """The container has neither requests nor limits, and no field is added."""


_HOLD_OF_STATUS = np.array(
    [
        HoldReason.UNCHANGED,
        HoldReason.RESIZE_DEFERRED,
        HoldReason.RESIZE_INFEASIBLE,
        HoldReason.RESIZE_IN_PROGRESS,
        HoldReason.RESIZE_BACK_OFF,
    ],
    np.uint8,
)


@dataclass(frozen=True, slots=True)
class BackOff:
    """How long to wait before an attempt that failed is repeated.

    Attributes:
        first_seconds: after the first failure; doubles with each further one.
        longest_seconds: at most.
    """

    first_seconds: float = 10.0
    longest_seconds: float = 300.0

    def seconds(self, failures: Int64Array) -> Float64Array:
        """float64 [C]: time to wait after so many failures in a row."""
        doublings = np.clip(failures - 1, 0, 60).astype(np.float64)
        waits: Float64Array = np.minimum(self.first_seconds * 2.0**doublings, self.longest_seconds)
        return waits


DEFAULT_BACK_OFF = BackOff()


@dataclass(frozen=True, slots=True, eq=False)
class PodResources:
    """What C containers' pods hold.

    Attributes:
        qos: uint8 [C], a :class:`QosClass`, none unspecified.
        requests: float64 [C, 2], as specified; NaN where there is none.
        limits: float64 [C, 2], as specified; NaN where there is none.
        in_force: float64 [C, 2], limits that the containers run under now, requests where there is no limit.
    """

    qos: NDArray[np.uint8]
    requests: Float64Array
    limits: Float64Array
    in_force: Float64Array

    @property
    def specified(self) -> Float64Array:
        """float64 [C, 2]: the limits, the requests where there is no limit, NaN where there is neither."""
        return np.where(np.isnan(self.limits), self.requests, self.limits)


@dataclass(frozen=True, slots=True, eq=False)
class LastResizes:
    """How the last resizes of C containers went.

    Attributes:
        status: uint8 [C], a :class:`ResizeStatus`.
        attempted: float64 [C, 2], what they asked for; NaN: what the pod specifies.
        failures: int64 [C], errors in a row.
        seconds_since_attempt: float64 [C].
    """

    status: NDArray[np.uint8]
    attempted: Float64Array
    failures: Int64Array
    seconds_since_attempt: Float64Array


@dataclass(frozen=True, slots=True, eq=False)
class ResizePlan:
    """What to write into the pods of C containers.

    Attributes:
        apply: bool [C], whether to patch now.
        hold: uint8 [C], why not: a :class:`HoldReason`.
        target: float64 [C, 2], the targets in whole millicores and mebibytes where they differ from what is in force.
        requests: float64 [C, 2], complete: what stays as it is included; NaN where the pod has none.
        limits: float64 [C, 2], likewise.
    """

    apply: BoolArray
    hold: NDArray[np.uint8]
    target: Float64Array
    requests: Float64Array
    limits: Float64Array


def qos_of_resources(requests: Float64Array, limits: Float64Array) -> NDArray[np.uint8]:
    """uint8 [C]: the class of a pod of one container, by the rules of Kubernetes.

    In a pod of several containers it may be another one; a container written as if it were alone still leaves the
    pod's class as it is.
    """
    nothing = (np.isnan(requests) & np.isnan(limits)).all(axis=1)
    guaranteed = (_same(requests, limits) | (np.isnan(requests) & ~np.isnan(limits))).all(axis=1)
    return np.where(
        nothing, QosClass.BEST_EFFORT, np.where(guaranteed, QosClass.GUARANTEED, QosClass.BURSTABLE)
    ).astype(np.uint8)


def quantised(resources: Float64Array, down: BoolArray | None = None) -> Float64Array:
    """float64 [C, 2]: whole millicores and mebibytes, so that quantities compare and print exactly.

    Args:
        resources: float64 [C, 2].
        down: bool [C, 2], what to round down; the rest is rounded up.
    """
    # Binary fractions of a core are not exact: 0.3 / 0.001 is a little below 300.
    units = resources / _QUANTA
    whole = np.ceil(units - _ROUNDING)
    if down is not None:
        whole = np.where(down, np.floor(units + _ROUNDING), whole)
    return _resources(whole)


def requests_and_limits(
    qos: NDArray[np.uint8], target: Float64Array, requests: Float64Array, limits: Float64Array
) -> tuple[Float64Array, Float64Array]:
    """What to write so that the class of the pod stays what it is and no field comes or goes.

    Guaranteed: request = limit = target. Burstable: limit = target, and the request keeps its share of the limit, at
    least one quantum below where it was below, so that rounding never makes the pod Guaranteed; a container with a
    request alone gets the target as its request. Best effort: nothing.

    Args:
        qos: uint8 [C], a :class:`QosClass`.
        target: float64 [C, 2], quantised; NaN where there is no recommendation.
        requests: float64 [C, 2], as they are; NaN where there is none.
        limits: float64 [C, 2], as they are; NaN where there is none.

    Returns:
        Requests and limits, float64 [C, 2] each, NaN where nothing is to be written.
    """
    share = np.where(np.isnan(limits), 1.0, np.minimum(requests / limits, 1.0))
    request = quantised(target * share)
    request = np.where(requests < limits, np.minimum(request, target - _QUANTA), request)
    request = np.where((qos == QosClass.GUARANTEED)[:, None], target, request)
    written = (qos != QosClass.BEST_EFFORT)[:, None] & np.isfinite(target)
    return (
        np.where(written & np.isfinite(requests), request, np.nan),
        np.where(written & np.isfinite(limits), target, np.nan),
    )


def plan_resizes(
    decisions: ScalingDecisions,
    pods: PodResources,
    last: LastResizes,
    memory_floor: Float64Array,
    back_off: BackOff = DEFAULT_BACK_OFF,
) -> ResizePlan:
    """What to write, and whether now.

    A pod is patched where what it specifies is outside the bounds of a decision. While a resize is under way, a
    target is the same one as long as what was attempted lies within those bounds: noise does not make it another.
    The same target is not asked for again while it is pending, infeasible or in progress; another one is. After an
    error the same target is tried again, with back-off: an error says nothing about whether it is feasible. Where
    nothing was decided, for lack of knowledge, nothing is written.

    Args:
        decisions: for C containers.
        pods: the same containers.
        last: how their last resizes went.
        memory_floor: float64 [C], memory that rounding must not go below.
        back_off: waiting times after errors.
    """
    cpu, memory = decisions.cpu_cores, decisions.memory_bytes
    reason = np.array((cpu.reason, memory.reason)).T
    target = np.array((cpu.target, memory.target)).T
    lower = np.array((cpu.lower_bound, memory.lower_bound)).T
    upper = np.array((cpu.upper_bound, memory.upper_bound)).T
    specified = pods.specified

    moved = ~_same(target, pods.in_force)
    down = _CAPPED_BY_NODE[reason]
    down[:, 1] &= np.floor(target[:, 1] / MEMORY_QUANTUM_BYTES) * MEMORY_QUANTUM_BYTES >= memory_floor
    # A limit of zero would be none.
    target = np.where(moved, np.maximum(quantised(target, down), _QUANTA), target)

    best_effort = pods.qos == QosClass.BEST_EFFORT
    settable = np.isfinite(specified) & ~best_effort[:, None]
    decided = np.isfinite(target) & ~_UNDECIDED[reason] & settable
    in_step = _same(specified, pods.in_force)
    unfit = np.where(in_step, moved, (specified < lower) | (specified > upper))
    changes = decided & unfit & ~_same(target, specified)

    apply = changes.any(axis=1)
    hold = np.where(settable.any(axis=1), HoldReason.UNCHANGED, HoldReason.NOTHING_TO_SET)
    if last.status.any():
        attempted = np.where(np.isnan(last.attempted), specified, last.attempted)
        fitting = ((attempted >= lower) & (attempted <= upper)) | ~decided
        same_target = (last.status != ResizeStatus.NONE) & fitting.all(axis=1)
        waited = last.seconds_since_attempt >= back_off.seconds(last.failures)
        retry = (last.status == ResizeStatus.ERROR) & waited & decided.any(axis=1)
        apply = np.where(same_target, retry, apply)
        hold = np.where(same_target & settable.any(axis=1), _HOLD_OF_STATUS[last.status], hold)
    hold = np.where(best_effort, HoldReason.BEST_EFFORT, hold)
    requests, limits = pods.requests, pods.limits
    if changes.any():
        requests, limits = requests_and_limits(
            pods.qos, np.where(changes, target, np.nan), pods.requests, pods.limits
        )
        requests = np.where(np.isnan(requests), pods.requests, requests)
        limits = np.where(np.isnan(limits), pods.limits, limits)
    return ResizePlan(
        apply=apply,
        hold=np.where(apply, HoldReason.UNSPECIFIED, hold).astype(np.uint8),
        target=target,
        requests=requests,
        limits=limits,
    )


def _resources(units: Float64Array) -> Float64Array:
    resources: Float64Array = units * _QUANTA
    # 300 x 0.001 is a little above 0.3.
    resources[:, 0] = units[:, 0] / 1000.0
    return resources


def _same(first: Float64Array, second: Float64Array) -> BoolArray:
    """bool [C, 2]: equal to within less than a quantum."""
    close: BoolArray = np.abs(first - second) < 0.5 * _QUANTA
    return close
