"""An hour of the bursty trace under several policies, interval by interval: what the demonstration shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from policy_server.cluster.containers import Fleet, MeasurementHistory
from policy_server.cluster.snapshot import Float64Array, Int64Array
from training.scaling.application import Application
from training.scaling.loop import PROVISIONED_HEADROOM, ScalingLoop
from training.scaling.simulation import latency_quantile
from training.scaling.workload import LEVELS, Load, load_curves, offered_rates
from training.workloads.seeds import held_out_seed

_MINUTE_INTERVALS = 12

Controller = Callable[[Fleet, MeasurementHistory], tuple[Float64Array, Float64Array]]
"""Decides limits from what was measured: float64 [C] cores and [C] bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Hour:
    """One policy through the hour, n intervals.

    Attributes:
        seconds: float64 [n], end of each interval.
        requests_per_second: float64 [n].
        latency_counts: int64 [n, bins].
        violations: float64 [n], requests slower than the objective or failed.
        cpu_cores: float64 [n], allocated.
        cpu_usage_cores: float64 [n].
        memory_bytes: float64 [n], allocated.
        changes: float64 [n], limits changed.
        latency_seconds: float64 [n], sum over the requests.
    """

    seconds: Float64Array
    requests_per_second: Float64Array
    latency_counts: Int64Array
    violations: Float64Array
    cpu_cores: Float64Array
    cpu_usage_cores: Float64Array
    memory_bytes: Float64Array
    changes: Float64Array
    latency_seconds: Float64Array

    def p99_latency_seconds(self, intervals: int) -> Float64Array:
        """float64 [n // intervals]: of the requests of so many intervals together."""
        groups = len(self.latency_counts) // intervals
        grouped = self.latency_counts[: groups * intervals].reshape(groups, intervals, -1)
        return latency_quantile(grouped.sum(axis=1), 0.99)


def bursty_hour(
    application: Application,
    controllers: Mapping[str, Controller],
    load: Load = Load.NORMAL,
    *,
    on_interval: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> dict[str, Hour]:
    """Every controller through the same hour, from the same limits: same arrivals, same work.

    Args:
        application: under control.
        controllers: by name of the policy.
        load: how much is offered.
        on_interval: told the policy, the intervals done and their total.
    """
    seed = held_out_seed(0)
    curve = load_curves()["bursty"].relative_rate
    level = LEVELS[load]
    rates = offered_rates(curve, application.mean_rate_per_second * level, seed)[None]
    return {
        name: _run(application, controller, seed, rates, level, partial(on_interval, name))
        for name, controller in controllers.items()
    }


def plot_bursty_hour(path: Path, application: Application, hours: Mapping[str, Hour], title: str) -> Path:
    """Draws load, latency with its objective and allocation; the first policy's use of CPU is shaded."""
    from training.scaling.plot import plot_hour

    first = next(iter(hours.values()))
    return plot_hour(
        path,
        seconds=first.seconds,
        requests_per_second=first.requests_per_second,
        latency_end_seconds=first.seconds[_MINUTE_INTERVALS - 1 :: _MINUTE_INTERVALS],
        p99_latency_seconds={
            name: hour.p99_latency_seconds(_MINUTE_INTERVALS) for name, hour in hours.items()
        },
        cpu_cores={name: hour.cpu_cores for name, hour in hours.items()},
        cpu_usage_cores=first.cpu_usage_cores,
        latency_objective_seconds=application.latency_objective_seconds,
        title=title,
    )


def _run(
    application: Application,
    controller: Controller,
    seed: int,
    rates: Float64Array,
    level: float,
    on_interval: Callable[[int, int], None],
) -> Hour:
    loop = ScalingLoop(
        application,
        [seed],
        rates,
        provisioned_headroom=PROVISIONED_HEADROOM,
        provisioned_level=level,
    )
    total = loop.intervals_left
    columns: dict[str, list[float]] = {
        name: [] for name in Hour.__dataclass_fields__ if name != "latency_counts"
    }
    counts = []
    interval_seconds = loop.simulation.interval_seconds
    for done in range(1, total + 1):
        step = loop.apply(*controller(loop.fleet, loop.history))
        outcome = step.outcome
        counts.append(outcome.latency_counts[0])
        for name, value in (
            ("seconds", (done + 1) * interval_seconds),
            ("requests_per_second", outcome.requests[0] / interval_seconds),
            ("violations", outcome.violations[0]),
            ("cpu_cores", loop.simulation.cpu_cores.sum()),
            ("cpu_usage_cores", outcome.cpu_usage_cores.sum()),
            ("memory_bytes", loop.simulation.memory_bytes.sum()),
            ("changes", step.costs.changes.sum()),
            ("latency_seconds", outcome.latency_seconds[0]),
        ):
            columns[name].append(float(value))
        on_interval(done, total)
    arrays = {name: np.array(values) for name, values in columns.items()}
    return Hour(latency_counts=np.stack(counts), **arrays)
