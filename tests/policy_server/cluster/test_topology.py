from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from policy_server.cluster.snapshot import (
    NO_LINK,
    Snapshot,
    SnapshotError,
    Topology,
    disjoint_union_topology,
)
from tests.support.systems import example_topology, snapshots


def with_column(topology: Topology, rows: str, column: str, values: Any) -> Topology:
    return replace(topology, **{rows: replace(getattr(topology, rows), **{column: values})})


def with_value(topology: Topology, rows: str, column: str, row: int, value: Any) -> Topology:
    values = getattr(getattr(topology, rows), column).copy()
    values[row] = value
    return with_column(topology, rows, column, values)


def refusal_of_value(rows: str, column: str, row: int, value: Any) -> str:
    with pytest.raises(SnapshotError) as refusal:
        with_value(example_topology(), rows, column, row, value)
    return str(refusal.value)


POSITIVE = [
    ("nodes", "cpu_millicores"),
    ("nodes", "memory_bytes"),
    ("nodes", "speed"),
    ("services", "cpu_millicores"),
    ("services", "execution_seconds"),
    ("services", "deadline_seconds"),
    ("links", "bandwidth_bytes_per_second"),
]
ZERO_OR_MORE = [
    ("services", "memory_bytes"),
    ("services", "image_bytes"),
    ("services", "cold_start_seconds"),
    ("links", "delay_seconds"),
]


@pytest.mark.parametrize(("rows", "column"), POSITIVE)
@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0, 0.0])
def test_positive_figures(rows: str, column: str, value: float) -> None:
    message = refusal_of_value(rows, column, 1, value)
    assert message == f"{rows}.{column}[1]: {value}; must be a finite number above zero"


@pytest.mark.parametrize(("rows", "column"), ZERO_OR_MORE)
@pytest.mark.parametrize("value", [np.nan, -np.inf, -0.5])
def test_figures_of_zero_or_more(rows: str, column: str, value: float) -> None:
    message = refusal_of_value(rows, column, 2, value)
    assert message == f"{rows}.{column}[2]: {value}; must be a finite number, zero or more"


@pytest.mark.parametrize(("rows", "column"), ZERO_OR_MORE)
def test_zero_is_accepted_where_it_makes_sense(rows: str, column: str) -> None:
    topology = with_value(example_topology(), rows, column, 0, 0.0)
    assert getattr(getattr(topology, rows), column)[0] == 0


@pytest.mark.parametrize("value", [0, -3])
def test_concurrency_is_positive(value: int) -> None:
    message = refusal_of_value("replicas", "concurrency", 0, value)
    assert message == f"replicas.concurrency[0]: {float(value)}; must be a finite number above zero"


@pytest.mark.parametrize(
    ("rows", "column", "count"),
    [
        ("nodes", "access_point", 4),
        ("replicas", "service", 4),
        ("replicas", "node", 9),
        ("links", "source", 4),
        ("links", "target", 4),
    ],
)
@pytest.mark.parametrize("negative", [False, True])
def test_rows_referred_to_exist(rows: str, column: str, count: int, negative: bool) -> None:
    value = -1 if negative else count
    message = refusal_of_value(rows, column, 3, value)
    assert message == f"{rows}.{column}[3]: {value}; must name a row from 0 to {count - 1}"


@pytest.mark.parametrize(
    ("rows", "column"),
    [("access_points", "names"), ("nodes", "names"), ("services", "names"), ("replicas", "endpoints")],
)
def test_names_are_unique(rows: str, column: str) -> None:
    topology = example_topology()
    names = list(getattr(getattr(topology, rows), column))
    names[-1] = names[1]
    with pytest.raises(SnapshotError) as refusal:
        with_column(topology, rows, column, tuple(names))
    assert str(refusal.value) == f"{rows}.{column}: {names[1]!r} appears twice; names must be unique"


@pytest.mark.parametrize(
    ("rows", "column"),
    [
        ("access_points", "is_cloud"),
        ("access_points", "system"),
        ("nodes", "access_point"),
        ("nodes", "cpu_millicores"),
        ("nodes", "memory_bytes"),
        ("nodes", "speed"),
        ("services", "cpu_millicores"),
        ("services", "execution_seconds"),
        ("services", "memory_bytes"),
        ("services", "image_bytes"),
        ("services", "cold_start_seconds"),
        ("services", "deadline_seconds"),
        ("replicas", "service"),
        ("replicas", "node"),
        ("replicas", "concurrency"),
        ("links", "target"),
        ("links", "delay_seconds"),
        ("links", "bandwidth_bytes_per_second"),
    ],
)
def test_columns_have_one_value_per_row(rows: str, column: str) -> None:
    topology = example_topology()
    values = getattr(getattr(topology, rows), column)
    with pytest.raises(SnapshotError) as refusal:
        with_column(topology, rows, column, values[:-1])
    assert str(refusal.value) == (
        f"{rows}.{column}: {len(values) - 1} values for {len(values)} rows; give one value per row"
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.001])
def test_local_delay(value: float) -> None:
    with pytest.raises(SnapshotError) as refusal:
        replace(example_topology(), local_delay_seconds=value)
    assert str(refusal.value) == (f"local_delay_seconds[0]: {value}; must be a finite number, zero or more")


def test_no_link_to_itself() -> None:
    topology = example_topology()
    message = refusal_of_value("links", "target", 5, int(topology.links.source[5]))
    assert message == "links[5]: joins an access point to itself; remove it"


def test_systems_are_ascending() -> None:
    message = refusal_of_value("access_points", "system", 0, 1)
    assert message == "access_points.system: not ascending; list the systems one after another"


@given(snapshots())
def test_indices_find_every_row(snapshot: Snapshot) -> None:
    topology = snapshot.topology
    for index, names in (
        (topology.access_point_index, topology.access_points.names),
        (topology.node_index, topology.nodes.names),
        (topology.service_index, topology.services.names),
        (topology.replica_index, topology.replicas.endpoints),
    ):
        assert [index[name] for name in names] == list(range(len(names)))
        assert len(index) == len(names)


@given(snapshots())
def test_link_rows(snapshot: Snapshot) -> None:
    topology = snapshot.topology
    ends = list(zip(topology.links.source.tolist(), topology.links.target.tolist(), strict=True))
    count = len(topology.access_points.names)
    for source in range(count):
        for target in range(count):
            expected = ends.index((source, target)) if (source, target) in ends else NO_LINK
            assert topology.link_row[source, target] == expected


def test_system_count() -> None:
    topology = example_topology(access_points=3)
    assert topology.system_count == 1
    assert disjoint_union_topology([topology, topology]).system_count == 2


def test_systems_start_at_zero_and_no_link_joins_two() -> None:
    topology = example_topology(access_points=3)
    shifted = topology.access_points.system + np.int32(1)
    with pytest.raises(SnapshotError, match=r"access_points.system\[0\]: 1; the first system is 0"):
        with_column(topology, "access_points", "system", shifted)
    with pytest.raises(SnapshotError, match=r"links\[\d+\]: joins two systems; remove it"):
        with_column(topology, "access_points", "system", np.array([0, 0, 1, 1], np.int32))
