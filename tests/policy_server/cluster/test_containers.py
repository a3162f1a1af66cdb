from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policy_server.cluster.containers import (
    MEASURED,
    ContainerError,
    Fleet,
    MeasurementHistory,
    Measurements,
)
from tests.policy_server.policies.scaling_fleets import fleet_of, measured


def test_a_history_keeps_the_newest_intervals() -> None:
    history = MeasurementHistory.of([measured(2, cpu_usage_cores=float(number)) for number in range(3)])
    for number in range(3, 8):
        history = history.extended(measured(2, cpu_usage_cores=float(number)), 4)
    assert (history.intervals, history.containers) == (4, 2)
    np.testing.assert_array_equal(history.column("cpu_usage_cores")[:, 0], [4, 5, 6, 7])
    np.testing.assert_array_equal(history.column("cpu_usage_cores", 2)[:, 1], [6, 7])
    np.testing.assert_array_equal(history.newest("cpu_usage_cores"), [7, 7])


def test_extending_leaves_the_old_history_as_it_was() -> None:
    history = MeasurementHistory.of([measured()])
    history.extended(measured(cpu_usage_cores=0.9), 10)
    assert history.intervals == 1
    assert history.newest("cpu_usage_cores")[0] == 0.5


@pytest.mark.parametrize("name", MEASURED)
def test_every_column_comes_back(name: str) -> None:
    first, second = measured(3, **{name: [1.0, 2.0, 3.0]}), measured(3, **{name: [4.0, 5.0, 6.0]})
    history = MeasurementHistory.of([first, second])
    np.testing.assert_array_equal(history.column(name), [[1, 2, 3], [4, 5, 6]])


@pytest.mark.parametrize("shape", [(8, 2), (7, 2, 3), (8, 0, 3)])
def test_a_history_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ContainerError, match="values"):
        MeasurementHistory(np.zeros(shape))


def test_columns_of_different_lengths_are_refused() -> None:
    columns = {name: np.zeros(3) for name in MEASURED} | {"oom_kills": np.zeros(2)}
    with pytest.raises(ContainerError, match="oom_kills"):
        Measurements(**columns)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("node", np.zeros(1, np.int64)),
        ("node", np.array([0, 5])),
        ("node", np.array([0, -1])),
        ("latency_objective_seconds", np.array([0.2])),
        ("latency_objective_seconds", np.array([0.2, 0.0])),
        ("latency_objective_seconds", np.array([0.2, np.nan])),
        ("node_memory_bytes", np.zeros(3)),
    ],
)
def test_a_fleet_that_contradicts_itself_is_refused(field: str, value: np.ndarray) -> None:
    fleet = fleet_of(2)
    columns = {name: getattr(fleet, name) for name in Fleet.__dataclass_fields__} | {field: value}
    with pytest.raises(ContainerError, match=field):
        Fleet(**columns)


def test_joined_fleets_keep_their_nodes_and_applications_apart() -> None:
    first = replace(fleet_of(2, node=[1, 0], cores=4.0), application=np.array([5, 5]))
    second = fleet_of(1, cores=2.0)
    joined = Fleet.joined([first, second])
    np.testing.assert_array_equal(joined.node, [1, 0, 2])
    np.testing.assert_array_equal(joined.node_cpu_cores, [4, 4, 2])
    assert joined.application[0] == joined.application[1] != joined.application[2]
    np.testing.assert_array_equal(joined.latency_objective_seconds, [0.2] * 3)


def test_joined_histories_are_as_long_as_the_longest() -> None:
    short = MeasurementHistory.of([measured(1, cpu_usage_cores=0.9)])
    long = MeasurementHistory.of([measured(2, cpu_usage_cores=usage) for usage in (0.1, 0.2, 0.3)])
    joined = MeasurementHistory.joined([long, short])
    assert (joined.intervals, joined.containers) == (3, 3)
    np.testing.assert_array_equal(
        joined.column("cpu_usage_cores"), [[0.1, 0.1, np.nan], [0.2, 0.2, np.nan], [0.3, 0.3, 0.9]]
    )
