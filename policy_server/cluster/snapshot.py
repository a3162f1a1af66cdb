"""The state of an edge-cloud system, as column arrays.

A simulator state and a live state are the same :class:`Snapshot`, so a policy cannot tell training from
serving. It has two halves. :class:`Topology` changes when something comes or goes; :class:`Load` changes
with every report. Whatever is derived from the topology alone is computed once and reused over many loads.

Several systems (parallel simulators, or clusters of several callers) form one snapshot by
:func:`disjoint_union`: rows are concatenated, indices shifted, and nothing links one system to another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Float32Array: TypeAlias = NDArray[np.float32]
Float64Array: TypeAlias = NDArray[np.float64]
Int32Array: TypeAlias = NDArray[np.int32]
Int64Array: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]

NO_LINK = -1


class SnapshotError(ValueError):
    """A snapshot that contradicts itself. The message names the field, the offending value and the remedy."""


class ReplicaState(IntEnum):
    """Life of a replica. Only READY replicas receive requests."""

    STARTING = 0
    READY = 1
    DRAINING = 2


@dataclass(frozen=True)
class AccessPoints:
    """Where requests enter (A rows). The cloud is a row too: an access point that receives no requests.

    Attributes:
        names: A unique names.
        is_cloud: bool [A].
        system: int32 [A], which system of a disjoint union the row belongs to; ascending.
    """

    names: tuple[str, ...]
    is_cloud: BoolArray
    system: Int32Array


@dataclass(frozen=True)
class Nodes:
    """Machines (N rows).

    Attributes:
        names: N unique names.
        access_point: int32 [N], row of the access point (or cloud) the node belongs to.
        cpu_millicores: float32 [N], allocatable CPU.
        memory_bytes: float32 [N], allocatable memory.
        speed: float32 [N], execution speed relative to the reference machine of the services' execution time.
    """

    names: tuple[str, ...]
    access_point: Int32Array
    cpu_millicores: Float32Array
    memory_bytes: Float32Array
    speed: Float32Array


@dataclass(frozen=True)
class Services:
    """What requests ask for (W rows), shared by all systems of a disjoint union.

    Attributes:
        names: W unique names.
        cpu_millicores: float32 [W], CPU that one running request holds.
        execution_seconds: float32 [W], mean execution time of one request at speed 1.
        memory_bytes: float32 [W], memory one replica holds.
        image_bytes: float32 [W], bytes pulled when a node starts its first replica.
        cold_start_seconds: float32 [W], time from pulled image to ready.
        deadline_seconds: float32 [W], typical delay requirement.
    """

    names: tuple[str, ...]
    cpu_millicores: Float32Array
    execution_seconds: Float32Array
    memory_bytes: Float32Array
    image_bytes: Float32Array
    cold_start_seconds: Float32Array
    deadline_seconds: Float32Array


@dataclass(frozen=True)
class Replicas:
    """Endpoints (R rows).

    Attributes:
        endpoints: R unique addresses (``ip:port``) or names.
        service: int32 [R].
        node: int32 [R].
        concurrency: int32 [R], requests one replica runs at the same time.
    """

    endpoints: tuple[str, ...]
    service: Int32Array
    node: Int32Array
    concurrency: Int32Array


@dataclass(frozen=True)
class Links:
    """Directed links between access points, the cloud included (L rows). No link, no forwarding.

    Attributes:
        source: int32 [L], access point row.
        target: int32 [L], access point row; differs from source.
        delay_seconds: float32 [L], one-way propagation delay.
        bandwidth_bytes_per_second: float32 [L].
    """

    source: Int32Array
    target: Int32Array
    delay_seconds: Float32Array
    bandwidth_bytes_per_second: Float32Array


@dataclass(frozen=True)
class Topology:
    """What exists and how it is connected."""

    access_points: AccessPoints
    nodes: Nodes
    services: Services
    replicas: Replicas
    links: Links
    local_delay_seconds: float = 0.001
    """One-way delay between an access point and its own nodes, whose local network never saturates."""

    def __post_init__(self) -> None:
        _check_topology(self)

    @cached_property
    def access_point_index(self) -> dict[str, int]:
        """Row of each access point name."""
        return {name: row for row, name in enumerate(self.access_points.names)}

    @cached_property
    def node_index(self) -> dict[str, int]:
        """Row of each node name."""
        return {name: row for row, name in enumerate(self.nodes.names)}

    @cached_property
    def service_index(self) -> dict[str, int]:
        """Row of each service name."""
        return {name: row for row, name in enumerate(self.services.names)}

    @cached_property
    def replica_index(self) -> dict[str, int]:
        """Row of each endpoint."""
        return {endpoint: row for row, endpoint in enumerate(self.replicas.endpoints)}

    @cached_property
    def link_row(self) -> Int32Array:
        """int32 [A, A]: row of the link from one access point to another, ``NO_LINK`` where there is none."""
        count = len(self.access_points.names)
        table = np.full((count, count), NO_LINK, dtype=np.int32)
        table[self.links.source, self.links.target] = np.arange(len(self.links.source), dtype=np.int32)
        return table

    @cached_property
    def system_count(self) -> int:
        """Number of disjoint systems."""
        return int(self.access_points.system[-1]) + 1 if len(self.access_points.system) else 0


@dataclass(frozen=True)
class Load:
    """What is going on, row by row of the topology.

    Attributes:
        access_point_queued: float32 [A], requests waiting at the access point.
        arrival_rate_per_second: float32 [A, W], recent request rate of each service at each access point.
        node_cpu_used_millicores: float32 [N].
        node_memory_used_bytes: float32 [N].
        replica_state: uint8 [R], see :class:`ReplicaState`.
        replica_queued: float32 [R], requests waiting.
        replica_running: float32 [R], requests executing.
        replica_latency_seconds: float32 [R], recent response time seen by callers; NaN where unknown.
        link_backlog_bytes: float32 [L], bytes waiting to be sent.
    """

    access_point_queued: Float32Array
    arrival_rate_per_second: Float32Array
    node_cpu_used_millicores: Float32Array
    node_memory_used_bytes: Float32Array
    replica_state: NDArray[np.uint8]
    replica_queued: Float32Array
    replica_running: Float32Array
    replica_latency_seconds: Float32Array
    link_backlog_bytes: Float32Array


@dataclass(frozen=True)
class Snapshot:
    """One consistent view of the system.

    Attributes:
        topology: see :class:`Topology`.
        load: see :class:`Load`.
        version: counts reports; larger is newer.
        taken_at_seconds: monotonic-clock time (simulated time in the simulator) at which the load was true.
        sampled_at_seconds: float64 [R], when each replica's own figures were true, minus infinity where it has none
            yet and those of the load are assumed; None: all are as old as the snapshot.
    """

    topology: Topology
    load: Load
    version: int = 0
    taken_at_seconds: float = 0.0
    sampled_at_seconds: Float64Array | None = None
    _validated: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        if not self._validated:
            _check_load(self.topology, self.load)
            _check_samples(self.topology, self.sampled_at_seconds)

    def age_seconds(self, now_seconds: float) -> float:
        """Seconds since the load was true; never negative."""
        return max(0.0, now_seconds - self.taken_at_seconds)


def idle_load(topology: Topology, *, ready: bool = True) -> Load:
    """The load of a system that serves nothing: memory held by replicas, everything else zero."""
    nodes = len(topology.nodes.names)
    replicas = topology.replicas
    memory = np.bincount(
        replicas.node, weights=topology.services.memory_bytes[replicas.service], minlength=nodes
    ).astype(np.float32)
    count = len(replicas.endpoints)
    return Load(
        access_point_queued=np.zeros(len(topology.access_points.names), np.float32),
        arrival_rate_per_second=np.zeros(
            (len(topology.access_points.names), len(topology.services.names)), np.float32
        ),
        node_cpu_used_millicores=np.zeros(nodes, np.float32),
        node_memory_used_bytes=memory,
        replica_state=np.full(count, ReplicaState.READY if ready else ReplicaState.STARTING, np.uint8),
        replica_queued=np.zeros(count, np.float32),
        replica_running=np.zeros(count, np.float32),
        replica_latency_seconds=np.full(count, np.nan, np.float32),
        link_backlog_bytes=np.zeros(len(topology.links.source), np.float32),
    )


def disjoint_union_topology(topologies: Sequence[Topology]) -> Topology:
    """Concatenates systems that share the same services; names of several get the prefix ``INDEX/``.

    Raises:
        SnapshotError: no topology given, or the services differ.
    """
    if not topologies:
        raise SnapshotError("topologies: empty; give at least one")
    if len(topologies) == 1:
        return topologies[0]
    first = topologies[0]
    for position, other in enumerate(topologies):
        if not _same_columns(other.services, first.services):
            raise SnapshotError(
                f"topologies[{position}].services: differ from topologies[0].services; "
                "systems of one union share their services"
            )
        if other.local_delay_seconds != first.local_delay_seconds:
            raise SnapshotError(
                f"topologies[{position}].local_delay_seconds: {other.local_delay_seconds}, and "
                f"{first.local_delay_seconds} in topologies[0]; systems of one union share it"
            )
    access_point_offsets = _offsets(len(t.access_points.names) for t in topologies)
    node_offsets = _offsets(len(t.nodes.names) for t in topologies)
    system_offsets = _offsets(t.system_count for t in topologies)

    def prefixed(rows: str, names: str) -> tuple[str, ...]:
        return tuple(f"{i}/{n}" for i, t in enumerate(topologies) for n in getattr(getattr(t, rows), names))

    def joined(rows: str, column: str) -> NDArray[np.generic]:
        return np.concatenate([getattr(getattr(t, rows), column) for t in topologies])

    def shifted(rows: str, column: str, offsets: Int64Array) -> Int32Array:
        parts = [getattr(getattr(t, rows), column) + o for t, o in zip(topologies, offsets, strict=True)]
        return np.concatenate(parts).astype(np.int32)

    return Topology(
        access_points=AccessPoints(
            names=prefixed("access_points", "names"),
            is_cloud=joined("access_points", "is_cloud"),  # type: ignore[arg-type]
            system=shifted("access_points", "system", system_offsets),
        ),
        nodes=Nodes(
            names=prefixed("nodes", "names"),
            access_point=shifted("nodes", "access_point", access_point_offsets),
            cpu_millicores=joined("nodes", "cpu_millicores"),  # type: ignore[arg-type]
            memory_bytes=joined("nodes", "memory_bytes"),  # type: ignore[arg-type]
            speed=joined("nodes", "speed"),  # type: ignore[arg-type]
        ),
        services=first.services,
        replicas=Replicas(
            endpoints=prefixed("replicas", "endpoints"),
            service=joined("replicas", "service"),  # type: ignore[arg-type]
            node=shifted("replicas", "node", node_offsets),
            concurrency=joined("replicas", "concurrency"),  # type: ignore[arg-type]
        ),
        links=Links(
            source=shifted("links", "source", access_point_offsets),
            target=shifted("links", "target", access_point_offsets),
            delay_seconds=joined("links", "delay_seconds"),  # type: ignore[arg-type]
            bandwidth_bytes_per_second=joined("links", "bandwidth_bytes_per_second"),  # type: ignore[arg-type]
        ),
        local_delay_seconds=first.local_delay_seconds,
    )


def disjoint_union(snapshots: Sequence[Snapshot]) -> Snapshot:
    """Concatenates the snapshots of several systems that share the same services.

    The union is as old as its oldest member and carries the largest version.

    Raises:
        SnapshotError: no snapshot given, or the services differ.
    """
    topology = disjoint_union_topology([s.topology for s in snapshots])
    columns = {
        column.name: np.concatenate([getattr(s.load, column.name) for s in snapshots])
        for column in fields(Load)
    }
    return Snapshot(
        topology=topology,
        load=Load(**columns),
        version=max(s.version for s in snapshots),
        taken_at_seconds=min(s.taken_at_seconds for s in snapshots),
        sampled_at_seconds=_all_samples(snapshots),
        _validated=True,
    )


def _all_samples(snapshots: Sequence[Snapshot]) -> Float64Array | None:
    if all(s.sampled_at_seconds is None for s in snapshots):
        return None
    return np.concatenate(
        [
            np.full(len(s.topology.replicas.endpoints), s.taken_at_seconds)
            if s.sampled_at_seconds is None
            else s.sampled_at_seconds
            for s in snapshots
        ]
    )


def _offsets(counts: Iterable[int]) -> Int64Array:
    return np.concatenate([[0], np.cumsum(list(counts))[:-1]]).astype(np.int64)


def _check_topology(topology: Topology) -> None:
    access_points, nodes, services = topology.access_points, topology.nodes, topology.services
    replicas, links = topology.replicas, topology.links
    counts = {
        "access_points": len(access_points.names),
        "nodes": len(nodes.names),
        "services": len(services.names),
        "replicas": len(replicas.endpoints),
        "links": len(links.source),
    }
    for group, count in counts.items():
        rows = getattr(topology, group)
        for column in fields(rows):
            values = getattr(rows, column.name)
            if len(values) != count:
                raise SnapshotError(
                    f"{group}.{column.name}: {len(values)} values for {count} rows; give one value per row"
                )
    for group, names in (
        ("access_points.names", access_points.names),
        ("nodes.names", nodes.names),
        ("services.names", services.names),
        ("replicas.endpoints", replicas.endpoints),
    ):
        if len(set(names)) != len(names):
            repeated = next(name for i, name in enumerate(names) if name in names[:i])
            raise SnapshotError(f"{group}: {repeated!r} appears twice; names must be unique")
    for label, rows, bound in (
        ("nodes.access_point", nodes.access_point, counts["access_points"]),
        ("replicas.service", replicas.service, counts["services"]),
        ("replicas.node", replicas.node, counts["nodes"]),
        ("links.source", links.source, counts["access_points"]),
        ("links.target", links.target, counts["access_points"]),
    ):
        _check_range(label, rows, bound)
    for label, values, positive in (
        ("nodes.cpu_millicores", nodes.cpu_millicores, True),
        ("nodes.memory_bytes", nodes.memory_bytes, True),
        ("nodes.speed", nodes.speed, True),
        ("services.cpu_millicores", services.cpu_millicores, True),
        ("services.execution_seconds", services.execution_seconds, True),
        ("services.memory_bytes", services.memory_bytes, False),
        ("services.image_bytes", services.image_bytes, False),
        ("services.cold_start_seconds", services.cold_start_seconds, False),
        ("services.deadline_seconds", services.deadline_seconds, True),
        ("replicas.concurrency", replicas.concurrency, True),
        ("links.delay_seconds", links.delay_seconds, False),
        ("links.bandwidth_bytes_per_second", links.bandwidth_bytes_per_second, True),
        ("local_delay_seconds", np.array([topology.local_delay_seconds]), False),
    ):
        check_finite(label, values, positive=positive)
    if len(links.source) and bool((links.source == links.target).any()):
        row = int(np.flatnonzero(links.source == links.target)[0])
        raise SnapshotError(f"links[{row}]: joins an access point to itself; remove it")
    if len(access_points.system) and bool((np.diff(access_points.system) < 0).any()):
        raise SnapshotError("access_points.system: not ascending; list the systems one after another")
    if len(access_points.system) and int(access_points.system[0]) != 0:
        raise SnapshotError(f"access_points.system[0]: {int(access_points.system[0])}; the first system is 0")
    across = access_points.system[links.source] != access_points.system[links.target]
    if across.any():
        raise SnapshotError(f"links[{int(np.flatnonzero(across)[0])}]: joins two systems; remove it")


def _same_columns(one: Services, other: Services) -> bool:
    if one is other:
        return True
    return all(np.array_equal(getattr(one, c.name), getattr(other, c.name)) for c in fields(Services))


def _check_load(topology: Topology, load: Load) -> None:
    access_points = len(topology.access_points.names)
    nodes, replicas = len(topology.nodes.names), len(topology.replicas.endpoints)
    shapes: dict[str, tuple[int, ...]] = {
        "access_point_queued": (access_points,),
        "arrival_rate_per_second": (access_points, len(topology.services.names)),
        "node_cpu_used_millicores": (nodes,),
        "node_memory_used_bytes": (nodes,),
        "replica_state": (replicas,),
        "replica_queued": (replicas,),
        "replica_running": (replicas,),
        "replica_latency_seconds": (replicas,),
        "link_backlog_bytes": (len(topology.links.source),),
    }
    for name, shape in shapes.items():
        values = getattr(load, name)
        if values.shape != shape:
            raise SnapshotError(f"{name}: shape {values.shape}, expected {shape}; give one value per row")
        if name == "replica_latency_seconds":
            values = np.where(np.isnan(values), 0, values)
        check_finite(name, values)
    unknown = load.replica_state > max(ReplicaState)
    if unknown.any():
        row = int(np.flatnonzero(unknown)[0])
        raise SnapshotError(
            f"replica_state[{row}]: {int(load.replica_state[row])}; "
            f"must be one of {', '.join(f'{int(state)} ({state.name})' for state in ReplicaState)}"
        )


def _check_samples(topology: Topology, sampled_at_seconds: Float64Array | None) -> None:
    if sampled_at_seconds is None:
        return
    shape = (len(topology.replicas.endpoints),)
    if sampled_at_seconds.shape != shape:
        raise SnapshotError(
            f"sampled_at_seconds: shape {sampled_at_seconds.shape}, expected {shape}; give one time per replica"
        )
    bad = np.isnan(sampled_at_seconds) | np.isposinf(sampled_at_seconds)
    if bad.any():
        row = int(bad.argmax())
        raise SnapshotError(
            f"sampled_at_seconds[{row}]: {sampled_at_seconds[row]}; must be a time, or minus infinity for none"
        )


def check_finite(label: str, values: NDArray[np.generic], *, positive: bool = False) -> None:
    """Refuses NaN, infinities and negative values (zero too with ``positive``).

    Raises:
        SnapshotError: naming the first offending row and its value.
    """
    numbers = values.astype(np.float64, copy=False)
    bad = ~np.isfinite(numbers) | (numbers < 0) | ((numbers == 0) & positive)
    if bad.any():
        row = tuple(int(i) for i in np.argwhere(bad)[0])
        index = row[0] if len(row) == 1 else row
        requirement = "a finite number above zero" if positive else "a finite number, zero or more"
        raise SnapshotError(f"{label}[{index}]: {numbers[row]}; must be {requirement}")


def _check_range(label: str, rows: Int32Array, bound: int) -> None:
    bad = (rows < 0) | (rows >= bound)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise SnapshotError(f"{label}[{row}]: {int(rows[row])}; must name a row from 0 to {bound - 1}")
