"""The GSP-SS baseline of KaiS: placement for request rates that are known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policy_server.cluster.snapshot import BoolArray, Float64Array, Int64Array
from policy_server.policies.heuristics.shadow_schedule import (
    PLANNED_UTILISATION,
    STEPS_PER_TIER,
    Routes,
    accept,
    subtract,
)
from policy_server.policies.orchestration.plan import FramePlan, OrchestrationQuery
from policy_server.policies.orchestration.rules.base import OrchestrationRule, node_power

_LEAST_GAIN = 1e-6
"""Requests per second that are worth a replica; less is what rounding leaves."""
_EQUAL_GAINS = 1e-9
"""Relative difference of gains that are the same but for rounding."""


@dataclass(frozen=True)
class GspSs(OrchestrationRule):
    """Placement half of Greedy Service Placement with Shadow request Scheduling.

    Farhadi, Mehmeti, He, La Porta, Khamfroush, Wang and Chan, Service Placement and Request Scheduling for
    Data-Intensive Applications in Edge Clouds (INFOCOM 2019). Request rates are given: those of
    :attr:`~policy_server.cluster.snapshot.Load.arrival_rate_per_second`; a simulation that knows the rates to come puts
    them there. :func:`schedule_rates` schedules them over the replicas there are; then replicas are added one by one,
    each time the one with the largest gain in requests per second

        u + (x - u) / 2 + y / 2

    where, as far as the node has room: x are requests of its own access point that it would take from afar or that
    nobody serves yet, u the latter among them, and y further requests of the system that nobody serves yet. So a
    request served elsewhere on the edge counts half of one served at its access point. Of equal gains the one on the
    node with the most room is taken, since any node with enough room gains alike. Where memory is in the way of
    a gain, an idle replica that the schedule leaves without requests is deleted, one per node.

    Takes as many actions as there are gains, unless the caller sets a maximum.
    """

    name: str = "gsp-ss"

    def fill(self, plan: FramePlan, query: OrchestrationQuery, random: np.random.Generator) -> None:
        """Additions by gain, their score, then deletions."""
        schedule = schedule_rates(plan)
        nodes = np.arange(len(schedule.room), dtype=np.int64)
        power = node_power(plan, nodes)
        gain = schedule.gains(nodes)
        feasible = plan.additions(nodes)
        blocked = _blocked_by_memory(plan, gain, feasible)
        gain[~feasible] = 0.0
        best = gain.max(axis=1, initial=0.0)
        while len(best) and best.max() > _LEAST_GAIN:
            equal = np.flatnonzero(best >= best.max() * (1 - _EQUAL_GAINS))
            node = int(equal[(schedule.room[equal] * power[equal]).argmax()])
            service = int(gain[node].argmax())
            if plan.add(node, service, float(gain[node, service])):
                schedule.take(node, service)
            changed = _same_system(plan, node)
            gain[changed, service] = schedule.gains(changed, service) * (gain[changed, service] > 0)
            gain[node] = schedule.gains(np.array([node]))[0] * plan.additions(np.array([node]))[0]
            if not plan.may_act(node):
                gain[changed] = 0.0
            best[changed] = gain[changed].max(axis=1)
        self._make_room(plan, schedule, blocked)

    def addition_values(self, plan: FramePlan, service: int) -> Float64Array:
        """The gain, float64 [N]."""
        schedule = schedule_rates(plan)
        return schedule.gains(np.arange(len(schedule.room), dtype=np.int64), service)

    def _make_room(self, plan: FramePlan, schedule: RateSchedule, blocked: Float64Array) -> None:
        replicas = plan.graph.snapshot.topology.replicas
        unused = np.flatnonzero(plan.graph.idle & (schedule.replica_rate <= _LEAST_GAIN))
        unused = unused[blocked[replicas.node[unused]] > _LEAST_GAIN]
        freed: set[int] = set()
        for replica in unused[np.argsort(-blocked[replicas.node[unused]], kind="stable")].tolist():
            node = int(replicas.node[replica])
            if node not in freed and plan.delete(replica, float(blocked[node])):
                freed.add(node)


@dataclass(frozen=True)
class RateSchedule:
    """Request rates scheduled over the replicas of the edge, and what is left.

    Attributes:
        plan: of the snapshot.
        replica_rate: float64 [R], requests per second given to each replica.
        room: float64 [N], share of each node that is left.
        far: float64 [A, W], requests per second that their own access point does not serve.
        unserved: float64 [S, W], requests per second that the edge does not serve.
    """

    plan: FramePlan
    replica_rate: Float64Array
    room: Float64Array
    far: Float64Array
    unserved: Float64Array

    def gains(self, nodes: Int64Array, service: int | None = None) -> Float64Array:
        """float64 [K, W], or [K] for one service: what a replica on each of K nodes gains; see :class:`GspSs`."""
        chosen = slice(None) if service is None else slice(service, service + 1)
        served, far, unserved = self._served(nodes, chosen)
        near_unserved = np.minimum(served, np.minimum(far, unserved))
        near = np.minimum(served, far)
        elsewhere = np.minimum(served - near, unserved - near_unserved)
        gains: Float64Array = near_unserved + (near - near_unserved) / 2 + elsewhere / 2
        return gains if service is None else gains[:, 0]

    def take(self, node: int, service: int) -> None:
        """Gives a new replica the requests that its gain was counted for."""
        chosen = slice(service, service + 1)
        served, far, unserved = (float(part[0, 0]) for part in self._served(np.array([node]), chosen))
        near = min(served, far)
        near_unserved = min(near, unserved)
        elsewhere = min(served - near, unserved - near_unserved)
        topology = self.plan.graph.snapshot.topology
        self.far[topology.nodes.access_point[node], service] -= near
        self.unserved[self.plan.graph.topology.node_system[node], service] -= near_unserved + elsewhere
        self.room[node] -= (near + elsewhere) * float(_node_share(self.plan, np.array([node]))[0, service])

    def _served(self, nodes: Int64Array, services: slice) -> tuple[Float64Array, Float64Array, Float64Array]:
        """[K, W] each: what the nodes have room for, far requests of their access points, unserved of their systems."""
        graph = self.plan.graph
        room = self.room[nodes, None] / _node_share(self.plan, nodes)[:, services]
        far = self.far[graph.snapshot.topology.nodes.access_point[nodes], services]
        unserved = self.unserved[graph.topology.node_system[nodes], services]
        return np.maximum(room, 0.0), far, unserved


def schedule_rates(plan: FramePlan) -> RateSchedule:
    """Shadow request scheduling in two tiers: an access point's own nodes, then all edge nodes of the system.

    Rates are spread in proportion to the room that is left, in a few equal steps, so that nodes fill evenly; a node
    is planned up to 0.9 of its CPU, a replica up to 0.9 of its slots. Takes time linear in the replicas: that an
    access point reaches some of the others only is left out here, unlike in the dispatch half
    (:mod:`policy_server.policies.heuristics.shadow_schedule`), which decides the routes.
    """
    graph = plan.graph
    topology, load, static = graph.snapshot.topology, graph.snapshot.load, graph.table.static
    replicas, width = topology.replicas, graph.services
    # Row by row in memory, whatever the column was, since what is left is taken off a flat view.
    far = np.array(load.arrival_rate_per_second, np.float64, order="C")
    node_room = np.full(len(topology.nodes.names), PLANNED_UTILISATION)
    replica_room = np.full(len(replicas.endpoints), PLANNED_UTILISATION)
    replica_rate = np.zeros(len(replicas.endpoints))
    rows = np.flatnonzero(graph.live & graph.topology.replica_is_edge)
    execution = static.execution_seconds[rows].astype(np.float64)
    access_point = static.replica_access_point[rows].astype(np.int64)
    unserved = np.zeros((graph.systems, width))
    for near in (True, False):
        owner = access_point if near else graph.topology.node_system[replicas.node[rows]]
        routes = Routes(
            pair=owner * width + replicas.service[rows],
            node=replicas.node[rows],
            replica=rows,
            node_share=execution * static.cpu_fraction[rows],
            replica_share=execution * static.inverse_concurrency[rows],
        )
        if not near:
            unserved = graph.topology.per_system(far)
        remaining = (far if near else unserved).ravel()
        for step in range(STEPS_PER_TIER):
            accepted = accept(routes, remaining / (STEPS_PER_TIER - step), node_room, replica_room)
            replica_rate[rows] += accepted
            subtract(remaining, routes.pair, accepted)
    return RateSchedule(plan, replica_rate, node_room, far, unserved)


def _node_share(plan: FramePlan, nodes: Int64Array) -> Float64Array:
    """float64 [K, W]: share of each node that one request per second of each service takes."""
    cpu_seconds = plan.graph.table.static.service_cpu_seconds.astype(np.float64)
    share: Float64Array = cpu_seconds / node_power(plan, nodes)[:, None]
    return share


def _same_system(plan: FramePlan, node: int) -> Int64Array:
    node_system = plan.graph.topology.node_system
    return np.flatnonzero(node_system == node_system[node])


def _blocked_by_memory(plan: FramePlan, gain: Float64Array, feasible: BoolArray) -> Float64Array:
    """float64 [N]: the largest gain of each node that only its memory is in the way of."""
    blocked: Float64Array = np.where(plan.lacks_memory() & ~feasible, gain, 0.0).max(axis=1, initial=0.0)
    return blocked
