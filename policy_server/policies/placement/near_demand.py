"""Placement near the requests: the default."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policy_server.cluster.snapshot import Float64Array, ReplicaState, Snapshot, Topology
from policy_server.policies.placement.policy import PlacementQuery
from policy_server.policies.placement.shares import cpu_share, memory_share


@dataclass(frozen=True)
class NearDemand:
    """Where the service's requests arrive and its replicas are few, on a node with room and the image.

    The score is a weighted sum of terms between 0 and 1. Let the replica go to node *n* at access point *a*; λ are
    the service's arrival rates (all 1 where no request arrives), *r* its replicas, draining ones not counted and
    pending ones counted, *x* and *y* the CPU and memory share of the node with the replica.

    ``spread``
        ``q(a) / max q``, with ``q(a) = λ(a) / (r(a) + 1)``: the requests each replica at *a* would have to serve
        after placement, which is D'Hondt's rule of proportional allotment. Following it, replicas divide over access
        points in proportion to arrivals. Divided by ``1 + r(n)``, so that an access point's replicas take different
        nodes.
    ``slack``
        ``1 - (t + e / s(n)) / D``, at least 0: the share of the deadline *D* left after the execution time *e* at the
        node's speed *s* and the mean round trip *t* of the requests (by λ) from their access points to *a*, each at
        most *D*, and *D* where no link leads to *a*.
    ``room``
        ``1 - max(x, y)``, at least 0: what is left of the scarcer resource.
    ``balance``
        ``1 - |x - y|``, at least 0: a node that runs out of one resource strands the other.
    ``image``
        1 where the node has the image: no pull, which is most of a cold start.

    Attributes:
        spread_weight: of ``spread``.
        slack_weight: of ``slack``.
        room_weight: of ``room``.
        balance_weight: of ``balance``.
        image_weight: of ``image``.
    """

    name: str = "near-demand"
    version: str = "1"
    learned: bool = False
    spread_weight: float = 0.35
    slack_weight: float = 0.25
    room_weight: float = 0.2
    balance_weight: float = 0.1
    image_weight: float = 0.1

    def score(self, snapshot: Snapshot, query: PlacementQuery) -> Float64Array:
        """The weighted sum, float64 [M]."""
        cpu, memory = cpu_share(snapshot, query), memory_share(snapshot, query)
        rates = _arrival_rates(snapshot, query.service)
        score: Float64Array = (
            self.spread_weight * _spread(snapshot, query, rates)
            + self.slack_weight * _slack(snapshot, query, rates)
            + self.room_weight * np.maximum(1 - np.maximum(cpu, memory), 0)
            + self.balance_weight * np.maximum(1 - np.abs(cpu - memory), 0)
            + self.image_weight * query.has_image
        )
        return score


def _arrival_rates(snapshot: Snapshot, service: int) -> Float64Array:
    """float64 [A]: the service's arrival rates; the same at every access point but the cloud where none arrive."""
    rates = snapshot.load.arrival_rate_per_second[:, service].astype(np.float64)
    if not rates.any():
        rates = (~snapshot.topology.access_points.is_cloud).astype(np.float64)
    return rates


def _replicas_on_nodes(snapshot: Snapshot, query: PlacementQuery) -> Float64Array:
    """float64 [N]: replicas of the service on each node."""
    replicas = snapshot.topology.replicas
    counted = (replicas.service == query.service) & (snapshot.load.replica_state != ReplicaState.DRAINING)
    on_node = np.bincount(replicas.node[counted], minlength=len(snapshot.topology.nodes.names))
    return on_node + query.pending_replicas


def _spread(snapshot: Snapshot, query: PlacementQuery, rates: Float64Array) -> Float64Array:
    access_point = snapshot.topology.nodes.access_point
    on_node = _replicas_on_nodes(snapshot, query)
    at_access_point = np.bincount(access_point, weights=on_node, minlength=len(rates))
    quotient = (rates / (at_access_point + 1))[access_point[query.nodes]]
    largest = quotient.max()
    if largest <= 0:
        # Candidates only where no request arrives, such as in the cloud: the access point makes no difference.
        quotient, largest = np.ones(len(query)), 1.0
    spread: Float64Array = quotient / largest / (1 + on_node[query.nodes])
    return spread


def _slack(snapshot: Snapshot, query: PlacementQuery, rates: Float64Array) -> Float64Array:
    topology = snapshot.topology
    deadline = float(topology.services.deadline_seconds[query.service])
    execution = float(topology.services.execution_seconds[query.service]) / topology.nodes.speed[query.nodes]
    round_trip = _mean_round_trip_seconds(topology, rates, deadline)[topology.nodes.access_point[query.nodes]]
    slack: Float64Array = np.maximum(1 - (round_trip + execution) / deadline, 0)
    return slack


def _mean_round_trip_seconds(topology: Topology, rates: Float64Array, limit_seconds: float) -> Float64Array:
    """float64 [A]: round trip to each access point, averaged over where the requests enter."""
    links = topology.links
    share = rates / rates.sum() if rates.any() else rates
    local = min(2 * topology.local_delay_seconds, limit_seconds)
    linked = np.minimum(2 * links.delay_seconds.astype(np.float64), limit_seconds)
    # What no link brings counts the limit.
    saved = np.bincount(
        links.target, weights=share[links.source] * (limit_seconds - linked), minlength=len(rates)
    )
    return limit_seconds - saved - share * (limit_seconds - local)
