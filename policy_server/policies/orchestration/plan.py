"""The mask of orchestration: what may be done to a system, beside what is decided already.

An addition of service w to node n is feasible if all of this holds:

- n is an edge node; the cloud's nodes are left as they are;
- CPU: one request of w fits beside what the node's running requests hold;
- memory: a replica of w fits beside what the node holds: the larger of the memory in use and that of its replicas;
- image: n hosts w already, or can pull the image (:class:`~policy_server.features.graph.OrchestrationTopology`);
- in this frame no replica of w was added to n, or deleted from it, yet.

A deletion of a replica of w is feasible if all of this holds:

- it is on an edge node, is not draining, and w is not protected;
- another replica of w that does not drain remains in the system, and one that is ready if this one is;
- in this frame it was not deleted yet, and no replica of w was added to its node.

What earlier actions of the same answer, and of earlier answers of the frame, take is taken: so the actions of an
answer are feasible together, in their order. What a deletion frees is not counted on, because draining takes time.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from policy_server.cluster.actions import AddReplica, DeleteReplica, OrchestrationAction
from policy_server.cluster.snapshot import (
    BoolArray,
    Float32Array,
    Float64Array,
    Int64Array,
    ReplicaState,
)
from policy_server.features.graph import OrchestrationGraph
from policy_server.policies.orchestration.memory import FrameMemory, GivenAddition, GivenDeletion


@dataclass(frozen=True)
class OrchestrationOptions:
    """What a caller allows.

    Attributes:
        maximum_actions: at most so many actions per system; None: as many as the policy sees fit (learned ones
            what their manifest says), but not more than ``ceiling``.
        protected_services: int64, rows of services that lose no replica.
        ceiling: at most so many actions per system, whatever the policy sees fit; None: no bound.
    """

    maximum_actions: int | None = None
    protected_services: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    ceiling: int | None = None


@dataclass(frozen=True, eq=False)
class OrchestrationQuery:
    """One snapshot to decide on. It may be a disjoint union of systems, each of which is decided on its own.

    Attributes:
        graph: of the snapshot.
        options: of every system in it.
        memory: of the caller's earlier answers, which a decision reads, and of rules.
        pending_requests: float32 [R], requests on their way to each replica that the snapshot lacks; None: none.
        now_seconds: on the clock of the snapshot; None: the time it was taken.
    """

    graph: OrchestrationGraph
    options: OrchestrationOptions = OrchestrationOptions()
    memory: FrameMemory = field(default_factory=FrameMemory)
    pending_requests: Float32Array | None = None
    now_seconds: float | None = None


class PlannedAction(NamedTuple):
    """An action that is feasible after those before it.

    Attributes:
        action: what to do.
        node: row.
        service: row.
        score: the policy's; larger is better; comparable only within one answer.
        drain_first: of a deletion: requests run or wait at the replica, so it must drain before it goes.
        node_memory_bytes: that the node holds once the action is carried out.
        node_cpu_millicores: of an addition: CPU that is held once a request runs at the new replica.
        replicas: of the service in the system that do not drain, once the action is carried out.
    """

    action: OrchestrationAction
    node: int
    service: int
    score: float
    drain_first: bool
    node_memory_bytes: float
    node_cpu_millicores: float
    replicas: int


class FramePlan:
    """The actions decided so far, and which others are feasible beside them.

    Attributes:
        graph: of the snapshot decided on.
        options: of every system in it.
        actions: in order.
        most: actions that each system may have.
        pending: int64 [S, W], replicas that earlier answers of this frame added and the snapshot does not show yet;
            those they deleted count negative.
    """

    def __init__(self, query: OrchestrationQuery) -> None:
        """Starts with what the query's memory says was decided earlier in this frame."""
        graph = query.graph
        self.graph = graph
        self.options = query.options
        self.actions: list[PlannedAction] = []
        topology, load, static = graph.snapshot.topology, graph.snapshot.load, graph.topology
        self._cpu_needed = static.service_cpu_millicores
        self._memory_needed = static.service_memory_bytes
        self._memory_held: Float64Array = np.maximum(
            static.node_replica_memory_bytes, load.node_memory_used_bytes
        )
        self._cpu_held: Float64Array = load.node_cpu_used_millicores.astype(np.float64)
        self._memory = static.node_memory_bytes
        self._cpu = static.node_cpu_millicores
        self._starting: BoolArray = load.replica_state == ReplicaState.STARTING
        self._outstanding = graph.table.outstanding.astype(np.float64)
        if query.pending_requests is not None:
            self._outstanding = self._outstanding + query.pending_requests
        self._deletable: BoolArray = graph.live & static.replica_is_edge
        starting, ready, _ = graph.node_counts
        self._deletable_starting, self._deletable_ready = starting.copy(), ready.copy()
        # Where an addition fails neither for want of the image nor for what was decided already.
        self._addable: BoolArray = static.node_pulls_images[:, None] | (graph.node_live > 0)
        self._forbid(static.cloud_nodes)
        protected = self.options.protected_services
        if len(protected):
            self._deletable &= ~np.isin(topology.replicas.service, protected)
            self._deletable_starting[:, protected] = self._deletable_ready[:, protected] = 0
        starting, ready, _ = graph.system_counts
        self._live = starting + ready
        self._ready = ready.copy()
        self._added: set[tuple[int, int]] = set()
        self._given = np.zeros(graph.systems, np.int64)
        self._planned = np.zeros(self._live.shape, np.int64)
        self.pending: Int64Array = np.zeros(self._live.shape, np.int64)
        bounds = (self.options.maximum_actions, self.options.ceiling)
        self.most: int = min((bound for bound in bounds if bound is not None), default=sys.maxsize)
        if self.most < 1:
            self._forbid(np.flatnonzero(static.node_is_edge))
        now_seconds = graph.snapshot.taken_at_seconds if query.now_seconds is None else query.now_seconds
        self._take_in(query.memory.given(now_seconds))

    def additions(self, nodes: Int64Array | slice) -> BoolArray:
        """bool [K, W]: whether a replica of each service may be added to each of K nodes (rows)."""
        feasible: BoolArray = (
            self._memory_held[nodes, None] + self._memory_needed <= self._memory[nodes, None]
        )
        feasible &= self._cpu_held[nodes, None] + self._cpu_needed <= self._cpu[nodes, None]
        feasible &= self._addable[nodes]
        return feasible

    def deletions(self, nodes: Int64Array | slice) -> BoolArray:
        """bool [K, W]: whether a replica of each service may be deleted from each of K nodes (rows)."""
        system = self.graph.topology.node_system[nodes]
        feasible: BoolArray = self._deletable_ready[nodes] > 0
        feasible &= (self._ready >= 2)[system]
        feasible |= self._deletable_starting[nodes] > 0
        feasible &= (self._live >= 2)[system]
        return feasible

    def mask(self, nodes: Int64Array) -> BoolArray:
        """bool [K, 2W + 1]: the 2W + 1 actions of each node that are feasible.

        Column w deletes a replica of service w, column W does nothing, and column W + 1 + w adds a replica of w.
        """
        nothing = np.ones((len(nodes), 1), bool)
        return np.concatenate((self.deletions(nodes), nothing, self.additions(nodes)), axis=1)

    def actionable(self) -> BoolArray:
        """bool [N]: nodes on which something else than nothing is feasible."""
        every = slice(None)
        actionable: BoolArray = np.any(self.additions(every) | self.deletions(every), axis=1)
        return actionable

    def may_act(self, node: int) -> bool:
        """Whether the system of a node has not had all the actions it may have."""
        return bool(self._given[self.graph.topology.node_system[node]] < self.most)

    def lacks_memory(self) -> BoolArray:
        """bool [N, W]: whether a node's memory is in the way of adding a replica of each service."""
        lacks: BoolArray = self._memory_held[:, None] + self._memory_needed > self._memory[:, None]
        return lacks

    def free_memory_share(self, nodes: Int64Array | slice) -> Float64Array:
        """float64 [K]: of each node (row); below zero where it holds more than it has."""
        return 1.0 - self._memory_held[nodes] / self._memory[nodes]

    def free_cpu_share(self, nodes: Int64Array | slice) -> Float64Array:
        """float64 [K]: of each node (row); below zero where more is promised than it has."""
        return 1.0 - self._cpu_held[nodes] / self._cpu[nodes]

    def add(self, node: int, service: int, score: float = 0.0) -> bool:
        """Plans an addition; False if it is not feasible."""
        if (
            not self._addable[node, service]
            or self._memory_held[node] + self._memory_needed[service] > self._memory[node]
            or self._cpu_held[node] + self._cpu_needed[service] > self._cpu[node]
        ):
            return False
        self._take(node, service)
        system = int(self.graph.topology.node_system[node])
        self._give(system)
        self._planned[system, service] += 1
        self.actions.append(
            PlannedAction(
                AddReplica(service, node),
                node,
                service,
                score,
                drain_first=False,
                node_memory_bytes=float(self._memory_held[node]),
                node_cpu_millicores=float(self._cpu_held[node]),
                replicas=int(self._live[system, service] + self._planned[system, service]),
            )
        )
        return True

    def delete(self, replica: int, score: float = 0.0) -> bool:
        """Plans the deletion of a replica (row); False if it is not feasible."""
        replicas = self.graph.snapshot.topology.replicas
        node, service = int(replicas.node[replica]), int(replicas.service[replica])
        system = int(self.graph.topology.node_system[node])
        if (
            not self._deletable[replica]
            or (node, service) in self._added
            or self._live[system, service] < 2
            or (not self._starting[replica] and self._ready[system, service] < 2)
            or self._given[system] >= self.most
        ):
            return False
        self._drop(replica)
        self._give(system)
        self.actions.append(
            PlannedAction(
                DeleteReplica(replica),
                node,
                service,
                score,
                drain_first=bool(self._outstanding[replica] > 0),
                node_memory_bytes=float(self._memory_held[node] - self._memory_needed[service]),
                node_cpu_millicores=float(self._cpu_held[node]),
                replicas=int(self._live[system, service] + self._planned[system, service]),
            )
        )
        return True

    def delete_from(self, node: int, service: int, score: float = 0.0) -> bool:
        """Plans the deletion of the replica of a service on a node that is missed least; False if none may go.

        One that is still starting goes before one that is idle, that before one with few requests, the youngest
        (the last row) first.
        """
        replica = self._dispensable(node, service)
        return replica is not None and self.delete(replica, score)

    def choose(self, node: int, choice: int, score: float = 0.0) -> bool:
        """Plans the action in one column of :meth:`mask`; True for doing nothing."""
        width = self.graph.services
        if choice == width:
            return True
        if choice < width:
            return self.delete_from(node, choice, score)
        return self.add(node, choice - width - 1, score)

    def given_actions(self, now_seconds: float) -> list[GivenAddition | GivenDeletion]:
        """The actions decided here, for the caller's memory."""
        topology = self.graph.snapshot.topology
        node_names, service_names = topology.nodes.names, topology.services.names
        given: list[GivenAddition | GivenDeletion] = []
        for planned in self.actions:
            node, service = node_names[planned.node], service_names[planned.service]
            if isinstance(planned.action, AddReplica):
                live = int(self.graph.node_live[planned.node, planned.service])
                given.append(GivenAddition(now_seconds, node, service, live))
            else:
                endpoint = topology.replicas.endpoints[planned.action.replica]
                given.append(GivenDeletion(now_seconds, endpoint, node, service))
        return given

    def _dispensable(self, node: int, service: int) -> int | None:
        pair = node * self.graph.services + service
        rows = np.flatnonzero((self.graph.topology.replica_pair == pair) & self._deletable)
        if not len(rows):
            return None
        order = np.lexsort((-rows, self._outstanding[rows], ~self._starting[rows]))
        return int(rows[order[0]])

    def _take(self, node: int, service: int) -> None:
        self._memory_held[node] += self._memory_needed[service]
        self._cpu_held[node] += self._cpu_needed[service]
        self._settle(node, service)

    def _settle(self, node: int, service: int) -> None:
        """Neither adds to nor deletes from a pair to which a replica was added."""
        self._added.add((node, service))
        self._addable[node, service] = False
        self._deletable_starting[node, service] = self._deletable_ready[node, service] = 0

    def _give(self, system: int) -> None:
        self._given[system] += 1
        if self._given[system] >= self.most:
            self._forbid(self.graph.topology.nodes_of_system[system])

    def _forbid(self, nodes: Int64Array) -> None:
        """Allows no action on some nodes (rows) any more."""
        self._addable[nodes] = False
        self._deletable_starting[nodes] = self._deletable_ready[nodes] = 0

    def _drop(self, replica: int) -> None:
        replicas = self.graph.snapshot.topology.replicas
        node, service = int(replicas.node[replica]), int(replicas.service[replica])
        system = int(self.graph.topology.node_system[node])
        starting = bool(self._starting[replica])
        counts = self._deletable_starting if starting else self._deletable_ready
        if self._deletable[replica]:
            counts[node, service] -= 1
        self._deletable[replica] = False
        self._live[system, service] -= 1
        self._ready[system, service] -= not starting
        self._addable[node, service] = False

    def _take_in(self, earlier: list[GivenAddition | GivenDeletion]) -> None:
        topology = self.graph.snapshot.topology
        for given in earlier:
            node, service = topology.node_index.get(given.node), topology.service_index.get(given.service)
            if node is None or service is None:
                continue
            system = self.graph.topology.node_system[node]
            if isinstance(given, GivenAddition):
                shown = int(self.graph.node_live[node, service]) > given.replicas
                if not shown:
                    self._take(node, service)
                    self.pending[system, service] += 1
                self._settle(node, service)
                continue
            self._addable[node, service] = False
            replica = topology.replica_index.get(given.endpoint)
            if replica is not None and self.graph.live[replica]:
                self._drop(replica)
                self.pending[system, service] -= 1
