"""Small fleets and histories for tests of scaling."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy_server.cluster.containers import UNLIMITED, Fleet, MeasurementHistory, Measurements
from policy_server.policies.scaling import Recommendation
from policy_server.policies.scaling.batch import ScalingTask
from policy_server.policies.scaling.policy import ScalingPolicy
from policy_server.policies.scaling.resize import LastResizes, PodResources, QosClass
from policy_server.policies.scaling.safety import (
    DEFAULT_SETTINGS,
    Constraints,
    ScalingSettings,
    decide_scaling,
)

MEBIBYTE = 2.0**20
Array = NDArray[np.float64]


def fleet_of(
    containers: int, *, node: list[int] | None = None, cores: float = UNLIMITED, memory: float = UNLIMITED
) -> Fleet:
    rows = np.zeros(containers, np.int64) if node is None else np.array(node, np.int64)
    nodes = int(rows.max(initial=0)) + 1
    return Fleet(
        application=np.zeros(containers, np.int64),
        node=rows,
        latency_objective_seconds=np.full(containers, 0.2),
        node_cpu_cores=np.full(nodes, cores),
        node_memory_bytes=np.full(nodes, memory),
    )


def measured(containers: int = 1, **columns: Any) -> Measurements:
    """An ordinary interval: half of one core and of 256 MiB in use; columns may be replaced."""
    ordinary = {
        "cpu_usage_cores": 0.5,
        "throttled_fraction": 0.0,
        "memory_usage_bytes": 128 * MEBIBYTE,
        "latency_seconds": 0.02,
        "requests_per_second": 50.0,
        "cpu_limit_cores": 1.0,
        "memory_limit_bytes": 256 * MEBIBYTE,
        "oom_kills": 0.0,
    }
    assert columns.keys() <= ordinary.keys()
    return Measurements(
        **{
            name: np.broadcast_to(np.asarray(columns.get(name, value), np.float64), (containers,)).copy()
            for name, value in ordinary.items()
        }
    )


def history_of(containers: int = 1, intervals: int = 3, **columns: Any) -> MeasurementHistory:
    """The same interval, several times."""
    return MeasurementHistory.of([measured(containers, **columns)] * intervals)


def wants(cpu: Any, memory_mebibytes: Any, containers: int = 1) -> Recommendation:
    return Recommendation(
        np.broadcast_to(np.asarray(cpu, np.float64), (containers,)).copy(),
        np.broadcast_to(np.asarray(memory_mebibytes, np.float64) * MEBIBYTE, (containers,)).copy(),
    )


class Controller:
    """One container under a policy: usage in, limits out, as many intervals as wanted."""

    def __init__(
        self,
        policy: ScalingPolicy,
        cpu: float,
        memory_mebibytes: float,
        settings: ScalingSettings = DEFAULT_SETTINGS,
    ) -> None:
        self.policy = policy
        self.settings = settings
        self.fleet = fleet_of(1)
        self.cpu = cpu
        self.memory = memory_mebibytes * MEBIBYTE
        self.history: MeasurementHistory | None = None
        self.changes = 0

    def restart(self) -> None:
        self.history = None

    def interval(self, cpu_usage: float, memory_mebibytes: float, **columns: Any) -> None:
        newest = measured(
            cpu_usage_cores=min(cpu_usage, self.cpu),
            memory_usage_bytes=memory_mebibytes * MEBIBYTE,
            cpu_limit_cores=self.cpu,
            memory_limit_bytes=self.memory,
            **columns,
        )
        self.history = (
            MeasurementHistory.of([newest]) if self.history is None else self.history.extended(newest, 48)
        )
        decisions = decide_scaling(self.policy, self.fleet, self.history, self.settings)
        cpu, memory = float(decisions.cpu_cores.target[0]), float(decisions.memory_bytes.target[0])
        self.changes += (cpu != self.cpu) + (memory != self.memory)
        self.cpu, self.memory = cpu, memory


def task_of(
    containers: int = 1,
    intervals: int = 3,
    *,
    economy: Any = 0.5,
    node: list[int] | None = None,
    cores: float = UNLIMITED,
    **columns: Any,
) -> ScalingTask:
    """Burstable containers whose pods specify what is in force, and request half of it."""
    history = history_of(containers, intervals, **columns)
    limits = np.stack((history.newest("cpu_limit_cores"), history.newest("memory_limit_bytes")), axis=1)
    return ScalingTask(
        fleet=fleet_of(containers, node=node, cores=cores),
        history=history,
        constraints=Constraints.of(DEFAULT_SETTINGS, containers),
        pods=PodResources(
            np.full(containers, QosClass.BURSTABLE, np.uint8), limits / 2, limits, limits.copy()
        ),
        last=LastResizes(
            np.zeros(containers, np.uint8),
            np.full((containers, 2), np.nan),
            np.zeros(containers, np.int64),
            np.zeros(containers),
        ),
        economy=np.broadcast_to(np.asarray(economy, np.float64), (containers,)).copy(),
    )
