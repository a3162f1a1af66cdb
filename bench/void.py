"""When a run says nothing and must not be quoted."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bench.load.errors import LoadError
from bench.load.measurement import Measurement, OpenLoopMeasurement

LEAST_ACHIEVED_SHARE = 0.99
LARGEST_LAG_P99_MICROSECONDS = 1000.0
MOST_CLIENT_CORES = 0.9


class VoidRunError(LoadError):
    """A run whose figures would mislead. The message lists why."""

    def __init__(self, name: str, reasons: Iterable[str]) -> None:
        super().__init__(f"void run ({name}): {'; '.join(reasons)}")


def void_reasons(measurement: Measurement) -> list[str]:
    """Why the measurement must not be quoted; empty when it may be."""
    reasons = [f"{count} requests failed: {reason}" for reason, count in measurement.failures.items()]
    if isinstance(measurement, OpenLoopMeasurement):
        reasons += _open_loop_reasons(measurement)
    else:
        sent = measurement.sent_microseconds
        elapsed_seconds = (int((sent + measurement.latency_microseconds).max()) - int(sent.min())) / 1e6
        cores = measurement.client_cpu_seconds / max(1e-6, elapsed_seconds)
        if cores > MOST_CLIENT_CORES:
            reasons.append(
                f"the load generator used {cores:.2f} cores and was the bottleneck (limit {MOST_CLIENT_CORES:g})"
            )
    return reasons


def _open_loop_reasons(measurement: OpenLoopMeasurement) -> list[str]:
    reasons = []
    achieved, target = measurement.requests_per_second, measurement.target_requests_per_second
    if achieved < LEAST_ACHIEVED_SHARE * target:
        reasons.append(
            f"achieved {achieved:.1f} of {target:g} requests/s, {achieved / target:.1%}"
            f" (at least {LEAST_ACHIEVED_SHARE:.0%} needed)"
        )
    lag = float(np.percentile(measurement.lag_microseconds, 99))
    if lag > LARGEST_LAG_P99_MICROSECONDS:
        reasons.append(
            f"the load generator's own lag has a p99 of {lag / 1000:.2f} ms"
            f" (limit {LARGEST_LAG_P99_MICROSECONDS / 1000:g} ms): the machine is too busy"
        )
    return reasons
