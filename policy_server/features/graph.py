"""What orchestration policies see of a snapshot: a sparse graph of nodes, access points, links, replicas and demand.

Rows and the edges between them; nothing is padded, and nothing but ``[N, W]`` counts grows with a product:

====================  =====================================================================================
rows                  edges
====================  =====================================================================================
N nodes               each belongs to an access point
A access points       each belongs to a system; the cloud is one more access point
L links               directed, from access point to access point
R replicas            each runs on a node; no edge to its service: features alone tell services apart
A x W demands         requests for a service at an access point, row ``access point * W + service``
K x W pairs           a service on one of K picked nodes, row ``node * W + service``; made for these nodes alone
S systems             disjoint: nothing links one to another
====================  =====================================================================================

A feature depends on no row number: permuting nodes or services permutes rows and changes nothing else. All are
ratios, times or logarithms of counts, so a model serves systems of any size. Formulas, beside those of
:mod:`policy_server.features.load_table` (our choice; the KaiS paper names what goes in, not how):

- *demand* of a service: request rate x CPU of a request x its execution time, millicores of a reference machine;
  *demand fraction*: over the CPU of the access point's nodes, or of the system's edge nodes.
- *capacity* of a replica: CPU x speed of its node, shared equally among the node's replicas that do not drain;
  *pressure* of a service: demand / (demand + capacity of its ready replicas), 0 without demand, 1 without capacity.
  At the access point its own nodes' replicas count, in the system those of all edge nodes.
- *waiting seconds*: work of queued requests (CPU x execution time) over the CPU of the node, the access point's
  nodes, or the system's edge nodes.
- *cloud slack fraction*: 1 - (round trip to the cloud + execution time) / deadline, at least -1; -1 without a link.
- *start seconds*: cold start, and pulling the image over the link from the cloud where the node does not have it.
- ``*_log`` of a count or a time: log(1 + x).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
)
from policy_server.features.load_table import LoadTable, TopologyTable, float32_columns
from policy_server.features.orchestration_schema import ORCHESTRATION_SCHEMA

_GIBIBYTE = 2.0**30


class OrchestrationTopology:
    """Columns derived from a topology alone.

    Attributes:
        static: what dispatch derives from it.
        node_system: int64 [N].
        node_is_edge: bool [N].
        cloud_nodes: int64, rows of the others.
        node_pulls_images: bool [N], whether a node can get an image it does not have: a link leads from a cloud to its
            access point, or the system knows no cloud and images come from elsewhere.
        replica_pair: int64 [R], ``node * W + service`` of each replica.
        replica_demand: int64 [R], ``access point * W + service`` of each replica.
        replica_cpu_seconds: float32 [R], CPU (millicores) x execution time of one request.
        replica_is_edge: bool [R].
        node_cpu_millicores: float64 [N].
        node_memory_bytes: float64 [N].
        node_power_millicores: float64 [N], CPU x speed.
        node_replica_memory_bytes: float64 [N], that the replicas of each node hold by their services.
        service_cpu_millicores: float64 [W].
        service_memory_bytes: float64 [W].
    """

    def __init__(self, static: TopologyTable) -> None:
        self.static = static
        topology = static.topology
        nodes, access_points, links = topology.nodes, topology.access_points, topology.links
        self.services: int = len(topology.services.names)
        self.node_system: Int64Array = access_points.system[nodes.access_point].astype(np.int64)
        self.node_is_edge: BoolArray = ~static.node_is_cloud
        self.cloud_nodes: Int64Array = np.flatnonzero(static.node_is_cloud)
        self.replica_pair: Int64Array = (
            topology.replicas.node.astype(np.int64) * self.services + topology.replicas.service
        )
        self.replica_demand: Int64Array = (
            static.replica_access_point.astype(np.int64) * self.services + topology.replicas.service
        )
        self.replica_cpu_seconds: Float32Array = static.service_cpu_seconds[topology.replicas.service]
        self.replica_is_edge: BoolArray = self.node_is_edge[topology.replicas.node]
        self.node_cpu_millicores: Float64Array = nodes.cpu_millicores.astype(np.float64)
        self.node_memory_bytes: Float64Array = nodes.memory_bytes.astype(np.float64)
        self.node_power_millicores: Float64Array = self.node_cpu_millicores * nodes.speed
        self.service_cpu_millicores: Float64Array = topology.services.cpu_millicores.astype(np.float64)
        self.service_memory_bytes: Float64Array = topology.services.memory_bytes.astype(np.float64)
        self.node_replica_memory_bytes: Float64Array = np.bincount(
            topology.replicas.node,
            self.service_memory_bytes[topology.replicas.service],
            len(nodes.names),
        ).astype(np.float64, copy=False)
        # Access points are listed system by system.
        self._present_systems, self._first_access_point = np.unique(access_points.system, return_index=True)
        from_cloud = np.flatnonzero(access_points.is_cloud[links.source])
        self.image_link: Int64Array = np.full(len(access_points.names), -1, np.int64)
        self.image_link[links.target[from_cloud]] = from_cloud
        clouds = np.bincount(
            access_points.system, weights=access_points.is_cloud, minlength=topology.system_count
        )
        self.node_pulls_images: BoolArray = (self.image_link[nodes.access_point] >= 0) | (
            clouds[self.node_system] == 0
        )

    @cached_property
    def nodes_of_system(self) -> list[Int64Array]:
        """Edge node rows of each system, ascending."""
        return self._edge_nodes_by(self.node_system, self.static.topology.system_count)

    @cached_property
    def nodes_of_access_point(self) -> list[Int64Array]:
        """Edge node rows of each access point, ascending; none of the cloud's."""
        topology = self.static.topology
        return self._edge_nodes_by(topology.nodes.access_point, len(topology.access_points.names))

    def _edge_nodes_by(self, group: NDArray[np.integer[Any]], groups: int) -> list[Int64Array]:
        rows = np.flatnonzero(self.node_is_edge)
        order = rows[np.argsort(group[rows], kind="stable")]
        return np.split(order, np.cumsum(np.bincount(group[rows], minlength=groups))[:-1])[:groups]

    def per_system(self, values: NDArray[Any]) -> Float64Array:
        """float64 [..., S, W]: sums of rows of access points, [..., A, W]."""
        systems, present = self.static.topology.system_count, self._present_systems
        if 0 < len(present) == systems:
            return np.add.reduceat(values, self._first_access_point, axis=-2).astype(np.float64, copy=False)
        sums = np.zeros((*values.shape[:-2], systems, self.services))
        if len(present):
            sums[..., present, :] = np.add.reduceat(values, self._first_access_point, axis=-2)
        return sums

    @cached_property
    def access_point_cpu_millicores(self) -> Float64Array:
        """float64 [A]: CPU of each access point's nodes, at least 1."""
        return np.maximum(self.static.access_point_cpu_millicores.astype(np.float64), 1.0)

    @cached_property
    def edge_cpu_millicores(self) -> Float64Array:
        """float64 [S]: CPU of each system's edge nodes, at least 1."""
        topology = self.static.topology
        cpu = topology.nodes.cpu_millicores * self.node_is_edge
        return np.maximum(np.bincount(self.node_system, cpu, topology.system_count), 1.0)

    @cached_property
    def demand_constants(self) -> Float32Array:
        """float32 [A, W, columns]: the last columns of the demands' features, which are the services' own."""
        services = self.static.topology.services
        execution = services.execution_seconds.astype(np.float64)
        deadline = services.deadline_seconds.astype(np.float64)
        slack = self._cloud_slack(execution, deadline)
        own = (services.cpu_millicores / 1000.0, services.memory_bytes / _GIBIBYTE, execution, deadline)
        columns = (*(np.broadcast_to(column, slack.shape) for column in own), slack)
        return np.stack(columns, axis=2).astype(np.float32)

    def _cloud_slack(self, execution: Float64Array, deadline: Float64Array) -> Float64Array:
        topology, link = self.static.topology, self.static.cloud_link
        round_trip = 2.0 * topology.links.delay_seconds.astype(np.float64)[link[link >= 0]]
        slack = np.full((len(link), self.services), -1.0)
        slack[link >= 0] = np.maximum(1.0 - (round_trip[:, None] + execution) / deadline, -1.0)
        slack[topology.access_points.is_cloud] = np.maximum(1.0 - execution / deadline, -1.0)
        return slack

    @cached_property
    def edges(self) -> dict[str, Int64Array]:
        """The encoder's inputs that hold rows; see :func:`encoder_inputs`."""
        topology = self.static.topology
        access_points = np.arange(len(topology.access_points.names), dtype=np.int64)
        return {
            "node_access_point": topology.nodes.access_point.astype(np.int64),
            "access_point_system": topology.access_points.system.astype(np.int64),
            "link_source": topology.links.source.astype(np.int64),
            "link_target": topology.links.target.astype(np.int64),
            "replica_node": topology.replicas.node.astype(np.int64),
            "demand_access_point": np.repeat(access_points, self.services),
        }


class OrchestrationGraph:
    """A snapshot as orchestration policies see it; what a policy does not ask for is not computed.

    The snapshot may be a disjoint union of systems that share their services. Systems with services of their own
    stay snapshots of their own; :func:`encoder_inputs` unites their graphs.

    Attributes:
        table: what dispatch computes of the snapshot.
        topology: see :class:`OrchestrationTopology`.
    """

    def __init__(self, table: LoadTable, previous: OrchestrationGraph | None = None) -> None:
        """Keeps what ``previous`` derived from the topology where that is the same."""
        self.table = table
        same = previous is not None and previous.topology.static is table.static
        self.topology: OrchestrationTopology = (
            previous.topology if previous is not None and same else OrchestrationTopology(table.static)
        )

    @classmethod
    def of(cls, snapshot: Snapshot, previous: OrchestrationGraph | None = None) -> OrchestrationGraph:
        """The graph of a snapshot of which no table exists yet."""
        if previous is not None and previous.snapshot.topology is snapshot.topology:
            static = previous.topology.static
        else:
            static = TopologyTable(snapshot.topology)
        return cls(LoadTable(snapshot, static), previous)

    @property
    def snapshot(self) -> Snapshot:
        """It was made of."""
        return self.table.snapshot

    @property
    def services(self) -> int:
        """W."""
        return self.topology.services

    @cached_property
    def live(self) -> BoolArray:
        """bool [R]: replicas that do not drain."""
        live: BoolArray = self.snapshot.load.replica_state != ReplicaState.DRAINING
        return live

    @cached_property
    def idle(self) -> BoolArray:
        """bool [R]: replicas that do not drain, and at which no request runs or waits."""
        idle: BoolArray = self.live & (self.table.outstanding == 0)
        return idle

    @cached_property
    def node_counts(self) -> Int64Array:
        """int64 [states, N, W]: replicas in each :class:`ReplicaState`."""
        nodes = len(self.snapshot.topology.nodes.names)
        return self._per_state(self.topology.replica_pair, nodes, self.services)

    @cached_property
    def access_point_counts(self) -> Int64Array:
        """int64 [states, A, W]: replicas in each :class:`ReplicaState`, on each access point's nodes."""
        access_points = len(self.snapshot.topology.access_points.names)
        return self._per_state(self.topology.replica_demand, access_points, self.services)

    @cached_property
    def node_live(self) -> Int64Array:
        """int64 [N, W]: replicas that do not drain."""
        starting, ready, _ = self.node_counts
        live: Int64Array = starting + ready
        return live

    @cached_property
    def demand_millicores(self) -> Float64Array:
        """float64 [A, W]: see the module's formulas."""
        rates = self.snapshot.load.arrival_rate_per_second.astype(np.float64)
        return rates * self.table.static.service_cpu_seconds

    @cached_property
    def system_demand_millicores(self) -> Float64Array:
        """float64 [S, W]: demand at all access points of each system."""
        return self.topology.per_system(self.demand_millicores)

    @cached_property
    def system_live(self) -> Float64Array:
        """float64 [S, W]: replicas on all nodes of each system, the cloud's included, that do not drain."""
        starting, ready, _ = self.system_counts
        live: Float64Array = (starting + ready).astype(np.float64)
        return live

    @cached_property
    def system_counts(self) -> Int64Array:
        """int64 [states, S, W]: replicas in each :class:`ReplicaState`, on all nodes, the cloud's included."""
        return self.topology.per_system(self.access_point_counts).astype(np.int64)

    @cached_property
    def access_point_live(self) -> Float64Array:
        """float64 [A, W]: replicas on each access point's nodes that do not drain."""
        starting, ready, _ = self.access_point_counts
        live: Float64Array = (starting + ready).astype(np.float64)
        return live

    @cached_property
    def access_point_waiting_work(self) -> Float64Array:
        """float64 [A, W]: CPU x execution time of the requests queued at each access point's replicas."""
        return self._per_access_point(self._replica_waiting_work)

    @property
    def systems(self) -> int:
        """S."""
        return self.snapshot.topology.system_count

    @cached_property
    def ready_capacity_millicores(self) -> Float64Array:
        """float64 [R]: capacity of each replica that is ready, see the module's formulas; 0 of others."""
        starting, ready, _ = self._node_state_counts
        capacity = self.topology.node_power_millicores / np.maximum(starting + ready, 1)
        return np.where(self.table.ready, capacity[self.snapshot.topology.replicas.node], 0.0)

    @cached_property
    def node_features(self) -> Float32Array:
        """float32 [N, len(ORCHESTRATION_SCHEMA.node)]."""
        nodes, table = self.snapshot.topology.nodes, self.table
        starting, ready, draining = self._node_state_counts
        idle = np.bincount(self.snapshot.topology.replicas.node[self.idle], minlength=len(ready))
        return float32_columns(
            *table.node_features.T,
            (nodes.memory_bytes - self.snapshot.load.node_memory_used_bytes) / _GIBIBYTE,
            np.log1p(starting + ready),
            np.log1p(starting),
            np.log1p(draining),
            np.log1p(idle),
        )

    @cached_property
    def demand_features(self) -> Float32Array:
        """float32 [A * W, len(ORCHESTRATION_SCHEMA.demand)]."""
        access_points, topology = self.snapshot.topology.access_points, self.topology
        system, is_cloud = access_points.system, access_points.is_cloud[:, None]
        is_edge = ~is_cloud
        own_cpu, system_cpu = (
            topology.access_point_cpu_millicores[:, None],
            topology.edge_cpu_millicores[:, None],
        )
        demand, system_demand = self.demand_millicores, self.system_demand_millicores
        starting, ready, _ = self.access_point_counts
        waiting = self.access_point_waiting_work
        capacity = self._per_access_point(self.ready_capacity_millicores)
        summed = np.empty((4, *demand.shape))
        for position, values in enumerate((capacity * is_edge, waiting, ready * is_edge, ready * is_cloud)):
            summed[position] = values
        edge_capacity, system_waiting, edge_ready, cloud_ready = topology.per_system(summed)
        columns = (
            demand / own_cpu,
            _pressure(demand, capacity),
            (system_demand / system_cpu)[system],
            _pressure(system_demand, edge_capacity)[system],
            waiting / own_cpu,
            (system_waiting / system_cpu)[system],
            np.log1p(ready),
            np.log1p(starting),
            np.log1p(edge_ready)[system],
            np.log1p(cloud_ready)[system],
        )
        constants = topology.demand_constants
        features = np.empty((*demand.shape, len(columns) + constants.shape[2]), np.float32)
        for position, column in enumerate(columns):
            features[:, :, position] = column
        features[:, :, len(columns) :] = constants
        return features.reshape(-1, features.shape[2])

    def pair_features(self, nodes: Int64Array) -> Float32Array:
        """What is known of each service on each of K nodes: what is known of its demand there, then of the pair.

        Args:
            nodes: int64 [K], node rows.

        Returns:
            float32 [K * W, len(ORCHESTRATION_SCHEMA.demand) + len(ORCHESTRATION_SCHEMA.pair)], row
            ``position in nodes * W + service``.
        """
        topology, load, width = self.snapshot.topology, self.snapshot.load, self.services
        machines, services = topology.nodes, topology.services
        access_point = machines.access_point[nodes]
        cpu, memory = machines.cpu_millicores[nodes, None], machines.memory_bytes[nodes, None]
        hosted = self.node_live[nodes]
        left = memory - load.node_memory_used_bytes[nodes, None] - services.memory_bytes
        execution = services.execution_seconds / machines.speed[nodes, None]
        columns = (
            np.log1p(hosted),
            np.log1p(self.node_counts[ReplicaState.STARTING, nodes]),
            np.log1p(self._node_idle[nodes]),
            self._node_waiting_work[nodes] / cpu,
            services.cpu_millicores / cpu,
            services.memory_bytes / memory,
            np.maximum(left / memory, -1.0),
            np.minimum(execution / services.deadline_seconds, 10.0),
            np.log1p(
                services.cold_start_seconds + np.where(hosted > 0, 0.0, self._pull_seconds(access_point))
            ),
        )
        demand = self.demand_features.reshape(
            len(topology.access_points.names), width, len(ORCHESTRATION_SCHEMA.demand)
        )
        own = demand.shape[2]
        features = np.empty((len(nodes), width, own + len(columns)), np.float32)
        features[:, :, :own] = demand[access_point]
        for position, column in enumerate(columns, start=own):
            features[:, :, position] = column
        return features.reshape(len(nodes) * width, features.shape[2])

    @cached_property
    def _node_state_counts(self) -> Int64Array:
        """int64 [states, N]: replicas in each :class:`ReplicaState`."""
        nodes = len(self.snapshot.topology.nodes.names)
        return self._per_state(self.snapshot.topology.replicas.node, nodes)

    @cached_property
    def _node_idle(self) -> Int64Array:
        return self._per_pair(self.idle)

    @cached_property
    def _node_waiting_work(self) -> Float64Array:
        shape = len(self.snapshot.topology.nodes.names), self.services
        return _sums(self.topology.replica_pair, self._replica_waiting_work, shape)

    @cached_property
    def _replica_waiting_work(self) -> Float64Array:
        return self.snapshot.load.replica_queued.astype(np.float64) * self.topology.replica_cpu_seconds

    def _pull_seconds(self, access_point: NDArray[np.integer[Any]]) -> Float64Array:
        """float64 [K, W]: time that pulling the image takes at these access points; 0 where no link leads there."""
        topology = self.snapshot.topology
        if not len(topology.links.source):
            return np.zeros((len(access_point), self.services))
        link = self.topology.image_link[access_point, None]
        per_byte = self.table.static.inverse_bandwidth[link].astype(np.float64)
        backlog, delay = self.snapshot.load.link_backlog_bytes[link], topology.links.delay_seconds[link]
        seconds = (topology.services.image_bytes + backlog) * per_byte + delay
        return np.where(link >= 0, seconds, 0.0)

    def _per_state(self, rows: NDArray[np.integer[Any]], *shape: int) -> Int64Array:
        """int64 [states, *shape]: replicas in each state, by the row each belongs to of a table of that shape."""
        states, size = len(ReplicaState), math.prod(shape)
        in_state = rows + self.snapshot.load.replica_state.astype(np.int64) * size
        return np.bincount(in_state, minlength=states * size).reshape(states, *shape)

    def _per_pair(self, chosen: BoolArray) -> Int64Array:
        shape = len(self.snapshot.topology.nodes.names), self.services
        return np.bincount(self.topology.replica_pair[chosen], minlength=shape[0] * shape[1]).reshape(shape)

    def _per_access_point(self, values: NDArray[Any]) -> Float64Array:
        """float64 [A, W]: sums of a column of the replicas."""
        shape = len(self.snapshot.topology.access_points.names), self.services
        return _sums(self.topology.replica_demand, values, shape)


def encoder_inputs(graphs: Sequence[OrchestrationGraph]) -> dict[str, NDArray[Any]]:
    """The inputs of the encoder graph for the disjoint union of several graphs, in the order given.

    See :func:`policy_server.runtime.graph_contract.orchestration_signatures`. Rows of one graph follow those of the
    graphs before it, and so do its numbers of nodes, access points and systems.
    """
    inputs: dict[str, list[NDArray[Any]]] = {}
    offsets = {"node": 0, "access_point": 0, "system": 0}
    for graph in graphs:
        table = graph.table
        for name, rows in (
            ("node_features", graph.node_features),
            ("access_point_features", table.access_point_features),
            ("link_features", table.link_features),
            ("replica_features", table.replica_features),
            ("demand_features", graph.demand_features),
            ("systems", np.zeros(graph.systems, np.float32)),
        ):
            inputs.setdefault(name, []).append(rows)
        for name, numbers in graph.topology.edges.items():
            offset = offsets[_REFERS_TO[name]]
            inputs.setdefault(name, []).append(numbers + offset if offset else numbers)
        offsets["node"] += len(table.node_features)
        offsets["access_point"] += len(table.access_point_features)
        offsets["system"] += graph.systems
    return {name: concatenated(parts) for name, parts in inputs.items()}


def concatenated(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Arrays one after another; of one array itself."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


_REFERS_TO = {
    "node_access_point": "access_point",
    "access_point_system": "system",
    "link_source": "access_point",
    "link_target": "access_point",
    "replica_node": "node",
    "demand_access_point": "access_point",
}


def _sums(rows: Int64Array, values: NDArray[Any], shape: tuple[int, int]) -> Float64Array:
    sums = np.bincount(rows, values, shape[0] * shape[1]).astype(np.float64, copy=False)
    return sums.reshape(shape)


def _pressure(demand: Float64Array, capacity: Float64Array) -> Float64Array:
    total = demand + capacity
    return np.divide(demand, total, out=np.zeros(total.shape), where=demand > 0)
