"""What a snapshot says of nodes, access points, links and replicas, computed once per snapshot.

Formulas (our choice; the papers leave the features' exact form open):

- ``cpu_committed_fraction`` of a node: CPU that the running and the queued requests of its replicas hold or will
  hold, over the node's CPU. Above 1 requests wait.
- ``mean_execution_seconds`` of a node: mean execution time of those requests, weighted by their CPU. Committed
  CPU above 1 times this time is how long the excess takes to drain.
- ``expected_utilisation`` of a node: for each replica, the system-wide request rate of its service times the
  CPU-seconds of one request, shared equally among the service's ready replicas, over the node's CPU.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy_server.cluster.snapshot import (
    BoolArray,
    Float32Array,
    Float64Array,
    Int64Array,
    ReplicaState,
    Snapshot,
    Topology,
)

_GIBIBYTE = np.float32(2**30)
_MEGABYTE = np.float32(1e6)


class TopologyTable:
    """Columns derived from a topology alone. All float32 unless said otherwise.

    Attributes:
        cpu_fraction: [R], CPU one request holds over the CPU of the replica's node.
        execution_seconds: [R], execution time of one request on the replica's node.
        node_is_cloud: bool [N].
        service_system: int64 [R], row in a [systems * W] table of the replica's system and service.
        access_point_service: int64 [A, W], row in that table of the access point's system and each service.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        services, nodes, replicas = topology.services, topology.nodes, topology.replicas
        access_points = topology.access_points
        self.cpu_fraction: Float32Array = (
            services.cpu_millicores[replicas.service] / nodes.cpu_millicores[replicas.node]
        )
        self.execution_seconds: Float32Array = (
            services.execution_seconds[replicas.service] / nodes.speed[replicas.node]
        )
        self.inverse_concurrency: Float32Array = np.float32(1) / replicas.concurrency.astype(np.float32)
        self.node_is_cloud: BoolArray = access_points.is_cloud[nodes.access_point]
        self.replica_access_point = nodes.access_point[replicas.node]
        width = len(services.names)
        system = access_points.system.astype(np.int64)
        self.service_system: Int64Array = system[self.replica_access_point] * width + replicas.service.astype(
            np.int64
        )
        self.access_point_service: Int64Array = system[:, None] * width + np.arange(width, dtype=np.int64)
        self.service_cpu_seconds: Float32Array = services.cpu_millicores * services.execution_seconds
        self.inverse_bandwidth: Float32Array = np.float32(1) / topology.links.bandwidth_bytes_per_second

    @cached_property
    def access_point_cpu_millicores(self) -> Float32Array:
        """float32 [A]: CPU of the nodes of each access point."""
        nodes = self.topology.nodes
        return np.bincount(
            nodes.access_point, weights=nodes.cpu_millicores, minlength=len(self.topology.access_points.names)
        ).astype(np.float32)

    @cached_property
    def node_count_log(self) -> Float32Array:
        """float32 [A]: log(1 + number of nodes) of each access point."""
        counts = np.bincount(
            self.topology.nodes.access_point, minlength=len(self.topology.access_points.names)
        )
        return np.log1p(counts).astype(np.float32)

    @cached_property
    def concurrency_log(self) -> Float64Array:
        """float64 [R]: log(1 + concurrency)."""
        logarithms: Float64Array = np.log1p(self.topology.replicas.concurrency)
        return logarithms

    @cached_property
    def service_system_cpu_millicores(self) -> Float64Array:
        """float64 [systems * W]: CPU of the nodes of each system, at least 1, once for each service."""
        topology = self.topology
        system_cpu = np.bincount(
            topology.access_points.system[topology.nodes.access_point],
            weights=topology.nodes.cpu_millicores,
            minlength=topology.system_count,
        )
        # A system without nodes has no replica that asks for its row.
        return np.repeat(np.maximum(system_cpu, 1.0), len(topology.services.names))

    @cached_property
    def cloud_link(self) -> Int64Array:
        """int64 [A]: row of the link to the cloud, -1 where there is none."""
        links, access_points = self.topology.links, self.topology.access_points
        table = np.full(len(access_points.names), -1, np.int64)
        to_cloud = np.flatnonzero(access_points.is_cloud[links.target])
        table[links.source[to_cloud]] = to_cloud
        return table

    @cached_property
    def linked_to_cloud(self) -> tuple[Int64Array, Int64Array]:
        """Rows of the access points with a link to the cloud, and rows of these links."""
        access_points = np.flatnonzero(self.cloud_link >= 0)
        return access_points, self.cloud_link[access_points]


class LoadTable:
    """Columns derived from one snapshot. All float32 unless said otherwise.

    Attributes:
        ready: bool [R].
        all_ready: whether every replica is ready.
        outstanding: [R], queued and running requests.
        node_committed: [N], see the module's formulas.
        node_mean_execution_seconds: [N].
        link_backlog_bytes: [L].
        service_demand_millicores: float64 [systems * W], CPU demand of each service in each system.
        service_ready: float64 [systems * W], ready replicas of each service in each system.
        stale_from_seconds: float64 [R], when the figures of each replica become stale, infinity where it has none
            that could; None: all of them together, so that none is to be preferred.
        blocks: what :mod:`policy_server.features.candidates` keeps per access point, service and subset.
    """

    def __init__(
        self, snapshot: Snapshot, static: TopologyTable, maximum_sample_age_seconds: float = math.inf
    ) -> None:
        self.snapshot = snapshot
        self.maximum_sample_age_seconds = maximum_sample_age_seconds
        self.stale_from_seconds: Float64Array | None = None
        sampled_at = snapshot.sampled_at_seconds
        if sampled_at is not None and maximum_sample_age_seconds < math.inf:
            has_figures = sampled_at > -np.inf
            self.stale_from_seconds = np.where(has_figures, sampled_at + maximum_sample_age_seconds, np.inf)
        self.static = static
        self.blocks: dict[tuple[int, int, bytes | None], Any] = {}
        topology, load = snapshot.topology, snapshot.load
        self.ready: BoolArray = load.replica_state == ReplicaState.READY
        self.all_ready = bool(self.ready.all())
        self.outstanding: Float32Array = load.replica_queued + load.replica_running
        self.link_backlog_bytes = load.link_backlog_bytes
        nodes = len(topology.nodes.names)
        held = self.outstanding * static.cpu_fraction
        committed = np.bincount(topology.replicas.node, weights=held, minlength=nodes)
        busy = np.bincount(topology.replicas.node, weights=held * static.execution_seconds, minlength=nodes)
        self.node_committed: Float32Array = committed.astype(np.float32)
        self.node_mean_execution_seconds: Float32Array = np.divide(
            busy, committed, out=np.zeros(nodes), where=committed > 0
        ).astype(np.float32)
        width = static.access_point_service.max(initial=-1) + 1
        demand = load.arrival_rate_per_second * static.service_cpu_seconds
        self.access_point_demand: Float32Array = demand.sum(axis=1)
        self.service_demand_millicores = np.bincount(
            static.access_point_service.ravel(), weights=demand.ravel(), minlength=width
        )
        self.service_ready = np.bincount(static.service_system[self.ready], minlength=width).astype(
            np.float64
        )

    def stale_count(self, now_seconds: float) -> int:
        """How many replicas have figures that are stale."""
        stale_from = self.stale_from_seconds
        if stale_from is None:
            is_stale = self.snapshot.age_seconds(now_seconds) > self.maximum_sample_age_seconds
            return len(self.ready) if is_stale else 0
        return int(np.count_nonzero(stale_from < now_seconds))

    def fresh(self, replica: Int64Array, now_seconds: float) -> tuple[BoolArray | None, float]:
        """Which of some replicas to choose from: those whose figures are fresh, where there are any.

        A replica that has no figures yet is as good as fresh.

        Args:
            replica: int64 [C], replica rows.
            now_seconds: on the clock of the snapshot.

        Returns:
            bool [C], or None for all of them, and until when the answer holds.
        """
        if self.stale_from_seconds is None:
            return None, math.inf
        stale_from = self.stale_from_seconds[replica]
        fresh = stale_from >= now_seconds
        if not fresh.any():
            return None, math.inf
        return None if fresh.all() else fresh, float(stale_from[fresh].min())

    @cached_property
    def node_features(self) -> Float32Array:
        """float32 [N, len(SCHEMA.node)]."""
        topology, load, static = self.snapshot.topology, self.snapshot.load, self.static
        nodes, replicas = topology.nodes, topology.replicas
        count = len(nodes.names)
        queued = np.bincount(
            replicas.node, weights=load.replica_queued * static.cpu_fraction, minlength=count
        )
        share = self.service_demand_millicores / np.maximum(self.service_ready, 1.0)
        expected = np.bincount(
            replicas.node, weights=share[static.service_system] * self.ready, minlength=count
        )
        return float32_columns(
            nodes.cpu_millicores / np.float32(1000),
            nodes.memory_bytes / _GIBIBYTE,
            nodes.speed,
            load.node_cpu_used_millicores / nodes.cpu_millicores,
            load.node_memory_used_bytes / nodes.memory_bytes,
            self.node_committed,
            queued,
            expected / nodes.cpu_millicores,
            self.node_mean_execution_seconds,
            static.node_is_cloud,
        )

    @cached_property
    def access_point_features(self) -> Float32Array:
        """float32 [A, len(SCHEMA.access_point)]."""
        topology, load, static = self.snapshot.topology, self.snapshot.load, self.static
        capacity = static.access_point_cpu_millicores
        demand_fraction = np.divide(
            self.access_point_demand, capacity, out=np.zeros_like(capacity), where=capacity > 0
        )
        linked, link = static.linked_to_cloud
        cloud_delay = np.zeros_like(capacity)
        cloud_delay[linked] = topology.links.delay_seconds[link]
        cloud_backlog = np.zeros_like(capacity)
        cloud_backlog[linked] = load.link_backlog_bytes[link] * static.inverse_bandwidth[link]
        return float32_columns(
            load.access_point_queued,
            demand_fraction,
            static.node_count_log,
            cloud_delay,
            cloud_backlog,
            topology.access_points.is_cloud,
        )

    @cached_property
    def link_features(self) -> Float32Array:
        """float32 [L, len(SCHEMA.link)]."""
        static = self.static
        return float32_columns(
            self.snapshot.topology.links.delay_seconds,
            _MEGABYTE * static.inverse_bandwidth,
            self.snapshot.load.link_backlog_bytes * static.inverse_bandwidth,
        )

    @cached_property
    def replica_features(self) -> Float32Array:
        """float32 [R, len(SCHEMA.replica)]."""
        topology, load, static = self.snapshot.topology, self.snapshot.load, self.static
        replicas = topology.replicas
        on_edge = ~static.node_is_cloud[replicas.node] & self.ready
        edge_replicas = np.bincount(static.service_system[on_edge], minlength=len(self.service_ready))
        demand = self.service_demand_millicores / static.service_system_cpu_millicores
        known = ~np.isnan(load.replica_latency_seconds)
        return float32_columns(
            static.execution_seconds,
            static.cpu_fraction,
            self.outstanding * static.inverse_concurrency,
            static.concurrency_log,
            np.where(known, load.replica_latency_seconds, 0),
            known,
            demand[static.service_system],
            np.log1p(edge_replicas)[static.service_system],
        )


def float32_columns(*columns: NDArray[Any]) -> Float32Array:
    """float32 [rows, columns]: arrays of one length side by side. A fraction of what ``np.column_stack`` takes."""
    table = np.empty((len(columns[0]), len(columns)), np.float32)
    for position, column in enumerate(columns):
        table[:, position] = column
    return table
