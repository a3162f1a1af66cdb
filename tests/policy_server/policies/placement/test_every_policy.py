"""What holds for every placement policy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.cluster.snapshot import Snapshot
from policy_server.policies.heuristics import UnknownPolicyError
from policy_server.policies.placement import (
    PLACEMENT_POLICY_NAMES,
    PlacementPolicy,
    PlacementQuery,
    placement_policy,
)
from tests.support.placing import placement_query, placements
from tests.support.systems import Endpoint, one_service_snapshot

every_policy = pytest.mark.parametrize("policy", [placement_policy(name) for name in PLACEMENT_POLICY_NAMES])


def at(query: PlacementQuery, positions: list[int]) -> PlacementQuery:
    return replace(
        query,
        nodes=query.nodes[positions],
        node_cpu_millicores=query.node_cpu_millicores[positions],
        node_memory_bytes=query.node_memory_bytes[positions],
        has_image=query.has_image[positions],
    )


@every_policy
@given(case=placements(), random=st.randoms(use_true_random=False))
def test_one_finite_score_a_node_in_any_order(
    policy: PlacementPolicy, case: tuple[Snapshot, PlacementQuery], random: np.random.Generator
) -> None:
    snapshot, query = case
    scores = policy.score(snapshot, query)
    assert scores.shape == (len(query),)
    assert scores.dtype == np.float64
    assert np.isfinite(scores).all()
    order = list(range(len(query)))
    random.shuffle(order)
    np.testing.assert_array_equal(policy.score(snapshot, at(query, order)), scores[order])


@every_policy
def test_equal_nodes_get_equal_scores(policy: PlacementPolicy) -> None:
    snapshot = one_service_snapshot([Endpoint()] * 5, arrival_rates_per_second=(3, 1))
    scores = policy.score(snapshot, placement_query(snapshot))
    assert len(set(scores.tolist())) == 1


def test_names_are_those_of_the_policies() -> None:
    for name in PLACEMENT_POLICY_NAMES:
        policy = placement_policy(name)
        assert isinstance(policy, PlacementPolicy)
        assert policy.name == name


def test_unknown_policy() -> None:
    with pytest.raises(UnknownPolicyError, match="'wishful' is unknown; choose one of near-demand, least"):
        placement_policy("wishful")
