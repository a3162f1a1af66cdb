"""What actions are expected to bring about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policy_server.cluster.actions import AddReplica
from policy_server.cluster.snapshot import Float64Array
from policy_server.features.graph import OrchestrationGraph
from policy_server.policies.orchestration.plan import PlannedAction


@dataclass(frozen=True, slots=True)
class ExpectedEffect:
    """Of one action, after those before it.

    Attributes:
        utilisation_before: of the action's node: expected CPU demand over its CPU; above 1 requests pile up.
        utilisation_after: the same with the action.
        excess_demand_change_millicores: change of the system's CPU demand beyond the capacity of the nodes it goes to,
            the rate at which queued work grows; negative is better.
        pulled_bytes: of the image, where the node lacks it.
    """

    utilisation_before: float
    utilisation_after: float
    excess_demand_change_millicores: float
    pulled_bytes: float


def expected_effects(graph: OrchestrationGraph, actions: Sequence[PlannedAction]) -> list[ExpectedEffect]:
    """The effect of each of several actions that are carried out in order.

    The demand of a service (millicores of a reference machine, over all access points of the system) is taken to be
    shared equally by its replicas that do not drain. With count[n, w] replicas of service w on node n:

        load[n] = sum over w of count[n, w] x demand[w] / sum over n of count[n, w]
        utilisation[n] = load[n] / (CPU x speed)[n]
        excess = sum over n of max(0, load[n] - (CPU x speed)[n])

    A service without any replica loads no node.
    """
    if not actions:
        return []
    system, capacity = graph.topology.node_system, graph.topology.node_power_millicores
    image_bytes = graph.snapshot.topology.services.image_bytes
    demand = graph.system_demand_millicores
    counts = graph.node_live.astype(np.float64)
    totals = graph.system_live.copy()
    share = np.divide(demand, totals, out=np.zeros(demand.shape), where=totals > 0)
    load = np.einsum("nw,nw->n", counts, share[system])
    effects = []
    for planned in actions:
        node, service, of_system = planned.node, planned.service, int(system[planned.node])
        involved = counts[:, service] > 0
        if graph.systems > 1:
            involved &= system == of_system
        adds = isinstance(planned.action, AddReplica)
        pulled_bytes = 0.0 if involved[node] or not adds else float(image_bytes[service])
        involved[node] = True
        members = np.flatnonzero(involved)
        before, most = load[members], capacity[members]
        utilisation_before = float(load[node] / capacity[node])
        after = before - counts[members, service] * share[of_system, service]
        step = 1 if adds else -1
        counts[node, service] += step
        totals[of_system, service] += step
        left = totals[of_system, service]
        share[of_system, service] = demand[of_system, service] / left if left > 0 else 0.0
        after += counts[members, service] * share[of_system, service]
        load[members] = after
        effects.append(
            ExpectedEffect(
                utilisation_before=utilisation_before,
                utilisation_after=float(load[node] / capacity[node]),
                excess_demand_change_millicores=_excess(after, most) - _excess(before, most),
                pulled_bytes=pulled_bytes,
            )
        )
    return effects


def _excess(load: Float64Array, capacity: Float64Array) -> float:
    return float(np.maximum(load - capacity, 0.0).sum())
