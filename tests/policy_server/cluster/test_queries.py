from dataclasses import replace

import numpy as np
import pytest

from policy_server.cluster.queries import (
    DispatchQueries,
    DispatchQuery,
    concatenate_queries,
    single_query,
)
from tests.support.systems import example_queries, example_topology


def test_single_query() -> None:
    query = single_query(3, 1, 0.25, 1000.0)
    assert len(query) == 1
    assert (query.service.tolist(), query.access_point.tolist()) == ([3], [1])
    assert (query.deadline_seconds.tolist(), query.payload_bytes.tolist()) == ([0.25], [1000.0])
    assert query.subset is None


def test_single_query_with_a_subset() -> None:
    query = single_query(0, 0, 1.0, subset=np.array([2, 5], np.int32))
    assert query.subset is not None
    assert query.subset[0] is not None
    assert query.subset[0].tolist() == [2, 5]


def test_concatenation_keeps_the_order_and_every_column() -> None:
    topology = example_topology()
    parts = [example_queries(topology, count, seed=count, dispatchers=3) for count in (2, 5, 1)]
    whole = concatenate_queries(parts)
    assert len(whole) == 8
    for name in ("service", "access_point", "deadline_seconds", "payload_bytes", "dispatcher"):
        np.testing.assert_array_equal(getattr(whole, name), np.concatenate([getattr(p, name) for p in parts]))


@pytest.mark.parametrize("restricted", [0, 1])
def test_unrestricted_queries_stay_unrestricted_beside_restricted_ones(restricted: int) -> None:
    subset = np.array([4], np.int32)
    parts = [single_query(0, 0, 1.0, subset=subset if row == restricted else None) for row in range(2)]
    whole = concatenate_queries(parts)
    assert whole.subset is not None
    assert whole.subset[restricted] is subset
    assert whole.subset[1 - restricted] is None


def test_queries_without_dispatcher_belong_to_the_first() -> None:
    with_dispatcher = DispatchQueries(
        *(np.zeros(2, np.int32),) * 2, *(np.ones(2, np.float32),) * 2, dispatcher=np.array([1, 2], np.int32)
    )
    whole = concatenate_queries([single_query(0, 0, 1.0), with_dispatcher])
    assert whole.dispatcher is not None
    assert whole.dispatcher.tolist() == [0, 1, 2]


def test_one_part_is_returned_as_it_is() -> None:
    query = single_query(0, 0, 1.0)
    assert concatenate_queries([query]) is query


def test_a_row_as_a_batch_is_that_row() -> None:
    subset = [None, np.array([2, 5], np.int32), np.zeros(0, np.int32), None]
    queries = replace(example_queries(example_topology(), 4, dispatchers=3), subset=subset)
    for row in range(4):
        batch = queries.row(row).as_batch()
        for name in ("service", "access_point", "deadline_seconds", "payload_bytes", "dispatcher"):
            column = getattr(queries, name)
            assert getattr(batch, name).dtype == column.dtype
            assert getattr(batch, name).tolist() == [column[row]]
        assert (None if batch.subset is None else batch.subset[0]) is subset[row]


def test_a_query_without_dispatcher_stays_so() -> None:
    query = DispatchQuery(1, 2, 0.5)
    assert query.as_batch().dispatcher is None
    assert query.as_batch().row(0) == query


def test_selection_keeps_every_column() -> None:
    subset = [np.array([row], np.int32) for row in range(4)]
    queries = replace(example_queries(example_topology(), 4, dispatchers=3), subset=subset)
    selected = queries.select(np.array([3, 1]))
    assert [selected.row(0), selected.row(1)] == [queries.row(3), queries.row(1)]
