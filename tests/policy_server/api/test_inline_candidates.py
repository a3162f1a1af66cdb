"""Candidates carried by a request, as a snapshot."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from policy_server.api.inline_candidates import (
    DEFAULT_CPU_MILLICORES,
    DEFAULT_MEMORY_BYTES,
    DEFAULT_SERVICE_CPU_MILLICORES,
    DEFAULT_SERVICE_EXECUTION_SECONDS,
    MAXIMUM_SITES,
    snapshot_of_candidates,
)
from policy_server.cluster.ledger import Ledger
from policy_server.cluster.queries import single_query
from policy_server.cluster.snapshot import Snapshot
from policy_server.features.candidates import Candidates
from policy_server.policies.dispatch import DispatchView
from policy_server.proto.policy.v1.dispatch_service_pb2 import Candidate, InlineCandidates, ServiceProfile


def snapshot_of(*candidates: Candidate, profile: ServiceProfile | None = None) -> Snapshot:
    message = InlineCandidates(candidates=candidates, service_profile=profile)
    return snapshot_of_candidates(message, service="s", limit=100, now_seconds=5.0)


def candidates_of(snapshot: Snapshot, payload_bytes: float = 0.0) -> Candidates:
    query = single_query(0, 0, 1.0, payload_bytes)
    return DispatchView(snapshot).candidates(query, Ledger(snapshot.topology), 5.0)


def test_absent_figures_have_their_documented_defaults() -> None:
    snapshot = snapshot_of(Candidate(endpoint="a"))
    nodes, services = snapshot.topology.nodes, snapshot.topology.services
    assert nodes.cpu_millicores == DEFAULT_CPU_MILLICORES == 1000
    assert nodes.memory_bytes == DEFAULT_MEMORY_BYTES == 2 * 2**30
    assert nodes.speed == 1
    assert services.cpu_millicores == DEFAULT_SERVICE_CPU_MILLICORES == 250
    assert services.execution_seconds == np.float32(DEFAULT_SERVICE_EXECUTION_SECONDS)
    assert snapshot.topology.replicas.concurrency == 1
    assert np.isnan(snapshot.load.replica_latency_seconds[0])
    candidates = candidates_of(snapshot)
    assert candidates.local[0] == 1
    assert candidates.delay_seconds[0] == np.float32(0.001)


def test_network_figures_count_per_candidate() -> None:
    snapshot = snapshot_of(
        Candidate(endpoint="own"),
        Candidate(endpoint="near", network_delay_seconds=0.01, bandwidth_bytes_per_second=1e6),
        Candidate(endpoint="near too", network_delay_seconds=0.01, bandwidth_bytes_per_second=1e6),
        Candidate(endpoint="wide", network_delay_seconds=0.01),
        Candidate(endpoint="cloud", network_delay_seconds=0.01, cloud=True),
    )
    candidates = candidates_of(snapshot, payload_bytes=5e5)
    assert [snapshot.topology.replicas.endpoints[row] for row in candidates.replica] == [
        "own",
        "near",
        "near too",
        "wide",
        "cloud",
    ]
    np.testing.assert_allclose(candidates.network_seconds, [0.001, 0.51, 0.51, 0.01, 0.01], rtol=1e-5)
    assert candidates.local.tolist() == [1, 0, 0, 0, 0]
    node_is_cloud = snapshot.topology.access_points.is_cloud[snapshot.topology.nodes.access_point]
    assert node_is_cloud.tolist() == [False, False, False, False, True]


def test_candidates_on_one_node_share_its_cpu() -> None:
    busy_neighbour = Candidate(endpoint="b", node="n", running=4)
    together = candidates_of(snapshot_of(Candidate(endpoint="a", node="n"), busy_neighbour))
    apart = candidates_of(snapshot_of(Candidate(endpoint="a", node="m"), busy_neighbour))
    assert together.wait_seconds[0] > apart.wait_seconds[0] == 0


def test_service_profile_counts() -> None:
    profile = ServiceProfile(cpu_millicores=500, execution_seconds=0.5)
    candidates = candidates_of(snapshot_of(Candidate(endpoint="a", speed=2), profile=profile))
    assert candidates.execution_seconds[0] == 0.25
    assert candidates.cpu_fraction[0] == 0.5


@given(
    st.lists(
        st.builds(
            Candidate,
            network_delay_seconds=st.sampled_from([0.001, 0.01, 0.3]),
            bandwidth_bytes_per_second=st.sampled_from([0.0, 1e6, 1e9]),
            cloud=st.booleans(),
            queued=st.floats(0, 1e9),
            running=st.floats(0, 1e9),
            cpu_millicores=st.floats(1e-3, 1e9),
            cpu_used_millicores=st.floats(0, 1e9),
            speed=st.floats(1e-6, 1e6),
            concurrency=st.integers(1, 10**6),
        ),
        min_size=1,
        max_size=8,
    ),
    st.floats(0, 1e18),
)
def test_estimates_of_accepted_figures_are_finite(listed: list[Candidate], payload_bytes: float) -> None:
    for row, candidate in enumerate(listed):
        candidate.endpoint = str(row)
    profile = ServiceProfile(cpu_millicores=1e9, execution_seconds=1e6)
    candidates = candidates_of(snapshot_of(*listed, profile=profile), payload_bytes)
    assert len(candidates) == len(listed)
    assert candidates.replica.tolist() == list(range(len(listed)))
    assert np.isfinite(candidates.completion_seconds).all()
    assert np.isfinite(candidates.features).all()


def test_many_different_ways_are_rounded_as_finely_as_there_is_room() -> None:
    random = np.random.default_rng(0)
    delays = np.exp(random.uniform(np.log(1e-4), 0, 5000))
    listed = [
        Candidate(endpoint=str(row), network_delay_seconds=delay, bandwidth_bytes_per_second=1e6 * (row % 2))
        for row, delay in enumerate(delays.tolist())
    ]
    listed.append(Candidate(endpoint="own"))
    message = InlineCandidates(candidates=listed)
    snapshot = snapshot_of_candidates(message, service="s", limit=10_000, now_seconds=5.0)
    assert len(snapshot.topology.access_points.names) <= MAXIMUM_SITES + 1
    candidates = candidates_of(snapshot)
    assert candidates.local.tolist() == [0] * 5000 + [1]
    np.testing.assert_allclose(candidates.delay_seconds[:-1], delays, rtol=0.02)
    slow = candidates_of(snapshot, payload_bytes=1e6).network_seconds - candidates.network_seconds
    np.testing.assert_allclose(slow[:-1], np.tile([0, 1], 2500), rtol=0.02, atol=1e-6)
