from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import numpy_helper

from policy_server.cluster.ledger import Ledger
from policy_server.cluster.queries import DispatchQueries, DispatchQuery, single_query
from policy_server.cluster.snapshot import Snapshot, disjoint_union
from policy_server.features.candidates import Candidates
from policy_server.policies import onnx_dispatch
from policy_server.policies.dispatch import DispatchPolicy, DispatchView, decide
from policy_server.policies.onnx_dispatch import OnnxDispatch
from policy_server.runtime.bundle import load_bundle
from tests.support.models import encoder_model, head_model, loaded_bundle, write_example_bundle
from tests.support.systems import (
    Endpoint,
    example_queries,
    example_snapshot,
    example_topology,
    one_service_snapshot,
    random_order,
    reordered,
    reordered_queries,
    snapshots,
)

NOW = 100.1
TOLERANCE = 1e-5


def weights(model: bytes) -> dict[str, NDArray[Any]]:
    graph = onnx.load_from_string(model).graph
    return {each.name: numpy_helper.to_array(each) for each in graph.initializer}


def reference_scores(snapshot: Snapshot, candidates: Candidates) -> NDArray[np.float64]:
    """What the example models compute, in plain loops and in double precision."""
    topology, table = snapshot.topology, candidates.table
    w = weights(encoder_model())
    base = table.access_point_features.astype(np.float64) @ w["access_point_weight"]
    gathered = np.zeros_like(base)
    nodes = table.node_features.astype(np.float64) @ w["node_weight"]
    for node, access_point in enumerate(topology.nodes.access_point):
        gathered[access_point] += nodes[node]
    for link, (source, target) in enumerate(zip(topology.links.source, topology.links.target, strict=True)):
        gathered[source] += table.link_features[link].astype(np.float64) @ w["link_weight"] + base[target]
    access_points = base + np.tanh(gathered)
    head = weights(head_model())
    scores = []
    for candidate, replica in enumerate(candidates.replica):
        node = topology.replicas.node[replica]
        context = (
            table.replica_features[replica].astype(np.float64) @ w["replica_weight"]
            + nodes[node]
            + access_points[topology.nodes.access_point[node]]
        )
        origin = access_points[candidates.queries.access_point[candidates.segment[candidate]]]
        request = candidates.features[candidate].astype(np.float64) @ head["request_weight"]
        scores.append(np.tanh(context + origin + request) @ head["score_weight"])
    return np.array(scores)


@pytest.fixture
def policy() -> OnnxDispatch:
    return OnnxDispatch(loaded_bundle())


def scored(policy: OnnxDispatch, view: DispatchView, queries: DispatchQueries) -> NDArray[np.float32]:
    candidates = view.candidates(queries, Ledger(view.snapshot.topology), NOW)
    return policy.score(candidates, view.prepared(policy), np.random.default_rng(0))


def assert_as_reference(policy: OnnxDispatch, snapshot: Snapshot, queries: DispatchQueries) -> None:
    view = DispatchView(snapshot)
    candidates = view.candidates(queries, Ledger(snapshot.topology), NOW)
    scores = policy.score(candidates, view.prepared(policy), np.random.default_rng(0))
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, reference_scores(snapshot, candidates), atol=TOLERANCE)


def test_is_a_policy_named_by_its_bundle(tmp_path: Any) -> None:
    path = write_example_bundle(tmp_path, "kais", "1.2.3", sampling_temperature=0.5)
    policy = OnnxDispatch(load_bundle(path))
    assert isinstance(policy, DispatchPolicy)
    assert (policy.name, policy.version, policy.learned) == ("kais", "1.2.3", True)
    assert policy.sampling_temperature == 0.5


@given(snapshot=snapshots(), count=st.integers(1, 5), seed=st.integers(0, 100))
def test_scores_are_those_of_the_reference(snapshot: Snapshot, count: int, seed: int) -> None:
    """On systems without links, with one node, with replicas that are not ready or without any."""
    queries = example_queries(snapshot.topology, count, seed)
    assert_as_reference(OnnxDispatch(loaded_bundle()), snapshot, queries)


@pytest.mark.parametrize("nodes", [3, 40, 100, 1000])
def test_one_model_serves_any_number_of_nodes(policy: OnnxDispatch, nodes: int) -> None:
    topology = example_topology(
        nodes=nodes, access_points=max(2, nodes // 10), replicas_per_service=nodes // 3
    )
    assert_as_reference(policy, example_snapshot(topology), example_queries(topology, 3))


def test_a_cloud_alone_is_served(policy: OnnxDispatch) -> None:
    snapshot = one_service_snapshot([Endpoint("cloud"), Endpoint("cloud", queued=3)])
    assert_as_reference(policy, snapshot, single_query(0, 0, 1.0))


def test_one_node_is_served(policy: OnnxDispatch) -> None:
    assert_as_reference(policy, one_service_snapshot([Endpoint()]), single_query(0, 0, 1.0))


def test_a_system_of_a_union_is_served_like_alone(policy: OnnxDispatch) -> None:
    members = []
    services = example_topology().services
    for seed in range(3):
        topology = replace(example_topology(nodes=4 + seed, seed=seed), services=services)
        members.append(example_snapshot(topology, seed))
    union = DispatchView(disjoint_union(members))
    first_access_point = 0
    for member in members:
        queries = example_queries(member.topology, 4, seed=7)
        shifted = replace(queries, access_point=(queries.access_point + first_access_point).astype(np.int32))
        alone = scored(policy, DispatchView(member), queries)
        np.testing.assert_allclose(scored(policy, union, shifted), alone, atol=TOLERANCE)
        first_access_point += len(member.topology.access_points.names)


def test_a_batch_scores_like_its_queries_alone(policy: OnnxDispatch) -> None:
    topology = example_topology()
    view = DispatchView(example_snapshot(topology))
    queries = example_queries(topology, 16)
    alone = [
        scored(
            policy,
            view,
            DispatchQueries(
                queries.service[[row]],
                queries.access_point[[row]],
                queries.deadline_seconds[[row]],
                queries.payload_bytes[[row]],
            ),
        )
        for row in range(16)
    ]
    np.testing.assert_allclose(scored(policy, view, queries), np.concatenate(alone), atol=1e-6)


@given(seed=st.integers(0, 1000))
def test_row_order_does_not_matter(seed: int) -> None:
    policy = OnnxDispatch(loaded_bundle())
    topology = example_topology(seed=seed)
    snapshot, queries = example_snapshot(topology, seed), example_queries(topology, 3, seed)
    order = random_order(topology, seed)
    view, other = DispatchView(snapshot), DispatchView(reordered(snapshot, order))
    other_queries = reordered_queries(queries, order)
    candidates = view.candidates(queries, Ledger(topology), NOW)
    shuffled = other.candidates(other_queries, Ledger(other.snapshot.topology), NOW)
    before = {
        (int(q), int(r)): s
        for q, r, s in zip(candidates.segment, candidates.replica, scored(policy, view, queries), strict=True)
    }
    after = {
        (int(q), int(order.replicas[r])): s
        for q, r, s in zip(
            shuffled.segment, shuffled.replica, scored(policy, other, other_queries), strict=True
        )
    }
    assert before.keys() == after.keys()
    np.testing.assert_allclose([after[key] for key in before], list(before.values()), atol=TOLERANCE)


def test_the_encoder_runs_once_per_snapshot_and_topology_inputs_are_made_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bundle = loaded_bundle()
    encoder = bundle.sessions["encoder"]
    run, feeds = encoder.run, []

    def spy(inputs: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        feeds.append(inputs)
        return run(inputs)

    monkeypatch.setattr(encoder, "run", spy)
    policy = OnnxDispatch(bundle)
    topology = example_topology()
    view = DispatchView(example_snapshot(topology, 0))
    for seed in range(3):
        decide(
            policy, view, example_queries(topology, 2, seed), Ledger(topology), NOW, np.random.default_rng(0)
        )
    assert len(feeds) == 1
    view = DispatchView(example_snapshot(topology, 1), view)
    view.prepared(policy)
    assert len(feeds) == 2
    for name in (
        "node_access_point",
        "access_point_system",
        "systems",
        "link_source",
        "link_target",
        "replica_node",
    ):
        assert feeds[0][name] is feeds[1][name]
    DispatchView(example_snapshot(example_topology(seed=1))).prepared(policy)
    assert feeds[2]["replica_node"] is not feeds[0]["replica_node"]


def test_topologies_gone_are_forgotten(policy: OnnxDispatch) -> None:
    for seed in range(5):
        DispatchView(example_snapshot(example_topology(seed=seed))).prepared(policy)
    assert len(policy._topologies) == 0


class TestBoundHead:
    """Candidates that are asked for again are scored by a run bound to them."""

    @given(snapshot=snapshots(), seed=st.integers(0, 100))
    def test_scores_are_those_of_a_first_request(self, snapshot: Snapshot, seed: int) -> None:
        policy, random = OnnxDispatch(loaded_bundle()), np.random.default_rng(seed)
        view, ledger = DispatchView(snapshot), Ledger(snapshot.topology)
        query = example_queries(snapshot.topology, 1, seed).row(0)
        earlier = []
        for position in range(5):
            asked = query._replace(
                payload_bytes=float(random.exponential(1e6)), deadline_seconds=1.0 + position
            )
            candidates = view.candidates(asked, ledger, NOW + position)
            if not len(candidates):
                return
            scores = policy.score(candidates, view.prepared(policy), random)
            afresh = DispatchView(snapshot).candidates(asked, ledger, NOW + position)
            first = policy.score(afresh, policy.prepare(view.table), random)
            np.testing.assert_array_equal(scores, first)
            earlier.append((scores, first))
            ledger.record_one(0, int(candidates.replica[0]), -1, 0.0, 1e9)
        for scores, first in earlier:
            np.testing.assert_array_equal(scores, first)

    def test_a_run_is_bound_the_second_time_and_used_from_then_on(self) -> None:
        policy = OnnxDispatch(loaded_bundle())
        view = DispatchView(one_service_snapshot([Endpoint(), Endpoint()]))
        prepared = view.prepared(policy)
        ledger, random = Ledger(view.snapshot.topology), np.random.default_rng(0)
        seen = []
        for _ in range(4):
            candidates = view.candidates(DispatchQuery(0, 0, 1.0), ledger, NOW)
            policy.score(candidates, prepared, random)
            seen.append(list(prepared.head_runs.idle(candidates) or ()))
        assert [len(idle) for idle in seen] == [0, 1, 1, 1]
        assert seen[1] == seen[2] == seen[3]

    def test_of_many_candidates_only_the_first_are_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(onnx_dispatch, "MAXIMUM_BOUND_CANDIDATES", 3)
        policy = OnnxDispatch(loaded_bundle())
        view = DispatchView(one_service_snapshot([Endpoint(), Endpoint()]))
        prepared, ledger = view.prepared(policy), Ledger(view.snapshot.topology)
        for access_point, bound in ((0, True), (1, False), (0, True), (1, False)):
            for _ in range(2):
                candidates = view.candidates(DispatchQuery(0, access_point, 1.0), ledger, NOW)
                scores = policy.score(candidates, prepared, np.random.default_rng(0))
                np.testing.assert_allclose(
                    scores, reference_scores(view.snapshot, candidates), atol=TOLERANCE
                )
            assert bool(prepared.head_runs.idle(candidates)) == bound

    def test_several_threads_at_once_get_their_own_scores(self) -> None:
        policy = OnnxDispatch(loaded_bundle())
        view = DispatchView(one_service_snapshot([Endpoint(), Endpoint("ap-1"), Endpoint("cloud")]))
        prepared, ledger = view.prepared(policy), Ledger(view.snapshot.topology)

        def score(deadline_seconds: float) -> NDArray[np.float32]:
            candidates = view.candidates(DispatchQuery(0, 0, deadline_seconds), ledger, NOW)
            return policy.score(candidates, prepared, np.random.default_rng(0))

        deadlines = [0.1 * (1 + row % 16) for row in range(800)]
        alone = {deadline: score(deadline) for deadline in deadlines}
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(score, deadlines))
        for deadline, scores in zip(deadlines, together, strict=True):
            np.testing.assert_array_equal(scores, alone[deadline])
