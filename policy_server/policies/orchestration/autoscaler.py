"""The horizontal pod autoscaler of Kubernetes, with the default scheduler's choice of nodes: the Native baseline.

Sources: Kubernetes documentation, "Horizontal Pod Autoscaling" (algorithm details, default behavior), and the
``NodeResourcesFit`` (LeastAllocated) and ``PodTopologySpread`` plugins of kube-scheduler.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from dataclasses import dataclass

import numpy as np

from policy_server.cluster.actions import AddReplica, DeleteReplica, OrchestrationAction
from policy_server.cluster.snapshot import (
    BoolArray,
    Float64Array,
    Int64Array,
    ReplicaState,
    Snapshot,
    Topology,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerConfig:
    """Settings of a HorizontalPodAutoscaler, one for every service of every system.

    Attributes:
        target_utilisation: wanted CPU usage of a replica relative to the CPU it asks for, that of one request; 1 is
            one running request on average.
        tolerance: no change while usage / target is this close to 1.
        minimum_replicas: per service, on edge nodes.
        scale_down_window_seconds: a scale-down goes no lower than the highest recommendation of this window, the number
            of replicas at the first decision included.
        scale_up_factor: replicas may grow to this multiple in one decision ...
        scale_up_replicas: ... or by this number, whichever is more.

    Raises:
        ValueError: naming the field, the value and what it must be.
    """

    target_utilisation: float = 0.8
    tolerance: float = 0.1
    minimum_replicas: int = 1
    scale_down_window_seconds: float = 300.0
    scale_up_factor: float = 2.0
    scale_up_replicas: int = 4

    def __post_init__(self) -> None:
        if not 0 < self.target_utilisation < math.inf:
            raise ValueError(f"target_utilisation: {self.target_utilisation}; must be finite and above zero")
        for name in ("tolerance", "minimum_replicas", "scale_down_window_seconds", "scale_up_replicas"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: {getattr(self, name)}; must be finite, zero or more")
        if not 1 <= self.scale_up_factor < math.inf:
            raise ValueError(f"scale_up_factor: {self.scale_up_factor}; must be finite, 1 or more")


class HorizontalPodAutoscaler:
    """Scales each service's edge replicas by their CPU usage; the cloud's replicas stay as they are.

        desired = ceil(current * usage / target)

    with usage averaged over the ready replicas and over the snapshots observed since the last decision. Replicas
    that are still starting count as idle where they would damp a scale-up, and not at all otherwise. A new replica
    goes to the feasible node that hosts the fewest replicas of the service, and of those to the least allocated
    one: mean of the free shares of memory and of CPU, where a replica asks for the CPU of one request. Deleted are
    replicas that are still starting, then the youngest.

    Call :meth:`decide` every frame or every 15 s; :meth:`observe` in between makes its usage an average over time
    (as the metrics server's) instead of a sample.
    """

    def __init__(
        self,
        config: AutoscalerConfig = AutoscalerConfig(),
    ) -> None:
        self.config = config
        self._usage_sum: Float64Array | None = None
        self._samples: Int64Array | None = None
        self._recommendations: deque[tuple[float, Int64Array]] = deque()

    def observe(self, snapshot: Snapshot) -> None:
        """Takes a sample of the usage of all services."""
        topology, load = snapshot.topology, snapshot.load
        group, edge = _groups(topology)
        ready = edge & (load.replica_state == ReplicaState.READY)
        shape = (topology.system_count, len(topology.services.names))
        size = shape[0] * shape[1]
        running = np.bincount(group[ready], weights=load.replica_running[ready], minlength=size)
        count = np.bincount(group[ready], minlength=size)
        if self._usage_sum is None or self._samples is None or self._usage_sum.shape != shape:
            self._usage_sum, self._samples = np.zeros(shape), np.zeros(shape, np.int64)
        self._usage_sum += np.divide(running, count, out=np.zeros(size), where=count > 0).reshape(shape)
        self._samples += (count > 0).reshape(shape)

    def decide(
        self,
        snapshot: Snapshot,
        *,
        allowed: BoolArray | None = None,
        pending: Int64Array | None = None,
        most: int = sys.maxsize,
    ) -> list[OrchestrationAction]:
        """Actions that bring each service to its desired number of replicas, as far as nodes have room.

        Args:
            snapshot: to decide on.
            allowed: bool [N, W], restricts additions further; None: no restriction.
            pending: int64 [S, W], replicas decided on earlier that the snapshot does not show yet, those to be deleted
                negative; None: none.
            most: additions to return.
        """
        self.observe(snapshot)
        assert self._usage_sum is not None
        assert self._samples is not None
        usage = self._usage_sum / np.maximum(self._samples, 1)
        self._usage_sum = self._samples = None

        topology, load = snapshot.topology, snapshot.load
        group, edge = _groups(topology)
        current = _count(group, edge & (load.replica_state != ReplicaState.DRAINING), usage.shape)
        ready = _count(group, edge & (load.replica_state == ReplicaState.READY), usage.shape)
        wanted = np.maximum(self._recommended(current, ready, usage), self.config.minimum_replicas)
        if not self._recommendations:
            self._recommendations.append((snapshot.taken_at_seconds, current))
        self._recommendations.append((snapshot.taken_at_seconds, wanted))
        missing = self._stabilised(current, wanted, snapshot.taken_at_seconds) - current
        if pending is not None:
            missing = np.sign(missing) * np.maximum(np.sign(missing) * (missing - pending), 0)
        return [
            *_deletions(snapshot, group, edge, -missing),
            *_additions(snapshot, group, edge, missing, allowed, most),
        ]

    def _recommended(self, current: Int64Array, ready: Int64Array, usage: Float64Array) -> Int64Array:
        tolerance, target = self.config.tolerance, self.config.target_utilisation
        ratio = usage / target
        damped = (ratio > 1) & (current > ready)
        ratio_of_all = ratio * ready / np.maximum(current, 1)
        ratio = np.where(damped, ratio_of_all, ratio)
        desired = np.ceil(ratio * np.where(damped, current, ready) - 1e-9).astype(np.int64)
        unchanged = (np.abs(ratio - 1) <= tolerance) | (damped & (ratio_of_all < 1)) | (ready == 0)
        most = np.maximum(
            np.floor(current * self.config.scale_up_factor), current + self.config.scale_up_replicas
        ).astype(np.int64)
        return np.where(unchanged, current, np.minimum(desired, most))

    def _stabilised(self, current: Int64Array, wanted: Int64Array, now_seconds: float) -> Int64Array:
        oldest = now_seconds - self.config.scale_down_window_seconds
        while self._recommendations[0][0] < oldest:
            self._recommendations.popleft()
        highest = np.max([recommended for _, recommended in self._recommendations], axis=0)
        return np.where(wanted < current, np.minimum(highest, current), wanted)


def _groups(topology: Topology) -> tuple[Int64Array, BoolArray]:
    """Per replica the flat row of its (system, service), and whether its node is an edge node."""
    access_point = topology.nodes.access_point[topology.replicas.node]
    system = topology.access_points.system[access_point].astype(np.int64)
    return (
        system * len(topology.services.names) + topology.replicas.service,
        ~topology.access_points.is_cloud[access_point],
    )


def _count(group: Int64Array, chosen: BoolArray, shape: tuple[int, ...]) -> Int64Array:
    return np.bincount(group[chosen], minlength=shape[0] * shape[1]).reshape(shape)


def _deletions(
    snapshot: Snapshot, group: Int64Array, edge: BoolArray, surplus: Int64Array
) -> list[OrchestrationAction]:
    state = snapshot.load.replica_state
    actions: list[OrchestrationAction] = []
    for row in np.flatnonzero(surplus.ravel() > 0):
        replicas = np.flatnonzero((group == row) & edge & (state != ReplicaState.DRAINING))
        # Rows of a system are in order of age.
        order = np.lexsort((-replicas, state[replicas] != ReplicaState.STARTING))
        actions.extend(DeleteReplica(int(replica)) for replica in replicas[order][: surplus.flat[row]])
    return actions


def _additions(
    snapshot: Snapshot,
    group: Int64Array,
    edge: BoolArray,
    missing: Int64Array,
    allowed: BoolArray | None,
    most: int,
) -> list[OrchestrationAction]:
    topology = snapshot.topology
    nodes, services, replicas = topology.nodes, topology.services, topology.replicas
    node_system = topology.access_points.system[nodes.access_point]
    edge_node = ~topology.access_points.is_cloud[nodes.access_point]
    memory_free = nodes.memory_bytes.astype(np.float64) - snapshot.load.node_memory_used_bytes
    cpu_free = nodes.cpu_millicores - np.bincount(
        replicas.node, weights=services.cpu_millicores[replicas.service], minlength=len(nodes.names)
    )
    actions: list[OrchestrationAction] = []
    for row in np.flatnonzero(missing.ravel() > 0):
        system, service = divmod(int(row), len(services.names))
        cpu, memory = float(services.cpu_millicores[service]), float(services.memory_bytes[service])
        suits = edge_node & (node_system == system) & (nodes.cpu_millicores >= cpu)
        if allowed is not None:
            suits &= allowed[:, service]
        hosted = np.bincount(replicas.node[(group == row) & edge], minlength=len(nodes.names))
        for _ in range(int(missing.flat[row])):
            feasible = np.flatnonzero(suits & (memory_free >= memory))
            if not len(feasible) or len(actions) == most:
                break
            free_share = (
                np.maximum(cpu_free[feasible] - cpu, 0) / nodes.cpu_millicores[feasible]
                + (memory_free[feasible] - memory) / nodes.memory_bytes[feasible]
            )
            node = int(feasible[np.lexsort((-free_share, hosted[feasible]))[0]])
            actions.append(AddReplica(service, node))
            hosted[node] += 1
            memory_free[node] -= memory
            cpu_free[node] -= cpu
    return actions
