"""What a slot and a whole run come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policy_server.cluster.snapshot import Float64Array, Int32Array, Int64Array
from training.simulator.state import FAILED_STATUSES, RequestStatus

LATENCY_PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True, eq=False)
class SlotOutcome:
    """One slot of all systems (S systems, Q requests resolved in the slot).

    Attributes:
        arrived: int64 [S], requests that arrived in the slot.
        met: int64 [S], requests resolved in the slot in time, whenever they arrived.
        failed: int64 [S], requests resolved in the slot in any other way.
        cpu_usage_std: float64 [S], standard deviation over edge nodes of used / allocatable CPU, mean over the slot.
        memory_usage_std: float64 [S], standard deviation over edge nodes of used / allocatable memory, end of slot.
        edge_cpu_utilisation: float64 [S], used / allocatable CPU of all edge nodes together, mean over the slot.
        cloud_cpu_utilisation: float64 [S], the same of the cloud.
        resolved_system: int32 [Q], ascending.
        resolved_index: int64 [Q], position in the system's sequence.
        resolved_status: uint8 [Q], :class:`~training.simulator.state.RequestStatus`.
    """

    arrived: Int64Array
    met: Int64Array
    failed: Int64Array
    cpu_usage_std: Float64Array
    memory_usage_std: Float64Array
    edge_cpu_utilisation: Float64Array
    cloud_cpu_utilisation: Float64Array
    resolved_system: Int32Array
    resolved_index: Int64Array
    resolved_status: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class SystemResult:
    """One system from the start of its run until now.

    Attributes:
        arrived: requests that have arrived.
        counts: how many of them have each status.
        throughput_rate: requests met / requests arrived; NaN before the first arrival.
        forwarded_bytes: request bodies sent over links between access points and to the cloud.
        pulled_bytes: images pulled.
        latency_seconds: percentile -> response time of the requests met; NaN when there are none.
        mean_latency_seconds: their mean.
        edge_cpu_utilisation: used / allocatable CPU of the edge nodes over the whole time.
        cloud_cpu_utilisation: the same of the cloud.
        service_arrived: int64 [W].
        service_throughput_rate: float64 [W], NaN where nothing arrived.
    """

    arrived: int
    counts: Mapping[RequestStatus, int]
    throughput_rate: float
    forwarded_bytes: float
    pulled_bytes: float
    latency_seconds: Mapping[int, float]
    mean_latency_seconds: float
    edge_cpu_utilisation: float
    cloud_cpu_utilisation: float
    service_arrived: Int64Array
    service_throughput_rate: Float64Array

    @property
    def scheduling_cost_bytes(self) -> float:
        """Network usage that scheduling causes: bytes forwarded and pulled (KaiS, scheduling cost before
        normalisation)."""
        return self.forwarded_bytes + self.pulled_bytes

    @property
    def met(self) -> int:
        """Requests answered in time."""
        return self.counts[RequestStatus.MET]

    @property
    def failed(self) -> int:
        """Requests resolved in any other way."""
        return sum(self.counts[status] for status in FAILED_STATUSES)


def summarise(
    *,
    status: NDArray[np.uint8],
    completion_seconds: Float64Array,
    arrival_seconds: Float64Array,
    service: Int32Array,
    services: int,
    forwarded_bytes: float,
    pulled_bytes: float,
    edge_cpu_utilisation: float,
    cloud_cpu_utilisation: float,
) -> SystemResult:
    """Condenses the arrived requests of one system (arrays of one row per request) to a :class:`SystemResult`."""
    arrived = len(status)
    counts = np.bincount(status, minlength=len(RequestStatus))
    met = status == RequestStatus.MET
    latency = (completion_seconds - arrival_seconds)[met]
    percentiles = (
        np.percentile(latency, LATENCY_PERCENTILES)
        if len(latency)
        else np.full(len(LATENCY_PERCENTILES), np.nan)
    )
    service_arrived = np.bincount(service, minlength=services)
    service_met = np.bincount(service[met], minlength=services)
    return SystemResult(
        arrived=arrived,
        counts={kind: int(counts[kind]) for kind in RequestStatus},
        throughput_rate=int(counts[RequestStatus.MET]) / arrived if arrived else float("nan"),
        forwarded_bytes=forwarded_bytes,
        pulled_bytes=pulled_bytes,
        latency_seconds={p: float(value) for p, value in zip(LATENCY_PERCENTILES, percentiles, strict=True)},
        mean_latency_seconds=float(latency.mean()) if len(latency) else float("nan"),
        edge_cpu_utilisation=edge_cpu_utilisation,
        cloud_cpu_utilisation=cloud_cpu_utilisation,
        service_arrived=service_arrived,
        service_throughput_rate=np.divide(
            service_met, service_arrived, out=np.full(services, np.nan), where=service_arrived > 0
        ),
    )
