"""Initial replicas: within memory, at least two of each service where they fit, the rest by popularity."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from policy_server.cluster.snapshot import BoolArray, Float64Array
from training.simulator.placement import MINIMUM_REPLICAS, place_edge_replicas
from training.simulator.presets import topology_services
from training.workloads.services import default_services

GIBIBYTE = 2.0**30


def placed(
    nodes: int,
    services: int,
    memory_share: float,
    seed: int,
    popularity: Float64Array | None = None,
    gibibytes: float = 3.0,
) -> tuple[BoolArray, Float64Array]:
    """Which node hosts which service, and the memory of each node in use."""
    catalogue = default_services(services)
    node, service = place_edge_replicas(
        cpu_millicores=np.full(nodes, 1000.0),
        memory_bytes=np.full(nodes, gibibytes * GIBIBYTE),
        services=topology_services(catalogue),
        popularity=catalogue.popularity if popularity is None else popularity,
        memory_share=memory_share,
        rng=np.random.default_rng(seed),
    )
    hosted = np.zeros((nodes, services), np.bool_)
    hosted[node, service] = True
    assert hosted.sum() == len(node), "no service twice on a node"
    assert (np.diff(node * services + service) > 0).all(), "by node, then by service"
    used: Float64Array = hosted.astype(np.float64) @ catalogue.memory_bytes
    return hosted, used


@given(st.integers(1, 20), st.integers(1, 40), st.floats(0.01, 1.0), st.integers(0, 2**32))
def test_never_more_than_the_share_of_memory(nodes: int, services: int, share: float, seed: int) -> None:
    _, used = placed(nodes, services, share, seed)
    assert (used <= share * 3.0 * GIBIBYTE).all()


@given(st.integers(0, 2**32))
def test_the_share_is_used_as_far_as_a_further_replica_would_not_fit(seed: int) -> None:
    hosted, used = placed(10, 30, 0.7, seed)
    memory = default_services(30).memory_bytes
    for node in range(10):
        free = 0.7 * 3.0 * GIBIBYTE - used[node]
        assert (memory[~hosted[node]] > free).all()


@given(st.integers(0, 2**32))
def test_every_service_has_its_minimum(seed: int) -> None:
    hosted, _ = placed(40, 30, 0.7, seed)
    assert hosted.sum(axis=0).min() >= MINIMUM_REPLICAS


def test_popular_services_have_more_replicas() -> None:
    popularity = np.full(30, 0.1 / 28)
    popularity[[3, 4]] = 0.45
    replicas = sum(placed(40, 30, 0.7, seed, popularity)[0].sum(axis=0) for seed in range(10))
    others = np.delete(replicas, [3, 4])
    assert replicas[3] > others.max()
    assert replicas[4] > others.max()


def test_services_that_need_more_cpu_than_a_node_has_are_left_out() -> None:
    catalogue = default_services(30)
    limit = float(np.median(catalogue.cpu_millicores))
    _, service = place_edge_replicas(
        cpu_millicores=np.full(20, limit),
        memory_bytes=np.full(20, 4 * GIBIBYTE),
        services=topology_services(catalogue),
        popularity=catalogue.popularity,
        memory_share=0.7,
        rng=np.random.default_rng(0),
    )
    assert set(service.tolist()) == set(np.flatnonzero(catalogue.cpu_millicores <= limit).tolist())


def test_unpopular_to_the_point_of_zero_is_placed_as_well() -> None:
    popularity = np.array([1.0, 0.0, 0.0])
    hosted, _ = placed(6, 3, 0.7, 0, popularity)
    assert hosted.sum(axis=0).min() >= MINIMUM_REPLICAS
