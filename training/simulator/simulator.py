"""Many edge-cloud systems, simulated side by side, slot by slot."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from policy_server.cluster.actions import AddReplica, OrchestrationAction
from policy_server.cluster.snapshot import (
    NO_LINK,
    Float32Array,
    Float64Array,
    Int32Array,
    Int64Array,
    Load,
    ReplicaState,
    Services,
    Snapshot,
    Topology,
    disjoint_union_topology,
)
from training.simulator import kernel
from training.simulator.metrics import SlotOutcome, SystemResult, summarise
from training.simulator.orchestration import ActionResult
from training.simulator.replicas import ReplicaRegistry
from training.simulator.state import (
    ACCESS_POINT_DTYPE,
    COUNTERS_DTYPE,
    LINK_DTYPE,
    NODE_DTYPE,
    NONE,
    REQUEST_DTYPE,
    SERVICE_DTYPE,
    SYSTEM_DTYPE,
    Ledger,
    Pool,
    Sequences,
    Structure,
)
from training.workloads.requests import RequestSequence

ScalarT = TypeVar("ScalarT", bound=np.generic)

REJECT = -1
"""Target of a request that the dispatcher refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorConfig:
    """How time passes and what is observed.

    Attributes:
        slot_seconds: time between two snapshots (KaiS: 0.25 s).
        slots_per_frame: slots between two orchestration decisions (KaiS: 100).
        dispatch_seconds_per_request: time an access point spends on each request, one after the other.
        rate_window_seconds: time constant of the observed arrival rates.
        latency_gain: weight of a new answer in its replica's observed latency.

    Raises:
        ValueError: naming the field, the value and what it must be.
    """

    slot_seconds: float = 0.25
    slots_per_frame: int = 100
    dispatch_seconds_per_request: float = 0.0002
    rate_window_seconds: float = 10.0
    latency_gain: float = 0.2

    def __post_init__(self) -> None:
        for name in ("slot_seconds", "slots_per_frame", "rate_window_seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: {getattr(self, name)}; must be finite and above zero")
        if not 0 <= self.dispatch_seconds_per_request < math.inf:
            raise ValueError(
                f"dispatch_seconds_per_request: {self.dispatch_seconds_per_request}; must be finite, zero or more"
            )
        if not 0 < self.latency_gain <= 1:
            raise ValueError(f"latency_gain: {self.latency_gain}; must be above 0 and at most 1")


@dataclass(frozen=True, slots=True, eq=False)
class SlotRequests:
    """The requests that arrive in a slot (n rows), by system, then by arrival.

    Attributes:
        system: int32 [n].
        access_point: int32 [n], row of the union topology.
        service: int32 [n].
        deadline_seconds: float32 [n], counted from arrival.
        payload_bytes: float32 [n].
        arrival_seconds: float64 [n].
        index: int64 [n], position in the system's sequence.
    """

    system: Int32Array
    access_point: Int32Array
    service: Int32Array
    deadline_seconds: Float32Array
    payload_bytes: Float32Array
    arrival_seconds: Float64Array
    index: Int64Array

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True, slots=True, eq=False)
class RequestOutcomes:
    """What became of each request of one system (rows of its sequence).

    Attributes:
        status: uint8, :class:`~training.simulator.state.RequestStatus`.
        completion_seconds: float64, when the answer reached the access point, or the request was given up; NaN while
            pending.
        node: int32, union row of the node it was sent to; -1 if it was sent nowhere.
    """

    status: NDArray[np.uint8]
    completion_seconds: Float64Array
    node: Int32Array


class VectorSimulator:
    """S independent edge-cloud systems that advance together, slot by slot.

    A round is :meth:`snapshot`, :meth:`arrivals`, a decision, :meth:`advance`; replicas are added and deleted between
    two rounds. The same topologies, workloads, decisions and configuration give the same results bit for bit, and a
    system fares the same alone and among others.

    **Request.** It waits for the single-server dispatcher of its access point, first in first out. To a replica on
    an own node it then takes ``local_delay_seconds``, without any limit of bandwidth. To another access point or the
    cloud it takes the directed link: transmission of its payload, first in first out, then the propagation delay.
    The answer takes the propagation delay back and no bandwidth. See :mod:`training.simulator.kernel` for the
    formulas.

    **Node.** Each replica has a queue in order of expiry (earliest deadline first; the deadline is counted at the
    replica, that is less the way back; ties by arrival at the access point). A replica runs at most ``concurrency``
    requests, each of which holds ``services.cpu_millicores`` of the node for
    ``execution_seconds * work_factor / speed``, and all on a node together at most its CPU. When a request ends, its
    CPU is given back, and as long as one fits, the waiting request with the earliest expiry among the heads of the
    queues of replicas with a free slot starts.

    **Deadline.** A request that can no longer be answered in time is given up at that instant: dropped where it
    waits, aborted where it runs (as with gRPC's deadline propagation). What an access point gives up before its turn
    takes no dispatcher time and no bandwidth. So each request leaves by its deadline, with exactly one
    :class:`~training.simulator.state.RequestStatus`.

    **Replica.** Its node holds ``memory_bytes`` for it from the beginning. The first of its service on an edge node
    pulls the image over the link from the cloud, which pulls share first in first out; then it starts for
    ``cold_start_seconds`` and is READY. A deleted one is DRAINING: it accepts nothing new, finishes what was sent to
    it, and then goes.

    Attributes:
        config: see :class:`SimulatorConfig`.
        systems: S.
        slot: slots simulated so far.
    """

    def __init__(
        self,
        topologies: Sequence[Topology],
        workloads: Sequence[RequestSequence],
        config: SimulatorConfig = SimulatorConfig(),
    ) -> None:
        """Starts all systems idle at time zero, all their replicas ready.

        Args:
            topologies: one per system, with the same services. A service's replicas added later have the
                concurrency of its first replica outside the cloud (of its first one if there is none).
            workloads: one per system.
            config: the same for all.

        Raises:
            ValueError: the arguments don't fit together; the message names what and where.
        """
        _check_systems(topologies, workloads)
        self.config = config
        self.systems = len(topologies)
        self.slot = 0
        union = disjoint_union_topology(topologies)
        self._local_delay_seconds = float(union.local_delay_seconds)
        self._structure = _build_structure(union, topologies, workloads)
        self._sequences = _build_sequences(topologies, workloads)
        requests = len(self._sequences.arrival)
        self._ledger = Ledger(
            status=np.zeros(requests, np.uint8),
            completion=np.full(requests, np.nan),
            node=np.full(requests, NONE, np.int32),
        )
        self._pool = _empty_pool(0)
        self._registry = ReplicaRegistry(union, self._structure.nodes)
        self._replica_concurrency = _concurrency_by_service(union)
        self._image_present_at = np.full((len(union.nodes.names), len(union.services.names)), np.inf)
        self._image_present_at[union.replicas.node, union.replicas.service] = -np.inf
        self._arrival_rate = np.zeros((len(union.access_points.names), len(union.services.names)))
        self._rate_gain = -math.expm1(-config.slot_seconds / config.rate_window_seconds)
        self._end_seconds = max(workload.duration_seconds for workload in workloads)
        self._slot_arrivals: SlotRequests | None = None

    @property
    def now_seconds(self) -> float:
        """Simulated time: the beginning of the next slot to simulate."""
        return self.slot * self.config.slot_seconds

    @property
    def done(self) -> bool:
        """Whether all sequences have ended and all their requests are resolved."""
        systems = self._structure.systems
        return (
            self.now_seconds >= self._end_seconds
            and bool((systems["position"] == systems["last_request"]).all())
            and int(self._pool.counters["free_requests"][0]) == len(self._pool.free)
        )

    @property
    def topology(self) -> Topology:
        """Union topology of now: the same object until a replica comes or goes."""
        return self._registry.topology

    def snapshot(self) -> Snapshot:
        """The state of all systems now, as one disjoint union. The arrays are the caller's to keep.

        ``version`` is the slot and ``taken_at_seconds`` simulated time. Arrival rates are exponentially weighted
        with ``rate_window_seconds``, corrected for the short past at the beginning. ``link_backlog_bytes`` is what
        was handed to a link (requests or images) and has not been transmitted.
        """
        topology = self._registry.topology
        replicas = self._registry.records[self._registry.records_in_order]
        nodes, links = self._structure.nodes, self._structure.links
        state = np.full(len(replicas), ReplicaState.READY, np.uint8)
        state[replicas["ready_at"] > self.now_seconds] = ReplicaState.STARTING
        state[replicas["draining"]] = ReplicaState.DRAINING
        observed = -math.expm1(-self.now_seconds / self.config.rate_window_seconds)
        busy_seconds = np.maximum(links["free_at"] - self.now_seconds, 0.0)
        return Snapshot(
            topology=topology,
            load=Load(
                access_point_queued=self._structure.access_points["queued"].astype(np.float32),
                arrival_rate_per_second=(self._arrival_rate / (observed or 1.0)).astype(np.float32),
                node_cpu_used_millicores=nodes["cpu_used"].astype(np.float32),
                node_memory_used_bytes=nodes["memory_used"].astype(np.float32),
                replica_state=state,
                replica_queued=replicas["queued"].astype(np.float32),
                replica_running=replicas["running"].astype(np.float32),
                replica_latency_seconds=replicas["latency"].astype(np.float32),
                link_backlog_bytes=(busy_seconds * links["bandwidth"]).astype(np.float32),
            ),
            version=self.slot,
            taken_at_seconds=self.now_seconds,
            _validated=True,
        )

    def arrivals(self) -> SlotRequests:
        """The requests that arrive in the next slot, ``[now, now + slot)``. What they will cost is not known."""
        if self._slot_arrivals is None:
            kernel.slot_arrivals(self._structure, self._sequences, self._slot_end())
            systems, sequences = self._structure.systems, self._sequences
            counts = systems["slot_end_position"] - systems["position"]
            system = np.repeat(np.arange(self.systems, dtype=np.int32), counts)
            before = np.cumsum(counts) - counts
            position = np.arange(len(system)) + (systems["position"] - before)[system]
            self._slot_arrivals = SlotRequests(
                system=system,
                access_point=sequences.access_point[position],
                service=sequences.service[position],
                deadline_seconds=sequences.deadline[position],
                payload_bytes=sequences.payload[position],
                arrival_seconds=sequences.arrival[position],
                index=position - systems["first_request"][system],
            )
        return self._slot_arrivals

    def advance(
        self,
        replica: Int32Array,
        decision_delay_seconds: float | Float64Array = 0.0,
        *,
        topology: Topology | None = None,
    ) -> SlotOutcome:
        """Sends the requests of :meth:`arrivals` to their targets and simulates to the end of the slot.

        Args:
            replica: int32, per request the replica row to send it to, or ``REJECT``. A replica that is STARTING or
                DRAINING, or no longer exists, rejects the request.
            decision_delay_seconds: time from a request's arrival to its decision, one for all or one each. Requests
                of an access point are dispatched in order of arrival even where a later one was decided earlier.
            topology: the topology whose rows ``replica`` names, if decided on an older snapshot; today's by default.

        Raises:
            ValueError: wrong length or type, a row that doesn't exist, a replica of another service, or a target that
                no link leads to. Nothing was simulated then, and the call may be repeated.
        """
        requests = self.arrivals()
        count = len(requests)
        replica = np.asarray(replica)
        if replica.shape != (count,) or not np.issubdtype(replica.dtype, np.integer):
            raise ValueError(
                f"replica: {replica.dtype} of shape {replica.shape}; give one integer for each of the {count} requests "
                "of arrivals()"
            )
        delay = _checked_delay(decision_delay_seconds, count)
        record, link = self._resolve_targets(replica, topology, requests)
        free = int(self._pool.counters["free_requests"][0])
        if free < count:
            self._grow_pool(count - free)
        now, end = self.now_seconds, self._slot_end()
        kernel.advance_slot(
            self._structure, self._sequences, self._registry.records, self._pool, self._ledger, self._arrival_rate,
            record, link, delay, now, end, self.config.dispatch_seconds_per_request, self._local_delay_seconds,
            self._rate_gain, self.config.latency_gain,
        )  # fmt: skip
        self.slot += 1
        self._slot_arrivals = None
        if self._pool.counters["drained_replicas"][0]:
            self._pool.counters["drained_replicas"][0] = 0
            self._registry.collect_drained()
        return self._slot_outcome(requests)

    def add_replica(self, service: int, node: int) -> ActionResult:
        """Starts a replica of a service on a node (union rows) now.

        It is refused if the node lacks the memory, has less CPU than one request needs, or can't pull the image
        because no link leads from a cloud to its access point.

        Raises:
            ValueError: no such service or node.
        """
        topology = self._registry.topology
        _check_row("service", service, len(topology.services.names))
        _check_row("node", node, len(topology.nodes.names))
        machine, needed = self._structure.nodes[node], self._structure.services[service]
        name, node_name = topology.services.names[service], topology.nodes.names[node]
        if needed["cpu"] > machine["cpu_capacity"]:
            return ActionResult(
                accepted=False,
                reason=f"{node_name} has {machine['cpu_capacity']:.0f} millicores; "
                f"a request of {name} needs {needed['cpu']:.0f}",
            )
        free = machine["memory_capacity"] - machine["memory_used"]
        if needed["memory"] > free:
            return ActionResult(
                accepted=False,
                reason=f"{node_name} has {free:.0f} bytes of memory left; {name} needs {needed['memory']:.0f}",
            )
        present_at = self._pull_image(service, node)
        if present_at == math.inf:
            return ActionResult(
                accepted=False,
                reason=f"no link from a cloud to the access point of {node_name}; can't pull {name}",
            )
        machine["memory_used"] += needed["memory"]
        endpoint = self._registry.add(
            service=service,
            node=node,
            concurrency=int(self._replica_concurrency[self._system_of(node), service]),
            cpu_millicores=float(needed["cpu"]),
            ready_at=max(present_at, self.now_seconds) + float(topology.services.cold_start_seconds[service]),
        )
        return ActionResult(accepted=True, endpoint=endpoint)

    def delete_replica(self, replica: int, *, topology: Topology | None = None) -> ActionResult:
        """Drains a replica from now on; it goes as soon as nothing sent to it is left.

        It is refused if it is draining already or has gone. One that is idle goes at once, and the rows of
        :attr:`topology` shift.

        Args:
            replica: row.
            topology: the topology whose row it is, if decided on an older snapshot; today's by default.

        Raises:
            ValueError: no such replica.
        """
        topology = self._registry.topology if topology is None else topology
        _check_row("replica", replica, len(topology.replicas.endpoints))
        endpoint = topology.replicas.endpoints[replica]
        row = int(self._registry.records_behind(topology)[replica])
        if row == kernel.REPLICA_GONE:
            return ActionResult(accepted=False, endpoint=endpoint, reason=f"{endpoint} has gone already")
        record = self._registry.records[row]
        if record["draining"]:
            return ActionResult(accepted=False, endpoint=endpoint, reason=f"{endpoint} is draining already")
        record["draining"] = True
        if record["unresolved"] == 0:
            memory = self._structure.services["memory"][record["service"]]
            self._structure.nodes["memory_used"][record["node"]] -= memory
            self._registry.collect_drained()
        return ActionResult(accepted=True, endpoint=endpoint)

    def apply(self, actions: Iterable[OrchestrationAction], topology: Topology) -> list[ActionResult]:
        """Carries out actions decided on a snapshot with that topology, in order.

        Raises:
            ValueError: an action names something that doesn't exist.
        """
        return [
            self.add_replica(action.service, action.node)
            if isinstance(action, AddReplica)
            else self.delete_replica(action.replica, topology=topology)
            for action in actions
        ]

    def coming_rates(self, seconds: float) -> Float32Array:
        """float32 [A, W]: requests per second that will arrive from now on, for rules that are given the future.

        Args:
            seconds: how far to look ahead.
        """
        sequences = self._sequences
        rates = np.zeros(self._arrival_rate.shape, np.float64)
        for row in self._structure.systems:
            own = slice(int(row["first_request"]), int(row["last_request"]))
            first, last = own.start + np.searchsorted(
                sequences.arrival[own], (self.now_seconds, self.now_seconds + seconds)
            )
            np.add.at(rates, (sequences.access_point[first:last], sequences.service[first:last]), 1.0)
        return (rates / seconds).astype(np.float32)

    def services_of(self, system: Int32Array, index: Int64Array) -> Int32Array:
        """int32 [n]: service of requests given by system and position in the system's sequence."""
        service: Int32Array = self._sequences.service[
            self._structure.systems["first_request"][system] + index
        ]
        return service

    def moved_bytes(self) -> tuple[Float64Array, Float64Array]:
        """float64 [S, W] each: request bodies forwarded over links and images pulled so far, by service."""
        return self._structure.forwarded_bytes.copy(), self._structure.pulled_bytes.copy()

    def outcomes(self, system: int) -> RequestOutcomes:
        """What became of each request of a system's sequence so far. Read-only views that keep changing.

        Raises:
            ValueError: no such system.
        """
        _check_row("system", system, self.systems)
        rows = self._rows_of(system)
        return RequestOutcomes(
            status=_read_only(self._ledger.status[rows]),
            completion_seconds=_read_only(self._ledger.completion[rows]),
            node=_read_only(self._ledger.node[rows]),
        )

    def results(self) -> list[SystemResult]:
        """What each system's run has come to so far."""
        systems = self._structure.systems
        edge = _utilisation(systems["total_edge_cpu_work"], systems["edge_cpu_capacity"], self.now_seconds)
        cloud = _utilisation(systems["total_cloud_cpu_work"], systems["cloud_cpu_capacity"], self.now_seconds)
        results = []
        for system in range(self.systems):
            row = systems[system]
            rows = slice(int(row["first_request"]), int(row["position"]))
            results.append(
                summarise(
                    status=self._ledger.status[rows],
                    completion_seconds=self._ledger.completion[rows],
                    arrival_seconds=self._sequences.arrival[rows],
                    service=self._sequences.service[rows],
                    services=len(self._structure.services),
                    forwarded_bytes=float(self._structure.forwarded_bytes[system].sum()),
                    pulled_bytes=float(self._structure.pulled_bytes[system].sum()),
                    edge_cpu_utilisation=float(edge[system]),
                    cloud_cpu_utilisation=float(cloud[system]),
                )
            )
        return results

    def _slot_end(self) -> float:
        return (self.slot + 1) * self.config.slot_seconds

    def _rows_of(self, system: int) -> slice:
        row = self._structure.systems[system]
        return slice(int(row["first_request"]), int(row["last_request"]))

    def _system_of(self, node: int) -> int:
        topology = self._registry.topology
        return int(topology.access_points.system[topology.nodes.access_point[node]])

    def _resolve_targets(
        self, replica: NDArray[np.integer], topology: Topology | None, requests: SlotRequests
    ) -> tuple[Int32Array, Int32Array]:
        topology = self._registry.topology if topology is None else topology
        row_record = self._registry.records_behind(topology)
        record = np.empty(len(replica), np.int32)
        link = np.empty(len(replica), np.int32)
        # A row beyond int32 would wrap around to a valid one.
        target = np.clip(replica, -2, len(row_record)).astype(np.int32)
        problem, position = kernel.resolve_targets(
            self._structure,
            self._sequences,
            self._registry.records,
            row_record,
            self.now_seconds,
            target,
            record,
            link,
        )
        if problem != kernel.TARGETS_VALID:
            _refuse_target(problem, position, int(replica[position]), topology, requests)
        return record, link

    def _grow_pool(self, missing: int) -> None:
        old = self._pool
        size = len(old.free)
        pool = _empty_pool(size + max(missing, size))
        pool.requests[:size] = old.requests
        free = int(old.counters["free_requests"][0])
        added = len(pool.free) - size
        pool.free[added : added + free] = old.free[:free]
        pool.counters["free_requests"] = added + free
        self._pool = pool

    def _slot_outcome(self, requests: SlotRequests) -> SlotOutcome:
        systems = self._structure.systems
        met, failed = systems["met"].copy(), systems["failed"].copy()
        resolved_system = np.repeat(np.arange(self.systems, dtype=np.int32), met + failed)
        resolved = self._pool.resolved[: len(resolved_system)]
        seconds = self.config.slot_seconds
        return SlotOutcome(
            arrived=np.bincount(requests.system, minlength=self.systems),
            met=met,
            failed=failed,
            cpu_usage_std=systems["cpu_usage_std"].copy(),
            memory_usage_std=systems["memory_usage_std"].copy(),
            edge_cpu_utilisation=_utilisation(
                systems["edge_cpu_work"], systems["edge_cpu_capacity"], seconds
            ),
            cloud_cpu_utilisation=_utilisation(
                systems["cloud_cpu_work"], systems["cloud_cpu_capacity"], seconds
            ),
            resolved_system=resolved_system,
            resolved_index=resolved - systems["first_request"][resolved_system],
            resolved_status=self._ledger.status[resolved],
        )

    def _pull_image(self, service: int, node: int) -> float:
        """When the image of a service is on a node, pulling it if need be; infinity if it can't be pulled."""
        present_at = float(self._image_present_at[node, service])
        if present_at != math.inf:
            return present_at
        machine = self._structure.nodes[node]
        if machine["is_cloud"]:
            return self.now_seconds
        topology = self._registry.topology
        access_points, links = topology.access_points, topology.links
        uplinks = np.flatnonzero(
            (links.target == machine["access_point"]) & access_points.is_cloud[links.source]
        )
        if not len(uplinks):
            return math.inf
        link = self._structure.links[uplinks[0]]
        image_bytes = float(topology.services.image_bytes[service])
        link["free_at"] = max(self.now_seconds, link["free_at"]) + image_bytes / link["bandwidth"]
        present_at = float(link["free_at"] + link["delay"])
        self._image_present_at[node, service] = present_at
        self._structure.pulled_bytes[self._system_of(node), service] += image_bytes
        return present_at


def _build_structure(
    union: Topology, topologies: Sequence[Topology], workloads: Sequence[RequestSequence]
) -> Structure:
    access_points = np.zeros(len(union.access_points.names), ACCESS_POINT_DTYPE)
    access_points["first"] = access_points["last"] = NONE
    nodes = np.zeros(len(union.nodes.names), NODE_DTYPE)
    nodes["cpu_capacity"] = union.nodes.cpu_millicores
    nodes["memory_capacity"] = union.nodes.memory_bytes
    nodes["speed"] = union.nodes.speed
    nodes["access_point"] = union.nodes.access_point
    nodes["is_cloud"] = union.access_points.is_cloud[union.nodes.access_point]
    for column in ("in_transit", "running", "first_replica"):
        nodes[column] = NONE
    links = np.zeros(len(union.links.source), LINK_DTYPE)
    links["delay"] = union.links.delay_seconds
    links["bandwidth"] = union.links.bandwidth_bytes_per_second
    services = np.zeros(len(union.services.names), SERVICE_DTYPE)
    services["cpu"] = union.services.cpu_millicores
    services["execution"] = union.services.execution_seconds
    services["memory"] = union.services.memory_bytes
    nodes["memory_used"] = np.bincount(
        union.replicas.node, weights=services["memory"][union.replicas.service], minlength=len(nodes)
    )

    systems = np.zeros(len(topologies), SYSTEM_DTYPE)
    _set_bounds(systems, "node", [len(t.nodes.names) for t in topologies])
    _set_bounds(systems, "access_point", [len(t.access_points.names) for t in topologies])
    _set_bounds(systems, "request", [len(w) for w in workloads])
    systems["position"] = systems["slot_end_position"] = systems["first_request"]
    tables = [t.link_row for t in topologies]
    route_ends = np.cumsum([table.size for table in tables])
    systems["first_route"] = route_ends - [table.size for table in tables]
    first_links = np.cumsum([0, *(len(t.links.source) for t in topologies)])
    routes = [
        np.where(table == NO_LINK, NONE, table + first)
        for table, first in zip(tables, first_links[:-1], strict=True)
    ]
    node_system = union.access_points.system[union.nodes.access_point]
    for column, kind in (("edge_cpu_capacity", False), ("cloud_cpu_capacity", True)):
        systems[column] = np.bincount(
            node_system,
            weights=nodes["cpu_capacity"] * (nodes["is_cloud"] == kind),
            minlength=len(topologies),
        )
    return Structure(
        systems=systems,
        access_points=access_points,
        nodes=nodes,
        links=links,
        services=services,
        routes=np.concatenate([table.ravel() for table in routes]).astype(np.int32),
        forwarded_bytes=np.zeros((len(systems), len(services))),
        pulled_bytes=np.zeros((len(systems), len(services))),
    )


def _set_bounds(systems: NDArray[np.void], rows: str, counts: list[int]) -> None:
    ends = np.cumsum(counts)
    systems[f"first_{rows}"] = ends - counts
    systems[f"last_{rows}"] = ends


def _build_sequences(topologies: Sequence[Topology], workloads: Sequence[RequestSequence]) -> Sequences:
    first_access_points = np.cumsum([0, *(len(t.access_points.names) for t in topologies)])

    def joined(column: str) -> NDArray[np.generic]:
        return np.concatenate([getattr(workload, column) for workload in workloads])

    return Sequences(
        arrival=joined("arrival_seconds").astype(np.float64),
        access_point=np.concatenate(
            [w.access_point + first for w, first in zip(workloads, first_access_points[:-1], strict=True)]
        ).astype(np.int32),
        service=joined("service").astype(np.int32),
        deadline=joined("deadline_seconds").astype(np.float32),
        payload=joined("payload_bytes").astype(np.float32),
        work_factor=joined("work_factor").astype(np.float32),
    )


def _empty_pool(capacity: int) -> Pool:
    counters = np.zeros(1, COUNTERS_DTYPE)
    counters["free_requests"] = capacity
    return Pool(
        requests=np.zeros(capacity, REQUEST_DTYPE),
        free=np.arange(capacity - 1, -1, -1, dtype=np.int32),
        resolved=np.zeros(capacity, np.int64),
        counters=counters,
    )


def _concurrency_by_service(union: Topology) -> Int32Array:
    """int32 [S, W]: concurrency of each service's first replica outside the cloud, else of its first, else 1."""
    replicas = union.replicas
    access_point = union.nodes.access_point[replicas.node]
    concurrency = np.ones((union.system_count, len(union.services.names)), np.int32)
    in_cloud = union.access_points.is_cloud[access_point]
    # Assigned from last to first and cloud before edge, so that the first edge replica prevails.
    for row in np.lexsort((-np.arange(len(in_cloud)), ~in_cloud)):
        concurrency[union.access_points.system[access_point[row]], replicas.service[row]] = (
            replicas.concurrency[row]
        )
    return concurrency


def _read_only(view: NDArray[ScalarT]) -> NDArray[ScalarT]:
    view.flags.writeable = False
    return view


def _utilisation(work: Float64Array, capacity: Float64Array, seconds: float) -> Float64Array:
    available = np.asarray(capacity * seconds)
    return np.divide(work, available, out=np.zeros_like(available), where=available > 0)


def _checked_delay(decision_delay_seconds: float | Float64Array, count: int) -> Float64Array:
    delay = np.asarray(decision_delay_seconds, np.float64)
    if delay.shape not in ((), (count,)):
        raise ValueError(
            f"decision_delay_seconds: shape {delay.shape}; give one number, or one for each of {count} requests"
        )
    bad = ~np.isfinite(delay) | (delay < 0)
    if bad.any():
        raise ValueError(f"decision_delay_seconds: {delay[bad].flat[0]}; must be finite, zero or more")
    return np.broadcast_to(delay, (count,)).copy()


def _check_row(name: str, row: int, count: int) -> None:
    if not 0 <= row < count:
        raise ValueError(f"{name}: {row}; must be a row from 0 to {count - 1}")


def _check_systems(topologies: Sequence[Topology], workloads: Sequence[RequestSequence]) -> None:
    if not topologies:
        raise ValueError("topologies: empty; give at least one")
    if len(topologies) != len(workloads):
        raise ValueError(f"workloads: {len(workloads)} for {len(topologies)} topologies; give one per system")
    first = topologies[0]
    for position, (topology, workload) in enumerate(zip(topologies, workloads, strict=True)):
        if topology.system_count != 1:
            raise ValueError(f"topologies[{position}]: {topology.system_count} systems; give one system each")
        if not _same_services(topology.services, first.services):
            raise ValueError(f"topologies[{position}].services: differ from those of topologies[0]")
        if topology.local_delay_seconds != first.local_delay_seconds:
            raise ValueError(
                f"topologies[{position}].local_delay_seconds: {topology.local_delay_seconds} differs from "
                f"{first.local_delay_seconds} of topologies[0]"
            )
        _check_workload(position, workload, topology)


def _same_services(one: Services, other: Services) -> bool:
    return one is other or all(
        np.array_equal(getattr(one, column.name), getattr(other, column.name)) for column in fields(Services)
    )


def _check_workload(position: int, workload: RequestSequence, topology: Topology) -> None:
    if not len(workload):
        return
    for column, bound in (
        ("access_point", len(topology.access_points.names)),
        ("service", len(topology.services.names)),
    ):
        values = getattr(workload, column)
        bad = (values < 0) | (values >= bound)
        if bad.any():
            row = int(np.argmax(bad))
            raise ValueError(
                f"workloads[{position}].{column}[{row}]: {values[row]}; the topology has rows 0 to {bound - 1}"
            )
    at_cloud = topology.access_points.is_cloud[workload.access_point]
    if at_cloud.any():
        row = int(np.argmax(at_cloud))
        raise ValueError(
            f"workloads[{position}].access_point[{row}]: {workload.access_point[row]} is the cloud, which receives no "
            "requests from outside"
        )


def _refuse_target(
    problem: int, position: int, target: int, topology: Topology, requests: SlotRequests
) -> NoReturn:
    replicas = topology.replicas
    label = f"replica[{position}]: {target}"
    if problem == kernel.TARGET_OUT_OF_RANGE:
        raise ValueError(
            f"{label}; must be a replica row from 0 to {len(replicas.endpoints) - 1}, or {REJECT} to reject"
        )
    endpoint = replicas.endpoints[target]
    if problem == kernel.TARGET_OF_OTHER_SERVICE:
        wanted = topology.services.names[requests.service[position]]
        raise ValueError(
            f"{label} ({endpoint}) serves {topology.services.names[replicas.service[target]]}, not {wanted}"
        )
    source = topology.access_points.names[requests.access_point[position]]
    destination = topology.access_points.names[topology.nodes.access_point[replicas.node[target]]]
    raise ValueError(f"{label} ({endpoint}): unreachable; no link leads from {source} to {destination}")
