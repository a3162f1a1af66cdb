"""Which replicas a request may go to, and what is known of each at decision time.

The candidates of all requests lie on one flat axis with offsets per request (ragged, no padding). The same code
serves one request, where the candidates are a slice of a prepared block, and a batch, where they are gathered.
"""

from __future__ import annotations

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


class Candidates:
    """The candidates of a batch of queries, with what is known of each. C candidates of Q queries.

    Formulas, per candidate (seconds, at decision time):

    - ``network`` = propagation delay + (payload + link backlog + own pending bytes on the link) / bandwidth
    - ``wait`` = max(cpu wait, slot wait), where cpu wait = max(0, committed + own pending CPU + needed CPU - 1)
      x mean execution time of what is on the node, and slot wait = max(0, outstanding + own pending + 1 -
      concurrency) / concurrency x execution time
    - ``completion`` = network + wait + execution + propagation delay back

    Attributes:
        queries: the Q queries.
        offsets: int64 [Q + 1], candidates of query q are ``offsets[q]:offsets[q + 1]``.
        segment: int64 [C], query of each candidate.
        replica: int32 [C], node: int32 [C], link: int32 [C], local: float32 [C], delay_seconds: float32 [C].
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
        if len(queries) == 1:
            self._take_one(table, sets)
        else:
            self._take_many(table, sets)

    def _take_one(self, table: LoadTable, sets: CandidateSets) -> None:
        queries = self.queries
        block = sets.block(int(queries.access_point[0]), int(queries.service[0]))
        rows: slice | Int64Array = block
        replica = sets.replica[block]
        subset = None if queries.subset is None else queries.subset[0]
        if subset is not None or not table.all_ready:
            allowed = table.ready[replica]
            if subset is not None:
                allowed &= np.isin(replica, subset)
            if not allowed.all():
                rows = np.flatnonzero(allowed) + block.start
                replica = sets.replica[rows]
        count = len(replica)
        self.offsets: Int64Array = np.array([0, count], np.int64)
        self.segment: Int64Array = np.zeros(count, np.int64)
        self._deadline: Float32Array | np.float32 = queries.deadline_seconds[0]
        self._payload: Float32Array | np.float32 = queries.payload_bytes[0]
        self._dispatcher: Int32Array | int = 0 if queries.dispatcher is None else int(queries.dispatcher[0])
        self._take(sets, rows, replica)

    def _take_many(self, table: LoadTable, sets: CandidateSets) -> None:
        queries = self.queries
        rows, counts = sets.blocks(queries)
        segment = np.repeat(np.arange(len(queries), dtype=np.int64), counts)
        if queries.subset is not None or not table.all_ready:
            allowed = table.ready[sets.replica[rows]]
            if queries.subset is not None:
                self._restrict(allowed, sets.replica[rows], counts)
            if not allowed.all():
                rows, segment = rows[allowed], segment[allowed]
                counts = np.bincount(segment, minlength=len(queries))
        self.offsets = np.concatenate(([0], np.cumsum(counts)))
        self.segment = segment
        self._deadline = queries.deadline_seconds[segment]
        self._payload = queries.payload_bytes[segment]
        self._dispatcher = 0 if queries.dispatcher is None else queries.dispatcher[segment]
        self._take(sets, rows, sets.replica[rows])

    def _restrict(self, allowed: BoolArray, replica: Int32Array, counts: Int64Array) -> None:
        stop = np.cumsum(counts)
        for query, subset in enumerate(self.queries.subset or ()):
            if subset is not None:
                part = slice(int(stop[query] - counts[query]), int(stop[query]))
                allowed[part] &= np.isin(replica[part], subset)

    def _take(self, sets: CandidateSets, rows: slice | Int64Array, replica: Int32Array) -> None:
        static, table, ledger = self.table.static, self.table, self.ledger
        self.replica = replica
        self.node = node = sets.node[rows]
        self.link = link = sets.link[rows]
        self.local = sets.local[rows]
        self.delay_seconds = delay = sets.delay_seconds[rows]
        inverse_bandwidth = sets.inverse_bandwidth[rows]
        self.execution_seconds: Float32Array = static.execution_seconds[replica]
        self.cpu_fraction: Float32Array = static.cpu_fraction[replica]
        self.inverse_concurrency: Float32Array = static.inverse_concurrency[replica]
        self.replica_pending: Float32Array = ledger.replica_pending[self._dispatcher, replica]
        self.node_pending_cpu: Float32Array = ledger.node_pending_cpu[self._dispatcher, node]
        self.committed: Float32Array = table.node_committed[node] + self.node_pending_cpu
        self.outstanding: Float32Array = table.outstanding[replica] + self.replica_pending
        # A candidate without a link reads the last link's backlog; its inverse bandwidth of zero cancels it.
        if len(table.link_backlog_bytes):
            backlog = table.link_backlog_bytes[link] + ledger.link_pending_bytes[link]
        else:
            backlog = np.zeros(len(link), np.float32)
        self.network_seconds: Float32Array = delay + (self._payload + backlog) * inverse_bandwidth
        excess_cpu = np.maximum(self.committed + self.cpu_fraction - np.float32(1), np.float32(0))
        mean_execution = table.node_mean_execution_seconds[node]
        cpu_wait = excess_cpu * np.where(mean_execution > 0, mean_execution, self.execution_seconds)
        excess_slots = np.maximum((self.outstanding + np.float32(1)) * self.inverse_concurrency - 1, 0)
        self.wait_seconds: Float32Array = np.maximum(cpu_wait, excess_slots * self.execution_seconds)
        self.completion_seconds: Float32Array = (
            self.network_seconds + self.wait_seconds + self.execution_seconds + delay
        )

    def __len__(self) -> int:
        return len(self.replica)

    @property
    def deadline_seconds(self) -> Float32Array | np.float32:
        """float32 [C], or one value for all: deadline of each candidate's query."""
        return self._deadline

    @property
    def dispatcher(self) -> Int32Array | int:
        """int32 [C], or one value for all: ledger row of each candidate's query."""
        return self._dispatcher

    def features(self) -> Float32Array:
        """float32 [C, len(SCHEMA.request)]: what a model sees of each candidate beyond the encoded snapshot."""
        deadline = self._deadline
        values = np.empty((len(self.replica), len(SCHEMA.request)), np.float32)
        slack = deadline - self.completion_seconds
        values[:, 0] = self.network_seconds
        values[:, 1] = self.delay_seconds
        values[:, 2] = self.wait_seconds
        values[:, 3] = self.completion_seconds
        values[:, 4] = slack
        values[:, 5] = slack / deadline
        values[:, 6] = self.node_pending_cpu
        values[:, 7] = self.replica_pending * self.inverse_concurrency
        values[:, 8] = self.committed
        values[:, 9] = deadline
        values[:, 10] = self.age_seconds
        values[:, 11] = self.local
        return values
