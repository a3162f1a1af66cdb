"""Messages of the state API to snapshots and back.

Names become rows, every figure is checked, and errors name the field by its path in the message.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from policy_server.api import figures
from policy_server.api.errors import Count, InvalidArgumentError
from policy_server.api.message_rows import MessageRows
from policy_server.cluster.snapshot import (
    NO_LINK,
    AccessPoints,
    Float32Array,
    Float64Array,
    Int32Array,
    Links,
    Load,
    Nodes,
    Replicas,
    ReplicaState,
    Services,
    Snapshot,
    Topology,
    idle_load,
)
from policy_server.proto.policy.v1 import state_pb2

DEFAULT_LOCAL_DELAY_SECONDS = 0.001
MAXIMUM_ACCESS_POINTS = 4096
"""Tables over pairs of access points take memory with the square of their number."""
MAXIMUM_ACCESS_POINT_SERVICES = 2_000_000
"""Access points x services; there are tables over them too."""

_STATE_OF_MESSAGE = {
    state_pb2.REPLICA_STATE_UNSPECIFIED: ReplicaState.READY,
    state_pb2.REPLICA_STATE_STARTING: ReplicaState.STARTING,
    state_pb2.REPLICA_STATE_READY: ReplicaState.READY,
    state_pb2.REPLICA_STATE_DRAINING: ReplicaState.DRAINING,
}
_MESSAGE_OF_STATE = {
    ReplicaState.STARTING: state_pb2.REPLICA_STATE_STARTING,
    ReplicaState.READY: state_pb2.REPLICA_STATE_READY,
    ReplicaState.DRAINING: state_pb2.REPLICA_STATE_DRAINING,
}


def topology_from_message(message: state_pb2.Topology, path: str) -> Topology:
    """The topology a message describes.

    Args:
        message: of a full report.
        path: of the message in the request, for error messages.

    Raises:
        InvalidArgumentError: naming the field, its value and the remedy.
    """
    access_points = MessageRows(message.access_points, f"{path}.access_points")
    nodes = MessageRows(message.nodes, f"{path}.nodes")
    services = MessageRows(message.services, f"{path}.services")
    replicas = MessageRows(message.replicas, f"{path}.replicas")
    links = MessageRows(message.links, f"{path}.links")
    _check_size(access_points, services)
    access_point_row = access_points.index("name")
    node_row = nodes.index("name")
    service_row = services.index("name")
    endpoint_row = replicas.index("endpoint")
    source = links.references("source", access_point_row, access_points.path)
    target = links.references("target", access_point_row, access_points.path)
    _check_links(links, source, target)
    local_delay = DEFAULT_LOCAL_DELAY_SECONDS
    if message.HasField("local_delay_seconds"):
        field = f"{path}.local_delay_seconds"
        local_delay = figures.SECONDS.check(field, message.local_delay_seconds)
    return Topology(
        access_points=AccessPoints(
            names=tuple(access_point_row),
            is_cloud=np.array([row.cloud for row in message.access_points], bool),
            system=np.zeros(len(access_point_row), np.int32),
        ),
        nodes=Nodes(
            names=tuple(node_row),
            access_point=nodes.references("access_point", access_point_row, access_points.path),
            cpu_millicores=nodes.figures("cpu_millicores", figures.CPU_MILLICORES),
            memory_bytes=nodes.figures("memory_bytes", figures.MEMORY_BYTES),
            speed=nodes.figures("speed", figures.SPEED, absent=1.0),
        ),
        services=Services(
            names=tuple(service_row),
            cpu_millicores=services.figures("cpu_millicores", figures.CPU_MILLICORES),
            execution_seconds=services.figures("execution_seconds", figures.EXECUTION_SECONDS),
            memory_bytes=services.figures("memory_bytes", figures.BYTES),
            image_bytes=services.figures("image_bytes", figures.BYTES),
            cold_start_seconds=services.figures("cold_start_seconds", figures.SECONDS),
            deadline_seconds=services.figures("deadline_seconds", figures.DEADLINE_SECONDS),
        ),
        replicas=Replicas(
            endpoints=tuple(endpoint_row),
            service=replicas.references("service", service_row, services.path),
            node=replicas.references("node", node_row, nodes.path),
            concurrency=replicas.figures("concurrency", figures.CONCURRENCY, absent=1.0).astype(np.int32),
        ),
        links=Links(
            source=source,
            target=target,
            delay_seconds=links.figures("delay_seconds", figures.SECONDS),
            bandwidth_bytes_per_second=links.figures(
                "bandwidth_bytes_per_second", figures.BANDWIDTH_BYTES_PER_SECOND
            ),
        ),
        local_delay_seconds=local_delay,
    )


def full_load_from_message(message: state_pb2.Load, topology: Topology, path: str) -> Load:
    """The load of a full report: rows that are not listed are idle.

    Raises:
        InvalidArgumentError: naming the field, its value and the remedy.
    """
    return _load_over(idle_load(topology), message, topology, path)


def delta_load_from_message(message: state_pb2.Load, base: Snapshot, path: str) -> Load:
    """The load after a delta report: rows that are not listed keep their value, their latency is left open (NaN).

    Raises:
        InvalidArgumentError: naming the field, its value and the remedy.
    """
    load = base.load
    copied = Load(
        access_point_queued=load.access_point_queued.copy(),
        arrival_rate_per_second=load.arrival_rate_per_second.copy(),
        node_cpu_used_millicores=load.node_cpu_used_millicores.copy(),
        node_memory_used_bytes=load.node_memory_used_bytes.copy(),
        replica_state=load.replica_state.copy(),
        replica_queued=load.replica_queued.copy(),
        replica_running=load.replica_running.copy(),
        replica_latency_seconds=np.full_like(load.replica_latency_seconds, np.nan),
        link_backlog_bytes=load.link_backlog_bytes.copy(),
    )
    return _load_over(copied, message, base.topology, path)


def sample_ages_from_message(
    message: state_pb2.Load, topology: Topology, path: str, *, age_seconds: float, unlisted: float
) -> Float64Array | None:
    """float64 [R]: how old the figures of each replica are; None where all of them are as old as the report.

    Args:
        message: of a report.
        topology: that the load is about.
        path: of the message in the request, for error messages.
        age_seconds: of the report.
        unlisted: age of replicas that are not listed.

    Raises:
        InvalidArgumentError: naming the field, its value and the remedy.
    """
    replicas = MessageRows(message.replicas, f"{path}.replicas")
    listed = replicas.figures("age_seconds", figures.SECONDS)
    if len(replicas) == len(topology.replicas.endpoints) and not listed.any():
        return None
    ages = np.full(len(topology.replicas.endpoints), unlisted, np.float64)
    ages[replicas.distinct_references("endpoint", topology.replica_index, "the topology")] = (
        listed + age_seconds
    )
    return ages


def _load_over(load: Load, message: state_pb2.Load, topology: Topology, path: str) -> Load:
    access_points = MessageRows(message.access_points, f"{path}.access_points")
    if access_points:
        rows = access_points.distinct_references("name", topology.access_point_index, "the topology")
        load.access_point_queued[rows] = access_points.figures("queued", figures.REQUESTS)
        _set_arrival_rates(load.arrival_rate_per_second, access_points, rows, topology)
    nodes = MessageRows(message.nodes, f"{path}.nodes")
    if nodes:
        rows = nodes.distinct_references("name", topology.node_index, "the topology")
        load.node_cpu_used_millicores[rows] = nodes.figures(
            "cpu_used_millicores", figures.CPU_USED_MILLICORES
        )
        load.node_memory_used_bytes[rows] = nodes.figures("memory_used_bytes", figures.BYTES)
    replicas = MessageRows(message.replicas, f"{path}.replicas")
    if replicas:
        rows = replicas.distinct_references("endpoint", topology.replica_index, "the topology")
        load.replica_state[rows] = _replica_states(replicas)
        load.replica_queued[rows] = replicas.figures("queued", figures.REQUESTS)
        load.replica_running[rows] = replicas.figures("running", figures.REQUESTS)
        load.replica_latency_seconds[rows] = replicas.figures(
            "latency_seconds", figures.LATENCY_SECONDS, absent=np.nan
        )
    links = MessageRows(message.links, f"{path}.links")
    if links:
        rows = _link_rows(links, topology)
        load.link_backlog_bytes[rows] = links.figures("backlog_bytes", figures.BYTES)
    return load


def _set_arrival_rates(
    rates: Float32Array, access_points: MessageRows, rows: Int32Array, topology: Topology
) -> None:
    of_access_points = [message.arrival_rates for message in access_points.messages]
    row = np.repeat(rows, list(map(len, of_access_points)))
    listed = [rate for of_one in of_access_points for rate in of_one]
    known = topology.service_index
    service = np.fromiter((known.get(rate.service, -1) for rate in listed), np.int64, len(listed))
    values = np.fromiter((rate.requests_per_second for rate in listed), np.float64, len(listed))
    place = row * len(known) + service
    sound = (service >= 0).all() and figures.REQUESTS_PER_SECOND.accepts(values)
    if not sound or len(np.unique(place)) < len(place):
        _refuse_arrival_rates(access_points, topology)
    rates[row, service] = values


def _refuse_arrival_rates(access_points: MessageRows, topology: Topology) -> None:
    """Looks for what is wrong with the rates, one access point after another.

    Raises:
        InvalidArgumentError: naming the first field at fault.
    """
    for position, message in enumerate(access_points.messages):
        listed = MessageRows(message.arrival_rates, f"{access_points.path}[{position}].arrival_rates")
        listed.distinct_references("service", topology.service_index, "the topology")
        listed.figures("requests_per_second", figures.REQUESTS_PER_SECOND)


def _replica_states(replicas: MessageRows) -> NDArray[np.uint8]:
    given = [message.state for message in replicas.messages]
    try:
        return np.fromiter(map(_STATE_OF_MESSAGE.__getitem__, given), np.uint8, len(given))
    except KeyError:
        row = next(row for row, state in enumerate(given) if state not in _STATE_OF_MESSAGE)
        raise replicas.error(row, "state", given[row], "must be a value of ReplicaState") from None


def _link_rows(links: MessageRows, topology: Topology) -> Int32Array:
    source = links.references("source", topology.access_point_index, "the topology")
    target = links.references("target", topology.access_point_index, "the topology")
    rows = topology.link_row[source, target]
    seen: set[int] = set()
    for position, row in enumerate(rows.tolist()):
        if row == NO_LINK:
            raise links.error(
                position, "target", links.messages[position].target, "no such link in the topology"
            )
        if row in seen:
            raise links.error(position, "target", links.messages[position].target, "the link is listed twice")
        seen.add(row)
    return rows


def _check_size(access_points: MessageRows, services: MessageRows) -> None:
    if len(access_points) > MAXIMUM_ACCESS_POINTS:
        raise InvalidArgumentError(
            access_points.path,
            Count(len(access_points), "access points"),
            f"at most {MAXIMUM_ACCESS_POINTS} are accepted; split the system over several servers",
        )
    pairs = len(access_points) * len(services)
    if pairs > MAXIMUM_ACCESS_POINT_SERVICES:
        raise InvalidArgumentError(
            services.path,
            Count(pairs, "access points x services"),
            f"at most {MAXIMUM_ACCESS_POINT_SERVICES} are accepted; split the system over several servers",
        )


def _check_links(links: MessageRows, source: Int32Array, target: Int32Array) -> None:
    seen: set[tuple[int, int]] = set()
    for row, ends in enumerate(zip(source.tolist(), target.tolist(), strict=True)):
        if ends[0] == ends[1]:
            raise links.error(
                row, "target", links.messages[row].target, "joins an access point to itself; remove it"
            )
        if ends in seen:
            raise links.error(
                row, "target", links.messages[row].target, "the link is listed twice; remove one"
            )
        seen.add(ends)


def topology_to_message(topology: Topology) -> state_pb2.Topology:
    """The message of a topology."""
    access_points, nodes, services = topology.access_points, topology.nodes, topology.services
    replicas, links = topology.replicas, topology.links
    return state_pb2.Topology(
        access_points=[
            state_pb2.AccessPoint(name=name, cloud=cloud)
            for name, cloud in zip(access_points.names, access_points.is_cloud.tolist(), strict=True)
        ],
        nodes=[
            state_pb2.Node(
                name=name,
                access_point=access_points.names[row],
                cpu_millicores=cpu,
                memory_bytes=memory,
                speed=speed,
            )
            for name, row, cpu, memory, speed in zip(
                nodes.names,
                nodes.access_point.tolist(),
                nodes.cpu_millicores.tolist(),
                nodes.memory_bytes.tolist(),
                nodes.speed.tolist(),
                strict=True,
            )
        ],
        services=[
            state_pb2.Service(
                name=name,
                cpu_millicores=cpu,
                execution_seconds=execution,
                memory_bytes=memory,
                image_bytes=image,
                cold_start_seconds=cold_start,
                deadline_seconds=deadline,
            )
            for name, cpu, execution, memory, image, cold_start, deadline in zip(
                services.names,
                services.cpu_millicores.tolist(),
                services.execution_seconds.tolist(),
                services.memory_bytes.tolist(),
                services.image_bytes.tolist(),
                services.cold_start_seconds.tolist(),
                services.deadline_seconds.tolist(),
                strict=True,
            )
        ],
        replicas=[
            state_pb2.Replica(
                endpoint=endpoint,
                service=services.names[service],
                node=nodes.names[node],
                concurrency=concurrency,
            )
            for endpoint, service, node, concurrency in zip(
                replicas.endpoints,
                replicas.service.tolist(),
                replicas.node.tolist(),
                replicas.concurrency.tolist(),
                strict=True,
            )
        ],
        links=[
            state_pb2.Link(
                source=access_points.names[source],
                target=access_points.names[target],
                delay_seconds=delay,
                bandwidth_bytes_per_second=bandwidth,
            )
            for source, target, delay, bandwidth in zip(
                links.source.tolist(),
                links.target.tolist(),
                links.delay_seconds.tolist(),
                links.bandwidth_bytes_per_second.tolist(),
                strict=True,
            )
        ],
        local_delay_seconds=topology.local_delay_seconds,
    )


def load_to_message(snapshot: Snapshot) -> state_pb2.Load:
    """The message of a snapshot's load, every row listed but those of replicas that have no figures of their own."""
    topology, load = snapshot.topology, snapshot.load
    sampled_at = snapshot.sampled_at_seconds
    if sampled_at is None:
        sampled_at = np.full(len(topology.replicas.endpoints), snapshot.taken_at_seconds)
    names, services = topology.access_points.names, topology.services.names
    return state_pb2.Load(
        access_points=[
            state_pb2.AccessPointLoad(
                name=name,
                queued=queued,
                arrival_rates=[
                    state_pb2.ServiceRate(service=service, requests_per_second=rate)
                    for service, rate in zip(services, rates, strict=True)
                    if rate
                ],
            )
            for name, queued, rates in zip(
                names,
                load.access_point_queued.tolist(),
                load.arrival_rate_per_second.tolist(),
                strict=True,
            )
        ],
        nodes=[
            state_pb2.NodeLoad(name=name, cpu_used_millicores=cpu, memory_used_bytes=memory)
            for name, cpu, memory in zip(
                topology.nodes.names,
                load.node_cpu_used_millicores.tolist(),
                load.node_memory_used_bytes.tolist(),
                strict=True,
            )
        ],
        replicas=[
            state_pb2.ReplicaLoad(
                endpoint=endpoint,
                state=_MESSAGE_OF_STATE[ReplicaState(state)],
                queued=queued,
                running=running,
                latency_seconds=None if latency != latency else latency,
                age_seconds=max(0.0, snapshot.taken_at_seconds - sampled),
            )
            for endpoint, state, queued, running, latency, sampled in zip(
                topology.replicas.endpoints,
                load.replica_state.tolist(),
                load.replica_queued.tolist(),
                load.replica_running.tolist(),
                load.replica_latency_seconds.tolist(),
                sampled_at.tolist(),
                strict=True,
            )
            if sampled > -math.inf
        ],
        links=[
            state_pb2.LinkLoad(source=names[source], target=names[target], backlog_bytes=backlog)
            for source, target, backlog in zip(
                topology.links.source.tolist(),
                topology.links.target.tolist(),
                load.link_backlog_bytes.tolist(),
                strict=True,
            )
        ],
    )
