"""What a vertical-scaling model sees of a container. One schema, used by training and serving alike.

Every feature lies in [0, 1]. The paper's state is CPU utilisation, memory utilisation, response latency and requests
per second of each service, normalised (TD3-Sched, state); how it normalises is not published, so the formulas are
ours, as are the further features. For the newest interval and each of the three before it (age 0 to 3):

- ``cpu_utilisation``: usage / limit.
- ``memory_utilisation``: usage / limit.
- ``latency``: l / (l + objective); 0 without requests.
- ``request_trend``: r / (r + mean r over the four intervals); 0.5 is steady.
- ``throttled``: share of CPU periods in which the container was throttled.

Of the newest interval only, with level(x; a, b) = log(x / a) / log(b / a):

- ``request_rate``: log(1 + r) / log(1 + 10 000).
- ``request_share``: r over the largest r within the application.
- ``cpu_demand``: level(demand; 0.001, 4) of the demand in cores, see :func:`cpu_demand_cores`.
- ``cpu_per_request``: level(usage / r; 0.1 ms, 1 s).
- ``cpu_limit``: level(limit; 0.05, 4).
- ``memory_limit``: level(limit; 32 MiB, 4 GiB).
- ``application_latency``: the largest latency within the application, as ``latency``: that of its entry.
- ``node_cpu_allocated``: CPU limits on the container's node over the node's CPU; 0 where that is unknown.
- ``economy``: how dear resources are, 0 to 1: what the operator chooses between latency and allocation.

Of the last ``WINDOW_INTERVALS``, for four intervals say little of how much a container's use varies:

- ``cpu_mean``: level(mean usage / demand; 1/4, 4).
- ``cpu_newest``: level(newest usage / demand; 1/4, 4).
- ``cpu_variation``: v / (1 + v) of the usage's coefficient of variation v.
- ``throttled_mean``: mean share of throttled periods.

What was not measured is taken from the next newer interval, at the new end from the next older one, and is 0 where
nothing is known at all.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

import numpy as np

from policy_server.cluster.containers import MEASURED, Fleet, MeasurementHistory
from policy_server.cluster.snapshot import BoolArray, Float32Array, Float64Array, Int64Array

HISTORY_INTERVALS = 4
WINDOW_INTERVALS = 24
CPU_PEAK_INTERVALS = 12
DEFAULT_ECONOMY = 0.5
SMALLEST_DEMAND_CORES = 0.001

_MEBIBYTE = 2.0**20
_RATE, _LATENCY = (MEASURED.index(name) for name in ("requests_per_second", "latency_seconds"))


@dataclass(frozen=True)
class ScalingSchema:
    """Names of the features, in order.

    A model bundle records :attr:`hash`; the server refuses a bundle made for another schema.
    """

    container: tuple[str, ...]
    revision: int = 1
    """Raised when a feature keeps its name but changes its meaning."""

    @property
    def hash(self) -> str:
        """Hex SHA-256 of the canonical JSON form."""
        canonical = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


_BY_AGE = ("cpu_utilisation", "memory_utilisation", "latency", "request_trend", "throttled")
SCALING_SCHEMA = ScalingSchema(
    container=(
        *(f"{name}_{age}" for name in _BY_AGE for age in range(HISTORY_INTERVALS)),
        "request_rate",
        "request_share",
        "cpu_demand",
        "cpu_per_request",
        "cpu_limit",
        "memory_limit",
        "application_latency",
        "node_cpu_allocated",
        "economy",
        "cpu_mean",
        "cpu_newest",
        "cpu_variation",
        "throttled_mean",
    )
)
ECONOMY_COLUMN = SCALING_SCHEMA.container.index("economy")


def scaling_features(
    fleet: Fleet, history: MeasurementHistory, economy: float | Float64Array
) -> Float32Array:
    """The features of every container.

    Args:
        fleet: C containers.
        history: of the same containers.
        economy: between 0 (latency counts most) and 1 (resources count most); float64 [C], or one for all.

    Returns:
        float32 [C, len(SCALING_SCHEMA.container)], all within [0, 1].

    Raises:
        ValueError: economy outside [0, 1].
    """
    economies = np.broadcast_to(np.asarray(economy, np.float64), (len(fleet),))
    if not ((economies >= 0) & (economies <= 1)).all():
        raise ValueError(f"economy: {economy}; must be between 0 and 1")
    recent = _recent(history)
    usage, limit, rate = recent["cpu_usage_cores"], recent["cpu_limit_cores"], recent["requests_per_second"]
    latency = recent["latency_seconds"]
    relative_latency = latency / (latency + fleet.latency_objective_seconds)
    newest_rate, newest_limit, mean_rate = rate[0], limit[0], rate.mean(axis=0)
    cpu_demand = cpu_demand_cores(history)
    cpu_mean, cpu_deviation = _mean_and_deviation(history, "cpu_usage_cores")
    group = np.unique(fleet.application, return_inverse=True)[1]
    node_limits = np.bincount(fleet.node, weights=newest_limit, minlength=len(fleet.node_cpu_cores))
    level = _levels(
        (cpu_demand, SMALLEST_DEMAND_CORES, 4.0),
        (_ratio(usage[0], newest_rate), 1e-4, 1.0),
        (newest_limit, 0.05, 4.0),
        (recent["memory_limit_bytes"][0], 32 * _MEBIBYTE, 4096 * _MEBIBYTE),
        (cpu_mean / cpu_demand, 0.25, 4.0),
        (usage[0] / cpu_demand, 0.25, 4.0),
    )
    features = np.concatenate(
        (
            _ratio(usage, limit),
            _ratio(recent["memory_usage_bytes"], recent["memory_limit_bytes"]),
            relative_latency,
            np.where(rate > 0, _ratio(rate, rate + mean_rate), np.where(mean_rate > 0, 0.0, 0.5)),
            recent["throttled_fraction"],
            (
                np.log1p(newest_rate) / np.log1p(10_000.0),
                _ratio(newest_rate, _largest_within(newest_rate, group)),
            ),
            level[:4],
            (
                _largest_within(relative_latency[0], group),
                (node_limits / fleet.node_cpu_cores)[fleet.node],
                economies,
            ),
            level[4:],
            (_ratio(cpu_deviation, cpu_deviation + cpu_mean), _mean(history, "throttled_fraction")),
        )
    ).T
    bounded: Float32Array = np.clip(features, 0.0, 1.0).astype(np.float32, order="C")
    return bounded


def cpu_demand_cores(history: MeasurementHistory) -> Float64Array:
    """float64 [C]: the largest CPU usage of the last minute's intervals, at least 0.001 cores.

    Rises at once and falls slowly, so that a dip in the load is not mistaken for its end and limits rest.
    """
    peak = _largest(history, "cpu_usage_cores", CPU_PEAK_INTERVALS)
    demand: Float64Array = np.maximum(peak, SMALLEST_DEMAND_CORES)
    return demand


def memory_demand_bytes(history: MeasurementHistory) -> Float64Array:
    """float64 [C]: the largest working set of the window, at least one mebibyte.

    Too little memory kills, and freeing it saves little, so memory falls more slowly than CPU.
    """
    peak = _largest(history, "memory_usage_bytes", WINDOW_INTERVALS)
    demand: Float64Array = np.maximum(peak, _MEBIBYTE)
    return demand


def _mean_and_deviation(history: MeasurementHistory, name: str) -> tuple[Float64Array, Float64Array]:
    """Mean and standard deviation of what was measured in the window, float64 [C] each; 0 if nothing was."""
    measured, known = _window(history, name, WINDOW_INTERVALS)
    count = np.maximum(known.sum(axis=0), 1)
    mean = measured.sum(axis=0) / count
    deviation = np.sqrt((np.where(known, measured - mean, 0.0) ** 2).sum(axis=0) / count)
    return mean, deviation


def _mean(history: MeasurementHistory, name: str) -> Float64Array:
    """float64 [C]: mean of what was measured in the window; 0 if nothing."""
    measured, known = _window(history, name, WINDOW_INTERVALS)
    mean: Float64Array = measured.sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return mean


def _largest(history: MeasurementHistory, name: str, intervals: int) -> Float64Array:
    """float64 [C]: largest of what was measured in the newest ``intervals``; 0 if nothing."""
    largest: Float64Array = _window(history, name, intervals)[0].max(axis=0)
    return largest


def _window(history: MeasurementHistory, name: str, intervals: int) -> tuple[Float64Array, BoolArray]:
    """float64 [up to ``intervals``, C], 0 where nothing was measured, and bool, where something was."""
    column = history.column(name, intervals)
    known = np.isfinite(column)
    return np.where(known, column, 0.0), known


def _recent(history: MeasurementHistory) -> dict[str, Float64Array]:
    """Each of ``MEASURED``, float64 [HISTORY_INTERVALS, C], newest first, gaps filled.

    Latency without requests is zero, for then there is none to be missing.
    """
    values = history.newest_intervals(HISTORY_INTERVALS)
    idle = (values[_RATE] == 0) & np.isnan(values[_LATENCY])
    if idle.any():
        values = values.copy()
        values[_LATENCY][idle] = 0.0
    return dict(zip(MEASURED, _filled(values), strict=True))


def _filled(values: Float64Array) -> Float64Array:
    """Turns [M, up to HISTORY_INTERVALS, C], oldest first, into [M, HISTORY_INTERVALS, C], newest first and finite."""
    finite = np.isfinite(values)
    measures, intervals, containers = values.shape
    if intervals == HISTORY_INTERVALS and finite.all():
        return values[:, ::-1]
    filled = np.full((measures, HISTORY_INTERVALS, containers), np.nan)
    filled[:, :intervals] = np.where(finite, values, np.nan)[:, ::-1]
    for age in range(1, HISTORY_INTERVALS):
        filled[:, age] = np.where(np.isnan(filled[:, age]), filled[:, age - 1], filled[:, age])
    for age in range(HISTORY_INTERVALS - 2, -1, -1):
        filled[:, age] = np.where(np.isnan(filled[:, age]), filled[:, age + 1], filled[:, age])
    return np.asarray(np.nan_to_num(filled))


def _ratio(numerator: Float64Array, denominator: Float64Array) -> Float64Array:
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


def _levels(*scales: tuple[Float64Array, float, float]) -> Float64Array:
    """float64 [scales, C]: level(x; low, high) of each."""
    values = np.array([values for values, _, _ in scales])
    low = np.array([[low] for _, low, _ in scales])
    high = np.array([[high] for _, _, high in scales])
    levels: Float64Array = np.log(np.maximum(values, low) / low) / np.log(high / low)
    return levels


def _largest_within(values: Float64Array, group: Int64Array) -> Float64Array:
    """float64 [C]: the largest value within the row's group; groups are numbered from 0."""
    largest = np.zeros(int(group.max(initial=-1)) + 1)
    np.maximum.at(largest, group, values)
    within: Float64Array = largest[group]
    return within
