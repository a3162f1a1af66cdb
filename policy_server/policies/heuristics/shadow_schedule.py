"""A fractional schedule of request rates over replicas: the shadow request scheduling of GSP-SS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy_server.cluster.snapshot import NO_LINK, Float32Array, Float64Array, Int32Array, Int64Array
from policy_server.features.load_table import LoadTable

_TIERS = 4
STEPS_PER_TIER = 4
PLANNED_UTILISATION = 0.9
_LEAST_RATE_PER_SECOND = 1e-9
"""Scheduled where no request is expected, so that one that comes nevertheless finds a schedule."""

_NO_ROOM = 1e-12


@dataclass(frozen=True)
class ShadowSchedule:
    """Which part of each access point's requests goes to which replica.

    Row k, column r is about the requests for the service of replica r that enter at the k-th access point of the
    system of replica r.

    Attributes:
        access_point_rank: int64 [A], k of each access point.
        rate_per_second: float64 [K, R], scheduled within the capacities.
        fraction: float32 [K, R], part of the access point's requests for the service, those beyond all capacities
            included; sums to 1 over the reachable replicas of a service, if there are any.
    """

    access_point_rank: Int64Array
    rate_per_second: Float64Array
    fraction: Float32Array


def shadow_schedule(table: LoadTable) -> ShadowSchedule:
    """Schedules the arrival rates of a snapshot over its ready replicas.

    Tiers are filled one after another: own nodes, other edge nodes, the cloud, and last whatever could not meet the
    service's typical deadline even when idle. Inside a tier the rates are spread in proportion to the room that is
    left, in a few equal steps, so that nodes fill evenly. Room is bounded twice:

    - node: sum of rate x CPU fraction x execution seconds <= 0.9
    - replica: sum of rate x execution seconds / concurrency <= 0.9

    The paper plans up to 1; but requests come at random, and the queue of a node that is planned to be always busy
    does not end. What exceeds all capacities is split like the part that fits.
    """
    rank, access_point = _access_points_by_system(table)
    row, replica, tier = _reachable(table, access_point)
    routes = _routes(table, access_point[row, replica], replica)
    rates_per_second = table.snapshot.load.arrival_rate_per_second
    remaining = np.maximum(rates_per_second.ravel().astype(np.float64), _LEAST_RATE_PER_SECOND)
    node_room = np.full(len(table.snapshot.topology.nodes.names), PLANNED_UTILISATION)
    replica_room = np.full(len(table.ready), PLANNED_UTILISATION)
    rate = np.zeros(len(row))
    for level in range(_TIERS):
        entries = np.flatnonzero(tier == level)
        of_tier = routes.rows(entries)
        for step in range(STEPS_PER_TIER):
            offered = remaining / (STEPS_PER_TIER - step)
            accepted = accept(of_tier, offered, node_room, replica_room)
            rate[entries] += accepted
            subtract(remaining, of_tier.pair, accepted)

    scheduled = np.bincount(routes.pair, rate, len(remaining))[routes.pair] > 0
    split = np.where(scheduled, rate, 1.0 / np.maximum(routes.node_share, routes.replica_share))
    schedule = ShadowSchedule(
        rank, np.zeros(access_point.shape), np.zeros(access_point.shape, dtype=np.float32)
    )
    schedule.rate_per_second[row, replica] = rate
    schedule.fraction[row, replica] = split / np.bincount(routes.pair, split, len(remaining))[routes.pair]
    return schedule


@dataclass(frozen=True)
class Routes:
    """Ways of requests (E rows), each from an access point to a replica of the service asked for.

    Attributes:
        pair: int64 [E], of access point and service.
        node: int32 [E].
        replica: int64 [E].
        node_share: float64 [E], share of the node that one request per second takes.
        replica_share: float64 [E], share of the replica's slots that one request per second takes.
    """

    pair: Int64Array
    node: Int32Array
    replica: Int64Array
    node_share: Float64Array
    replica_share: Float64Array

    def rows(self, rows: Int64Array) -> Routes:
        """Those routes alone."""
        return Routes(
            pair=self.pair[rows],
            node=self.node[rows],
            replica=self.replica[rows],
            node_share=self.node_share[rows],
            replica_share=self.replica_share[rows],
        )


def _access_points_by_system(table: LoadTable) -> tuple[Int64Array, Int64Array]:
    """Position of each access point in its system, int64 [A]; and its inverse, int64 [K, R]: row of the k-th access
    point of each replica's system, -1 where the system has fewer.
    """
    topology = table.snapshot.topology
    system = topology.access_points.system
    sizes = np.bincount(system, minlength=topology.system_count)
    first = np.cumsum(sizes) - sizes
    rank = np.arange(len(system)) - first[system]
    replica_system = system[table.static.replica_access_point]
    position = np.arange(int(sizes.max(initial=0)))[:, None]
    access_point = np.where(position < sizes[replica_system], first[replica_system] + position, -1)
    return rank, access_point


def _reachable(table: LoadTable, access_point: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Row and column of the reachable ready replicas in the table [K, R] of access points; and their tier."""
    topology, static = table.snapshot.topology, table.static
    link = topology.link_row[access_point, static.replica_access_point]
    own = access_point == static.replica_access_point
    row, replica = np.nonzero(table.ready & (access_point >= 0) & (own | (link != NO_LINK)))
    own, link = own[row, replica], link[row, replica]
    delay_seconds = np.full(len(row), topology.local_delay_seconds)
    delay_seconds[~own] = topology.links.delay_seconds[link[~own]]
    deadline_seconds = topology.services.deadline_seconds[topology.replicas.service[replica]]
    tier = np.where(own, 0, 1 + static.node_is_cloud[topology.replicas.node[replica]])
    tier[2 * delay_seconds + static.execution_seconds[replica] > deadline_seconds] = _TIERS - 1
    return row, replica, tier


def _routes(table: LoadTable, access_point: Int64Array, replica: Int64Array) -> Routes:
    topology, static = table.snapshot.topology, table.static
    execution_seconds = static.execution_seconds[replica].astype(np.float64)
    return Routes(
        pair=access_point * len(topology.services.names) + topology.replicas.service[replica],
        node=topology.replicas.node[replica],
        replica=replica,
        node_share=execution_seconds * static.cpu_fraction[replica],
        replica_share=execution_seconds * static.inverse_concurrency[replica],
    )


def accept(
    routes: Routes, offered: Float64Array, node_room: Float64Array, replica_room: Float64Array
) -> Float64Array:
    """Takes room for as much as possible of the rates offered per pair; the accepted rate of each route.

    Each pair splits its rate in proportion to what its routes could take alone. All that goes to a node, or to a
    replica, with too little room for it is cut alike.
    """
    alone = np.minimum(
        node_room[routes.node] / routes.node_share, replica_room[routes.replica] / routes.replica_share
    )
    accepted = alone * _part_that_fits(np.bincount(routes.pair, alone, len(offered)), offered)[routes.pair]
    for room, owner, share in (
        (node_room, routes.node, routes.node_share),
        (replica_room, routes.replica, routes.replica_share),
    ):
        accepted *= _part_that_fits(np.bincount(owner, accepted * share, len(room)), room)[owner]
    subtract(node_room, routes.node, accepted * routes.node_share)
    subtract(replica_room, routes.replica, accepted * routes.replica_share)
    return accepted


def _part_that_fits(wanted: NDArray[Any], room: Float64Array) -> Float64Array:
    """room / wanted, at most 1."""
    part: Float64Array = np.ones_like(room)
    np.divide(room, wanted, out=part, where=wanted > room)
    return part


def subtract(room: Float64Array, owner: NDArray[np.signedinteger[Any]], amount: Float64Array) -> None:
    """Takes the amounts from their owners' room.

    What rounding leaves of a room that is used up, above zero or below, depends on the order of the rows. It is none.
    """
    room -= np.bincount(owner, amount, len(room))
    room[room < _NO_ROOM] = 0.0
