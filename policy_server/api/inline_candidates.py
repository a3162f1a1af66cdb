"""Candidates carried by a request, as a small snapshot: the same pipeline decides on them.

The request's origin becomes an access point. Candidates at the default delay with unlimited bandwidth are its own
nodes; the others stand behind one link per combination of delay, bandwidth and cloud.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy_server.api import figures
from policy_server.api.errors import Count, InvalidArgumentError, NothingCanServeError
from policy_server.api.message_rows import MessageRows
from policy_server.api.messages import DEFAULT_LOCAL_DELAY_SECONDS
from policy_server.cluster.snapshot import (
    AccessPoints,
    BoolArray,
    Float32Array,
    Int32Array,
    Links,
    Load,
    Nodes,
    Replicas,
    ReplicaState,
    Services,
    Snapshot,
    Topology,
)
from policy_server.proto.policy.v1 import dispatch_service_pb2

DEFAULT_CPU_MILLICORES = 1000.0
DEFAULT_MEMORY_BYTES = float(2 * 2**30)
DEFAULT_SPEED = 1.0
DEFAULT_CONCURRENCY = 1.0
DEFAULT_SERVICE_CPU_MILLICORES = 250.0
DEFAULT_SERVICE_EXECUTION_SECONDS = 0.1
DEFAULT_DEADLINE_SECONDS = 1.0
UNLIMITED_BANDWIDTH_BYTES_PER_SECOND = 1e15

MAXIMUM_SITES = 1024
"""Different ways to candidates (delay, bandwidth, cloud) that are told apart; beyond it, figures are rounded, as
finely as that number allows. The links of a topology take memory with the square of it."""

_FINEST_ROUNDING = 0.01
_PATH = "inline_candidates.candidates"
_PROFILE_PATH = "inline_candidates.service_profile"
_ORIGIN = 0
_OWN_MACHINE = "\0"
_OWN_SITE = (float(np.float32(DEFAULT_LOCAL_DELAY_SECONDS)), 0.0, False)


@dataclass(frozen=True, slots=True)
class _Figures:
    """The figures of C candidates, float32 [C] each."""

    cpu_millicores: Float32Array
    cpu_used_millicores: Float32Array
    memory_bytes: Float32Array
    memory_used_bytes: Float32Array
    speed: Float32Array
    delay_seconds: Float32Array
    bandwidth_bytes_per_second: Float32Array


def snapshot_of_candidates(
    message: dispatch_service_pb2.InlineCandidates, *, service: str, limit: int, now_seconds: float
) -> Snapshot:
    """A snapshot with one access point that asks, one service, and the candidates as its replicas, in their order.

    Args:
        message: the candidates and the service profile.
        service: name of the service asked for; may be empty.
        limit: how many candidates are accepted.
        now_seconds: monotonic time; the snapshot is as fresh as the request.

    Raises:
        InvalidArgumentError: too many candidates, or a field that cannot be used.
        NothingCanServeError: no candidate at all.
    """
    candidates = MessageRows(message.candidates, _PATH)
    if not len(candidates):
        raise NothingCanServeError(f"{_PATH}: empty; no endpoint to choose from")
    if len(candidates) > limit:
        raise InvalidArgumentError(
            _PATH, Count(len(candidates), "candidates"), f"at most {limit} are accepted; send fewer"
        )
    endpoints = tuple(candidates.index("endpoint"))
    columns = _Figures(
        cpu_millicores=candidates.figures(
            "cpu_millicores", figures.CPU_MILLICORES, absent=DEFAULT_CPU_MILLICORES
        ),
        cpu_used_millicores=candidates.figures("cpu_used_millicores", figures.CPU_USED_MILLICORES),
        memory_bytes=candidates.figures("memory_bytes", figures.MEMORY_BYTES, absent=DEFAULT_MEMORY_BYTES),
        memory_used_bytes=candidates.figures("memory_used_bytes", figures.BYTES),
        speed=candidates.figures("speed", figures.SPEED, absent=DEFAULT_SPEED),
        delay_seconds=candidates.figures(
            "network_delay_seconds", figures.SECONDS, absent=DEFAULT_LOCAL_DELAY_SECONDS
        ),
        bandwidth_bytes_per_second=candidates.figures(
            "bandwidth_bytes_per_second", figures.OPTIONAL_BANDWIDTH_BYTES_PER_SECOND
        ),
    )
    node_names, node, first = _nodes(candidates)
    site, is_cloud, links = _sites(candidates, columns)
    _check_nodes_agree(candidates, columns, site, node, first)
    concurrency = candidates.figures("concurrency", figures.CONCURRENCY, absent=DEFAULT_CONCURRENCY)
    count = len(endpoints)
    topology = Topology(
        access_points=AccessPoints(
            names=("origin", *(f"site-{row}" for row in range(1, len(is_cloud)))),
            is_cloud=is_cloud,
            system=np.zeros(len(is_cloud), np.int32),
        ),
        nodes=Nodes(
            names=node_names,
            access_point=site[first],
            cpu_millicores=columns.cpu_millicores[first],
            memory_bytes=columns.memory_bytes[first],
            speed=columns.speed[first],
        ),
        services=_service(message.service_profile, service),
        replicas=Replicas(
            endpoints=endpoints,
            service=np.zeros(count, np.int32),
            node=node,
            concurrency=concurrency.astype(np.int32),
        ),
        links=links,
        local_delay_seconds=DEFAULT_LOCAL_DELAY_SECONDS,
    )
    load = Load(
        access_point_queued=np.zeros(len(is_cloud), np.float32),
        arrival_rate_per_second=np.zeros((len(is_cloud), 1), np.float32),
        node_cpu_used_millicores=columns.cpu_used_millicores[first],
        node_memory_used_bytes=columns.memory_used_bytes[first],
        replica_state=np.full(count, ReplicaState.READY, np.uint8),
        replica_queued=candidates.figures("queued", figures.REQUESTS),
        replica_running=candidates.figures("running", figures.REQUESTS),
        replica_latency_seconds=candidates.figures("latency_seconds", figures.LATENCY_SECONDS, absent=np.nan),
        link_backlog_bytes=np.zeros(len(links.source), np.float32),
    )
    return Snapshot(topology, load, version=0, taken_at_seconds=now_seconds)


def _nodes(candidates: MessageRows) -> tuple[tuple[str, ...], Int32Array, Int32Array]:
    """Names [N], int32 [C] node of each candidate, int32 [N] first candidate of each node."""
    rows: dict[str, int] = {}
    node = np.empty(len(candidates), np.int32)
    first: list[int] = []
    for position, candidate in enumerate(candidates.messages):
        name = candidate.node or f"{_OWN_MACHINE}{position}"
        row = rows.setdefault(name, len(first))
        if row == len(first):
            first.append(position)
        node[position] = row
    return tuple(rows), node, np.array(first, np.int32)


def _sites(candidates: MessageRows, columns: _Figures) -> tuple[Int32Array, BoolArray, Links]:
    """int32 [C] access point of each candidate, bool [A] whether it is a cloud, and the links from the origin."""
    clouds = [candidate.cloud for candidate in candidates.messages]
    ways = _ways(columns.delay_seconds, columns.bandwidth_bytes_per_second, clouds)
    step = _FINEST_ROUNDING
    while len(set(ways)) > MAXIMUM_SITES:
        delays = _rounded(columns.delay_seconds, step)
        bandwidths = _rounded(columns.bandwidth_bytes_per_second, step)
        ways = [
            way if way == _OWN_SITE else coarse
            for way, coarse in zip(ways, _ways(delays, bandwidths, clouds), strict=True)
        ]
        step *= 2
    rows = {_OWN_SITE: _ORIGIN}
    site = np.array([rows.setdefault(way, len(rows)) for way in ways], np.int32)
    delay, bandwidth, is_cloud = zip(*rows, strict=True)
    remote = np.arange(1, len(rows), dtype=np.int32)
    links = Links(
        source=np.full(len(remote), _ORIGIN, np.int32),
        target=remote,
        delay_seconds=np.array(delay[1:], np.float32),
        bandwidth_bytes_per_second=np.array(
            [figure or UNLIMITED_BANDWIDTH_BYTES_PER_SECOND for figure in bandwidth[1:]], np.float32
        ),
    )
    return site, np.array(is_cloud, bool), links


def _ways(
    delay_seconds: Float32Array, bandwidth_bytes_per_second: Float32Array, clouds: list[bool]
) -> list[tuple[float, float, bool]]:
    return list(zip(delay_seconds.tolist(), bandwidth_bytes_per_second.tolist(), clouds, strict=True))


def _rounded(figures: Float32Array, step: float) -> Float32Array:
    """The figures, each rounded to a power of exp(``step``); zero stays zero."""
    logarithms = np.log(figures, out=np.zeros_like(figures), where=figures > 0)
    powers = np.exp(np.round(logarithms / np.float32(step)) * np.float32(step))
    return np.where(figures > 0, powers, figures).astype(np.float32)


def _check_nodes_agree(
    candidates: MessageRows, columns: _Figures, site: Int32Array, node: Int32Array, first: Int32Array
) -> None:
    """Candidates on one node must tell the same of it."""
    if len(first) == len(node):
        return
    for name in (column.name for column in fields(columns)):
        values = getattr(columns, name)
        _check_agrees(
            candidates, "network_delay_seconds" if name == "delay_seconds" else name, values, node, first
        )
    _check_agrees(candidates, "cloud", site, node, first)


def _check_agrees(
    candidates: MessageRows, field: str, values: NDArray[Any], node: Int32Array, first: Int32Array
) -> None:
    differs = values != values[first][node]
    if differs.any():
        row = int(np.flatnonzero(differs)[0])
        other = int(first[node[row]])
        raise candidates.error(
            row,
            field,
            getattr(candidates.messages[row], field),
            f"differs from row {other} on the same node; send the same figure for both",
        )


def _service(profile: dispatch_service_pb2.ServiceProfile, name: str) -> Services:
    cpu = DEFAULT_SERVICE_CPU_MILLICORES
    if profile.HasField("cpu_millicores"):
        cpu = figures.CPU_MILLICORES.check(f"{_PROFILE_PATH}.cpu_millicores", profile.cpu_millicores)
    execution = DEFAULT_SERVICE_EXECUTION_SECONDS
    if profile.HasField("execution_seconds"):
        execution = figures.EXECUTION_SECONDS.check(
            f"{_PROFILE_PATH}.execution_seconds", profile.execution_seconds
        )
    return Services(
        names=(name or "service",),
        cpu_millicores=np.array([cpu], np.float32),
        execution_seconds=np.array([execution], np.float32),
        memory_bytes=np.zeros(1, np.float32),
        image_bytes=np.zeros(1, np.float32),
        cold_start_seconds=np.zeros(1, np.float32),
        deadline_seconds=np.array([DEFAULT_DEADLINE_SECONDS], np.float32),
    )
