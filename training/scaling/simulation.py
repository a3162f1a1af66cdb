"""Many instances of one application, simulated side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from policy_server.cluster.snapshot import Float64Array, Int64Array
from training.scaling import kernel
from training.scaling.application import Application, CallGraph

DEFAULT_INTERVAL_SECONDS = 5.0
RESIZE_DELAY_SECONDS = 1.0
"""From a decision to the new limits in force: about what the kubelet takes to resize a pod in place."""

LARGEST_VARIATION = 1.5
"""Standard deviations beyond which the work of a service is not drawn: no limit within bounds could serve it."""
_VARIATION_STREAM = 0x5CA1


@dataclass(frozen=True, slots=True, eq=False)
class IntervalOutcome:
    """What happened in one interval. B applications of S containers.

    Attributes:
        seconds: length of the interval.
        requests: int64 [B].
        latency_seconds: float64 [B], sum over the requests; a failed request counts with the client's timeout.
        violations: int64 [B], requests slower than the objective or failed.
        failures: int64 [B], requests not answered at all.
        latency_counts: int64 [B, kernel.LATENCY_BINS], requests by latency.
        cpu_usage_cores: float64 [B, S].
        throttled_fraction: float64 [B, S], share of the periods in which work waited for quota.
        memory_usage_bytes: float64 [B, S], largest in the interval.
        container_requests_per_second: float64 [B, S].
        container_latency_seconds: float64 [B, S], mean response time with the calls it waits for; NaN without
            requests.
        wait_seconds: float64 [B, S], what the container added to the latency of all requests together.
        blame: float64 [B, S], violations it answers for.
        kills: int64 [B, S], out-of-memory kills.
    """

    seconds: float
    requests: Int64Array
    latency_seconds: Float64Array
    violations: Int64Array
    failures: Int64Array
    latency_counts: Int64Array
    cpu_usage_cores: Float64Array
    throttled_fraction: Float64Array
    memory_usage_bytes: Float64Array
    container_requests_per_second: Float64Array
    container_latency_seconds: Float64Array
    wait_seconds: Float64Array
    blame: Float64Array
    kills: Int64Array


class ScalingSimulation:
    """B instances of an application, each with its own load, chance and variation of the work.

    Attributes:
        application: what is simulated.
        graph: the application as arrays.
        interval_seconds: between two decisions.
        cpu_cores: float64 [B, S], limits in force.
        memory_bytes: float64 [B, S], limits in force.
    """

    def __init__(
        self,
        application: Application,
        seeds: Sequence[int],
        *,
        interval_seconds: float = DEFAULT_INTERVAL_SECONDS,
        work_variation: float = 0.0,
    ) -> None:
        """Starts idle and with the largest limits; call :meth:`resize` before the first :meth:`advance`.

        Args:
            application: what is simulated.
            seeds: B of them; the same seed gives the same run, whatever the other instances do.
            interval_seconds: a whole number of seconds, at least 2.
            work_variation: standard deviation of the logarithm of a factor on the mean work of each service, drawn
                once per instance, clipped at ``LARGEST_VARIATION`` deviations.

        Raises:
            ValueError: an interval that is not a whole number of seconds or too short.
        """
        if interval_seconds != int(interval_seconds) or interval_seconds <= RESIZE_DELAY_SECONDS:
            raise ValueError(
                f"interval_seconds: {interval_seconds}; give a whole number of seconds, at least 2"
            )
        self.application = application
        self.graph = CallGraph.of(application)
        self.interval_seconds = float(interval_seconds)
        self._seconds = int(interval_seconds)
        self._structure = _structure(application, self.graph)
        self._state = _initial_state(self.graph, self._structure, seeds, work_variation)
        self._scratch = kernel.new_scratch(len(self.graph.call_service))
        shape = (len(seeds), len(application.services))
        self.cpu_cores: Float64Array = np.full(shape, float(self.graph.node_cpu_cores.max()))
        self.memory_bytes: Float64Array = np.full(shape, float(self.graph.node_memory_bytes.max()))
        self.put_limits_in_force()

    @property
    def instances(self) -> int:
        """B."""
        return len(self._state.period)

    @property
    def random_state(self) -> NDArray[np.uint64]:
        """uint64 [B]: state of each instance's random numbers."""
        return self._state.random

    @property
    def containers(self) -> int:
        """S, of each instance."""
        return len(self.graph.service_node)

    @cached_property
    def mean_cpu_cores_per_rate(self) -> Float64Array:
        """float64 [B, S]: cores each container needs on average for one request per second."""
        share = np.diff(np.concatenate(([0.0], self.graph.operation_cumulative)))
        call_share = np.repeat(share, np.diff(self.graph.operation_start))
        work = self._state.call_cpu_seconds * call_share
        return np.stack([np.bincount(self.graph.call_service, row, self.containers) for row in work])

    def resize(self, cpu_cores: Float64Array, memory_bytes: Float64Array) -> None:
        """Limits that come into force ``RESIZE_DELAY_SECONDS`` into the next interval.

        Args:
            cpu_cores: [B, S], above zero.
            memory_bytes: [B, S], above zero.
        """
        if not ((cpu_cores > 0) & (memory_bytes > 0)).all():
            raise ValueError("cpu_cores, memory_bytes: limits must be finite numbers above zero")
        self.cpu_cores = np.array(cpu_cores, np.float64)
        self.memory_bytes = np.array(memory_bytes, np.float64)

    def advance(self, rates: Float64Array) -> IntervalOutcome:
        """Simulates one interval.

        Args:
            rates: float64 [B, interval_seconds], requests per second offered in each second.
        """
        expected = (self.instances, self._seconds)
        if rates.shape != expected:
            raise ValueError(f"rates: shape {rates.shape}; must be {expected}")
        totals = _zero_totals(self.instances, self.containers)
        delay_seconds = int(RESIZE_DELAY_SECONDS)
        self._run(totals, rates[:, :delay_seconds])
        self.put_limits_in_force()
        self._run(totals, rates[:, delay_seconds:])
        return self._outcome(totals)

    def _run(self, totals: kernel.Totals, rates: Float64Array) -> None:
        periods = rates.shape[1] * kernel.PERIODS_PER_SECOND
        kernel.advance(
            self._structure,
            self._state,
            totals,
            self._scratch,
            np.ascontiguousarray(rates, np.float64),
            periods,
        )

    def put_limits_in_force(self) -> None:
        """Applies the last limits at once instead of ``RESIZE_DELAY_SECONDS`` into the next interval."""
        state = self._state
        quota = self.cpu_cores * kernel.PERIOD_SECONDS
        grown = quota > state.quota_seconds
        # A larger quota reopens periods that were full.
        state.full_until[grown] = 0
        state.quota_seconds[:] = quota
        state.memory_limit_bytes[:] = self.memory_bytes

    def _outcome(self, totals: kernel.Totals) -> IntervalOutcome:
        seconds = self.interval_seconds
        visits = totals.visits
        return IntervalOutcome(
            seconds=seconds,
            requests=totals.requests,
            latency_seconds=totals.latency_seconds,
            violations=totals.violations,
            failures=totals.failures,
            latency_counts=totals.latency_counts,
            cpu_usage_cores=totals.cpu_seconds / seconds,
            throttled_fraction=totals.throttled_periods / (seconds * kernel.PERIODS_PER_SECOND),
            memory_usage_bytes=totals.peak_memory_bytes,
            container_requests_per_second=visits / seconds,
            container_latency_seconds=np.divide(
                totals.visit_seconds, visits, out=np.full(visits.shape, np.nan), where=visits > 0
            ),
            wait_seconds=totals.wait_seconds,
            blame=totals.blame,
            kills=totals.kills,
        )


def latency_quantile(latency_counts: Int64Array, share: float) -> Float64Array:
    """Latency that ``share`` of the requests do not exceed, within the width of a bin (2.3 %).

    Args:
        latency_counts: int64 [..., kernel.LATENCY_BINS].
        share: between 0 and 1.

    Returns:
        float64 [...], seconds; NaN where there are no requests.
    """
    total = latency_counts.sum(axis=-1)
    cumulative = np.cumsum(latency_counts, axis=-1)
    rank = share * total
    position = (cumulative < rank[..., None]).sum(axis=-1)
    position = np.minimum(position, kernel.LATENCY_BINS - 1)
    before = np.where(
        position > 0, np.take_along_axis(cumulative, np.maximum(position - 1, 0)[..., None], -1)[..., 0], 0
    )
    inside = np.take_along_axis(latency_counts, position[..., None], -1)[..., 0]
    fraction = np.divide(rank - before, inside, out=np.zeros(rank.shape), where=inside > 0)
    log_width = (
        math.log(kernel.LONGEST_LATENCY_SECONDS / kernel.SHORTEST_LATENCY_SECONDS) / kernel.LATENCY_BINS
    )
    seconds = kernel.SHORTEST_LATENCY_SECONDS * np.exp((position + fraction) * log_width)
    quantile: Float64Array = np.where(total > 0, seconds, np.nan)
    return quantile


def _structure(application: Application, graph: CallGraph) -> kernel.Structure:
    return kernel.Structure(
        operation_cumulative=graph.operation_cumulative,
        operation_start=graph.operation_start,
        call_service=graph.call_service,
        call_parent=graph.call_parent,
        call_depth=graph.call_depth,
        call_stage=graph.call_stage,
        call_background=graph.call_background,
        call_delay_seconds=graph.call_delay_seconds,
        service_node=graph.service_node,
        base_memory_bytes=graph.base_memory_bytes,
        request_memory_bytes=graph.request_memory_bytes,
        cache_memory_bytes=graph.cache_memory_bytes,
        cache_requests=graph.cache_requests,
        restart_seconds=graph.restart_seconds,
        node_period_seconds=graph.node_cpu_cores * kernel.PERIOD_SECONDS,
        work_quantiles=_log_normal_quantiles(application.work_deviation),
        latency_objective_seconds=application.latency_objective_seconds,
        client_timeout_seconds=application.client_timeout_seconds,
    )


def _log_normal_quantiles(deviation: float) -> Float64Array:
    """Mid-point quantiles of a log-normal distribution of mean 1 and that standard deviation."""
    count = 2**kernel.WORK_QUANTILES_LOG2
    sigma = math.sqrt(math.log1p(deviation**2))
    quantiles = np.exp(sigma * ndtri((np.arange(count) + 0.5) / count))
    normalised: Float64Array = quantiles / quantiles.mean()
    return normalised


def _initial_state(
    graph: CallGraph, structure: kernel.Structure, seeds: Sequence[int], work_variation: float
) -> kernel.State:
    instances, services, nodes = len(seeds), len(graph.service_node), len(graph.node_cpu_cores)
    longest = kernel.BACKGROUND_PATIENCE * structure.client_timeout_seconds
    # Room for a request that starts a call at the last moment and waits for the calls of that one.
    ring = 1 << math.ceil(math.log2(2.0 * longest / kernel.PERIOD_SECONDS + 16.0))
    streams = [np.random.SeedSequence(seed, spawn_key=(_VARIATION_STREAM,)) for seed in seeds]
    factors = np.array(
        [
            np.exp(
                work_variation
                * np.clip(
                    np.random.default_rng(stream).standard_normal(services),
                    -LARGEST_VARIATION,
                    LARGEST_VARIATION,
                )
            )
            for stream in streams
        ]
    )
    return kernel.State(
        call_cpu_seconds=graph.call_cpu_seconds * factors[:, graph.call_service],
        quota_seconds=np.zeros((instances, services)),
        memory_limit_bytes=np.zeros((instances, services)),
        booked_seconds=np.zeros((instances, services, ring)),
        node_booked_seconds=np.zeros((instances, nodes, ring)),
        throttled=np.zeros((instances, services, ring), np.bool_),
        full_until=np.zeros((instances, services), np.int64),
        presence=np.zeros((instances, services, ring)),
        presence_change=np.zeros((instances, services, ring)),
        present=np.zeros((instances, services)),
        served=np.zeros((instances, services)),
        down_until_seconds=np.zeros((instances, services)),
        memory_bytes=np.tile(graph.base_memory_bytes, (instances, 1)),
        period=np.zeros(instances, np.int64),
        random=np.array([stream.generate_state(1, np.uint64)[0] for stream in streams], np.uint64),
    )


def _zero_totals(instances: int, services: int) -> kernel.Totals:
    def count(*shape: int) -> Int64Array:
        return np.zeros(shape, np.int64)

    def number(*shape: int) -> Float64Array:
        return np.zeros(shape)

    return kernel.Totals(
        requests=count(instances),
        latency_seconds=number(instances),
        violations=count(instances),
        failures=count(instances),
        latency_counts=count(instances, kernel.LATENCY_BINS),
        cpu_seconds=number(instances, services),
        throttled_periods=count(instances, services),
        peak_memory_bytes=number(instances, services),
        visits=count(instances, services),
        visit_seconds=number(instances, services),
        wait_seconds=number(instances, services),
        blame=number(instances, services),
        kills=count(instances, services),
    )
