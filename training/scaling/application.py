"""A microservice application: its containers, the nodes they run on and the calls that each kind of request makes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy_server.cluster.snapshot import BoolArray, Float64Array, Int64Array

MEBIBYTE = 2.0**20
NO_PARENT = -1


class ApplicationError(ValueError):
    """An application that contradicts itself or cannot be read. Names the field, the value and the remedy."""


@dataclass(frozen=True, slots=True)
class MachineNode:
    """A machine.

    Attributes:
        name: unique.
        cpu_cores: that its containers share.
        memory_mebibytes: that its containers share.
        site: nodes of one site are near each other.
    """

    name: str
    cpu_cores: float
    memory_mebibytes: float
    site: str


@dataclass(frozen=True, slots=True)
class Service:
    """A service, run by one container.

    Attributes:
        name: unique.
        node: name of the node its container runs on.
        base_memory_mebibytes: held right after a start.
        request_memory_mebibytes: held by each request in the container.
        cache_memory_mebibytes: that caches and garbage add in the course of time.
        cache_requests: after so many requests 63 % of the cache memory is filled.
        restart_seconds: from an out-of-memory kill until it serves again.
    """

    name: str
    node: str
    base_memory_mebibytes: float
    request_memory_mebibytes: float
    cache_memory_mebibytes: float
    cache_requests: float = 20_000.0
    restart_seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a service and the calls it makes in turn.

    Attributes:
        service: name.
        cpu_milliseconds: mean work of the call itself, at the speed of one core.
        then: stages, one after another once the own work is done; the calls of a stage run at the same time.
        background: nobody waits for it.
    """

    service: str
    cpu_milliseconds: float
    then: tuple[tuple[Call, ...], ...] = ()
    background: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """A kind of request.

    Attributes:
        name: unique.
        share: of all requests; shares are relative to their sum.
        call: what it asks of the entry service.
    """

    name: str
    share: float
    call: Call


@dataclass(frozen=True, slots=True)
class Network:
    """One-way delays.

    Attributes:
        client_seconds: from clients to the entry service.
        node_seconds: within a node.
        site_seconds: between nodes of a site.
        cloud_seconds: between sites.
    """

    client_seconds: float = 0.002
    node_seconds: float = 0.0001
    site_seconds: float = 0.0005
    cloud_seconds: float = 0.008


@dataclass(frozen=True, slots=True)
class Application:
    """An application as a whole.

    Attributes:
        name: of the application.
        latency_objective_seconds: a request that takes longer violates the objective.
        client_timeout_seconds: after which a client gives a request up; it counts as failed.
        mean_rate_per_second: requests per second that ``normal`` load offers on average.
        nodes: machines.
        services: one container each.
        operations: kinds of request.
        network: delays.
        work_deviation: coefficient of variation of the work of a call, which is log-normal.
    """

    name: str
    latency_objective_seconds: float
    client_timeout_seconds: float
    mean_rate_per_second: float
    nodes: tuple[MachineNode, ...]
    services: tuple[Service, ...]
    operations: tuple[Operation, ...]
    network: Network = field(default_factory=Network)
    work_deviation: float = 0.7

    def __post_init__(self) -> None:
        _check_unique("nodes", [node.name for node in self.nodes])
        _check_unique("services", [service.name for service in self.services])
        _check_unique("operations", [operation.name for operation in self.operations])
        nodes = {node.name for node in self.nodes}
        services = {service.name for service in self.services}
        for service in self.services:
            if service.node not in nodes:
                raise ApplicationError(
                    f"services.{service.name}.node: {service.node!r}; name one of {sorted(nodes)}"
                )
        for operation in self.operations:
            for call in _calls(operation.call):
                if call.service not in services:
                    raise ApplicationError(
                        f"operations.{operation.name}: calls {call.service!r}; name one of {sorted(services)}"
                    )
                _check_above_zero(
                    f"operations.{operation.name}.{call.service}.cpu_milliseconds", call.cpu_milliseconds
                )
            _check_above_zero(f"operations.{operation.name}.share", operation.share)
        if self.client_timeout_seconds < self.latency_objective_seconds:
            raise ApplicationError(
                f"client_timeout_seconds: {self.client_timeout_seconds}; must not be below "
                f"latency_objective_seconds, {self.latency_objective_seconds}"
            )

    @property
    def service_names(self) -> tuple[str, ...]:
        """Names of the services, in the order of the containers."""
        return tuple(service.name for service in self.services)


@dataclass(frozen=True, slots=True, eq=False)
class CallGraph:
    """The call trees of all operations as arrays: V calls in depth-first order, S services, O operations, N nodes.

    Attributes:
        operation_cumulative: float64 [O], cumulative shares, the last is 1.
        operation_start: int64 [O + 1], first call of each operation.
        call_service: int64 [V].
        call_parent: int64 [V], row of the calling call, ``NO_PARENT`` for the entry call.
        call_depth: int64 [V], 0 for the entry call.
        call_stage: int64 [V], stage of the parent it belongs to.
        call_background: bool [V].
        call_cpu_seconds: float64 [V], mean own work.
        call_delay_seconds: float64 [V], one-way network delay from the caller (or the client).
        service_node: int64 [S].
        base_memory_bytes: float64 [S].
        request_memory_bytes: float64 [S].
        cache_memory_bytes: float64 [S].
        cache_requests: float64 [S].
        restart_seconds: float64 [S].
        node_cpu_cores: float64 [N].
        node_memory_bytes: float64 [N].
    """

    operation_cumulative: Float64Array
    operation_start: Int64Array
    call_service: Int64Array
    call_parent: Int64Array
    call_depth: Int64Array
    call_stage: Int64Array
    call_background: BoolArray
    call_cpu_seconds: Float64Array
    call_delay_seconds: Float64Array
    service_node: Int64Array
    base_memory_bytes: Float64Array
    request_memory_bytes: Float64Array
    cache_memory_bytes: Float64Array
    cache_requests: Float64Array
    restart_seconds: Float64Array
    node_cpu_cores: Float64Array
    node_memory_bytes: Float64Array

    @staticmethod
    def of(application: Application) -> CallGraph:
        """Flattens the application."""
        service_row = {service.name: row for row, service in enumerate(application.services)}
        node_row = {node.name: row for row, node in enumerate(application.nodes)}
        site = {node.name: node.site for node in application.nodes}
        node_of = {service.name: service.node for service in application.services}
        network = application.network

        def delay_seconds(caller: str | None, called: str) -> float:
            if caller is None:
                return network.client_seconds
            if node_of[caller] == node_of[called]:
                return network.node_seconds
            if site[node_of[caller]] == site[node_of[called]]:
                return network.site_seconds
            return network.cloud_seconds

        rows: list[tuple[int, int, int, int, bool, float, float]] = []

        def flatten(call: Call, parent: int, depth: int, stage: int, caller: str | None) -> None:
            row = len(rows)
            rows.append(
                (
                    service_row[call.service],
                    parent,
                    depth,
                    stage,
                    call.background,
                    call.cpu_milliseconds / 1000.0,
                    delay_seconds(caller, call.service),
                )
            )
            for number, calls in enumerate(call.then):
                for child in calls:
                    flatten(child, row, depth + 1, number, call.service)

        starts = [0]
        for operation in application.operations:
            flatten(operation.call, NO_PARENT, 0, 0, None)
            starts.append(len(rows))
        service, parent, depth, stage, background, cpu, delay = zip(*rows, strict=True)
        share = np.array([operation.share for operation in application.operations])
        cumulative = np.cumsum(share) / share.sum()
        cumulative[-1] = 1.0
        return CallGraph(
            operation_cumulative=cumulative,
            operation_start=np.array(starts, np.int64),
            call_service=np.array(service, np.int64),
            call_parent=np.array(parent, np.int64),
            call_depth=np.array(depth, np.int64),
            call_stage=np.array(stage, np.int64),
            call_background=np.array(background, np.bool_),
            call_cpu_seconds=np.array(cpu),
            call_delay_seconds=np.array(delay),
            service_node=np.array([node_row[s.node] for s in application.services], np.int64),
            base_memory_bytes=_bytes(s.base_memory_mebibytes for s in application.services),
            request_memory_bytes=_bytes(s.request_memory_mebibytes for s in application.services),
            cache_memory_bytes=_bytes(s.cache_memory_mebibytes for s in application.services),
            cache_requests=np.array([s.cache_requests for s in application.services]),
            restart_seconds=np.array([s.restart_seconds for s in application.services]),
            node_cpu_cores=np.array([n.cpu_cores for n in application.nodes]),
            node_memory_bytes=_bytes(n.memory_mebibytes for n in application.nodes),
        )

    @property
    def mean_cpu_seconds_per_request(self) -> Float64Array:
        """float64 [S]: work that an average request brings to each service."""
        share = np.diff(np.concatenate(([0.0], self.operation_cumulative)))
        calls_share = np.repeat(share, np.diff(self.operation_start))
        work = self.call_cpu_seconds * calls_share
        return np.bincount(self.call_service, work, len(self.service_node)).astype(np.float64)


def read_application(path: Path) -> Application:
    """Reads an application from JSON whose keys are the fields of :class:`Application` and its parts.

    Raises:
        ApplicationError: not readable, not JSON, a missing, unknown or wrong key, or a contradiction.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ApplicationError(f"{path}: cannot be read: {error.strerror}; give an existing file") from error
    except ValueError as error:
        raise ApplicationError(f"{path}: is not JSON: {error}") from error
    return parse_application(document)


def parse_application(document: object) -> Application:
    """The application that a JSON document describes; see :func:`read_application`.

    Raises:
        ApplicationError: as :func:`read_application`.
    """
    keys = _Fields("", document)
    return Application(
        name=keys.text("name"),
        latency_objective_seconds=keys.number("latency_objective_seconds"),
        client_timeout_seconds=keys.number("client_timeout_seconds"),
        mean_rate_per_second=keys.number("mean_rate_per_second"),
        nodes=tuple(
            MachineNode(
                name=node.text("name"),
                cpu_cores=node.number("cpu_cores"),
                memory_mebibytes=node.number("memory_mebibytes"),
                site=node.text("site"),
            )
            for node in keys.objects("nodes", MachineNode)
        ),
        services=tuple(
            Service(
                name=service.text("name"),
                node=service.text("node"),
                base_memory_mebibytes=service.number("base_memory_mebibytes"),
                request_memory_mebibytes=service.number("request_memory_mebibytes"),
                cache_memory_mebibytes=service.number("cache_memory_mebibytes"),
                cache_requests=service.number("cache_requests", 20_000.0),
                restart_seconds=service.number("restart_seconds", 5.0),
            )
            for service in keys.objects("services", Service)
        ),
        operations=tuple(
            Operation(
                operation.text("name"), operation.number("share"), _parse_call(operation.child("call", Call))
            )
            for operation in keys.objects("operations", Operation)
        ),
        network=_parse_network(keys),
        work_deviation=keys.number("work_deviation", 0.7),
    )


def _parse_network(keys: _Fields) -> Network:
    if not keys.has("network"):
        return Network()
    network, default = keys.child("network", Network), Network()
    return Network(
        client_seconds=network.number("client_seconds", default.client_seconds),
        node_seconds=network.number("node_seconds", default.node_seconds),
        site_seconds=network.number("site_seconds", default.site_seconds),
        cloud_seconds=network.number("cloud_seconds", default.cloud_seconds),
    )


def _parse_call(keys: _Fields) -> Call:
    return Call(
        service=keys.text("service"),
        cpu_milliseconds=keys.number("cpu_milliseconds"),
        then=tuple(tuple(_parse_call(call) for call in stage) for stage in keys.stages("then")),
        background=keys.flag("background"),
    )


class _Fields:
    """A JSON object under inspection; every complaint names the path to the key."""

    def __init__(self, path: str, value: object, kind: type = Application) -> None:
        if not isinstance(value, dict):
            raise ApplicationError(f"{path or 'application'}: {_shown(value)}; must be an object")
        self._path = path
        self._values: Mapping[str, Any] = value
        known = [column.name for column in fields(kind)]
        for key in value:
            if key not in known:
                raise ApplicationError(f"{self._at(key)}: is unknown; known are {', '.join(known)}")

    def has(self, key: str) -> bool:
        return key in self._values

    def text(self, key: str) -> str:
        value = self._required(key)
        if not isinstance(value, str) or not value:
            raise ApplicationError(f"{self._at(key)}: {_shown(value)}; must be a text that is not empty")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._values.get(key, default) if default is not None else self._required(key)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
            or value < 0
        ):
            raise ApplicationError(f"{self._at(key)}: {_shown(value)}; must be a finite number, zero or more")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self._values.get(key, False)
        if not isinstance(value, bool):
            raise ApplicationError(f"{self._at(key)}: {_shown(value)}; must be true or false")
        return value

    def child(self, key: str, kind: type) -> _Fields:
        return _Fields(self._at(key), self._required(key), kind)

    def objects(self, key: str, kind: type) -> list[_Fields]:
        values = self._list(key, self._required(key))
        if not values:
            raise ApplicationError(f"{self._at(key)}: is empty; give at least one")
        return [_Fields(f"{self._at(key)}[{row}]", value, kind) for row, value in enumerate(values)]

    def stages(self, key: str) -> list[list[_Fields]]:
        return [
            [
                _Fields(f"{self._at(key)}[{number}][{row}]", call, Call)
                for row, call in enumerate(self._list(f"{key}[{number}]", stage))
            ]
            for number, stage in enumerate(self._list(key, self._values.get(key, [])))
        ]

    def _list(self, key: str, value: object) -> list[Any]:
        if not isinstance(value, list):
            raise ApplicationError(f"{self._at(key)}: {_shown(value)}; must be a list")
        return value

    def _required(self, key: str) -> Any:
        if key not in self._values:
            raise ApplicationError(f"{self._at(key)}: is missing")
        return self._values[key]

    def _at(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _calls(call: Call) -> Iterator[Call]:
    yield call
    for stage in call.then:
        for child in stage:
            yield from _calls(child)


def _bytes(mebibytes: Iterator[float]) -> NDArray[np.float64]:
    return np.array(list(mebibytes)) * MEBIBYTE


def _check_unique(field_name: str, names: list[str]) -> None:
    if not names:
        raise ApplicationError(f"{field_name}: is empty; give at least one")
    for name in names:
        if names.count(name) > 1:
            raise ApplicationError(f"{field_name}: {name!r} occurs twice; names are unique")


def _check_above_zero(field_name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ApplicationError(f"{field_name}: {value}; must be a finite number above zero")
