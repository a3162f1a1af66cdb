"""The embedded simulator as a server's state."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from policy_server.cluster.snapshot import Snapshot
from policy_server.cluster.state_source import StateSourceError, state_source
from training.simulator import state_source as module
from training.simulator.state_source import SimulatorStateSource

FAST = {"acceleration": "1000", "rate_per_second": "200"}


def published(source: SimulatorStateSource, count: int) -> list[Snapshot]:
    """The first snapshots a source publishes."""
    snapshots: list[Snapshot] = []
    stopped = threading.Event()

    def publish(snapshot: Snapshot) -> None:
        if len(snapshots) < count:
            snapshots.append(snapshot)
        if len(snapshots) == count:
            stopped.set()

    source.run(publish, stopped)
    return snapshots


def test_is_found_by_its_name() -> None:
    assert isinstance(state_source("simulator", {"preset": "testbed-100"}), SimulatorStateSource)


def test_publishes_a_loaded_system_as_it_ages() -> None:
    before = time.monotonic()
    snapshots = published(SimulatorStateSource(**FAST), 40)
    taken = [snapshot.taken_at_seconds for snapshot in snapshots]
    assert before <= taken[0]
    assert taken == sorted(taken)
    assert taken[-1] <= time.monotonic()
    topology = snapshots[0].topology
    assert len(topology.nodes.names) == 41
    assert all(snapshot.topology is topology for snapshot in snapshots)
    load = snapshots[-1].load
    assert load.replica_running.sum() > 0
    assert load.node_cpu_used_millicores.sum() > 0
    assert load.arrival_rate_per_second.sum() == pytest.approx(200, rel=0.5)


def test_time_never_passes_faster_than_asked_for() -> None:
    """Slots of 0.25 s at ten times the pace; how much slower depends on the machine."""
    source = SimulatorStateSource(acceleration="10", rate_per_second="50")
    taken = np.array([snapshot.taken_at_seconds for snapshot in published(source, 9)])
    assert (taken - taken[0] >= 0.025 * np.arange(9) - 1e-6).all()


def test_goes_on_after_a_sequence_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EPISODE_SECONDS", 2.0)
    snapshots = published(SimulatorStateSource(**FAST), 20)
    assert len({snapshot.topology.replicas.endpoints for snapshot in snapshots}) == 1
    assert all(snapshot.topology is snapshots[0].topology for snapshot in snapshots)
    first, later = (snapshots[row].load.arrival_rate_per_second for row in (0, 8))
    assert not np.array_equal(first, later), "the next sequence is a new one"


def test_the_seed_decides() -> None:
    def loads(seed: str) -> list[bytes]:
        source = SimulatorStateSource(seed=seed, pattern="P4", **FAST)
        return [snapshot.load.replica_running.tobytes() for snapshot in published(source, 10)]

    assert loads("1") == loads("1")
    assert loads("1") != loads("2")


def test_stops_when_told_to() -> None:
    source = SimulatorStateSource(acceleration="0.01", rate_per_second="50")
    stopped, first = threading.Event(), threading.Event()
    thread = threading.Thread(target=source.run, args=(lambda snapshot: first.set(), stopped))
    thread.start()
    assert first.wait(30)
    stopped.set()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("preset", "testbed-7", "preset: 'testbed-7' is unknown; choose one of testbed-40, testbed-100"),
        ("seed", "-1", "seed: '-1'; must be a whole number, zero or more"),
        ("seed", "one", "seed: 'one'; must be a whole number"),
        ("pattern", "P5", "pattern: 'P5' is unknown; choose one of P1, P2, P3, P4"),
        ("rate_per_second", "0", "rate_per_second: '0'; must be a finite number above zero"),
        ("rate_per_second", "many", "rate_per_second: 'many'; must be a finite number"),
        ("rate_per_second", "1e9", "rate_per_second: '1e9'; must be at most 100000"),
        ("acceleration", "nan", "acceleration: 'nan'; must be a finite number above zero"),
        ("acceleration", "inf", "acceleration: 'inf'; must be a finite number above zero"),
    ],
)
def test_bad_options_name_the_option_and_the_remedy(option: str, value: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SimulatorStateSource(**{option: value})
    with pytest.raises(StateSourceError, match=f"state source 'simulator': {message}"):
        state_source("simulator", {option: value})


def test_unknown_options() -> None:
    with pytest.raises(TypeError, match="speed"):
        SimulatorStateSource(speed="2")  # type: ignore[call-arg]


def test_needs_no_torch() -> None:
    code = "import sys, training.simulator.state_source; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
