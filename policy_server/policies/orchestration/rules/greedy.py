"""More replicas where work waits, on the least utilised node."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policy_server.cluster.snapshot import Float64Array, Int64Array
from policy_server.policies.orchestration.plan import FramePlan, OrchestrationQuery
from policy_server.policies.orchestration.rules.base import OrchestrationRule, free_share, node_power
from policy_server.policies.orchestration.stepwise import DEFAULT_STEPS


@dataclass(frozen=True)
class Greedy(OrchestrationRule):
    """The orchestration counterpart of the Greedy dispatch of KaiS, which takes the node with the lowest utilisation.

    The *need* of a service at an access point, in seconds of its nodes' CPU, is

        (work of requests queued at its replicas there + demand of one second, if none is there) / CPU of the nodes

    Step by step the largest need is answered with a replica on the feasible node of the access point that has the
    largest free share of its scarcer resource, of equal ones the fastest; with m replicas at the access point before,
    m / (m + 1) of the need remains. Steps that no need calls for delete replicas that are idle and for whose service
    there is no demand at their access point, on the node with the smallest free share first. Takes two steps per
    system, unless the caller sets another maximum.
    """

    name: str = "greedy"

    def fill(self, plan: FramePlan, query: OrchestrationQuery, random: np.random.Generator) -> None:
        """Additions by need, then deletions; an addition's score is the need, a deletion's the memory share freed."""
        need = access_point_need(plan)
        access_point_system = plan.graph.snapshot.topology.access_points.system
        most = plan.options.maximum_actions
        steps = DEFAULT_STEPS if most is None else most
        for system, members in enumerate(plan.graph.topology.nodes_of_system):
            own = np.flatnonzero(access_point_system == system)
            taken = 0
            while taken < steps and self._add(plan, need, own):
                taken += 1
            self._delete(plan, members, steps - taken)

    def addition_values(self, plan: FramePlan, service: int) -> Float64Array:
        """The need at the node's access point, then the free share, float64 [N]."""
        access_point = plan.graph.snapshot.topology.nodes.access_point
        need: Float64Array = access_point_need(plan)[access_point, service]
        return need + free_share(plan)

    def _add(self, plan: FramePlan, need: Float64Array, access_points: Int64Array) -> bool:
        """Answers the largest need that can be answered; what cannot be is set to zero."""
        while access_points.size and need[access_points].max(initial=0.0) > 0:
            flat = int(need[access_points].argmax())
            access_point, service = int(access_points[flat // need.shape[1]]), flat % need.shape[1]
            there = plan.graph.topology.nodes_of_access_point[access_point]
            nodes = there[plan.additions(there)[:, service]]
            if not len(nodes):
                need[access_point, service] = 0.0
                continue
            node = int(nodes[np.lexsort((-node_power(plan, nodes), -free_share(plan, nodes)))[0]])
            plan.add(node, service, float(need[access_point, service]))
            before = int(plan.graph.node_live[there, service].sum())
            need[access_point, service] *= before / (before + 1)
            return True
        return False

    def _delete(self, plan: FramePlan, members: Int64Array, most: int) -> None:
        graph, topology = plan.graph, plan.graph.snapshot.topology
        replicas, nodes = topology.replicas, topology.nodes
        wanted = graph.demand_millicores[nodes.access_point[replicas.node], replicas.service] > 0
        unused = np.flatnonzero(graph.idle & ~wanted & np.isin(replicas.node, members))
        deleted = 0
        for replica in unused[np.argsort(free_share(plan)[replicas.node[unused]], kind="stable")].tolist():
            if deleted == most:
                return
            share = topology.services.memory_bytes[replicas.service[replica]]
            deleted += plan.delete(replica, float(share / nodes.memory_bytes[replicas.node[replica]]))


def access_point_need(plan: FramePlan) -> Float64Array:
    """float64 [A, W]: see :class:`Greedy`."""
    graph = plan.graph
    unhosted = np.where(graph.access_point_live == 0, graph.demand_millicores, 0.0)
    return (graph.access_point_waiting_work + unhosted) / graph.topology.access_point_cpu_millicores[:, None]
