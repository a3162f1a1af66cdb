"""Simulated applications under control: measure, decide, resize, and so on, as a served controller does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policy_server.cluster.containers import Fleet, MeasurementHistory, Measurements
from policy_server.cluster.snapshot import Float64Array
from policy_server.policies.scaling.policy import Recommendation
from policy_server.policies.scaling.safety import (
    DEFAULT_SETTINGS,
    ScalingSettings,
    safe_decisions,
)
from training.scaling.application import Application, CallGraph
from training.scaling.objective import CostParts, cost_parts
from training.scaling.simulation import DEFAULT_INTERVAL_SECONDS, IntervalOutcome, ScalingSimulation

HISTORY_KEPT_INTERVALS = 48
PROVISIONED_HEADROOM = 2.5
_PROVISIONED_REQUESTS_PRESENT = 40.0
_PROVISIONED_MEMORY = 1.25


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One interval of B applications.

    Attributes:
        outcome: what happened in it.
        costs: what it cost.
    """

    outcome: IntervalOutcome
    costs: CostParts


class ScalingLoop:
    """B instances of an application with their measurements. Containers are rows b * S + s of one fleet.

    Attributes:
        fleet: all containers.
        history: their measurements; the first interval has been simulated when the loop is made.
    """

    fleet: Fleet
    history: MeasurementHistory

    def __init__(
        self,
        application: Application,
        seeds: Sequence[int],
        rates: Float64Array,
        *,
        interval_seconds: float = DEFAULT_INTERVAL_SECONDS,
        work_variation: float = 0.0,
        settings: ScalingSettings = DEFAULT_SETTINGS,
        provisioned_headroom: float = PROVISIONED_HEADROOM,
        provisioned_level: float = 1.0,
    ) -> None:
        """Provisions all instances alike and lets them run for one interval.

        Args:
            application: what is simulated.
            seeds: B of them.
            rates: float64 [B, seconds], requests per second offered; a whole number of intervals, at least two.
            interval_seconds: between two decisions.
            work_variation: see :class:`ScalingSimulation`.
            settings: safety of the decisions.
            provisioned_headroom: see :func:`provisioned_limits`.
            provisioned_level: see :func:`provisioned_limits`.
        """
        self.application = application
        self.simulation = ScalingSimulation(
            application, seeds, interval_seconds=interval_seconds, work_variation=work_variation
        )
        seconds = int(interval_seconds)
        if rates.shape[1] % seconds or rates.shape[1] < 2 * seconds:
            raise ValueError(f"rates: {rates.shape[1]} seconds; must be two intervals or more of {seconds} s")
        self.settings = settings
        self._rates = rates.reshape(len(seeds), -1, seconds)
        self._position = 0
        graph = self.simulation.graph
        self.fleet = _fleet(graph, len(seeds), application.latency_objective_seconds)
        cpu, memory = provisioned_limits(application, provisioned_headroom, provisioned_level, settings)
        shape = (len(seeds), self.simulation.containers)
        self.simulation.resize(np.broadcast_to(cpu, shape), np.broadcast_to(memory, shape))
        self.history = MeasurementHistory.of([self._measure(self._advance())])

    @property
    def intervals_left(self) -> int:
        """How often :meth:`step` can be called."""
        return self._rates.shape[1] - self._position

    def step(self, wanted: Recommendation) -> Step:
        """Makes the recommendation safe, applies it and simulates the next interval."""
        decisions = safe_decisions(wanted, self.fleet, self.history, self.settings)
        return self.apply(decisions.cpu_cores.target, decisions.memory_bytes.target)

    def apply(self, cpu_cores: Float64Array, memory_bytes: Float64Array) -> Step:
        """Applies limits, float64 [B * S] each, and simulates the next interval."""
        simulation = self.simulation
        before = (simulation.cpu_cores, simulation.memory_bytes)
        shape = before[0].shape
        simulation.resize(cpu_cores.reshape(shape), memory_bytes.reshape(shape))
        changed = np.stack((simulation.cpu_cores != before[0], simulation.memory_bytes != before[1]), axis=2)
        outcome = self._advance()
        self.history = self.history.extended(self._measure(outcome), HISTORY_KEPT_INTERVALS)
        costs = cost_parts(
            outcome,
            self.application.latency_objective_seconds,
            simulation.cpu_cores,
            simulation.memory_bytes,
            changed,
        )
        return Step(outcome, costs)

    def _advance(self) -> IntervalOutcome:
        outcome = self.simulation.advance(self._rates[:, self._position])
        self._position += 1
        return outcome

    def _measure(self, outcome: IntervalOutcome) -> Measurements:
        return Measurements(
            cpu_usage_cores=outcome.cpu_usage_cores.ravel(),
            throttled_fraction=outcome.throttled_fraction.ravel(),
            memory_usage_bytes=outcome.memory_usage_bytes.ravel(),
            latency_seconds=outcome.container_latency_seconds.ravel(),
            requests_per_second=outcome.container_requests_per_second.ravel(),
            cpu_limit_cores=self.simulation.cpu_cores.ravel(),
            memory_limit_bytes=self.simulation.memory_bytes.ravel(),
            oom_kills=outcome.kills.ravel().astype(np.float64),
        )


def provisioned_limits(
    application: Application, headroom: float, level: float, settings: ScalingSettings
) -> tuple[Float64Array, Float64Array]:
    """What a careful operator sets once, float64 [S] cores and [S] bytes: where every run starts.

    CPU: headroom x the mean need at the mean rate times ``level``. Memory: a quarter more than base, full cache and
    forty requests need. Both within the bounds; CPU shared where a node has less.
    """
    graph = CallGraph.of(application)
    rate = application.mean_rate_per_second * level
    cpu = np.clip(
        headroom * rate * graph.mean_cpu_seconds_per_request,
        settings.smallest_cpu_cores,
        settings.largest_cpu_cores,
    )
    on_node = np.bincount(graph.service_node, weights=cpu, minlength=len(graph.node_cpu_cores))
    cpu = cpu * np.minimum(1.0, graph.node_cpu_cores / on_node)[graph.service_node]
    memory = _PROVISIONED_MEMORY * (
        graph.base_memory_bytes
        + graph.cache_memory_bytes
        + _PROVISIONED_REQUESTS_PRESENT * graph.request_memory_bytes
    )
    return cpu, np.clip(memory, settings.smallest_memory_bytes, settings.largest_memory_bytes)


def _fleet(graph: CallGraph, instances: int, latency_objective_seconds: float) -> Fleet:
    services, nodes = len(graph.service_node), len(graph.node_cpu_cores)
    instance = np.arange(instances, dtype=np.int64)
    return Fleet(
        application=np.repeat(instance, services),
        node=(instance[:, None] * nodes + graph.service_node).ravel(),
        latency_objective_seconds=np.full(instances * services, latency_objective_seconds),
        node_cpu_cores=np.tile(graph.node_cpu_cores, instances),
        node_memory_bytes=np.tile(graph.node_memory_bytes, instances),
    )
