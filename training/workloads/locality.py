"""Who asks for what where: services that are popular at some access points and not at others, drifting.

Generated patterns and recorded traces ask for the same mix of services everywhere. Then any even placement of replicas
serves them equally well, and orchestration has nothing to decide. Real edge sites differ, and what is asked where
changes over minutes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from policy_server.cluster.snapshot import Float64Array
from training.workloads.arrivals import choose, slow_drift
from training.workloads.columns import WorkloadError, check_positive
from training.workloads.requests import RequestSequence

STEP_SECONDS = 1.0
SHARE_SECONDS = 5.0
"""Shares of the access points are estimated over steps of this length."""

_LOCALITY_STREAM = 0x10CA


@dataclass(frozen=True, slots=True, kw_only=True)
class Locality:
    """How much the mix of services differs from access point to access point, and how fast that changes.

    A request for service w at time t goes to access point a with a probability in proportion to share_a(t) x
    exp(D_aw(t)). share_a is the share of all requests that the sequence itself sends to a, over
    ``SHARE_SECONDS``; the D_aw are independent Ornstein-Uhlenbeck processes.

    Attributes:
        deviation: of D; 0 leaves the same mix everywhere.
        relaxation_seconds: of D.

    Raises:
        WorkloadError: naming the field, its value and what it must be.
    """

    deviation: float
    relaxation_seconds: float

    def __post_init__(self) -> None:
        if not 0 <= self.deviation < np.inf:
            raise WorkloadError(f"deviation: {self.deviation}; must be finite, zero or more")
        check_positive("relaxation_seconds", self.relaxation_seconds)


def localised(
    sequence: RequestSequence, locality: Locality, *, access_points: int, services: int, seed: int
) -> RequestSequence:
    """The same requests at other access points; the same arguments give the same bytes.

    Arrivals, services and all that requests carry stay as they are, so the load of the whole system does too.

    Args:
        sequence: of any origin.
        locality: see its class.
        access_points: that receive requests.
        services: of the catalogue.
        seed: of the processes and the draws.
    """
    if not len(sequence) or access_points == 1:
        return sequence
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_LOCALITY_STREAM,)))
    steps = int(np.ceil(sequence.duration_seconds / STEP_SECONDS))
    middle_seconds = (np.arange(steps, dtype=np.float64) + 0.5) * STEP_SECONDS
    drift = slow_drift(
        middle_seconds, access_points * services, locality.deviation, locality.relaxation_seconds, rng
    ).reshape(steps, access_points, services)
    weights = np.exp(drift) * _shares(sequence, access_points, middle_seconds)[:, :, None]
    step = np.minimum((sequence.arrival_seconds / STEP_SECONDS).astype(np.int64), steps - 1)
    rows = weights.transpose(0, 2, 1).reshape(steps * services, access_points)
    return replace(
        sequence, access_point=choose(rows, (step * services + sequence.service).astype(np.int64), rng)
    )


def _shares(sequence: RequestSequence, access_points: int, middle_seconds: Float64Array) -> Float64Array:
    """float64 [steps, A]: requests at each access point around each step, and one more."""
    intervals = int(np.ceil(sequence.duration_seconds / SHARE_SECONDS))
    interval = np.minimum((sequence.arrival_seconds / SHARE_SECONDS).astype(np.int64), intervals - 1)
    counts = np.bincount(
        interval * access_points + sequence.access_point, minlength=intervals * access_points
    ).reshape(intervals, access_points)
    shares: Float64Array = (
        counts[np.minimum((middle_seconds / SHARE_SECONDS).astype(np.int64), intervals - 1)] + 1.0
    ).astype(np.float64)
    return shares
