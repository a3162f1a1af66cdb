"""How full a node would be with the replica on it."""

from __future__ import annotations

from policy_server.cluster.snapshot import Float64Array, Snapshot
from policy_server.policies.placement.policy import PlacementQuery


def cpu_share(snapshot: Snapshot, query: PlacementQuery) -> Float64Array:
    """float64 [M]: (CPU in use + CPU the replica and pending ones need) / allocatable CPU; above 1 it is short."""
    added = query.cpu_millicores * (1 + query.pending_replicas[query.nodes])
    used = snapshot.load.node_cpu_used_millicores[query.nodes]
    share: Float64Array = (used + added) / query.node_cpu_millicores
    return share


def memory_share(snapshot: Snapshot, query: PlacementQuery) -> Float64Array:
    """float64 [M]: (memory in use + memory of the replica and of pending ones) / allocatable memory."""
    added = query.memory_bytes * (1 + query.pending_replicas[query.nodes])
    used = snapshot.load.node_memory_used_bytes[query.nodes]
    share: Float64Array = (used + added) / query.node_memory_bytes
    return share
