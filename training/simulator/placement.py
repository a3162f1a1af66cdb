"""Which services an edge node hosts before any orchestration."""

from __future__ import annotations

import numpy as np

from policy_server.cluster.snapshot import BoolArray, Float64Array, Int32Array, Services

MINIMUM_REPLICAS = 2
"""Edge replicas each service gets, as far as memory allows, before popularity decides about the rest."""


def place_edge_replicas(
    *,
    cpu_millicores: Float64Array,
    memory_bytes: Float64Array,
    services: Services,
    popularity: Float64Array,
    memory_share: float,
    rng: np.random.Generator,
    replicas_per_service: int | None = None,
) -> tuple[Int32Array, Int32Array]:
    """Spreads replicas over edge nodes, at most one of a service per node.

    Each service is first put on ``MINIMUM_REPLICAS`` random nodes, the largest service first. Then every node goes
    through the services in a random order weighted by popularity (without replacement, by Gumbel keys) and takes
    what still fits.

    Args:
        cpu_millicores: float64 [N], of the edge nodes.
        memory_bytes: float64 [N].
        services: W services.
        popularity: float64 [W], relative request rates.
        memory_share: share of each node's memory to fill; the rest is left to orchestration.
        rng: source of randomness.
        replicas_per_service: each service is put on so many nodes, and nothing else is filled; None: as above.

    Returns:
        int32 arrays (node, service), by node, then by service; nodes are rows of ``cpu_millicores``.
    """
    memory_needed = services.memory_bytes.astype(np.float64)
    capable = cpu_millicores[:, None] >= services.cpu_millicores[None, :]
    budget = memory_bytes * memory_share
    hosted: BoolArray = np.zeros(capable.shape, np.bool_)

    for service in np.argsort(-memory_needed, kind="stable"):
        feasible = np.flatnonzero(capable[:, service] & (memory_needed[service] <= budget))
        chosen = rng.permutation(feasible)[: replicas_per_service or MINIMUM_REPLICAS]
        hosted[chosen, service] = True
        budget[chosen] -= memory_needed[service]

    if replicas_per_service is None:
        _fill(hosted, capable, budget, memory_needed, popularity, rng)
    node, service = np.nonzero(hosted)
    return node.astype(np.int32), service.astype(np.int32)


def _fill(
    hosted: BoolArray,
    capable: BoolArray,
    budget: Float64Array,
    memory_needed: Float64Array,
    popularity: Float64Array,
    rng: np.random.Generator,
) -> None:
    """Takes in what still fits, by popularity; changes ``hosted`` and ``budget``."""
    with np.errstate(divide="ignore"):
        keys = np.log(popularity)[None, :] + rng.gumbel(size=capable.shape)
    nodes = np.arange(len(budget))
    for service_of_node in np.argsort(-keys, axis=1, kind="stable").T:
        takes = (
            capable[nodes, service_of_node]
            & ~hosted[nodes, service_of_node]
            & (memory_needed[service_of_node] <= budget)
        )
        hosted[nodes[takes], service_of_node[takes]] = True
        budget[takes] -= memory_needed[service_of_node[takes]]
