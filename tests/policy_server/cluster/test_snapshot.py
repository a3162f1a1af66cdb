from dataclasses import replace

import numpy as np
import pytest

from policy_server.cluster.snapshot import Load, ReplicaState, Snapshot, SnapshotError, idle_load
from tests.support.systems import example_load, example_snapshot, example_topology

SHAPES = {
    "access_point_queued": (4,),
    "arrival_rate_per_second": (4, 4),
    "node_cpu_used_millicores": (9,),
    "node_memory_used_bytes": (9,),
    "replica_state": (20,),
    "replica_queued": (20,),
    "replica_running": (20,),
    "replica_latency_seconds": (20,),
    "link_backlog_bytes": (12,),
}
FIGURES = [name for name in SHAPES if name != "replica_state"]


def with_value(load: Load, column: str, value: float) -> Load:
    values = getattr(load, column).copy()
    values[(1,) * values.ndim] = value
    return replace(load, **{column: values})


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (column, value)
        for column in FIGURES
        for value in (np.nan, np.inf, -np.inf, -1.0)
        if not (column == "replica_latency_seconds" and np.isnan(value))
    ],
)
def test_figures_are_finite_and_not_negative(column: str, value: float) -> None:
    topology = example_topology()
    load = with_value(idle_load(topology), column, value)
    with pytest.raises(SnapshotError) as refusal:
        Snapshot(topology, load)
    row = "(1, 1)" if column == "arrival_rate_per_second" else "1"
    assert str(refusal.value) == f"{column}[{row}]: {value}; must be a finite number, zero or more"


@pytest.mark.parametrize("column", SHAPES)
def test_shapes(column: str) -> None:
    topology = example_topology()
    load = example_load(topology)
    values = getattr(load, column)
    assert values.shape == SHAPES[column]
    wrong = values[:-1]
    with pytest.raises(SnapshotError) as refusal:
        Snapshot(topology, replace(load, **{column: wrong}))
    assert str(refusal.value) == (
        f"{column}: shape {wrong.shape}, expected {SHAPES[column]}; give one value per row"
    )


def test_an_unknown_latency_is_accepted() -> None:
    topology = example_topology()
    load = with_value(example_load(topology), "replica_latency_seconds", np.nan)
    assert np.isnan(Snapshot(topology, load).load.replica_latency_seconds[1])


def test_age() -> None:
    snapshot = example_snapshot(example_topology())
    assert snapshot.age_seconds(snapshot.taken_at_seconds + 1.5) == 1.5


def test_age_is_never_negative() -> None:
    snapshot = example_snapshot(example_topology())
    assert snapshot.age_seconds(snapshot.taken_at_seconds - 1.5) == 0.0


@pytest.mark.parametrize(("ready", "state"), [(True, ReplicaState.READY), (False, ReplicaState.STARTING)])
def test_idle_load_holds_the_memory_of_the_replicas_only(ready: bool, state: ReplicaState) -> None:
    topology = example_topology()
    load = idle_load(topology, ready=ready)
    for node in range(len(topology.nodes.names)):
        services = topology.replicas.service[topology.replicas.node == node]
        held = float(topology.services.memory_bytes[services].astype(np.float64).sum())
        assert load.node_memory_used_bytes[node] == pytest.approx(held, rel=1e-6)
    assert (load.replica_state == state).all()
    assert np.isnan(load.replica_latency_seconds).all()
    for name in FIGURES:
        if name not in ("node_memory_used_bytes", "replica_latency_seconds"):
            assert not getattr(load, name).any()
    Snapshot(topology, load)


def test_an_unknown_replica_state_is_refused() -> None:
    snapshot = example_snapshot(example_topology())
    state = snapshot.load.replica_state.copy()
    state[1] = 7
    with pytest.raises(SnapshotError, match=r"replica_state\[1\]: 7; must be one of 0 \(STARTING\)"):
        Snapshot(snapshot.topology, replace(snapshot.load, replica_state=state))
