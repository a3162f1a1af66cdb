"""Questions to placement policies, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from policy_server.cluster.snapshot import Snapshot
from policy_server.policies.placement import PlacementQuery
from tests.support.systems import snapshots


def placement_query(snapshot: Snapshot, **fields: Any) -> PlacementQuery:
    """A question about all nodes of the snapshot and its first service, but for ``fields``."""
    topology = snapshot.topology
    count = len(topology.nodes.names)
    service = fields.get("service", 0)
    given: dict[str, Any] = {
        "service": service,
        "cpu_millicores": float(topology.services.cpu_millicores[service]),
        "memory_bytes": float(topology.services.memory_bytes[service]),
        "nodes": np.arange(count, dtype=np.int32),
        "node_cpu_millicores": topology.nodes.cpu_millicores.astype(np.float64),
        "node_memory_bytes": topology.nodes.memory_bytes.astype(np.float64),
        "has_image": np.zeros(count, np.bool_),
        "pending_replicas": np.zeros(count),
    }
    return PlacementQuery(**(given | fields))


@st.composite
def placements(draw: st.DrawFn) -> tuple[Snapshot, PlacementQuery]:
    """Small random systems, and a question about some of their nodes in some order."""
    snapshot = draw(snapshots())
    topology = snapshot.topology
    count = len(topology.nodes.names)
    nodes = draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True))
    cpu = topology.nodes.cpu_millicores[nodes] * np.array(
        draw(st.lists(st.sampled_from([0.5, 1.0]), min_size=len(nodes), max_size=len(nodes)))
    )
    return snapshot, placement_query(
        snapshot,
        service=draw(st.integers(0, len(topology.services.names) - 1)),
        cpu_millicores=draw(st.floats(1, 1000)),
        memory_bytes=draw(st.floats(0, 1e9)),
        nodes=np.array(nodes, np.int32),
        node_cpu_millicores=cpu.astype(np.float64),
        node_memory_bytes=topology.nodes.memory_bytes[nodes].astype(np.float64),
        has_image=np.array(draw(st.lists(st.booleans(), min_size=len(nodes), max_size=len(nodes)))),
        pending_replicas=np.array(
            draw(st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=count, max_size=count))
        ),
    )
