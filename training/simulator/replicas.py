"""The replicas of all systems: their records, names and topology rows, as they come and go."""

from __future__ import annotations

import weakref
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from policy_server.cluster.snapshot import Int32Array, Int64Array, Replicas, Topology
from training.simulator.kernel import REPLICA_GONE
from training.simulator.presets import replica_endpoint
from training.simulator.state import NONE, REPLICA_DTYPE, Records

_FREE = -1


@dataclass(frozen=True)
class _Rows:
    """Which record was behind each replica row of a topology, and the identity of what it held."""

    topology: weakref.ref[Topology]
    record: Int32Array
    identity: Int64Array


class ReplicaRegistry:
    """Replica records, reused once free, and the topologies built from them.

    A topology lists the replicas by system, then by age. It is built when asked for and kept until a replica comes
    or goes; older topologies that somebody still holds stay known, so that decisions made on them can be resolved.
    """

    def __init__(self, topology: Topology, node_records: Records) -> None:
        replicas, services = topology.replicas, topology.services
        count = len(replicas.endpoints)
        self.records: Records = np.zeros(max(count, 1), REPLICA_DTYPE)
        self._nodes = node_records
        self._node_system = topology.access_points.system[topology.nodes.access_point]
        self._identity = np.full(len(self.records), _FREE, np.int64)
        self._endpoints: list[str] = [""] * len(self.records)
        self._next_identity = 0
        self._serials: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._base = topology
        self._topology: Topology | None = topology
        self._rows: list[_Rows] = []
        self._records_in_order: Int32Array = np.arange(count, dtype=np.int32)
        for row in range(count):
            service, node = int(replicas.service[row]), int(replicas.node[row])
            self._insert(
                row,
                service=service,
                node=node,
                concurrency=int(replicas.concurrency[row]),
                cpu_millicores=float(services.cpu_millicores[service]),
                ready_at=-np.inf,
                endpoint=replicas.endpoints[row],
            )
        self._remember(topology)

    @property
    def topology(self) -> Topology:
        """The topology of now; the same object until a replica comes or goes."""
        if self._topology is None:
            live = np.flatnonzero(self._identity != _FREE)
            system = self._node_system[self.records["node"][live]]
            self._records_in_order = live[np.lexsort((self._identity[live], system))].astype(np.int32)
            self._topology = replace(
                self._base,
                replicas=Replicas(
                    endpoints=tuple(self._endpoints[record] for record in self._records_in_order),
                    service=self.records["service"][self._records_in_order],
                    node=self.records["node"][self._records_in_order],
                    concurrency=self.records["concurrency"][self._records_in_order],
                ),
            )
            self._remember(self._topology)
        return self._topology

    @property
    def records_in_order(self) -> Int32Array:
        """int32 [R]: the record behind each replica row of :attr:`topology`."""
        _ = self.topology
        return self._records_in_order

    def records_behind(self, topology: Topology) -> Int32Array:
        """int32 [R]: the record behind each replica row of a topology that was once current.

        ``REPLICA_GONE`` where the replica no longer exists.

        Raises:
            ValueError: the topology never was this simulator's.
        """
        if topology is self._topology:
            return self._records_in_order
        for rows in self._rows:
            if rows.topology() is topology:
                same = self._identity[rows.record] == rows.identity
                return np.where(same, rows.record, np.int32(REPLICA_GONE))
        raise ValueError(
            "topology: not one of this simulator's snapshots; pass a snapshot's own topology object"
        )

    def add(
        self, *, service: int, node: int, concurrency: int, cpu_millicores: float, ready_at: float
    ) -> str:
        """Adds a replica; its endpoint."""
        free = np.flatnonzero(self._identity == _FREE)
        if len(free):
            record = int(free[0])
        else:
            record = len(self.records)
            self._grow()
        endpoint = self._new_endpoint(service, node)
        self._insert(
            record,
            service=service,
            node=node,
            concurrency=concurrency,
            cpu_millicores=cpu_millicores,
            ready_at=ready_at,
            endpoint=endpoint,
        )
        self._topology = None
        return endpoint

    def collect_drained(self) -> None:
        """Removes the draining replicas that have become idle."""
        live = self._identity != _FREE
        idle = live & self.records["draining"] & (self.records["unresolved"] == 0)
        for record in np.flatnonzero(idle):
            self._remove(int(record))

    def _new_endpoint(self, service: int, node: int) -> str:
        """A name in the manner of the union: the system's prefix first."""
        names = self._base
        prefix, slash, node_name = names.nodes.names[node].rpartition("/")
        while True:
            serial = self._serials[node, service]
            endpoint = prefix + slash + replica_endpoint(names.services.names[service], node_name, serial)
            if endpoint not in self._endpoints:
                return endpoint
            self._serials[node, service] += 1

    def _insert(
        self,
        record: int,
        *,
        service: int,
        node: int,
        concurrency: int,
        cpu_millicores: float,
        ready_at: float,
        endpoint: str,
    ) -> None:
        fields = self.records[record]
        fields["ready_at"] = ready_at
        fields["cpu"] = cpu_millicores
        fields["latency"] = np.nan
        fields["service"] = service
        fields["node"] = node
        fields["concurrency"] = concurrency
        fields["queue"] = NONE
        fields["queued"] = fields["running"] = fields["unresolved"] = 0
        fields["draining"] = False
        fields["next"] = self._nodes["first_replica"][node]
        self._nodes["first_replica"][node] = record
        self._endpoints[record] = endpoint
        self._identity[record] = self._next_identity
        self._next_identity += 1
        self._serials[node, service] += 1

    def _remove(self, record: int) -> None:
        node = self.records["node"][record]
        following = self.records["next"][record]
        if self._nodes["first_replica"][node] == record:
            self._nodes["first_replica"][node] = following
        else:
            previous = int(self._nodes["first_replica"][node])
            while self.records["next"][previous] != record:
                previous = int(self.records["next"][previous])
            self.records["next"][previous] = following
        self._identity[record] = _FREE
        self._endpoints[record] = ""
        self._topology = None

    def _grow(self) -> None:
        spare = len(self.records)
        self.records = np.concatenate([self.records, np.zeros(spare, REPLICA_DTYPE)])
        self._identity = np.concatenate([self._identity, np.full(spare, _FREE, np.int64)])
        self._endpoints.extend([""] * spare)

    def _remember(self, topology: Topology) -> None:
        self._rows = [rows for rows in self._rows if rows.topology() is not None]
        self._rows.append(
            _Rows(
                topology=weakref.ref(topology),
                record=self._records_in_order,
                identity=self._identity[self._records_in_order],
            )
        )
