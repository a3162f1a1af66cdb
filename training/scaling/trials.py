"""A policy at work on given loads, and what it comes to per instance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policy_server.cluster.snapshot import Float64Array, Int64Array
from policy_server.features.scaling import DEFAULT_ECONOMY
from policy_server.policies.scaling.policy import ScalingPolicy
from policy_server.policies.scaling.safety import DEFAULT_SETTINGS, ScalingSettings
from training.scaling import kernel
from training.scaling.application import Application
from training.scaling.episodes import Episode
from training.scaling.loop import PROVISIONED_HEADROOM, ScalingLoop
from training.scaling.objective import COST_PARTS, prices
from training.scaling.simulation import DEFAULT_INTERVAL_SECONDS

WARM_UP_SECONDS = 60.0
"""Not counted: every policy starts from the same provisioned limits."""
TRIAL_WORK_VARIATION = 0.2
"""Standard deviation of the logarithm of each service's work in trials: no two instances are quite alike."""


@dataclass(frozen=True, slots=True, eq=False)
class Trials:
    """Figures of B instances after the warm-up.

    Attributes:
        requests: int64 [B].
        latency_seconds: float64 [B], sum.
        latency_counts: int64 [B, kernel.LATENCY_BINS].
        violations: int64 [B].
        failures: int64 [B].
        kills: int64 [B].
        cpu_cores: float64 [B], mean sum of the limits.
        memory_mebibytes: float64 [B], mean sum of the limits.
        changes_per_hour: float64 [B], limits changed.
        cost: float64 [B], mean per interval.
    """

    requests: Int64Array
    latency_seconds: Float64Array
    latency_counts: Int64Array
    violations: Int64Array
    failures: Int64Array
    kills: Int64Array
    cpu_cores: Float64Array
    memory_mebibytes: Float64Array
    changes_per_hour: Float64Array
    cost: Float64Array

    @property
    def mean_latency_seconds(self) -> Float64Array:
        """float64 [B]."""
        return self.latency_seconds / np.maximum(self.requests, 1)

    @property
    def violation_rate(self) -> Float64Array:
        """float64 [B]."""
        return self.violations / np.maximum(self.requests, 1)


def run_trials(
    application: Application,
    policy: ScalingPolicy,
    episode: Episode,
    *,
    economy: float = DEFAULT_ECONOMY,
    settings: ScalingSettings = DEFAULT_SETTINGS,
    interval_seconds: float = DEFAULT_INTERVAL_SECONDS,
    provisioned_headroom: float = PROVISIONED_HEADROOM,
    provisioned_level: float = 1.0,
) -> Trials:
    """Runs a policy.

    Args:
        application: under control.
        policy: decides.
        episode: B loads.
        economy: which costs are priced by.
        settings: safety of the decisions.
        interval_seconds: between two decisions.
        provisioned_headroom: see :func:`training.scaling.loop.provisioned_limits`.
        provisioned_level: see :func:`training.scaling.loop.provisioned_limits`.
    """
    loop = ScalingLoop(
        application,
        episode.seeds,
        episode.rates,
        interval_seconds=interval_seconds,
        work_variation=TRIAL_WORK_VARIATION,
        settings=settings,
        provisioned_headroom=provisioned_headroom,
        provisioned_level=provisioned_level,
    )
    for _ in range(int(WARM_UP_SECONDS / interval_seconds)):
        loop.step(policy.recommend(loop.fleet, loop.history))
    instances = len(episode.seeds)
    requests, violations, failures, kills = (np.zeros(instances, np.int64) for _ in range(4))
    counts = np.zeros((instances, kernel.LATENCY_BINS), np.int64)
    latency = np.zeros(instances)
    costs = 0.0
    intervals = loop.intervals_left
    while loop.intervals_left:
        step = loop.step(policy.recommend(loop.fleet, loop.history))
        outcome = step.outcome
        requests += outcome.requests
        latency += outcome.latency_seconds
        counts += outcome.latency_counts
        violations += outcome.violations
        failures += outcome.failures
        kills += outcome.kills.sum(axis=1)
        costs = costs + step.costs.stacked().reshape(instances, loop.simulation.containers, -1).sum(axis=1)
    parts = np.asarray(costs) / intervals
    part = {name: parts[:, column] for column, name in enumerate(COST_PARTS)}
    return Trials(
        requests=requests,
        latency_seconds=latency,
        latency_counts=counts,
        violations=violations,
        failures=failures,
        kills=kills,
        cpu_cores=part["cpu_cores"],
        memory_mebibytes=part["memory_gibibytes"] * 1024.0,
        changes_per_hour=part["changes"] * 3600.0 / interval_seconds,
        cost=parts @ prices(np.array(economy)),
    )
