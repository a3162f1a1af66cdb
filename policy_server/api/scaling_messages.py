"""Messages of ``policy.v1.ScalingService`` to questions, and answers to messages.

Numbers are in the caller's units on one side (millicores) and in those of the domain (cores) on the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policy_server.api import figures
from policy_server.api.columns import Columns, Figures
from policy_server.api.errors import Count, InvalidArgumentError
from policy_server.api.figures import Range
from policy_server.api.scaling_questions import ScalingAnswer, ScalingQuestion
from policy_server.cluster.containers import MEASURED, UNLIMITED, Fleet, MeasurementHistory
from policy_server.cluster.snapshot import BoolArray, Float64Array
from policy_server.policies.decision_origin import DecisionOrigin
from policy_server.policies.scaling.batch import ScalingTask
from policy_server.policies.scaling.resize import (
    CPU_QUANTUM_CORES,
    MEMORY_QUANTUM_BYTES,
    LastResizes,
    PodResources,
    QosClass,
    ResizeStatus,
    qos_of_resources,
    quantised,
)
from policy_server.policies.scaling.safety import DEFAULT_SETTINGS, Constraints, ScalingReason
from policy_server.proto.policy.v1.decision_pb2 import Provenance
from policy_server.proto.policy.v1.scaling_service_pb2 import ScaleRequest, ScaleResponse

DEFAULT_LATENCY_OBJECTIVE_SECONDS = 0.2
MAXIMUM_INTERVALS = 256
_MILLICORES = 1000.0
_SHARE = Range(0, 1)
_AGE_SECONDS = Range(0, 1e9)
_NODES = Figures(
    {"cpu_millicores": figures.CPU_MILLICORES, "memory_bytes": figures.MEMORY_BYTES}, unknown=np.inf
)
_APPLICATIONS = Figures({"latency_objective_seconds": figures.DEADLINE_SECONDS}, unknown=None)
_SPECIFIED = Figures(
    {
        # A request may be zero; a limit of zero would be none.
        "cpu_request_millicores": figures.CPU_USED_MILLICORES,
        "memory_request_bytes": figures.BYTES,
        "cpu_limit_millicores": figures.CPU_MILLICORES,
        "memory_limit_bytes": figures.MEMORY_BYTES,
    }
)
# A limit of less than one quantum would be written as zero, which means none.
_BOUND_MILLICORES = Range(CPU_QUANTUM_CORES * _MILLICORES, 1e9)
_BOUND_BYTES = Range(MEMORY_QUANTUM_BYTES, 1e18)
_BOUNDS = Figures(
    {
        "smallest_cpu_millicores": _BOUND_MILLICORES,
        "smallest_memory_bytes": _BOUND_BYTES,
        "largest_cpu_millicores": _BOUND_MILLICORES,
        "largest_memory_bytes": _BOUND_BYTES,
    }
)
_AGE = Figures({"sample_age_seconds": _AGE_SECONDS})
_MEASURED = Figures(
    {
        "cpu_usage_millicores": figures.CPU_USED_MILLICORES,
        "throttled_fraction": _SHARE,
        "memory_usage_bytes": figures.BYTES,
        "latency_seconds": figures.LATENCY_SECONDS,
        "requests_per_second": figures.REQUESTS_PER_SECOND,
        "cpu_limit_millicores": figures.CPU_USED_MILLICORES,
        "memory_limit_bytes": figures.BYTES,
    }
)
"""As ``MEASURED``, but for the kills, which come last."""
_ATTEMPTED = Figures(
    {
        "attempted_cpu_millicores": figures.CPU_USED_MILLICORES,
        "attempted_memory_bytes": figures.BYTES,
        "seconds_since_attempt": _AGE_SECONDS,
    }
)
_CPU_USAGE, _CPU_LIMIT, _MEMORY_LIMIT, _OOM_KILLS = (
    MEASURED.index(name) for name in ("cpu_usage_cores", "cpu_limit_cores", "memory_limit_bytes", "oom_kills")
)
_DEFAULT_SMALLEST = (DEFAULT_SETTINGS.smallest_cpu_cores, DEFAULT_SETTINGS.smallest_memory_bytes)
_DEFAULT_LARGEST = (DEFAULT_SETTINGS.largest_cpu_cores, DEFAULT_SETTINGS.largest_memory_bytes)


@dataclass(frozen=True)
class ScalingLimits:
    """What is accepted, and taken for granted where a request does not say.

    Attributes:
        containers: most that one request may carry.
        stale_after_seconds: age of a measurement beyond which its container is held.
        economy: 0 (latency counts most) to 1 (resources count most).
    """

    containers: int = 10_000
    stale_after_seconds: float = 60.0
    economy: float = 0.5


def question_from_message(request: ScaleRequest, limits: ScalingLimits) -> ScalingQuestion:
    """The question of a request.

    Raises:
        InvalidArgumentError: a field cannot be used.
    """
    names = request.containers.id
    count = len(names)
    if count > limits.containers:
        raise InvalidArgumentError(
            "containers.id",
            Count(count, "containers"),
            f"at most {limits.containers} are accepted; send fewer",
        )
    _require_unique("containers.id", names)
    columns = Columns(request.containers, "containers", count, "one per container")
    specified = columns.figures(_SPECIFIED)
    specified[0::2] /= _MILLICORES
    pod_requests, pod_limits = specified[:2].T, specified[2:].T
    qos = _qos(columns, pod_requests, pod_limits)
    history, hold = _history(request, count, np.where(np.isnan(pod_limits), pod_requests, pod_limits))
    in_force = np.array((history.newest("cpu_limit_cores"), history.newest("memory_limit_bytes"))).T
    oldest_seconds = 0.0
    if columns.given("sample_age_seconds"):
        ages_seconds = columns.figures(_AGE)[0]
        oldest_seconds = float(np.fmax.reduce(ages_seconds, initial=0.0))
        # An age that is not known is no reason to trust the sample.
        hold = np.where(ages_seconds <= limits.stale_after_seconds, hold, ScalingReason.STALE_SAMPLE)
    hold = np.where(qos == QosClass.BEST_EFFORT, ScalingReason.BEST_EFFORT, hold).astype(np.uint8)
    economy = limits.economy
    if request.HasField("economy"):
        economy = _SHARE.check("economy", request.economy)
    guaranteed = (qos == QosClass.GUARANTEED)[:, None]
    task = ScalingTask(
        fleet=_fleet(request, columns, count),
        history=history,
        constraints=_constraints(columns, in_force, hold),
        pods=PodResources(
            qos=qos,
            requests=np.where(guaranteed & np.isnan(pod_requests), pod_limits, pod_requests),
            limits=pod_limits,
            in_force=in_force,
        ),
        last=_last_resizes(request, count),
        economy=np.full(count, economy),
    )
    return ScalingQuestion(request.policy, task, oldest_seconds)


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


def _qos(columns: Columns, requests: Float64Array, limits: Float64Array) -> NDArray[np.uint8]:
    """uint8 [C]: the classes, none unspecified. Of a burstable pod a container may have any requests and limits."""
    told = columns.enumeration("qos_class", QosClass)
    if told is not None and (told == QosClass.BURSTABLE).all():
        return told
    derived = qos_of_resources(requests, limits)
    if told is None:
        return derived
    unlike = (told != QosClass.UNSPECIFIED) & (told != QosClass.BURSTABLE) & (told != derived)
    if unlike.any():
        row = int(unlike.argmax())
        raise InvalidArgumentError(
            f"containers.qos_class[{row}]",
            QosClass(int(told[row])).name,
            f"the container's requests and limits are those of a {QosClass(int(derived[row])).name} pod; send what "
            "its pod specifies",
        )
    return np.where(told == QosClass.UNSPECIFIED, derived, told)


def _fleet(request: ScaleRequest, columns: Columns, count: int) -> Fleet:
    node_names, application_names = request.nodes.name, request.applications.name
    node_cpu_cores = node_memory_bytes = np.array([UNLIMITED])
    node = np.zeros(count, np.int64)
    if node_names or columns.given("node"):
        _require_unique("nodes.name", node_names)
        nodes = Columns(request.nodes, "nodes", len(node_names), "one per name").figures(_NODES)
        node_cpu_cores, node_memory_bytes = nodes[0] / _MILLICORES, nodes[1]
        node = columns.index("node", len(node_names), "nodes.name")
    application = np.arange(count)
    objective_seconds = np.full(count, DEFAULT_LATENCY_OBJECTIVE_SECONDS)
    if application_names or columns.given("application"):
        _require_unique("applications.name", application_names)
        described = Columns(request.applications, "applications", len(application_names), "one per name")
        application = columns.index("application", len(application_names), "applications.name")
        objective_seconds = described.figures(_APPLICATIONS)[0][application]
    return Fleet(application, node, objective_seconds, node_cpu_cores, node_memory_bytes)


def _history(
    request: ScaleRequest, count: int, specified: Float64Array
) -> tuple[MeasurementHistory, NDArray[np.uint8]]:
    """The history, limits filled in, and uint8 [C]: RESTARTED where that was a moment ago."""
    message, intervals = request.history, request.history.intervals
    if intervals > MAXIMUM_INTERVALS:
        raise InvalidArgumentError(
            "history.intervals", intervals, f"at most {MAXIMUM_INTERVALS} are accepted; send the newest"
        )
    columns = Columns(message, "history", intervals * count, f"one per container and interval of {intervals}")
    measured = columns.figures(_MEASURED, np.float32)
    values = np.empty((len(MEASURED), max(intervals, 1), count))
    values[:_OOM_KILLS] = measured.reshape(_OOM_KILLS, intervals, count) if intervals else np.nan
    values[_CPU_USAGE] /= _MILLICORES
    values[_CPU_LIMIT] /= _MILLICORES
    values[_OOM_KILLS] = 0.0
    kills = columns.counts("oom_kills")
    if kills is not None:
        values[_OOM_KILLS] = kills.reshape(intervals, count)
        if kills.any() and not columns.given("memory_limit_bytes"):
            raise columns.missing(
                "memory_limit_bytes",
                "give one per container and interval, so that it is known which limit was too small when oom_kills "
                "counted",
            )
    for resource, row in enumerate((_CPU_LIMIT, _MEMORY_LIMIT)):
        limit = values[row]
        limit[limit == 0] = np.nan
        gaps = limit[-1:] if columns.given(_MEASURED.fields[row]) else limit
        np.copyto(gaps, specified[:, resource], where=np.isnan(gaps))
    restarts = columns.counts("restarts")
    hold = np.zeros(count, np.uint8)
    if restarts is not None:
        lately = restarts.reshape(intervals, count)[-DEFAULT_SETTINGS.warm_up_intervals :]
        hold[lately.max(axis=0) > 0] = ScalingReason.RESTARTED
    return MeasurementHistory(values), hold


def _constraints(columns: Columns, in_force: Float64Array, hold: NDArray[np.uint8]) -> Constraints:
    """Bounds in whole millicores and mebibytes. Those that nobody asked for force no change."""
    smallest, largest = np.fmin(in_force, _DEFAULT_SMALLEST), np.fmax(in_force, _DEFAULT_LARGEST)
    if any(columns.given(field) for field in _BOUNDS.fields):
        asked = columns.figures(_BOUNDS)
        asked[0::2] /= _MILLICORES
        smallest, largest = _asked_bounds(asked[:2].T, asked[2:].T, smallest, largest)
    return Constraints(smallest[:, 0], largest[:, 0], smallest[:, 1], largest[:, 1], hold)


def _asked_bounds(
    asked_smallest: Float64Array, asked_largest: Float64Array, smallest: Float64Array, largest: Float64Array
) -> tuple[Float64Array, Float64Array]:
    """float64 [C, 2] each: what was asked for, before what is taken for granted."""
    any_smallest, any_largest = np.isnan(asked_smallest), np.isnan(asked_largest)
    down: BoolArray = np.ones(asked_largest.shape, np.bool_)
    smallest = np.where(any_smallest, smallest, quantised(asked_smallest))
    largest = np.where(any_largest, largest, quantised(asked_largest, down))
    smallest = np.where(any_smallest, np.minimum(smallest, largest), smallest)
    largest = np.where(any_largest, np.maximum(smallest, largest), largest)
    crossed = smallest > largest
    if crossed.any():
        row, resource = np.argwhere(crossed)[0].tolist()
        name, unit = (("cpu_millicores", _MILLICORES), ("memory_bytes", 1.0))[resource]
        raise InvalidArgumentError(
            f"containers.smallest_{name}[{row}]",
            float(asked_smallest[row, resource] * unit),
            f"must not be above containers.largest_{name}[{row}]",
        )
    return smallest, largest


def _last_resizes(request: ScaleRequest, count: int) -> LastResizes:
    if not request.HasField("last_resizes"):
        nothing = np.full((count, 2), np.nan)
        return LastResizes(np.zeros(count, np.uint8), nothing, np.zeros(count, np.int64), np.zeros(count))
    columns = Columns(request.last_resizes, "last_resizes", count, "one per container")
    status = columns.enumeration("status", ResizeStatus)
    failures = columns.counts("failures")
    if status is not None and (failed := status == ResizeStatus.ERROR).any():
        for field in ("failures", "seconds_since_attempt"):
            if not columns.given(field):
                raise columns.missing(
                    field, f"give one per container, for status[{failed.argmax()}] is ERROR"
                )
    attempted = columns.figures(_ATTEMPTED)
    attempted[0] /= _MILLICORES
    return LastResizes(
        status=np.zeros(count, np.uint8) if status is None else status,
        attempted=attempted[:2].T,
        failures=np.zeros(count, np.int64) if failures is None else failures,
        # Not known: as if it had been just now, for nothing is urgent about a repetition.
        seconds_since_attempt=np.nan_to_num(attempted[2]),
    )


def _require_unique(field: str, names: Sequence[str]) -> None:
    distinct = set(names)
    if len(distinct) == len(names) and "" not in distinct:
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
