"""``policy.v1.ScalingService`` by rows: a mapping per container in, a recommendation per container out.

The service takes columns, which are read a hundred times faster; people and most controllers think of one container
at a time. Field names are those of the proto file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from policy_server.proto.policy.v1.decision_pb2 import DecisionSource, FallbackReason
from policy_server.proto.policy.v1.scaling_service_pb2 import (
    HoldReason,
    LastResizes,
    QosClass,
    ResizeStatus,
    ScaleRequest,
    ScaleResponse,
    ScalingApplications,
    ScalingContainers,
    ScalingHistory,
    ScalingNodes,
    ScalingReason,
)

Row = Mapping[str, Any]

_WORD_STARTS = re.compile(r"(?<=[a-z])(?=[A-Z])")


class ScalingDocumentError(ValueError):
    """Rows that cannot become a request. The message names the field, its value and the remedy."""


@dataclass(frozen=True)
class ResourceRecommendation:
    """CPU in millicores, or memory in bytes, of one container; ``lower_bound <= target <= upper_bound``.

    Attributes:
        target: what to set; NaN where there is no recommendation.
        lower_bound: a limit below is too small.
        upper_bound: a limit above is wasteful.
        uncapped_target: what the policy wanted, before anything made it safe.
        reason: why the target is what it is, such as ``STEP_LIMITED``.
        request: what the pod should specify; None where it specifies none.
        limit: likewise.
    """

    target: float
    lower_bound: float
    upper_bound: float
    uncapped_target: float
    reason: str
    request: float | None
    limit: float | None


@dataclass(frozen=True)
class ContainerRecommendation:
    """What the server says of one container.

    Attributes:
        container: its id.
        apply: whether to write requests and limits into the pod's ``resize`` subresource now.
        hold_reason: why not, such as ``RESIZE_DEFERRED``; empty where they are to be applied.
        cpu: in millicores.
        memory: in bytes.
        policy: who decided.
        policy_version: of that policy.
        source: ``LEARNED``, ``HEURISTIC`` or ``FALLBACK``.
        fallback_reason: why it was the fallback; empty where it was not.
    """

    container: str
    apply: bool
    hold_reason: str
    cpu: ResourceRecommendation
    memory: ResourceRecommendation
    policy: str
    policy_version: str
    source: str
    fallback_reason: str


def scale_request(
    containers: Sequence[Row],
    *,
    nodes: Sequence[Row] = (),
    applications: Sequence[Row] = (),
    policy: str = "",
    economy: float | None = None,
) -> ScaleRequest:
    """The request of rows.

    Args:
        containers: each with ``id`` and any other field of ``ScalingContainers`` (``node`` and ``application`` by
            name, ``qos_class`` as Kubernetes calls it), ``history``, a list of intervals with the oldest first and
            fields of ``ScalingHistory``, and ``last_resize`` with fields of ``LastResizes``. What is left out, or
            None, is not known.
        nodes: each with the fields of ``ScalingNodes``.
        applications: each with the fields of ``ScalingApplications``.
        policy: to ask; empty: the active one.
        economy: 0 spares latency most, 1 resources; None: as the server is set.

    Raises:
        ScalingDocumentError: a field that there is not, a value of the wrong type, or a name that is not known.
    """
    request = ScaleRequest(policy=policy, economy=economy)
    _fill(request.nodes, "nodes", nodes)
    _fill(request.applications, "applications", applications)
    vocabularies = {
        "node": {name: row for row, name in enumerate(request.nodes.name)},
        "application": {name: row for row, name in enumerate(request.applications.name)},
    }
    _fill(request.containers, "containers", containers, vocabularies, also=("history", "last_resize"))
    histories = [_rows(f"containers[{row}].history", c.get("history")) for row, c in enumerate(containers)]
    intervals = max(map(len, histories), default=0)
    by_interval: list[Row] = []
    paths: list[str] = []
    for age in range(intervals, 0, -1):
        for row, history in enumerate(histories):
            by_interval.append(history[-age] if age <= len(history) else {})
            paths.append(f"containers[{row}].history[{len(history) - age}]")
    _fill(request.history, paths, by_interval)
    request.history.intervals = intervals
    resizes = [c.get("last_resize") or {} for c in containers]
    if any(resizes):
        _fill(request.last_resizes, [f"containers[{r}].last_resize" for r in range(len(resizes))], resizes)
    return request


def scale_request_of_document(document: Any) -> ScaleRequest:
    """The request of a mapping with the arguments of :func:`scale_request` as keys, such as JSON or YAML holds.

    Raises:
        ScalingDocumentError: as :func:`scale_request`, or another key.
    """
    known = ("policy", "economy", "nodes", "applications", "containers")
    if not isinstance(document, Mapping):
        raise ScalingDocumentError(
            f"document: {document!r}; must be a mapping with the keys {', '.join(known)}"
        )
    for key in document:
        if key not in known:
            raise ScalingDocumentError(f"{key}: unknown; known are {', '.join(known)}")
    economy = document.get("economy")
    return scale_request(
        _rows("containers", document.get("containers")),
        nodes=_rows("nodes", document.get("nodes")),
        applications=_rows("applications", document.get("applications")),
        policy=_text("policy", document.get("policy") or ""),
        economy=None if economy is None else _number("economy", economy),
    )


def recommendations(request: ScaleRequest, response: ScaleResponse) -> list[ContainerRecommendation]:
    """The rows of a response, in the order of the request's containers."""
    origins = [response.provenances[row] for row in response.provenance]
    return [
        ContainerRecommendation(
            container=container,
            apply=response.apply[row],
            hold_reason=_name(HoldReason.DESCRIPTOR, response.hold_reason[row]),
            cpu=ResourceRecommendation(
                response.cpu_target_millicores[row],
                response.cpu_lower_bound_millicores[row],
                response.cpu_upper_bound_millicores[row],
                response.cpu_uncapped_target_millicores[row],
                _name(ScalingReason.DESCRIPTOR, response.cpu_reason[row]),
                _set(response.cpu_request_millicores[row]),
                _set(response.cpu_limit_millicores[row]),
            ),
            memory=ResourceRecommendation(
                response.memory_target_bytes[row],
                response.memory_lower_bound_bytes[row],
                response.memory_upper_bound_bytes[row],
                response.memory_uncapped_target_bytes[row],
                _name(ScalingReason.DESCRIPTOR, response.memory_reason[row]),
                _set(response.memory_request_bytes[row]),
                _set(response.memory_limit_bytes[row]),
            ),
            policy=origins[row].policy,
            policy_version=origins[row].policy_version,
            source=_name(DecisionSource.DESCRIPTOR, origins[row].source),
            fallback_reason=_name(FallbackReason.DESCRIPTOR, origins[row].fallback_reason),
        )
        for row, container in enumerate(request.containers.id)
    ]


def resize_patch(containers: Mapping[str, ContainerRecommendation]) -> dict[str, Any]:
    """The body of a strategic merge patch of a pod's ``resize`` subresource.

    Send it with ``PATCH /api/v1/namespaces/NAMESPACE/pods/POD/resize`` and the content type
    ``application/strategic-merge-patch+json``. Containers are merged by name and resources by key, so what is not
    named stays as it is, and nothing is removed.

    Args:
        containers: recommendations to apply, by the names that the containers have in the pod.
    """
    return {
        "spec": {
            "containers": [
                {"name": name, "resources": _resources(recommendation)}
                for name, recommendation in containers.items()
            ]
        }
    }


def cpu_quantity(millicores: float) -> str:
    """A Kubernetes quantity in canonical form: ``250m``, ``2``."""
    whole = round(millicores)
    return str(whole // 1000) if whole % 1000 == 0 else f"{whole}m"


def memory_quantity(size_bytes: float) -> str:
    """A Kubernetes quantity in canonical form: ``512Mi``, ``2Gi``, ``1000``."""
    whole = round(size_bytes)
    for suffix in ("", "Ki", "Mi", "Gi", "Ti"):
        if whole % 1024 or not whole or suffix == "Ti":
            return f"{whole}{suffix}"
        whole //= 1024
    raise AssertionError("unreachable")


def _resources(recommendation: ContainerRecommendation) -> dict[str, dict[str, str]]:
    cpu, memory = recommendation.cpu, recommendation.memory
    resources: dict[str, dict[str, str]] = {}
    for kind, cpu_value, memory_value in (
        ("requests", cpu.request, memory.request),
        ("limits", cpu.limit, memory.limit),
    ):
        values = {}
        if cpu_value is not None:
            values["cpu"] = cpu_quantity(cpu_value)
        if memory_value is not None:
            values["memory"] = memory_quantity(memory_value)
        if values:
            resources[kind] = values
    return resources


def _fill(
    message: ScalingNodes | ScalingApplications | ScalingContainers | ScalingHistory | LastResizes,
    path: str | Sequence[str],
    rows: Sequence[Row],
    vocabularies: Mapping[str, Mapping[str, int]] | None = None,
    also: Iterable[str] = (),
) -> None:
    """Turns rows into the columns of a message; a field that no row has stays empty."""
    descriptor: Descriptor = message.DESCRIPTOR
    fields = {field.name: field for field in descriptor.fields if field.is_repeated}
    known = (*fields, *also)
    paths = [f"{path}[{row}]" for row in range(len(rows))] if isinstance(path, str) else path
    for place, row in zip(paths, rows, strict=True):
        if not isinstance(row, Mapping):
            raise ScalingDocumentError(f"{place}: {row!r}; must be a mapping")
        for key in row:
            if key not in known:
                raise ScalingDocumentError(f"{place}.{key}: unknown; known are {', '.join(known)}")
    for name, field in fields.items():
        if any(row.get(name) is not None for row in rows):
            vocabulary = (vocabularies or {}).get(name)
            column = [
                _value(f"{place}.{name}", field, row.get(name), vocabulary)
                for place, row in zip(paths, rows, strict=True)
            ]
            getattr(message, name).extend(column)


def _value(path: str, field: FieldDescriptor, value: Any, vocabulary: Mapping[str, int] | None) -> Any:
    if vocabulary is not None:
        if value in vocabulary:
            return vocabulary[value]
        raise ScalingDocumentError(f"{path}: {value!r}; must be one of {', '.join(vocabulary) or 'none'}")
    if field.type == FieldDescriptor.TYPE_STRING:
        return _text(path, value)
    if field.enum_type is not None:
        return _number_of_name(path, field.enum_type, value)
    if field.type == FieldDescriptor.TYPE_UINT32:
        if value is None:
            return 0
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**32:
            raise ScalingDocumentError(f"{path}: {value!r}; must be a whole number, 0 or above")
        return value
    return math.nan if value is None else _number(path, value)


def _rows(path: str, rows: Any) -> Sequence[Any]:
    if rows is None:
        return ()
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        raise ScalingDocumentError(f"{path}: {rows!r}; must be a list")
    return rows


def _text(path: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ScalingDocumentError(f"{path}: {value!r}; must be a string")
    return value


def _number(path: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ScalingDocumentError(f"{path}: {value!r}; must be a number")
    return float(value)


def _number_of_name(path: str, kind: EnumDescriptor, value: Any) -> int:
    """The number of a name, be it written ``BestEffort`` as Kubernetes does or ``BEST_EFFORT``."""
    if value is None:
        return 0
    prefix = _prefix(kind)
    name = _WORD_STARTS.sub("_", str(value)).upper()
    known = kind.values_by_name.get(prefix + name)
    if known is None:
        names = ", ".join(entry.name.removeprefix(prefix) for entry in kind.values)
        raise ScalingDocumentError(f"{path}: {value!r}; must be one of {names}")
    return int(known.number)


def _name(kind: EnumDescriptor, number: int) -> str:
    """The name of a number without its prefix; empty for UNSPECIFIED, the number itself where it is not known."""
    known = kind.values_by_number.get(number)
    if known is None:
        return str(number)
    return "" if number == 0 else str(known.name).removeprefix(_prefix(kind))


def _prefix(kind: EnumDescriptor) -> str:
    return f"{_WORD_STARTS.sub('_', kind.name).upper()}_"


def _set(value: float) -> float | None:
    return None if math.isnan(value) else value


__all__ = [
    "ContainerRecommendation",
    "QosClass",
    "ResizeStatus",
    "ResourceRecommendation",
    "ScalingDocumentError",
    "cpu_quantity",
    "memory_quantity",
    "recommendations",
    "resize_patch",
    "scale_request",
    "scale_request_of_document",
]
