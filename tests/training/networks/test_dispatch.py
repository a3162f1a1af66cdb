"""The dispatch networks are scale-free: any size, any order, one by one as in a union."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from policy_server.cluster.ledger import Ledger
from policy_server.cluster.queries import DispatchQueries, single_query
from policy_server.cluster.snapshot import Nodes, Snapshot, disjoint_union
from policy_server.features.schema import SCHEMA
from policy_server.policies.dispatch import DispatchView
from tests.support.systems import example_snapshot, example_topology, random_order, reordered
from training.networks.dispatch import CentralCritic, DispatchActor, DispatchNetworkSizes, Normaliser
from training.networks.policies import TorchDispatch, system_tensors


@pytest.fixture(scope="module")
def policy() -> TorchDispatch:
    torch.manual_seed(0)
    return TorchDispatch(DispatchActor(SCHEMA, DispatchNetworkSizes(8, 16)))


def scores(
    policy: TorchDispatch, snapshot: Snapshot, queries: DispatchQueries
) -> dict[tuple[int, str], float]:
    """Score by query and endpoint."""
    view = DispatchView(snapshot)
    candidates = view.candidates(queries, Ledger(snapshot.topology), snapshot.taken_at_seconds)
    values = policy.score(candidates, policy.prepare(view.table), np.random.default_rng(0))
    endpoints = snapshot.topology.replicas.endpoints
    return {
        (int(query), endpoints[replica]): float(value)
        for query, replica, value in zip(candidates.segment, candidates.replica, values, strict=True)
    }


@pytest.mark.parametrize("nodes", [3, 40, 100, 1000])
def test_one_network_serves_any_number_of_nodes(policy: TorchDispatch, nodes: int) -> None:
    topology = example_topology(nodes=nodes, access_points=max(1, nodes // 10), replicas_per_service=3)
    found = scores(policy, example_snapshot(topology), single_query(0, 0, 0.5, 1000.0))
    assert found
    assert np.isfinite(list(found.values())).all()


def test_order_does_not_matter(policy: TorchDispatch) -> None:
    snapshot = example_snapshot(example_topology(nodes=12, access_points=3))
    shuffled = reordered(snapshot, random_order(snapshot.topology, 4))
    before, after = snapshot.topology, shuffled.topology
    for service in before.services.names:
        for access_point in before.access_points.names[:2]:
            one = scores(
                policy,
                snapshot,
                single_query(
                    before.service_index[service], before.access_point_index[access_point], 0.5, 1000.0
                ),
            )
            other = scores(
                policy,
                shuffled,
                single_query(
                    after.service_index[service], after.access_point_index[access_point], 0.5, 1000.0
                ),
            )
            assert one.keys() == other.keys()
            assert other == pytest.approx(one, abs=1e-5)


def test_a_union_is_judged_as_its_members(policy: TorchDispatch) -> None:
    first = example_snapshot(example_topology(nodes=6, seed=1))
    second = example_snapshot(replace(example_topology(nodes=9, seed=2), services=first.topology.services))
    union = disjoint_union([first, second])
    offset = len(first.topology.access_points.names)
    query = single_query(1, 0, 0.5, 1000.0)
    shifted = replace(query, access_point=query.access_point + np.int32(offset))
    for index, (snapshot, joint) in enumerate(((first, query), (second, shifted))):
        alone = scores(policy, snapshot, query)
        together = scores(policy, union, joint)
        assert together == pytest.approx(
            {(row, f"{index}/{endpoint}"): value for (row, endpoint), value in alone.items()}, abs=1e-5
        )


def test_a_system_without_links(policy: TorchDispatch) -> None:
    topology = example_topology(nodes=6, access_points=2, link_probability=0.0)
    assert len(topology.links.source) == 0
    found = scores(policy, example_snapshot(topology), single_query(0, 0, 0.5, 1000.0))
    assert np.isfinite(list(found.values())).all()


def test_a_system_without_edge_nodes(policy: TorchDispatch) -> None:
    whole = example_topology(nodes=1, access_points=2, replicas_per_service=0)
    nodes = Nodes(**{column.name: getattr(whole.nodes, column.name)[1:] for column in fields(Nodes)})
    topology = replace(whole, nodes=nodes, replicas=replace(whole.replicas, node=whole.replicas.node - 1))
    found = scores(policy, example_snapshot(topology), single_query(0, 0, 0.5, 1000.0))
    assert len(found) == 1
    assert np.isfinite(list(found.values())).all()


@pytest.fixture(scope="module")
def critic() -> CentralCritic:
    torch.manual_seed(1)
    return CentralCritic(SCHEMA, DispatchNetworkSizes(8, 16))


def value(critic: CentralCritic, snapshot: Snapshot) -> list[float]:
    with torch.no_grad():
        return [float(v) for v in critic(*system_tensors(DispatchView(snapshot).table))]


def test_the_critic_does_not_mind_order_and_values_a_union_as_its_members(critic: CentralCritic) -> None:
    first = example_snapshot(example_topology(nodes=6, seed=1))
    second = example_snapshot(replace(example_topology(nodes=9, seed=2), services=first.topology.services))
    alone = value(critic, first) + value(critic, second)
    assert abs(alone[0] - alone[1]) > 1e-4
    assert value(critic, disjoint_union([first, second])) == pytest.approx(alone, abs=1e-5)
    shuffled = reordered(first, random_order(first.topology, 4))
    assert value(critic, shuffled) == pytest.approx(alone[:1], abs=1e-5)


def test_constant_columns_keep_their_scale() -> None:
    normaliser = Normaliser(2)
    rows = torch.tensor([[1.0, 5.0], [3.0, 5.0], [9.0, 5.0]])
    normaliser.fit(rows)
    out = normaliser(rows)
    assert out[:, 0].mean() == pytest.approx(0, abs=1e-6)
    assert out[:, 0].std() == pytest.approx(1, abs=1e-5)
    assert torch.equal(out[:, 1], torch.zeros(3))
    assert normaliser(torch.tensor([[1e30, -1e30]])).abs().max() <= 6.0
