"""The networks of GPG: order of rows, disjoint graphs, messages along links, odd graphs."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from policy_server.cluster.snapshot import (
    AccessPoints,
    Links,
    Load,
    Nodes,
    Replicas,
    Services,
    Snapshot,
    Topology,
    disjoint_union,
    idle_load,
)
from policy_server.features.graph import OrchestrationGraph, encoder_inputs
from policy_server.features.orchestration_schema import ORCHESTRATION_SCHEMA
from training.algorithms.frames import tensors
from training.networks.orchestration import (
    DemandCritic,
    OrchestrationActor,
    OrchestrationNetworkSizes,
)
from training.orchestration_scenarios import OrchestrationSetting, orchestration_simulator
from training.scenarios import Scenario
from training.workloads.patterns import Pattern

SIZES = OrchestrationNetworkSizes(embedding=8, hidden=12)


def actor(stacked_nodes: int = 0) -> OrchestrationActor:
    torch.manual_seed(3)
    return OrchestrationActor(ORCHESTRATION_SCHEMA, SIZES, stacked_nodes)


def snapshot(preset: str = "testbed-40", seed: int = 1) -> Snapshot:
    """A system under load."""
    simulator = orchestration_simulator(
        [Scenario(preset=preset, seed=seed, pattern=Pattern.P4, load=0.5)], OrchestrationSetting(frames=1)
    )
    for _ in range(6):
        requests = simulator.arrivals()
        by_service = {int(s): row for row, s in enumerate(simulator.topology.replicas.service)}
        simulator.advance(np.array([by_service[int(s)] for s in requests.service], np.int32))
    return simulator.snapshot()


Scores = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@torch.no_grad()
def scores(network: OrchestrationActor, state: Snapshot, nodes: np.ndarray) -> Scores:
    """Node scores [N], and of the given nodes delete [K, W], nothing [K] and add [K, W]."""
    graph = OrchestrationGraph.of(state)
    inputs = encoder_inputs([graph])
    embedding, access_point_summary, system_summary, node_score = network.encoder(**tensors(inputs))
    access_point = inputs["node_access_point"][nodes]
    delete, nothing, add = network.head(
        embedding[nodes],
        access_point_summary[access_point],
        system_summary[inputs["access_point_system"][access_point]],
        torch.from_numpy(graph.pair_features(nodes)),
        torch.arange(len(nodes)).repeat_interleave(graph.services),
    )
    width = graph.services
    return (
        node_score.numpy(),
        delete.numpy().reshape(-1, width),
        nothing.numpy(),
        add.numpy().reshape(-1, width),
    )


def permuted_nodes(state: Snapshot, order: np.ndarray) -> Snapshot:
    """The same state with node ``order[i]`` in row i."""
    topology, load = state.topology, state.load
    row_of = np.argsort(order)
    nodes = topology.nodes
    return Snapshot(
        topology=replace(
            topology,
            nodes=Nodes(
                names=tuple(nodes.names[row] for row in order),
                **{c.name: getattr(nodes, c.name)[order] for c in fields(Nodes) if c.name != "names"},
            ),
            replicas=replace(topology.replicas, node=row_of[topology.replicas.node].astype(np.int32)),
        ),
        load=replace(
            load,
            node_cpu_used_millicores=load.node_cpu_used_millicores[order],
            node_memory_used_bytes=load.node_memory_used_bytes[order],
        ),
    )


def permuted_services(state: Snapshot, order: np.ndarray) -> Snapshot:
    """The same state with service ``order[i]`` in row i."""
    topology, load = state.topology, state.load
    row_of = np.argsort(order)
    services = topology.services
    return Snapshot(
        topology=replace(
            topology,
            services=Services(
                names=tuple(services.names[row] for row in order),
                **{c.name: getattr(services, c.name)[order] for c in fields(Services) if c.name != "names"},
            ),
            replicas=replace(topology.replicas, service=row_of[topology.replicas.service].astype(np.int32)),
        ),
        load=replace(load, arrival_rate_per_second=load.arrival_rate_per_second[:, order]),
    )


def test_permuting_nodes_permutes_their_scores() -> None:
    network, state = actor(), snapshot()
    order = np.random.default_rng(1).permutation(len(state.topology.nodes.names))
    before = scores(network, state, order)
    after = scores(network, permuted_nodes(state, order), np.arange(len(order)))
    assert np.ptp(before[0]) > 1e-3
    np.testing.assert_allclose(after[0], before[0][order], atol=1e-5)
    for one, other in zip(before[1:], after[1:], strict=True):
        np.testing.assert_allclose(other, one, atol=1e-5)


def test_permuting_services_permutes_the_actions_and_leaves_the_nodes_alone() -> None:
    network, state = actor(), snapshot()
    order = np.random.default_rng(2).permutation(30)
    nodes = np.array([0, 7, 39])
    before = scores(network, state, nodes)
    after = scores(network, permuted_services(state, order), nodes)
    np.testing.assert_allclose(after[0], before[0], atol=1e-5)
    np.testing.assert_allclose(after[2], before[2], atol=1e-5)
    for part in (1, 3):
        assert np.ptp(before[part], axis=1).min() > 1e-3
        np.testing.assert_allclose(after[part], before[part][:, order], atol=1e-5)


def test_a_batch_of_systems_equals_one_by_one() -> None:
    network, critic = actor(), DemandCritic(ORCHESTRATION_SCHEMA, SIZES)
    states = [snapshot(seed=1), snapshot("testbed-100", seed=2), snapshot(seed=3)]
    alone = [scores(network, state, np.arange(len(state.topology.nodes.names))) for state in states]
    union = disjoint_union(states)
    together = scores(network, union, np.arange(len(union.topology.nodes.names)))
    for part in range(4):
        np.testing.assert_allclose(
            together[part], np.concatenate([one[part] for one in alone]), rtol=1e-4, atol=1e-5
        )
    with torch.no_grad():
        values = [critic(tensors(encoder_inputs([OrchestrationGraph.of(s)]))) for s in (*states, union)]
    assert values[-1].shape == (3, 30)
    np.testing.assert_allclose(values[-1], torch.cat(values[:-1]), rtol=1e-4, atol=1e-6)


def test_what_happens_two_links_away_is_known_and_what_no_link_leads_to_is_not() -> None:
    """Access points in a line 0 - 1 - 2 - 3, and 4 without links."""
    network = actor()

    def line(demand_at: int) -> np.ndarray:
        ends = np.array([[0, 1], [1, 2], [2, 3]])
        ends = np.concatenate((ends, ends[:, ::-1])).astype(np.int32)
        topology = Topology(
            access_points=AccessPoints(
                tuple(f"ap-{i}" for i in range(5)), np.zeros(5, bool), np.zeros(5, np.int32)
            ),
            nodes=Nodes(
                tuple(f"n-{i}" for i in range(5)),
                np.arange(5, dtype=np.int32),
                np.full(5, 1000, np.float32),
                np.full(5, 1e9, np.float32),
                np.ones(5, np.float32),
            ),
            services=Services(("s",), *(np.array([v], np.float32) for v in (100, 0.1, 1e8, 1e8, 1, 1))),
            replicas=Replicas((), *(np.zeros(0, np.int32) for _ in range(3))),
            links=Links(ends[:, 0], ends[:, 1], np.full(6, 0.01, np.float32), np.full(6, 1e7, np.float32)),
        )
        load = idle_load(topology)
        load.arrival_rate_per_second[demand_at] = 50.0
        graph = OrchestrationGraph.of(Snapshot(topology, load))
        with torch.no_grad():
            _, summary, _, _ = network.encoder(**tensors(encoder_inputs([graph])))
        return summary.numpy()

    at_two = line(2)
    at_three = line(3)
    assert np.abs(at_two[0] - at_three[0]).max() > 1e-4
    assert np.array_equal(at_two[4], at_three[4])


@pytest.mark.parametrize("stacked_nodes", [0, 4])
def test_graphs_without_links_replicas_or_neighbours(stacked_nodes: int) -> None:
    topology = Topology(
        access_points=AccessPoints(("a", "b"), np.zeros(2, bool), np.zeros(2, np.int32)),
        nodes=Nodes(
            ("n",),
            np.zeros(1, np.int32),
            np.array([1000], np.float32),
            np.array([1e9], np.float32),
            np.ones(1, np.float32),
        ),
        services=Services(("s",), *(np.array([v], np.float32) for v in (100, 0.1, 1e8, 1e8, 1, 1))),
        replicas=Replicas((), *(np.zeros(0, np.int32) for _ in range(3))),
        links=Links(*(np.zeros(0, np.int32) for _ in range(2)), *(np.zeros(0, np.float32) for _ in range(2))),
    )
    for part in scores(actor(stacked_nodes), Snapshot(topology, idle_load(topology)), np.array([0])):
        assert part.shape[0] == 1
        assert np.isfinite(part).all()


def test_state_stacking_depends_on_the_order_of_nodes() -> None:
    network, state = actor(stacked_nodes=41), snapshot()
    order = np.concatenate((np.random.default_rng(1).permutation(40), [40]))
    before = scores(network, state, order)
    after = scores(network, permuted_nodes(state, order), np.arange(41))
    assert np.abs(after[0] - before[0][order]).max() > 1e-3


def test_load_is_exhaustive() -> None:
    """The permutations above cover every column that names nodes or services."""
    assert {c.name for c in fields(Load)} == {
        "access_point_queued", "arrival_rate_per_second", "node_cpu_used_millicores", "node_memory_used_bytes",
        "replica_state", "replica_queued", "replica_running", "replica_latency_seconds", "link_backlog_bytes",
    }  # fmt: skip
