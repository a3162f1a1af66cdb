"""What a policy is to achieve, as a cost that adds up over containers.

The paper's reward is not published; ours is, per container and interval, minus

    latency      mean wait that the container adds to a request / latency objective
  + violation    VIOLATION_PRICE x share of requests whose violation it answers for
  + price(economy) x (CPU_PRICE x CPU limit in cores + MEMORY_PRICE x memory limit in GiB)
  + PRESSURE_PRICE x memory pressure
  + CHANGE_PRICE x limits changed

with price(economy) = 16^(economy - 1/2) and memory pressure = (min(1, max(0, largest use / limit - 0.85) / 0.15))^2:
kills are too rare to learn from, what comes near them is not. Over all containers the first two terms add up to (mean
latency - what it would be without any wait) / objective and the share of violations, so each container is answerable
for exactly its part of the common goal, and the shared actor learns from one transition per container.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from policy_server.cluster.snapshot import BoolArray, Float64Array
from training.scaling.simulation import IntervalOutcome

VIOLATION_PRICE = 10.0
CPU_PRICE = 0.2
MEMORY_PRICE = 0.1
PRESSURE_PRICE = 0.3
CHANGE_PRICE = 0.03
ECONOMY_RANGE = 16.0

_GIBIBYTE = 2.0**30
_PRESSURE_ABOVE = 0.85


@dataclass(frozen=True, slots=True, eq=False)
class CostParts:
    """What an interval cost, before prices. All float64 [B, S].

    Attributes:
        latency: mean wait added to a request, in latency objectives.
        violation: share of requests whose violation the container answers for.
        cpu_cores: limit.
        memory_gibibytes: limit.
        pressure: memory pressure, 0 to 1.
        changes: limits changed.
    """

    latency: Float64Array
    violation: Float64Array
    cpu_cores: Float64Array
    memory_gibibytes: Float64Array
    pressure: Float64Array
    changes: Float64Array

    def stacked(self) -> Float64Array:
        """float64 [B * S, parts]: one row per container, columns as the fields."""
        return np.stack([getattr(self, part.name).ravel() for part in fields(self)], axis=1)


COST_PARTS: tuple[str, ...] = tuple(part.name for part in fields(CostParts))


def cost_parts(
    outcome: IntervalOutcome,
    latency_objective_seconds: float,
    cpu_cores: Float64Array,
    memory_bytes: Float64Array,
    changed: BoolArray,
) -> CostParts:
    """The parts of an interval's cost.

    Args:
        outcome: of the interval.
        latency_objective_seconds: of the application.
        cpu_cores: float64 [B, S], limits in force.
        memory_bytes: float64 [B, S], limits in force.
        changed: bool [B, S, 2], whether the limit of CPU and of memory was changed.
    """
    requests = np.maximum(outcome.requests, 1)[:, None]
    # A limit that was cut in the course of the interval may lie below what was used before.
    used = np.minimum(outcome.memory_usage_bytes / memory_bytes, 1.0)
    return CostParts(
        latency=outcome.wait_seconds / requests / latency_objective_seconds,
        violation=outcome.blame / requests,
        cpu_cores=cpu_cores,
        memory_gibibytes=memory_bytes / _GIBIBYTE,
        pressure=(np.maximum(used - _PRESSURE_ABOVE, 0.0) / (1.0 - _PRESSURE_ABOVE)) ** 2,
        changes=changed.sum(axis=2, dtype=np.float64),
    )


def prices(economy: Float64Array) -> Float64Array:
    """float64 [n, parts]: what each part costs, for economies float64 [n]."""
    resources = ECONOMY_RANGE ** (np.asarray(economy, np.float64) - 0.5)
    one = np.ones_like(resources)
    return np.stack(
        (
            one,
            VIOLATION_PRICE * one,
            CPU_PRICE * resources,
            MEMORY_PRICE * resources,
            PRESSURE_PRICE * one,
            CHANGE_PRICE * one,
        ),
        axis=-1,
    )
