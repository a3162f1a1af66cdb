"""Which replicas a request may go to, and what is known of each at decision time.

The candidates of all requests lie on one flat axis with offsets per request (ragged, no padding). The same code
serves one request, where the candidates are a slice of a prepared block, and a batch, where they are gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from policy_server.cluster.ledger import Ledger
from policy_server.cluster.queries import DispatchQueries
from policy_server.cluster.snapshot import (
    NO_LINK,
    BoolArray,
    Float32Array,
    Int32Array,
    Int64Array,
)
from policy_server.features.load_table import LoadTable, TopologyTable
from policy_server.features.schema import SCHEMA

_ZERO = np.float32(0)
_NO_ROWS = np.zeros(0, np.int64)


class CandidateSets:
    """For each pair of access point and service, the replicas that can be reached from there.

    Blocks are laid out on first use and stay for the life of the topology. A replica can be reached when its node
    belongs to the access point itself or to one that a link leads to.

    Attributes:
        replica: int32 [capacity], replica row of each candidate slot.
        node: int32 [capacity].
        link: int32 [capacity], link row from the access point, ``NO_LINK`` for its own nodes.
        delay_seconds: float32 [capacity], one-way propagation delay.
        inverse_bandwidth: float32 [capacity], seconds per byte.
        local: float32 [capacity], 1 for the access point's own nodes.
    """

    def __init__(self, static: TopologyTable) -> None:
        self._static = static
        topology = static.topology
        self._services = len(topology.services.names)
        pairs = len(topology.access_points.names) * self._services
        self._start: Int64Array = np.full(pairs, -1, np.int64)
        self._count: Int64Array = np.zeros(pairs, np.int64)
        order = np.argsort(static.service_system, kind="stable").astype(np.int32)
        bounds = np.searchsorted(
            static.service_system[order], np.arange(topology.system_count * self._services + 1)
        )
        self._by_service = order
        self._service_bounds = bounds
        self._used = 0
        self._allocate(1024)

    def block(self, access_point: int, service: int) -> slice:
        """Candidate slots of one pair."""
        pair = access_point * self._services + service
        start = int(self._start[pair])
        if start < 0:
            start = self._lay_out(access_point, service)
        return slice(start, start + int(self._count[pair]))

    def blocks(self, queries: DispatchQueries) -> tuple[Int64Array, Int64Array]:
        """Candidate slots of many queries: flat int64 [C] and counts int64 [Q]."""
        pairs = queries.access_point.astype(np.int64) * self._services + queries.service
        start = self._start[pairs]
        missing = start < 0
        if missing.any():
            for pair in np.unique(pairs[missing]).tolist():
                self._lay_out(*divmod(pair, self._services))
            start = self._start[pairs]
        counts = self._count[pairs]
        total = int(counts.sum())
        first = np.cumsum(counts) - counts
        return np.arange(total, dtype=np.int64) + np.repeat(start - first, counts), counts

    def _lay_out(self, access_point: int, service: int) -> int:
        static, topology = self._static, self._static.topology
        row = int(static.access_point_service[access_point, service])
        replicas = self._by_service[self._service_bounds[row] : self._service_bounds[row + 1]]
        targets = static.replica_access_point[replicas]
        links = topology.link_row[access_point, targets]
        local = targets == access_point
        reachable = local | (links != NO_LINK)
        replicas, links, local = replicas[reachable], links[reachable], local[reachable]
        start, stop = self._used, self._used + len(replicas)
        if stop > len(self.replica):
            self._grow(stop)
        self.replica[start:stop] = replicas
        self.node[start:stop] = topology.replicas.node[replicas]
        self.link[start:stop] = np.where(local, NO_LINK, links)
        self.local[start:stop] = local
        self.delay_seconds[start:stop] = topology.local_delay_seconds
        self.inverse_bandwidth[start:stop] = 0.0
        forwarded = ~local
        self.delay_seconds[start:stop][forwarded] = topology.links.delay_seconds[links[forwarded]]
        self.inverse_bandwidth[start:stop][forwarded] = static.inverse_bandwidth[links[forwarded]]
        pair = access_point * self._services + service
        self._start[pair], self._count[pair] = start, stop - start
        self._used = stop
        return start

    def _allocate(self, capacity: int) -> None:
        self.replica: Int32Array = np.zeros(capacity, np.int32)
        self.node: Int32Array = np.zeros(capacity, np.int32)
        self.link: Int32Array = np.zeros(capacity, np.int32)
        self.delay_seconds: Float32Array = np.zeros(capacity, np.float32)
        self.inverse_bandwidth: Float32Array = np.zeros(capacity, np.float32)
        self.local: Float32Array = np.zeros(capacity, np.float32)

    def _grow(self, needed: int) -> None:
        columns = ("replica", "node", "link", "delay_seconds", "inverse_bandwidth", "local")
        old = {name: getattr(self, name) for name in columns}
        self._allocate(max(needed, 2 * len(self.replica)))
        for name, values in old.items():
            getattr(self, name)[: len(values)] = values


class _Block:
    """What a snapshot alone says of some candidates: the part of the formulas that no request changes."""

    __slots__ = (
        "base_excess_cpu",
        "base_excess_slots",
        "base_network_seconds",
        "cpu_fraction",
        "cpu_wait_scale",
        "delay_seconds",
        "execution_seconds",
        "inverse_bandwidth",
        "inverse_concurrency",
        "link",
        "local",
        "node",
        "offsets_of_one",
        "outstanding",
        "replica",
        "segment_of_one",
        "service_and_return_seconds",
    )

    def __init__(self, table: LoadTable, sets: CandidateSets, rows: slice | Int64Array) -> None:
        static = table.static
        self.replica = replica = sets.replica[rows].astype(np.intp)
        self.node = node = sets.node[rows].astype(np.intp)
        self.link = link = sets.link[rows].astype(np.intp)
        self.local = sets.local[rows]
        self.delay_seconds = delay = sets.delay_seconds[rows]
        self.inverse_bandwidth = sets.inverse_bandwidth[rows]
        self.execution_seconds: Float32Array = static.execution_seconds[replica]
        self.cpu_fraction: Float32Array = static.cpu_fraction[replica]
        self.inverse_concurrency: Float32Array = static.inverse_concurrency[replica]
        self.outstanding: Float32Array = table.outstanding[replica]
        self.base_network_seconds: Float32Array = delay
        if len(table.link_backlog_bytes):
            # A candidate without a link reads the last link's backlog; its inverse bandwidth of zero cancels it.
            self.base_network_seconds = delay + table.link_backlog_bytes[link] * self.inverse_bandwidth
        self.base_excess_cpu: Float32Array = table.node_committed[node] + (self.cpu_fraction - np.float32(1))
        self.base_excess_slots: Float32Array = (
            self.outstanding + np.float32(1)
        ) * self.inverse_concurrency - np.float32(1)
        mean_execution = table.node_mean_execution_seconds[node]
        self.cpu_wait_scale: Float32Array = np.where(
            mean_execution > 0, mean_execution, self.execution_seconds
        )
        self.service_and_return_seconds: Float32Array = self.execution_seconds + delay
        self.offsets_of_one: Int64Array = _NO_ROWS
        self.segment_of_one: Int64Array = _NO_ROWS

    def of_one(self) -> _Block:
        """Itself, as the candidates of a single query."""
        count = len(self.replica)
        self.offsets_of_one = np.array((0, count), np.int64)
        self.segment_of_one = np.zeros(count, np.int64)
        return self


class Candidates:
    """The candidates of a batch of queries, with what is known of each. C candidates of Q queries.

    Formulas, per candidate (seconds, at decision time):

    - ``network`` = propagation delay + (payload + link backlog + own pending bytes on the link) / bandwidth
    - ``wait`` = max(CPU wait, slot wait), where CPU wait = max(0, committed + own pending CPU + needed CPU - 1)
      x mean execution time of what is on the node (of the request itself on an empty node), and slot wait =
      max(0, (outstanding + own pending + 1) / concurrency - 1) x execution time
    - ``completion`` = network + wait + execution + propagation delay back

    Attributes:
        table: of the snapshot.
        ledger: own picks.
        queries: the Q queries.
        age_seconds: age of the snapshot.
        offsets: int64 [Q + 1], candidates of query q are ``offsets[q]:offsets[q + 1]``.
        segment: int64 [C], query of each candidate.
        network_seconds: float32 [C].
        wait_seconds: float32 [C].
        completion_seconds: float32 [C].
        replica_pending: float32 [C], own pending requests of the replica.
        node_pending_cpu: float32 [C], CPU of own pending requests, as a fraction of the node's CPU.
        deadline_seconds: float32 [C], or one value for all.
        dispatcher: int32 [C], or one value for all: ledger row of each candidate's query.
    """

    def __init__(
        self,
        table: LoadTable,
        sets: CandidateSets,
        ledger: Ledger,
        queries: DispatchQueries,
        now_seconds: float,
    ) -> None:
        self.table = table
        self.ledger = ledger
        self.queries = queries
        self.age_seconds = table.snapshot.age_seconds(now_seconds)
        payload: Float32Array | np.float32
        self.deadline_seconds: Float32Array | np.float32
        self.dispatcher: Int32Array | int
        if len(queries) == 1:
            block = self._block_of_one(sets)
            self.offsets: Int64Array = block.offsets_of_one
            self.segment: Int64Array = block.segment_of_one
            self.deadline_seconds = queries.deadline_seconds[0]
            payload = queries.payload_bytes[0]
            self.dispatcher = dispatcher = 0 if queries.dispatcher is None else int(queries.dispatcher[0])
            self.replica_pending: Float32Array = ledger.replica_pending[dispatcher].take(block.replica)
            self.node_pending_cpu: Float32Array = ledger.node_pending_cpu[dispatcher].take(block.node)
        else:
            block = self._block_of_many(sets)
            self.deadline_seconds = queries.deadline_seconds[self.segment]
            payload = queries.payload_bytes[self.segment]
            self.dispatcher = 0 if queries.dispatcher is None else queries.dispatcher[self.segment]
            self.replica_pending = ledger.replica_pending[self.dispatcher, block.replica]
            self.node_pending_cpu = ledger.node_pending_cpu[self.dispatcher, block.node]
        self._block = block
        # One row per feature, written in place: the features of the model are these rows, transposed.
        self._rows = rows = np.empty((len(SCHEMA.request), len(block.replica)), np.float32)
        network, wait, completion, per_slot, excess = rows[0], rows[2], rows[3], rows[7], rows[8]
        if len(ledger.link_pending_bytes):
            payload = payload + ledger.link_pending_bytes.take(block.link, mode="wrap")
        np.multiply(payload, block.inverse_bandwidth, out=network)
        network += block.base_network_seconds
        np.add(block.base_excess_cpu, self.node_pending_cpu, out=excess)
        np.maximum(excess, _ZERO, out=wait)
        wait *= block.cpu_wait_scale
        np.multiply(self.replica_pending, block.inverse_concurrency, out=per_slot)
        slot_wait = per_slot + block.base_excess_slots
        slot_wait *= block.execution_seconds
        np.maximum(wait, slot_wait, out=wait)
        np.add(network, wait, out=completion)
        completion += block.service_and_return_seconds
        self.network_seconds: Float32Array = network
        self.wait_seconds: Float32Array = wait
        self.completion_seconds: Float32Array = completion

    def _block_of_one(self, sets: CandidateSets) -> _Block:
        queries, table = self.queries, self.table
        access_point, service = int(queries.access_point[0]), int(queries.service[0])
        rows = sets.block(access_point, service)
        subset = None if queries.subset is None else queries.subset[0]
        if subset is None:
            block = table.blocks.get((access_point, service))
            if block is None:
                allowed = table.ready[sets.replica[rows]]
                chosen = rows if allowed.all() else np.flatnonzero(allowed) + rows.start
                block = table.blocks[access_point, service] = _Block(table, sets, chosen).of_one()
            return block
        replica = sets.replica[rows]
        allowed = table.ready[replica] & np.isin(replica, subset)
        return _Block(table, sets, np.flatnonzero(allowed) + rows.start).of_one()

    def _block_of_many(self, sets: CandidateSets) -> _Block:
        queries, table = self.queries, self.table
        rows, counts = sets.blocks(queries)
        segment = np.repeat(np.arange(len(queries), dtype=np.int64), counts)
        if queries.subset is not None or not table.all_ready:
            replica = sets.replica[rows]
            allowed = table.ready[replica]
            if queries.subset is not None:
                _restrict(allowed, replica, counts, queries.subset)
            if not allowed.all():
                rows, segment = rows[allowed], segment[allowed]
                counts = np.bincount(segment, minlength=len(queries))
        self.offsets = np.concatenate(([0], np.cumsum(counts)))
        self.segment = segment
        return _Block(table, sets, rows)

    def __len__(self) -> int:
        return len(self._block.replica)

    @property
    def replica(self) -> Int64Array:
        """int64 [C]: replica row."""
        return self._block.replica

    @property
    def node(self) -> Int64Array:
        """int64 [C]: node row."""
        return self._block.node

    @property
    def link(self) -> Int64Array:
        """int64 [C]: row of the link from the request's access point, ``NO_LINK`` for its own nodes."""
        return self._block.link

    @property
    def local(self) -> Float32Array:
        """float32 [C]: 1 for nodes of the request's own access point, else 0."""
        return self._block.local

    @property
    def delay_seconds(self) -> Float32Array:
        """float32 [C]: one-way propagation delay."""
        return self._block.delay_seconds

    @property
    def execution_seconds(self) -> Float32Array:
        """float32 [C]: execution time on the candidate's node."""
        return self._block.execution_seconds

    @property
    def cpu_fraction(self) -> Float32Array:
        """float32 [C]: CPU the request holds, as a fraction of the node's CPU."""
        return self._block.cpu_fraction

    @property
    def inverse_concurrency(self) -> Float32Array:
        """float32 [C]: 1 / requests the replica runs at once."""
        return self._block.inverse_concurrency

    @property
    def committed(self) -> Float32Array:
        """float32 [C]: CPU committed on the node, own pending picks included, as a fraction of its CPU."""
        block = self._block
        committed: Float32Array = (
            block.base_excess_cpu - (block.cpu_fraction - np.float32(1))
        ) + self.node_pending_cpu
        return committed

    @property
    def outstanding(self) -> Float32Array:
        """float32 [C]: requests queued and running at the replica, own pending picks included."""
        return self._block.outstanding + self.replica_pending

    @cached_property
    def features(self) -> Float32Array:
        """float32 [C, len(SCHEMA.request)]: what a model sees of each candidate beyond the encoded snapshot."""
        block, deadline, rows = self._block, self.deadline_seconds, self._rows
        rows[1] = block.delay_seconds
        slack = rows[4]
        np.subtract(deadline, self.completion_seconds, out=slack)
        np.divide(slack, deadline, out=rows[5])
        rows[6] = self.node_pending_cpu
        rows[9] = deadline
        rows[10] = self.age_seconds
        rows[11] = block.local
        return rows.T.copy()


def _restrict(
    allowed: BoolArray,
    replica: Int32Array,
    counts: Int64Array,
    subsets: Sequence[Int32Array | None],
) -> None:
    stop = np.cumsum(counts)
    for query, subset in enumerate(subsets):
        if subset is not None:
            part = slice(int(stop[query] - counts[query]), int(stop[query]))
            allowed[part] &= np.isin(replica[part], subset)
