"""Systems that orchestration is tried on, and an independent judge of its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from policy_server.cluster.actions import AddReplica
from policy_server.cluster.snapshot import (
    Links,
    Nodes,
    Replicas,
    ReplicaState,
    Services,
    Snapshot,
    Topology,
    idle_load,
)
from policy_server.features.graph import OrchestrationGraph
from policy_server.policies.orchestration.memory import FrameMemory
from policy_server.policies.orchestration.plan import (
    OrchestrationOptions,
    OrchestrationQuery,
    PlannedAction,
)
from tests.support.systems import example_snapshot, example_topology, snapshots


@st.composite
def crowded_snapshots(draw: st.DrawFn) -> Snapshot:
    """Random systems whose nodes are nearly full, of CPU, of memory, or of both; some are idle altogether."""
    snapshot = draw(snapshots())
    topology, load = snapshot.topology, snapshot.load
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    nodes = topology.nodes
    tight_memory, tight_cpu = draw(st.booleans()), draw(st.booleans())
    if tight_memory:
        spare = random.uniform(0, 1.5, len(nodes.names)) * topology.services.memory_bytes.max()
        nodes = replace(nodes, memory_bytes=(load.node_memory_used_bytes + spare + 1).astype(np.float32))
    if tight_cpu:
        load = replace(
            load,
            node_cpu_used_millicores=(nodes.cpu_millicores * random.uniform(0.5, 1, len(nodes.names))).astype(
                np.float32
            ),
        )
    topology = replace(topology, nodes=nodes)
    if draw(st.booleans()):
        idle = draw(st.sampled_from([0.3, 1.0]))
        quiet = random.random(len(topology.replicas.endpoints)) < idle
        load = replace(
            load,
            replica_queued=np.where(quiet, 0, load.replica_queued).astype(np.float32),
            replica_running=np.where(quiet, 0, load.replica_running).astype(np.float32),
            arrival_rate_per_second=(load.arrival_rate_per_second * (idle < 1)).astype(np.float32),
        )
    return replace(snapshot, topology=topology, load=load)


@st.composite
def option_sets(draw: st.DrawFn, services: int) -> OrchestrationOptions:
    """What callers allow."""
    protected = draw(st.lists(st.integers(0, services - 1), max_size=2, unique=True))
    most = draw(st.sampled_from([None, 1, 2, 5]))
    return OrchestrationOptions(most, np.array(protected, np.int64))


def query_of(
    snapshot: Snapshot,
    options: OrchestrationOptions | None = None,
    memory: FrameMemory | None = None,
) -> OrchestrationQuery:
    """A query about a snapshot."""
    return OrchestrationQuery(
        OrchestrationGraph.of(snapshot), options or OrchestrationOptions(), memory or FrameMemory()
    )


def assert_feasible(
    snapshot: Snapshot, options: OrchestrationOptions, actions: Sequence[PlannedAction]
) -> None:
    """Carries the actions out one after another, in plain numbers, and fails where one must not be.

    Args:
        snapshot: of a single system.
        options: that the actions were asked for with.
        actions: all of one frame, in order.
    """
    topology, load = snapshot.topology, snapshot.load
    nodes, services, replicas = topology.nodes, topology.services, topology.replicas
    rows = range(len(replicas.endpoints))
    memory = [float(used) for used in load.node_memory_used_bytes]
    for node in range(len(nodes.names)):
        held = sum(
            float(services.memory_bytes[replicas.service[row]]) for row in rows if replicas.node[row] == node
        )
        memory[node] = max(memory[node], held)
    cpu = [float(used) for used in load.node_cpu_used_millicores]
    state = {row: ReplicaState(load.replica_state[row]) for row in rows}
    done: set[object] = set()
    if options.maximum_actions is not None:
        assert len(actions) <= options.maximum_actions
    for planned in actions:
        action, node, service = planned.action, planned.node, planned.service
        assert action not in done, "the same action twice"
        done.add(action)
        assert not topology.access_points.is_cloud[nodes.access_point[node]], "the cloud stays as it is"
        if isinstance(action, AddReplica):
            assert (action.node, action.service) == (node, service)
            memory[node] += float(services.memory_bytes[service])
            cpu[node] += float(services.cpu_millicores[service])
            assert memory[node] <= nodes.memory_bytes[node], "more memory than the node has"
            assert cpu[node] <= nodes.cpu_millicores[node], "more CPU than the node has"
            assert np.isclose(planned.node_memory_bytes, memory[node])
            assert np.isclose(planned.node_cpu_millicores, cpu[node])
            continue
        row = action.replica
        assert (replicas.node[row], replicas.service[row]) == (node, service)
        assert service not in options.protected_services.tolist(), "a protected service"
        assert state[row] is not ReplicaState.DRAINING, "drains already"
        was_ready = state[row] is ReplicaState.READY
        state[row] = ReplicaState.DRAINING
        left = [state[other] for other in rows if replicas.service[other] == service]
        assert any(one is not ReplicaState.DRAINING for one in left), "the last replica"
        assert not was_ready or ReplicaState.READY in left, "the last replica that is ready"
        busy = load.replica_queued[row] + load.replica_running[row] > 0
        assert planned.drain_first == busy, "busy means drain first"


def strange_systems() -> dict[str, Snapshot]:
    """Small systems with something missing or in excess, by name."""
    topology = example_topology(nodes=4, access_points=2, services=2, replicas_per_service=3, seed=3)
    empty = np.zeros(0, np.int32)
    none_linked = example_topology(
        nodes=4, access_points=2, services=2, replicas_per_service=3, seed=3, link_probability=0.0
    )
    kept = topology.replicas.service == 1
    without_first = Replicas(
        endpoints=tuple(e for e, stays in zip(topology.replicas.endpoints, kept, strict=True) if stays),
        service=topology.replicas.service[kept],
        node=topology.replicas.node[kept],
        concurrency=topology.replicas.concurrency[kept],
    )
    full = replace(topology, nodes=replace(topology.nodes, memory_bytes=np.ones(5, np.float32)))
    one_node = Topology(
        access_points=replace(
            topology.access_points, names=("ap",), is_cloud=np.array([False]), system=np.zeros(1, np.int32)
        ),
        nodes=replace(
            topology.nodes,
            names=("node",),
            access_point=np.zeros(1, np.int32),
            cpu_millicores=topology.nodes.cpu_millicores[:1],
            memory_bytes=topology.nodes.memory_bytes[:1],
            speed=topology.nodes.speed[:1],
        ),
        services=topology.services,
        replicas=Replicas((), empty, empty, empty),
        links=none_linked.links,
    )
    nobody = Topology(
        access_points=replace(topology.access_points, names=(), is_cloud=np.zeros(0, bool), system=empty),
        nodes=Nodes((), empty, *[np.zeros(0, np.float32)] * 3),
        services=Services((), *[np.zeros(0, np.float32)] * 6),
        replicas=Replicas((), empty, empty, empty),
        links=none_linked.links,
    )
    return {
        "nothing at all": Snapshot(nobody, idle_load(nobody), taken_at_seconds=100.0),
        "no services": Snapshot(
            replace(one_node, services=nobody.services),
            idle_load(replace(one_node, services=nobody.services)),
            taken_at_seconds=100.0,
        ),
        "one node": example_snapshot(one_node, 1),
        "no links": example_snapshot(none_linked, 1),
        "an isolated node": example_snapshot(replace(topology, links=_without_access_point(topology, 0)), 1),
        "full nodes": example_snapshot(full, 1),
        "a service without replicas": example_snapshot(replace(topology, replicas=without_first), 1),
        "no replicas": example_snapshot(replace(topology, replicas=Replicas((), empty, empty, empty)), 1),
        "zero load": Snapshot(topology, idle_load(topology), taken_at_seconds=100.0),
    }


def _without_access_point(topology: Topology, row: int) -> Links:
    links = topology.links
    stays = (links.source != row) & (links.target != row)
    return replace(
        links,
        source=links.source[stays],
        target=links.target[stays],
        delay_seconds=links.delay_seconds[stays],
        bandwidth_bytes_per_second=links.bandwidth_bytes_per_second[stays],
    )
