from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from policy_server.features.load_table import LoadTable, TopologyTable
from policy_server.policies.dispatch import DispatchPolicy
from policy_server.policies.finite_inputs import FiniteInputs, all_finite, impute
from policy_server.policies.heuristics import EarliestCompletion
from tests.support.systems import example_snapshot, example_topology

FLOATS = arrays.arrays(
    np.float32,
    arrays.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=8),
    elements=st.floats(width=32, allow_nan=True, allow_infinity=True),
)


@given(FLOATS)
def test_all_finite_is_what_numpy_says(values: np.ndarray) -> None:
    assert all_finite(values) == bool(np.isfinite(values).all())
    assert all_finite(values.T) == bool(np.isfinite(values).all())


@given(FLOATS)
def test_impute_replaces_what_is_not_finite_and_nothing_else(values: np.ndarray) -> None:
    before = values.copy()
    replaced = impute(values)
    expected = ~np.isfinite(before)
    if replaced is None:
        assert not expected.any()
        assert np.array_equal(values, before)
    else:
        assert np.array_equal(replaced, expected)
        assert (values[expected] == 0).all()
        assert np.array_equal(values[~expected], before[~expected])


class Recording(EarliestCompletion):
    """Keeps the tables it is prepared for."""

    def prepare(self, table: LoadTable) -> Any:
        return [f.copy() for f in (table.node_features, table.access_point_features)] + [
            table.link_features.copy(),
            table.replica_features.copy(),
        ]


@pytest.mark.parametrize("name", ["node", "access_point", "link", "replica"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_policy_never_sees_a_non_finite_snapshot(name: str, value: float) -> None:
    topology = example_topology()
    table = LoadTable(example_snapshot(topology), TopologyTable(topology))
    getattr(table, f"{name}_features")[1, 2] = value
    found: list[int] = []
    seen = FiniteInputs(Recording(), found.append).prepare(table)
    assert all(np.isfinite(features).all() for features in seen)
    assert found == [1]


def test_nothing_is_reported_of_sound_snapshots() -> None:
    topology = example_topology()
    found: list[int] = []
    policy = FiniteInputs(Recording(), found.append)
    policy.prepare(LoadTable(example_snapshot(topology), TopologyTable(topology)))
    assert found == []
    assert isinstance(policy, DispatchPolicy)
    assert (policy.name, policy.version) == ("earliest-completion", "1")
