"""Which replicas a request may go to, and what is known of each at decision time.

The candidates of all requests lie on one flat axis with offsets per request (ragged, no padding). The same code
serves one request, where the candidates are a slice of a prepared block, and a batch, where they are gathered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from policy_server.cluster.ledger import Ledger, pending_positions
from policy_server.cluster.queries import DispatchQueries, DispatchQuery
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
_ONE = np.float32(1)
_NO_ROWS = np.zeros(0, np.int64)

MAXIMUM_BLOCKS_WITH_SUBSETS = 4096
"""Blocks of a snapshot beyond which those of further subsets are not kept: there is no end of subsets."""


class CandidateSets:
    """For each pair of access point and service, the replicas that can be reached from there.

    Blocks are laid out on first use and stay for the life of the topology. A replica can be reached when its node
    belongs to the access point itself or to one that a link leads to.

    Attributes:
        rows: int64 [6, capacity], of each candidate slot the replica row, the node row, the link row from the access
            point (``NO_LINK`` for its own nodes), and the three
            :func:`~policy_server.cluster.ledger.pending_positions`.
        figures: float32 [8, capacity], what the topology alone says of each slot: what one unit of each of the three
            pending quantities takes (CPU of the node: 1; share of the replica's slots; seconds on the link),
            execution time, propagation delay one way, 1 for the access point's own nodes and else 0, CPU of a
            request as a fraction of the node's, execution time plus delay.
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

    def blocks(self, queries: DispatchQueries) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Candidate slots of many queries: flat int64 [C], with offsets int64 [Q + 1] and segment int64 [C]."""
        pairs = queries.access_point.astype(np.int64) * self._services + queries.service
        start = self._start[pairs]
        missing = start < 0
        if missing.any():
            for pair in np.unique(pairs[missing]).tolist():
                self._lay_out(*divmod(pair, self._services))
            start = self._start[pairs]
        counts = self._count[pairs]
        offsets = _offsets(counts)
        segment = np.arange(len(counts)).repeat(counts)
        slots: Int64Array = np.arange(offsets[-1]) + (start - offsets[:-1])[segment]
        return slots, offsets, segment

    def _lay_out(self, access_point: int, service: int) -> int:
        static, topology = self._static, self._static.topology
        row = int(static.access_point_service[access_point, service])
        replicas = self._by_service[self._service_bounds[row] : self._service_bounds[row + 1]]
        targets = static.replica_access_point[replicas]
        links = topology.link_row[access_point, targets]
        local = targets == access_point
        reachable = local | (links != NO_LINK)
        replicas, links, local = replicas[reachable], links[reachable], local[reachable]
        links = np.where(local, NO_LINK, links)
        nodes = topology.replicas.node[replicas]
        start, stop = self._used, self._used + len(replicas)
        if stop > self.rows.shape[1]:
            self._grow(stop)
        rows, figures = self.rows[:, start:stop], self.figures[:, start:stop]
        rows[0], rows[1], rows[2] = replicas, nodes, links
        rows[3:] = pending_positions(topology, nodes, replicas, links)
        forwarded = ~local
        figures[0] = 1.0
        figures[1] = static.inverse_concurrency[replicas]
        figures[2] = 0.0
        figures[2, forwarded] = static.inverse_bandwidth[links[forwarded]]
        figures[3] = static.execution_seconds[replicas]
        figures[4] = topology.local_delay_seconds
        figures[4, forwarded] = topology.links.delay_seconds[links[forwarded]]
        figures[5] = local
        figures[6] = static.cpu_fraction[replicas]
        figures[7] = figures[3] + figures[4]
        pair = access_point * self._services + service
        self._start[pair], self._count[pair] = start, stop - start
        self._used = stop
        return start

    def _allocate(self, capacity: int) -> None:
        self.rows: Int64Array = np.zeros((6, capacity), np.int64)
        self.figures: Float32Array = np.zeros((8, capacity), np.float32)

    def _grow(self, needed: int) -> None:
        rows, figures = self.rows, self.figures
        self._allocate(max(needed, 2 * rows.shape[1]))
        self.rows[:, : rows.shape[1]] = rows
        self.figures[:, : figures.shape[1]] = figures


class _Block:
    """What a snapshot alone says of some candidates: the part of the formulas that no request changes.

    The three quantities that own picks change lie in the rows of one array each, in the order of
    :func:`~policy_server.cluster.ledger.pending_positions`: nodes, replicas, links. A decision among few candidates
    costs as much as it makes numpy calls, so each step is one call for all three.
    """

    __slots__ = (
        "_own_positions",
        "base",
        "cpu_fraction",
        "delay_seconds",
        "execution_seconds",
        "holds_until_seconds",
        "inverse_bandwidth",
        "inverse_concurrency",
        "link",
        "local",
        "node",
        "offsets_of_one",
        "outstanding",
        "pending_scale",
        "positions",
        "replica",
        "rows",
        "segment_of_one",
        "service_and_return_seconds",
        "wait_scale",
    )

    def __init__(
        self,
        table: LoadTable,
        sets: CandidateSets,
        slots: slice | Int64Array,
        holds_until_seconds: float = math.inf,
    ) -> None:
        self.holds_until_seconds = holds_until_seconds
        if isinstance(slots, slice):
            rows, figures = sets.rows[:, slots].copy(), sets.figures[:, slots].copy()
        else:
            rows, figures = sets.rows.take(slots, axis=1), sets.figures.take(slots, axis=1)
        replica, node, link = rows[0], rows[1], rows[2]
        self.replica: Int64Array = replica
        self.node: Int64Array = node
        self.link: Int64Array = link
        self.positions: Int64Array = rows[3:]
        self.pending_scale: Float32Array = figures[:3]
        self.inverse_concurrency: Float32Array = figures[1]
        self.inverse_bandwidth: Float32Array = figures[2]
        self.execution_seconds: Float32Array = figures[3]
        self.delay_seconds: Float32Array = figures[4]
        self.local: Float32Array = figures[5]
        self.cpu_fraction: Float32Array = figures[6]
        self.service_and_return_seconds: Float32Array = figures[7]
        self.outstanding: Float32Array = table.outstanding.take(replica)
        # With nothing pending: CPU above the node's, requests above the slots as a share of them, network time.
        self.base: Float32Array = np.empty((3, len(replica)), np.float32)
        cpu, slots_taken, network = self.base
        np.subtract(self.cpu_fraction, _ONE, out=cpu)
        cpu += table.node_committed.take(node)
        np.add(self.outstanding, _ONE, out=slots_taken)
        slots_taken *= self.inverse_concurrency
        slots_taken -= _ONE
        network[:] = self.delay_seconds
        if len(table.link_backlog_bytes):
            # A candidate without a link reads some link's backlog; its inverse bandwidth of zero cancels it.
            network += table.link_backlog_bytes.take(link, mode="wrap") * self.inverse_bandwidth
        mean_execution = table.node_mean_execution_seconds.take(node)
        self.wait_scale: Float32Array = np.empty((2, len(replica)), np.float32)
        self.wait_scale[0] = np.where(mean_execution > 0, mean_execution, self.execution_seconds)
        self.wait_scale[1] = self.execution_seconds
        # One row per feature: the features of the model are these rows, transposed.
        self.rows: Float32Array = np.empty((len(SCHEMA.request), len(replica)), np.float32)
        self.rows[1] = self.delay_seconds
        self.rows[11] = self.local
        self.offsets_of_one: Int64Array = _NO_ROWS
        self.segment_of_one: Int64Array = _NO_ROWS
        self._own_positions = (0, self.positions)

    def of_one(self) -> _Block:
        """Itself, as the candidates of a single query."""
        count = len(self.replica)
        self.offsets_of_one = np.array((0, count), np.int64)
        self.segment_of_one = np.zeros(count, np.int64)
        return self

    def positions_of(self, dispatcher_offset: int) -> Int64Array:
        """int64 [3, C]: the positions, for a dispatcher whose values lie that far behind those of the first."""
        known_offset, positions = self._own_positions
        if known_offset != dispatcher_offset:
            positions = self.positions.copy()
            positions[:2] += dispatcher_offset
            self._own_positions = dispatcher_offset, positions
        return positions


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
        query: the query, where there is but one.
        age_seconds: age of the snapshot.
        offsets: int64 [Q + 1], candidates of query q are ``offsets[q]:offsets[q + 1]``.
        segment: int64 [C], query of each candidate.
        network_seconds: float32 [C].
        wait_seconds: float32 [C].
        completion_seconds: float32 [C].
        kept: stands for these very candidates for the life of the snapshot, so that a policy may keep something by
            it; None where they are not likely to be asked for again.
        deadline_seconds: float32 [C], or one value for all.
        dispatcher: int32 [C], or one value for all: ledger row of each candidate's query.
    """

    def __init__(
        self,
        table: LoadTable,
        sets: CandidateSets,
        ledger: Ledger,
        queries: DispatchQueries | DispatchQuery,
        now_seconds: float,
    ) -> None:
        self.table = table
        self.ledger = ledger
        self.query: DispatchQuery | None = None
        self._queries: DispatchQueries | None = None
        if isinstance(queries, DispatchQuery):
            self.query = queries
        else:
            self._queries = queries
            if len(queries) == 1:
                self.query = queries.row(0)
        self.age_seconds = table.snapshot.age_seconds(now_seconds)
        self.kept: object | None = None
        self._features: Float32Array | None = None
        payload: Float32Array | np.float32
        self.deadline_seconds: Float32Array | np.float32
        self.dispatcher: Int32Array | int
        if self.query is not None:
            service, access_point, deadline, payload_bytes, subset, dispatcher = self.query
            block = self._block_of_one(sets, service, access_point, subset, now_seconds)
            self.offsets: Int64Array = block.offsets_of_one
            self.segment: Int64Array = block.segment_of_one
            self.deadline_seconds = np.float32(deadline)
            payload = np.float32(payload_bytes)
            self.dispatcher = dispatcher or 0
            positions = block.positions_of(self.dispatcher * ledger.dispatcher_stride)
            self._rows = rows = block.rows.copy()
        else:
            queries = self.queries
            block = self._block_of_many(sets, queries, now_seconds)
            self.deadline_seconds = queries.deadline_seconds[self.segment]
            payload = queries.payload_bytes[self.segment]
            self.dispatcher = 0
            positions = block.positions
            if queries.dispatcher is not None:
                self.dispatcher = queries.dispatcher[self.segment]
                positions[:2] += self.dispatcher.astype(np.int64) * ledger.dispatcher_stride
            self._rows = rows = block.rows
        self._block = block
        self._pending: Float32Array = ledger.pending_values.take(positions)
        # The rows of the pending CPU and slots, and below them, for the time being, of the time on the link.
        scaled = rows[6:9]
        np.multiply(self._pending, block.pending_scale, out=scaled)
        excess = scaled + block.base
        rows[8] = excess[0]
        waits = excess[:2] * block.wait_scale
        network, wait, completion = rows[0], rows[2], rows[3]
        np.maximum(waits[0], waits[1], out=wait)
        np.maximum(wait, _ZERO, out=wait)
        np.multiply(payload, block.inverse_bandwidth, out=network)
        network += excess[2]
        np.add(network, wait, out=completion)
        completion += block.service_and_return_seconds
        self.network_seconds: Float32Array = network
        self.wait_seconds: Float32Array = wait
        self.completion_seconds: Float32Array = completion

    def _block_of_one(
        self,
        sets: CandidateSets,
        service: int,
        access_point: int,
        subset: Int32Array | None,
        now_seconds: float,
    ) -> _Block:
        blocks = self.table.blocks
        key = access_point, service, None if subset is None else subset.tobytes()
        block: _Block | None = blocks.get(key)
        if block is None or now_seconds > block.holds_until_seconds:
            block = self._new_block_of_one(sets, service, access_point, subset, now_seconds)
            if subset is not None and len(blocks) >= MAXIMUM_BLOCKS_WITH_SUBSETS:
                return block
            blocks[key] = block
        self.kept = block
        return block

    def _new_block_of_one(
        self,
        sets: CandidateSets,
        service: int,
        access_point: int,
        subset: Int32Array | None,
        now_seconds: float,
    ) -> _Block:
        table = self.table
        slots = sets.block(access_point, service)
        replica = sets.rows[0, slots]
        allowed = table.ready[replica]
        if subset is not None:
            allowed &= np.isin(replica, subset)
        chosen = slots if allowed.all() else np.flatnonzero(allowed) + slots.start
        fresh, holds_until_seconds = table.fresh(sets.rows[0, chosen], now_seconds)
        if fresh is not None:
            chosen = np.arange(slots.start, slots.stop)[allowed][fresh]
        return _Block(table, sets, chosen, holds_until_seconds).of_one()

    def _block_of_many(self, sets: CandidateSets, queries: DispatchQueries, now_seconds: float) -> _Block:
        table = self.table
        slots, offsets, segment = sets.blocks(queries)
        stale_from = table.stale_from_seconds
        if queries.subset is not None or stale_from is not None or not table.all_ready:
            replica = sets.rows[0].take(slots)
            allowed = table.ready[replica]
            if queries.subset is not None:
                _restrict(allowed, replica, np.diff(offsets), queries.subset)
            if stale_from is not None:
                fresh = allowed & (stale_from[replica] >= now_seconds)
                has_fresh = np.bincount(segment[fresh], minlength=len(queries)) > 0
                allowed &= fresh | ~has_fresh[segment]
            if not allowed.all():
                slots, segment = slots[allowed], segment[allowed]
                offsets = _offsets(np.bincount(segment, minlength=len(queries)))
        self.offsets = offsets
        self.segment = segment
        return _Block(table, sets, slots)

    def __len__(self) -> int:
        return len(self._block.replica)

    @property
    def queries(self) -> DispatchQueries:
        """The Q queries."""
        if self._queries is None:
            assert self.query is not None
            self._queries = self.query.as_batch()
        return self._queries

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
    def replica_pending(self) -> Float32Array:
        """float32 [C]: own pending requests of the replica."""
        pending: Float32Array = self._pending[1]
        return pending

    @property
    def node_pending_cpu(self) -> Float32Array:
        """float32 [C]: CPU of own pending requests, as a fraction of the node's CPU."""
        pending: Float32Array = self._pending[0]
        return pending

    @property
    def committed(self) -> Float32Array:
        """float32 [C]: CPU committed on the node, own pending picks included, as a fraction of its CPU."""
        block = self._block
        committed: Float32Array = (block.base[0] - (block.cpu_fraction - _ONE)) + self.node_pending_cpu
        return committed

    @property
    def outstanding(self) -> Float32Array:
        """float32 [C]: requests queued and running at the replica, own pending picks included."""
        return self._block.outstanding + self.replica_pending

    @property
    def features(self) -> Float32Array:
        """float32 [C, len(SCHEMA.request)]: what a model sees of each candidate beyond the encoded snapshot."""
        if self._features is not None:
            return self._features
        deadline, rows = self.deadline_seconds, self._rows
        slack = rows[4]
        np.subtract(deadline, self.completion_seconds, out=slack)
        np.divide(slack, deadline, out=rows[5])
        rows[9] = deadline
        rows[10] = self.age_seconds
        self._features = rows.T.copy()
        return self._features


def _offsets(counts: Int64Array) -> Int64Array:
    """int64 [Q + 1]: where each query's candidates begin, and where the last one's end."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


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
