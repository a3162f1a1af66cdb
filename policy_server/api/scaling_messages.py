"""Messages of ``policy.v1.ScalingService`` to questions, and answers to messages. Checked column by column.

Numbers are in the caller's units on one side (millicores) and in those of the domain (cores) on the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy_server.api import figures
from policy_server.api.errors import Count, InvalidArgumentError
from policy_server.api.figures import Range
from policy_server.api.scaling_questions import ScalingAnswer, ScalingQuestion
from policy_server.cluster.containers import MEASURED, UNLIMITED, Fleet, MeasurementHistory
from policy_server.cluster.snapshot import BoolArray, Float64Array, Int64Array
from policy_server.policies.decision_origin import DecisionOrigin
from policy_server.policies.scaling.batch import ScalingTask
from policy_server.policies.scaling.resize import (
    LastResizes,
    PodResources,
    QosClass,
    ResizeStatus,
    qos_of_resources,
    quantised,
)
from policy_server.policies.scaling.safety import DEFAULT_SETTINGS, Constraints, ScalingReason
from policy_server.proto.policy.v1.decision_pb2 import Provenance
from policy_server.proto.policy.v1.scaling_service_pb2 import (
    ScaleRequest,
    ScaleResponse,
    ScalingContainers,
    ScalingHistory,
)

DEFAULT_LATENCY_OBJECTIVE_SECONDS = 0.2
MAXIMUM_INTERVALS = 256
_MILLICORES = 1000.0
_PER_CONTAINER = "one per container"
_ECONOMY = Range(0, 1)
_FRACTION = Range(0, 1)
_AGE_SECONDS = Range(0, 1e9)


@dataclass(frozen=True)
class ScalingLimits:
    """What is taken for granted where a request does not say.

    Attributes:
        containers: most that one request may carry.
        stale_after_seconds: age of a measurement beyond which its container is held.
        economy: 0 (latency counts most) to 1 (resources count most).
    """

    containers: int = 10_000
    stale_after_seconds: float = 60.0
    economy: float = 0.5


class _Columns:
    """Repeated fields of one message, each with a value per container.

    Args:
        message: holds them.
        path: of the message in the request, for errors.
        count: values that a column must have, unless it is empty.
        each: what there must be one value of, for errors.
    """

    def __init__(self, message: Any, path: str, count: int, each: str = _PER_CONTAINER) -> None:
        self._message = message
        self._path = path
        self._count = count
        self._each = each

    def given(self, field: str) -> bool:
        """Whether the column is not empty."""
        return len(getattr(self._message, field)) > 0

    def optional(self, field: str, accepted: Range, absent: float = np.nan) -> Float64Array:
        """float64 [count]: the values, NaN among them allowed; ``absent`` where the column is empty.

        Raises:
            InvalidArgumentError: of another length, or a value is outside the range.
        """
        values = self._values(field, np.float64)
        if values is None:
            return np.full(self._count, absent)
        fine = (values >= accepted.smallest) & (values <= accepted.largest)
        self._require(
            field, values, fine | np.isnan(values), f"{accepted.remedy}, or NaN where it is not known"
        )
        return values

    def required(self, field: str, accepted: Range, *, or_infinite: bool = False) -> Float64Array:
        """float64 [count]: the values.

        Raises:
            InvalidArgumentError: of another length, or a value is NaN or outside the range.
        """
        values = self._values(field, np.float64)
        if values is None:
            raise self._error(field, "none", f"give {self._each}")
        fine = (values >= accepted.smallest) & (values <= accepted.largest)
        if or_infinite:
            fine |= values == np.inf
        remedy = f"{accepted.remedy}, or infinity where it is not known" if or_infinite else accepted.remedy
        self._require(field, values, fine, remedy)
        return values

    def index(self, field: str, names: int, vocabulary: str) -> Int64Array:
        """int64 [count]: rows of a vocabulary of so many names.

        Raises:
            InvalidArgumentError: of another length, or a row that there is not.
        """
        values = self._values(field, np.int64)
        if values is None:
            raise self._error(field, "none", f"give {self._each}, an index into {vocabulary}")
        known = values < names
        self._require(field, values, known, f"must be an index into {vocabulary}, which has {names} names")
        return values

    def counts(self, field: str) -> Int64Array:
        """int64 [count]: the counts, zero where the column is empty.

        Raises:
            InvalidArgumentError: of another length.
        """
        values = self._values(field, np.int64)
        return np.zeros(self._count, np.int64) if values is None else values

    def enumeration(self, field: str, kind: type[IntEnum]) -> NDArray[np.uint8]:
        """uint8 [count]: numbers of the enumeration, zero where the column is empty.

        Raises:
            InvalidArgumentError: of another length, or a number that has no name.
        """
        values = self._values(field, np.int64)
        if values is None:
            return np.zeros(self._count, np.uint8)
        fine = (values >= 0) & (values < len(kind))
        self._require(field, values, fine, f"must be from 0 to {len(kind) - 1}")
        return values.astype(np.uint8)

    def _values(self, field: str, dtype: Any) -> NDArray[Any] | None:
        column = getattr(self._message, field)
        if not len(column):
            return None
        if len(column) != self._count:
            raise self._error(
                field, Count(len(column), "values"), f"send {self._count}, {self._each}, or none"
            )
        return np.array(column, dtype)

    def _require(self, field: str, values: NDArray[Any], fine: BoolArray, remedy: str) -> None:
        if not fine.all():
            row = int(fine.argmin())
            raise InvalidArgumentError(f"{self._path}.{field}[{row}]", values[row].item(), remedy)

    def _error(self, field: str, value: object, remedy: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{self._path}.{field}", value, remedy)


def question_from_message(request: ScaleRequest, limits: ScalingLimits) -> ScalingQuestion:
    """The question of a request.

    Raises:
        InvalidArgumentError: a field cannot be used.
    """
    ids = list(request.containers.id)
    count = len(ids)
    if count > limits.containers:
        raise InvalidArgumentError(
            "containers.id",
            Count(count, "containers"),
            f"at most {limits.containers} are accepted; send fewer",
        )
    _require_unique("containers.id", ids)
    columns = _Columns(request.containers, "containers", count)
    requests, pod_limits = _specified(request.containers, columns)
    qos = _qos(columns, requests, pod_limits)
    guaranteed = (qos == QosClass.GUARANTEED)[:, None]
    specified = np.where(np.isnan(pod_limits), requests, pod_limits)
    history, restarted = _history(request.history, count, specified)
    in_force = np.stack((history.newest("cpu_limit_cores"), history.newest("memory_limit_bytes")), axis=1)
    age_seconds = columns.optional("sample_age_seconds", _AGE_SECONDS, absent=0.0)
    economy = limits.economy
    if request.HasField("economy"):
        economy = _ECONOMY.check("economy", request.economy)
    task = ScalingTask(
        fleet=_fleet(request, columns, count),
        history=history,
        constraints=_constraints(
            columns,
            in_force,
            _hold(qos, ~(age_seconds <= limits.stale_after_seconds), restarted),
        ),
        pods=PodResources(
            qos=qos,
            requests=np.where(guaranteed & np.isnan(requests), pod_limits, requests),
            limits=np.where(guaranteed & np.isnan(pod_limits), requests, pod_limits),
            in_force=in_force,
        ),
        last=_last_resizes(_Columns(request.last_resizes, "last_resizes", count), count),
        economy=np.full(count, economy),
    )
    return ScalingQuestion(request.policy, task, float(np.nan_to_num(age_seconds).max(initial=0.0)))


def message_from_answer(answer: ScalingAnswer) -> ScaleResponse:
    """The response to a request."""
    outcome = answer.outcome
    cpu, memory, plan = outcome.decisions.cpu_cores, outcome.decisions.memory_bytes, outcome.plan
    return ScaleResponse(
        provenances=[_provenance(origin, answer.sample_age_seconds) for origin in outcome.origins],
        provenance=outcome.origin.tolist(),
        apply=plan.apply.tolist(),
        hold_reason=plan.hold.tolist(),
        cpu_target_millicores=_millicores(cpu.target),
        cpu_lower_bound_millicores=_millicores(cpu.lower_bound),
        cpu_upper_bound_millicores=_millicores(cpu.upper_bound),
        cpu_uncapped_target_millicores=_millicores(cpu.uncapped_target),
        cpu_reason=cpu.reason.tolist(),
        memory_target_bytes=memory.target.tolist(),
        memory_lower_bound_bytes=memory.lower_bound.tolist(),
        memory_upper_bound_bytes=memory.upper_bound.tolist(),
        memory_uncapped_target_bytes=memory.uncapped_target.tolist(),
        memory_reason=memory.reason.tolist(),
        cpu_request_millicores=_millicores(plan.requests[:, 0]),
        cpu_limit_millicores=_millicores(plan.limits[:, 0]),
        memory_request_bytes=plan.requests[:, 1].tolist(),
        memory_limit_bytes=plan.limits[:, 1].tolist(),
    )


def _specified(message: ScalingContainers, columns: _Columns) -> tuple[Float64Array, Float64Array]:
    """Requests and limits in cores and bytes, float64 [C, 2] each."""
    # A request may be zero; a limit of zero would be none.
    requests = (
        columns.optional("cpu_request_millicores", figures.CPU_USED_MILLICORES) / _MILLICORES,
        columns.optional("memory_request_bytes", figures.BYTES),
    )
    limits = (
        columns.optional("cpu_limit_millicores", figures.CPU_MILLICORES) / _MILLICORES,
        columns.optional("memory_limit_bytes", figures.MEMORY_BYTES),
    )
    return np.stack(requests, axis=1), np.stack(limits, axis=1)


def _qos(columns: _Columns, requests: Float64Array, limits: Float64Array) -> NDArray[np.uint8]:
    """uint8 [C]: the classes, none unspecified."""
    derived = qos_of_resources(requests, limits)
    told = columns.enumeration("qos_class", QosClass)
    unlike = (told != QosClass.UNSPECIFIED) & (told != QosClass.BURSTABLE) & (told != derived)
    if unlike.any():
        row = int(unlike.argmax())
        raise InvalidArgumentError(
            f"containers.qos_class[{row}]",
            QosClass(int(told[row])).name,
            f"the container's requests and limits make it {QosClass(int(derived[row])).name}; send what its pod "
            "specifies",
        )
    return np.where(told == QosClass.UNSPECIFIED, derived, told)


def _fleet(request: ScaleRequest, columns: _Columns, count: int) -> Fleet:
    nodes = _Columns(request.nodes, "nodes", len(request.nodes.name), "one per name")
    _require_unique("nodes.name", request.nodes.name)
    node_cpu_cores, node_memory_bytes = np.array([UNLIMITED]), np.array([UNLIMITED])
    if request.nodes.name:
        node_cpu_cores = (
            nodes.required("cpu_millicores", figures.CPU_MILLICORES, or_infinite=True) / _MILLICORES
        )
        node_memory_bytes = nodes.required("memory_bytes", figures.MEMORY_BYTES, or_infinite=True)
    node = np.zeros(count, np.int64)
    if request.nodes.name or columns.given("node"):
        node = columns.index("node", len(request.nodes.name), "nodes.name")

    applications = _Columns(
        request.applications, "applications", len(request.applications.name), "one per name"
    )
    _require_unique("applications.name", request.applications.name)
    application = np.arange(count)
    objective_seconds = np.full(count, DEFAULT_LATENCY_OBJECTIVE_SECONDS)
    if request.applications.name or columns.given("application"):
        objectives = applications.required("latency_objective_seconds", figures.DEADLINE_SECONDS)
        application = columns.index("application", len(request.applications.name), "applications.name")
        objective_seconds = objectives[application]
    return Fleet(application, node, objective_seconds, node_cpu_cores, node_memory_bytes)


def _history(
    message: ScalingHistory, count: int, specified: Float64Array
) -> tuple[MeasurementHistory, BoolArray]:
    """The history, limits filled in, and bool [C]: restarted a moment ago."""
    intervals = message.intervals
    if intervals > MAXIMUM_INTERVALS:
        raise InvalidArgumentError(
            "history.intervals", intervals, f"at most {MAXIMUM_INTERVALS} are accepted; send the newest"
        )
    each = f"one per container and interval of {intervals}"
    columns = _Columns(message, "history", intervals * count, each)
    values = np.empty((len(MEASURED), max(intervals, 1), count))
    for row, (field, accepted, scale) in enumerate(_MEASURED_FIELDS):
        column = columns.optional(field, accepted) / scale
        values[row] = column.reshape(-1, count) if intervals else np.nan
    kills = columns.counts("oom_kills")
    values[_OOM_KILLS] = kills.reshape(-1, count) if intervals else 0.0
    if kills.any() and not columns.given("memory_limit_bytes"):
        raise InvalidArgumentError(
            "history.memory_limit_bytes",
            "none",
            "give the limit of each interval, so that it is known which one was too small when oom_kills counted",
        )
    for resource, row in enumerate((_CPU_LIMIT, _MEMORY_LIMIT)):
        limit = values[row]
        # A limit of zero is none.
        limit[limit == 0] = np.nan
        gaps = limit[-1:] if columns.given(_MEASURED_FIELDS[row][0]) else limit
        np.copyto(gaps, specified[:, resource], where=np.isnan(gaps))
    restarts = columns.counts("restarts")
    restarted: BoolArray = np.zeros(count, np.bool_)
    if restarts.any():
        restarted = restarts.reshape(-1, count)[-DEFAULT_SETTINGS.warm_up_intervals :].max(axis=0) > 0
    return MeasurementHistory(values), restarted


_MEASURED_FIELDS: Sequence[tuple[str, Range, float]] = (
    ("cpu_usage_millicores", figures.CPU_USED_MILLICORES, _MILLICORES),
    ("throttled_fraction", _FRACTION, 1.0),
    ("memory_usage_bytes", figures.BYTES, 1.0),
    ("latency_seconds", figures.LATENCY_SECONDS, 1.0),
    ("requests_per_second", figures.REQUESTS_PER_SECOND, 1.0),
    ("cpu_limit_millicores", figures.CPU_USED_MILLICORES, _MILLICORES),
    ("memory_limit_bytes", figures.BYTES, 1.0),
)
"""Field, range and divisor of each of ``MEASURED`` in order, but for the kills, which come last."""
_CPU_LIMIT, _MEMORY_LIMIT, _OOM_KILLS = (
    MEASURED.index(name) for name in ("cpu_limit_cores", "memory_limit_bytes", "oom_kills")
)


def _hold(qos: NDArray[np.uint8], stale: BoolArray, restarted: BoolArray) -> NDArray[np.uint8]:
    hold = np.where(restarted, ScalingReason.RESTARTED, 0)
    hold = np.where(stale, ScalingReason.STALE_SAMPLE, hold)
    return np.where(qos == QosClass.BEST_EFFORT, ScalingReason.BEST_EFFORT, hold).astype(np.uint8)


def _constraints(columns: _Columns, in_force: Float64Array, hold: NDArray[np.uint8]) -> Constraints:
    """Bounds in whole millicores and mebibytes. Those that nobody asked for force no change."""
    asked_smallest = np.stack(
        (
            columns.optional("smallest_cpu_millicores", figures.CPU_MILLICORES) / _MILLICORES,
            columns.optional("smallest_memory_bytes", figures.MEMORY_BYTES),
        ),
        axis=1,
    )
    asked_largest = np.stack(
        (
            columns.optional("largest_cpu_millicores", figures.CPU_MILLICORES) / _MILLICORES,
            columns.optional("largest_memory_bytes", figures.MEMORY_BYTES),
        ),
        axis=1,
    )
    default = DEFAULT_SETTINGS
    smallest = np.fmin(in_force, (default.smallest_cpu_cores, default.smallest_memory_bytes))
    largest = np.fmax(in_force, (default.largest_cpu_cores, default.largest_memory_bytes))
    smallest = np.where(np.isnan(asked_smallest), smallest, quantised(asked_smallest))
    rounded_down = quantised(asked_largest, np.ones(asked_largest.shape, np.bool_))
    largest = np.where(np.isnan(asked_largest), largest, rounded_down)
    crossed = smallest > largest
    # What was asked for goes before what is taken for granted.
    smallest = np.where(crossed & np.isnan(asked_smallest), largest, smallest)
    largest = np.where(crossed & np.isnan(asked_largest), smallest, largest)
    wrong = smallest > largest
    if wrong.any():
        row, resource = np.argwhere(wrong)[0].tolist()
        name, value = (
            ("cpu_millicores", asked_smallest[row, 0] * _MILLICORES),
            ("memory_bytes", asked_smallest[row, 1]),
        )[resource]
        raise InvalidArgumentError(
            f"containers.smallest_{name}[{row}]", float(value), f"must not be above containers.largest_{name}"
        )
    return Constraints(smallest[:, 0], largest[:, 0], smallest[:, 1], largest[:, 1], hold)


def _last_resizes(columns: _Columns, count: int) -> LastResizes:
    status = columns.enumeration("status", ResizeStatus)
    failed = status == ResizeStatus.ERROR
    if failed.any():
        for field in ("failures", "seconds_since_attempt"):
            if not columns.given(field):
                raise InvalidArgumentError(
                    f"last_resizes.{field}",
                    "none",
                    f"must be given, for status[{int(failed.argmax())}] is ERROR",
                )
    seconds = columns.optional("seconds_since_attempt", _AGE_SECONDS)
    return LastResizes(
        status=status,
        attempted=np.stack(
            (
                columns.optional("attempted_cpu_millicores", figures.CPU_USED_MILLICORES) / _MILLICORES,
                columns.optional("attempted_memory_bytes", figures.BYTES),
            ),
            axis=1,
        ),
        failures=columns.counts("failures"),
        # Not known: as if it had been just now, for nothing is urgent about a repetition.
        seconds_since_attempt=np.nan_to_num(seconds),
    )


def _require_unique(field: str, names: Sequence[str]) -> None:
    if len(set(names)) == len(names) and "" not in names:
        return
    rows: dict[str, int] = {}
    for row, name in enumerate(names):
        if not name:
            raise InvalidArgumentError(f"{field}[{row}]", name, "must not be empty")
        if rows.setdefault(name, row) != row:
            raise InvalidArgumentError(
                f"{field}[{row}]", name, f"appears at {rows[name]} already; names must be unique"
            )


def _millicores(cores: Float64Array) -> list[float]:
    millicores: list[float] = np.round(cores * _MILLICORES, 6).tolist()
    return millicores


def _provenance(origin: DecisionOrigin, sample_age_seconds: float) -> Provenance:
    return Provenance(
        policy=origin.policy,
        policy_version=origin.version,
        source=origin.source,  # type: ignore[arg-type]
        fallback_reason=origin.reason,  # type: ignore[arg-type]
        snapshot_age_seconds=sample_age_seconds,
    )
