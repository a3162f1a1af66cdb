"""Input that is refused: the message says what, where and what to do, and nothing has happened."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.training.simulator.small import requests_at, run_to_the_end, small_topology
from training.simulator.simulator import SimulatorConfig, VectorSimulator
from training.workloads.requests import RequestSequence


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("slot_seconds", 0.0, "must be finite and above zero"),
        ("slot_seconds", float("nan"), "must be finite and above zero"),
        ("slots_per_frame", 0, "must be finite and above zero"),
        ("rate_window_seconds", float("inf"), "must be finite and above zero"),
        ("dispatch_seconds_per_request", -1.0, "must be finite, zero or more"),
        ("latency_gain", 0.0, "must be above 0 and at most 1"),
        ("latency_gain", 1.5, "must be above 0 and at most 1"),
    ],
)
def test_configuration(field: str, value: float, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{field}: {value}; {message}"):
        SimulatorConfig(**{field: value})  # type: ignore[arg-type]


def workload(**columns: Any) -> RequestSequence:
    return replace(requests_at([0.0, 0.1]), **columns)


def test_no_system() -> None:
    with pytest.raises(ValueError, match="topologies: empty; give at least one"):
        VectorSimulator([], [])


def test_a_workload_per_system() -> None:
    with pytest.raises(ValueError, match="workloads: 1 for 2 topologies; give one per system"):
        VectorSimulator([small_topology(), small_topology()], [workload()])


def test_systems_share_their_services() -> None:
    other = small_topology(execution_seconds=1.0)
    with pytest.raises(ValueError, match=r"topologies\[1\].services: differ from those of topologies\[0\]"):
        VectorSimulator([small_topology(), other], [workload(), workload()])


def test_systems_share_their_local_delay() -> None:
    other = replace(small_topology(), local_delay_seconds=0.5)
    with pytest.raises(ValueError, match=r"topologies\[1\].local_delay_seconds: 0.5 differs from 0.001"):
        VectorSimulator([small_topology(), other], [workload(), workload()])


def test_a_union_is_no_system() -> None:
    union = VectorSimulator([small_topology()] * 2, [workload()] * 2).topology
    with pytest.raises(ValueError, match=r"topologies\[0\]: 2 systems; give one system each"):
        VectorSimulator([union], [workload()])


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("access_point", r"workloads\[0\].access_point\[1\]: 2; the topology has rows 0 to 1"),
        ("service", r"workloads\[0\].service\[1\]: 2; the topology has rows 0 to 0"),
    ],
)
def test_workload_rows(column: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VectorSimulator([small_topology()], [workload(**{column: np.array([0, 2], np.int32)})])


def test_requests_do_not_enter_at_the_cloud() -> None:
    at_cloud = workload(access_point=np.array([0, 1], np.int32))
    with pytest.raises(ValueError, match=r"access_point\[1\]: 1 is the cloud"):
        VectorSimulator([small_topology()], [at_cloud])


def two_service_simulator() -> VectorSimulator:
    return VectorSimulator([small_topology(services=2, hosted=(0, 1))], [workload()])


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            np.zeros(1, np.int32),
            r"replica: int32 of shape \(1,\); give one integer for each of the 2 requests",
        ),
        (np.zeros(2), "replica: float64 of shape"),
        (np.array([0, 4]), r"replica\[1\]: 4; must be a replica row from 0 to 3, or -1 to reject"),
        (np.array([-2, 0]), r"replica\[0\]: -2; must be a replica row"),
        (np.array([0, 2**32]), r"replica\[1\]: 4294967296; must be a replica row"),
        (np.array([0, 1]), r"replica\[1\]: 1 \(edge-1\) serves service-1, not service-0"),
    ],
)
def test_targets(target: Any, message: str) -> None:
    simulator = two_service_simulator()
    with pytest.raises(ValueError, match=message):
        simulator.advance(target)


def test_unreachable_target() -> None:
    topology = small_topology()
    downlink = replace(
        topology.links,
        **{name: getattr(topology.links, name)[1:] for name in vars(topology.links)},
    )
    simulator = VectorSimulator([replace(topology, links=downlink)], [workload()])
    message = r"replica\[0\]: 1 \(cloud-0\): unreachable; no link leads from ap-0 to cloud"
    with pytest.raises(ValueError, match=message):
        simulator.advance(np.array([1, 0]))


def test_target_in_another_system() -> None:
    simulator = VectorSimulator([small_topology()] * 2, [workload(), requests_at([], duration_seconds=1.0)])
    message = r"replica\[0\]: 2 \(1/edge-0\): unreachable; no link leads from 0/ap-0 to 1/ap-0"
    with pytest.raises(ValueError, match=message):
        simulator.advance(np.array([2, 0]))


@pytest.mark.parametrize(
    ("delay", "message"),
    [
        (-1.0, "decision_delay_seconds: -1.0; must be finite, zero or more"),
        (np.array([0.0, np.nan]), "decision_delay_seconds: nan; must be finite, zero or more"),
        (np.zeros(3), r"decision_delay_seconds: shape \(3,\); give one number, or one for each of 2"),
    ],
)
def test_decision_delay(delay: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        two_service_simulator().advance(np.zeros(2, np.int32), delay)


def test_a_topology_of_somebody_else() -> None:
    simulator = two_service_simulator()
    with pytest.raises(ValueError, match="topology: not one of this simulator's snapshots"):
        simulator.advance(np.zeros(2, np.int32), topology=small_topology(services=2, hosted=(0, 1)))


def test_a_refused_call_leaves_everything_as_it_was() -> None:
    simulator, untouched = two_service_simulator(), two_service_simulator()
    for target in (np.array([0, 1]), np.array([0, 99]), np.zeros(5, np.int32)):
        with pytest.raises(ValueError, match="replica"):
            simulator.advance(target)
    assert simulator.slot == 0
    run_to_the_end(simulator)
    run_to_the_end(untouched)
    assert (
        simulator.outcomes(0).completion_seconds.tolist() == untouched.outcomes(0).completion_seconds.tolist()
    )


def test_outcomes_of_an_unknown_system() -> None:
    with pytest.raises(ValueError, match="system: 1; must be a row from 0 to 0"):
        two_service_simulator().outcomes(1)


def test_outcomes_are_read_only() -> None:
    outcomes = two_service_simulator().outcomes(0)
    with pytest.raises(ValueError, match="read-only"):
        outcomes.status[0] = 1
