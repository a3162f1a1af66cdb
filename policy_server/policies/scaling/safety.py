"""What makes a recommendation safe to apply. The same for every policy, pure functions on arrays.

Per resource, in this order (field notes of autoscaler users name what each step is for):

1. hold where the container has not been measured, or only once: nothing is known, or a controller has just restarted;
2. limit the step: not beyond ``largest_raise`` times, not below ``largest_cut`` times the limit in force;
3. memory only: never below the memory in use plus headroom, and above the limit at which the container was killed
   for lack of memory;
4. keep within the bounds and within the node;
5. share the node: where its containers together want more than it has, what exceeds each one's use is cut alike;
6. dead band: hold unless the change is worth it. It is a property of the limit in force, so nothing needs to be
   remembered, and a restarted controller that sees the same input changes nothing;
7. fit the node: raises, together with what is held, do not exceed it.

What step 3 demands is exempt from steps 1, 2, 5, 6 and 7. Memory in use is never cut into, whatever bounds and node
say.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy_server.cluster.containers import Fleet, MeasurementHistory
from policy_server.cluster.snapshot import BoolArray, Float64Array, Int64Array
from policy_server.policies.scaling.policy import Recommendation, ScalingPolicy

_MEBIBYTE = 2.0**20
_ROUNDING = 1.0 - 1e-9


class ScalingReason(IntEnum):
    """Why a target is what it is: the last step that decided it."""

    UNSPECIFIED = 0
    RECOMMENDED = 1
    """As the policy recommended."""
    WITHIN_DEAD_BAND = 2
    """Held: the change would not be worth it."""
    NOT_MEASURED = 3
    """Held: usage, limit or recommendation is unknown."""
    FIRST_INTERVAL = 4
    """Held: measured for the first time, by this controller at least."""
    STEP_LIMITED = 5
    """Would have changed more in one step than is allowed."""
    BOUNDED = 6
    """Outside the bounds."""
    NODE_SIZE = 7
    """More than the whole node has."""
    NODE_SHARED = 8
    """The containers of the node want more than it has."""
    MEMORY_IN_USE = 9
    """Memory in use plus headroom."""
    OUT_OF_MEMORY = 10
    """Above the limit at which it was killed."""
    STALE_SAMPLE = 11
    """Held: the newest measurement is too old."""
    RESTARTED = 12
    """Held: restarted a moment ago, so what is measured is its start."""
    BEST_EFFORT = 13
    """No recommendation: the pod asks for nothing, and giving it limits would change its class of service."""


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """Limits of what may be recommended. The bounds are those of the paper (TD3-Sched, action), the rest is ours.

    Attributes:
        smallest_cpu_cores: bound.
        largest_cpu_cores: bound.
        smallest_memory_bytes: bound.
        largest_memory_bytes: bound.
        largest_raise: factor on the limit in force.
        largest_cut: factor on the limit in force.
        raise_band: relative change below which a limit is not raised.
        cut_band: relative change below which a limit is not cut.
        memory_headroom: factor on the memory in use.
        out_of_memory_raise: factor on the limit at which a container was killed.
        out_of_memory_raise_bytes: at least that much more.
        warm_up_intervals: measured intervals before anything but memory safety changes.
    """

    smallest_cpu_cores: float = 0.1
    largest_cpu_cores: float = 2.0
    smallest_memory_bytes: float = 64 * _MEBIBYTE
    largest_memory_bytes: float = 2048 * _MEBIBYTE
    largest_raise: float = 3.0
    largest_cut: float = 0.5
    raise_band: float = 0.11
    cut_band: float = 0.15
    memory_headroom: float = 1.1
    out_of_memory_raise: float = 1.2
    out_of_memory_raise_bytes: float = 32 * _MEBIBYTE
    warm_up_intervals: int = 2

    def __post_init__(self) -> None:
        for name in ("largest_raise", "memory_headroom", "out_of_memory_raise"):
            if not getattr(self, name) > 1.0:
                raise ValueError(f"{name}: {getattr(self, name)}; must be above 1")
        ranges = (
            ("smallest_cpu_cores", self.largest_cpu_cores),
            ("smallest_memory_bytes", self.largest_memory_bytes),
            ("largest_cut", 1.0),
            ("raise_band", self.largest_raise - 1.0),
            ("cut_band", 1.0 - self.largest_cut),
        )
        for name, high in ranges:
            if not 0.0 < getattr(self, name) <= high:
                raise ValueError(f"{name}: {getattr(self, name)}; must be above 0 and at most {high:g}")


DEFAULT_SETTINGS = ScalingSettings()


@dataclass(frozen=True, slots=True, eq=False)
class Constraints:
    """What limits single containers, in place of the bounds of the settings.

    Attributes:
        smallest_cpu_cores: float64 [C].
        largest_cpu_cores: float64 [C].
        smallest_memory_bytes: float64 [C].
        largest_memory_bytes: float64 [C].
        hold: uint8 [C], why a container is held (a :class:`ScalingReason`), or 0. Memory is raised all the same where
            step 3 demands it, except of best-effort containers, which get no target.
    """

    smallest_cpu_cores: Float64Array
    largest_cpu_cores: Float64Array
    smallest_memory_bytes: Float64Array
    largest_memory_bytes: Float64Array
    hold: NDArray[np.uint8]

    @classmethod
    def of(cls, settings: ScalingSettings, containers: int) -> Constraints:
        """The bounds of the settings for all, and nothing held."""
        return cls(
            np.full(containers, settings.smallest_cpu_cores),
            np.full(containers, settings.largest_cpu_cores),
            np.full(containers, settings.smallest_memory_bytes),
            np.full(containers, settings.largest_memory_bytes),
            np.zeros(containers, np.uint8),
        )


@dataclass(frozen=True, slots=True, eq=False)
class ResourceDecision:
    """One resource of C containers; lower_bound <= target <= upper_bound.

    Attributes:
        target: float64 [C], what to set; the limit in force where it is to stay; NaN where nothing can be said.
        lower_bound: float64 [C], a limit in force below this one is too small: the edge of the dead band.
        upper_bound: float64 [C], a limit in force above this one is wasteful.
        uncapped_target: float64 [C], what the policy recommended.
        reason: uint8 [C], a :class:`ScalingReason`.
    """

    target: Float64Array
    lower_bound: Float64Array
    upper_bound: Float64Array
    uncapped_target: Float64Array
    reason: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class ScalingDecisions:
    """Decisions for C containers.

    Attributes:
        cpu_cores: of CPU.
        memory_bytes: of memory.
    """

    cpu_cores: ResourceDecision
    memory_bytes: ResourceDecision


def decide_scaling(
    policy: ScalingPolicy,
    fleet: Fleet,
    history: MeasurementHistory,
    settings: ScalingSettings = DEFAULT_SETTINGS,
) -> ScalingDecisions:
    """Asks the policy and makes its answer safe."""
    return safe_decisions(policy.recommend(fleet, history), fleet, history, settings)


def safe_decisions(
    wanted: Recommendation,
    fleet: Fleet,
    history: MeasurementHistory,
    settings: ScalingSettings = DEFAULT_SETTINGS,
    constraints: Constraints | None = None,
) -> ScalingDecisions:
    """Applies all steps of the module to both resources.

    Args:
        wanted: by the policy.
        fleet: C containers.
        history: of the same containers.
        settings: limits that hold for all.
        constraints: of single containers; None: those of the settings.
    """
    of_each = constraints or Constraints.of(settings, len(fleet))
    count, nodes = len(fleet), len(fleet.node_cpu_cores)
    warm = np.isfinite(history.column("cpu_usage_cores")).sum(axis=0) >= settings.warm_up_intervals
    cpu_usage, memory_usage = history.newest("cpu_usage_cores"), history.newest("memory_usage_bytes")
    floor, killed = memory_floor(history, settings)
    # Both resources at once, as if each container were two and each node had a twin for memory.
    both = _decide(
        np.concatenate((wanted.cpu_cores, wanted.memory_bytes)),
        np.concatenate((history.newest("cpu_limit_cores"), history.newest("memory_limit_bytes"))),
        np.concatenate((cpu_usage, floor)),
        np.concatenate((np.isfinite(cpu_usage), np.isfinite(memory_usage) & (memory_usage > 0))),
        np.concatenate((warm, warm)),
        np.concatenate((np.zeros(count), floor)),
        np.concatenate((np.zeros(count, np.bool_), killed)),
        (
            np.concatenate((of_each.smallest_cpu_cores, of_each.smallest_memory_bytes)),
            np.concatenate((of_each.largest_cpu_cores, of_each.largest_memory_bytes)),
        ),
        np.concatenate((of_each.hold, of_each.hold)),
        np.concatenate((fleet.node, fleet.node + nodes)),
        np.concatenate((fleet.node_cpu_cores, fleet.node_memory_bytes)),
        settings,
    )
    return ScalingDecisions(_rows(both, slice(count)), _rows(both, slice(count, None)))


def memory_floor(history: MeasurementHistory, settings: ScalingSettings) -> tuple[Float64Array, BoolArray]:
    """Memory below which no target may lie, float64 [C], and whether a kill demands it, bool [C].

    In use x headroom, and for every interval of the history in which the container was killed for lack of memory:
    max(limit of that interval x raise, limit + raise in bytes). A kill is thus remembered as long as the history,
    so that the limit does not return to where the container died.
    """
    usage = history.newest("memory_usage_bytes")
    in_use = np.where(np.isfinite(usage), usage, 0.0) * settings.memory_headroom
    limits = history.column("memory_limit_bytes")
    died = (history.column("oom_kills") > 0) & np.isfinite(limits)
    died_at = np.where(died, limits, 0.0).max(axis=0)
    demanded = np.where(
        died_at > 0,
        np.maximum(died_at * settings.out_of_memory_raise, died_at + settings.out_of_memory_raise_bytes),
        0.0,
    )
    return np.maximum(in_use, demanded), demanded > in_use


def within_step(target: Float64Array, limit: Float64Array, settings: ScalingSettings) -> Float64Array:
    """Step 2. Containers without a limit in force (NaN) may take any step."""
    stepped = np.clip(target, limit * settings.largest_cut, limit * settings.largest_raise)
    return np.where(np.isnan(limit), target, stepped)


def share_nodes(
    target: Float64Array, use: Float64Array, node: Int64Array, capacity: Float64Array
) -> Float64Array:
    """Step 5. Where the targets of a node exceed its capacity, what exceeds the use is cut by the same factor.

    Where even the use exceeds the capacity, use and all are cut by the same factor.
    """
    kept = np.minimum(target, np.maximum(use, 0.0))
    kept_sum = np.bincount(node, weights=kept, minlength=len(capacity))
    spare_sum = np.bincount(node, weights=target - kept, minlength=len(capacity))
    spare_share = np.clip(_quotient(capacity - kept_sum, spare_sum), 0.0, 1.0)
    kept_share = np.minimum(_quotient(capacity, kept_sum), 1.0)
    return kept * kept_share[node] + (target - kept) * spare_share[node]


def within_dead_band(target: Float64Array, limit: Float64Array, settings: ScalingSettings) -> BoolArray:
    """Step 6: where the limit in force may stay."""
    held: BoolArray = (target <= limit * (1.0 + settings.raise_band)) & (
        target >= limit * (1.0 - settings.cut_band)
    )
    return held


def fit_nodes(
    target: Float64Array, limit: Float64Array, exempt: BoolArray, node: Int64Array, capacity: Float64Array
) -> Float64Array:
    """Step 7. Raises that do not fit beside the rest of their node are cut by the same factor."""
    raised = np.where(exempt | ~(target > limit), 0.0, target - limit)
    rest_sum = np.bincount(node, weights=target - raised, minlength=len(capacity))
    raised_sum = np.bincount(node, weights=raised, minlength=len(capacity))
    share = np.clip(_quotient(capacity - rest_sum, raised_sum), 0.0, 1.0)
    return target - raised * (1.0 - share[node])


def _all_fit(target: Float64Array, node: Int64Array, capacity: Float64Array) -> bool:
    """Whether every node has what its containers are to have, so that steps 5 and 7 change nothing."""
    return bool((np.bincount(node, weights=target, minlength=len(capacity)) <= capacity).all())


def _quotient(numerator: Float64Array, denominator: NDArray[Any]) -> Float64Array:
    """1 where nothing is to be divided, so that nothing is cut."""
    one = np.ones(len(denominator))
    quotient: Float64Array = np.divide(numerator, denominator, out=one, where=denominator > 1e-9)
    return quotient


def _zero_for_nan(values: Float64Array) -> Float64Array:
    return np.where(np.isfinite(values), values, 0.0)


def _rows(decision: ResourceDecision, rows: slice) -> ResourceDecision:
    return ResourceDecision(*(getattr(decision, column.name)[rows] for column in fields(decision)))


def _decide(
    wanted: Float64Array,
    limit: Float64Array,
    use: Float64Array,
    measured: BoolArray,
    warm: BoolArray,
    floor: Float64Array,
    killed: BoolArray,
    bounds: tuple[Float64Array, Float64Array],
    hold: NDArray[np.uint8],
    node: Int64Array,
    capacity: Float64Array,
    settings: ScalingSettings,
) -> ResourceDecision:
    low, high = bounds
    reason = np.full(len(wanted), ScalingReason.RECOMMENDED, np.uint8)

    def note(where: BoolArray, why: ScalingReason) -> BoolArray:
        reason[where] = why
        return where

    limited = np.isfinite(limit) & (limit > 0)
    limit = np.where(limited, limit, np.nan)
    known = np.isfinite(wanted) & (wanted > 0) & measured
    target = np.where(known, wanted, limit)

    stepped = within_step(target, limit, settings)
    note(known & (stepped != target), ScalingReason.STEP_LIMITED)
    held = note(~known, ScalingReason.NOT_MEASURED) | note(
        known & ~warm & limited, ScalingReason.FIRST_INTERVAL
    )
    if hold.any():
        held |= hold > 0
        reason = np.where(hold > 0, hold, reason)
    target = np.where(held, limit, stepped)

    best_effort = hold == ScalingReason.BEST_EFFORT
    exempt = (floor > _zero_for_nan(target)) & ~best_effort
    target = np.where(exempt, floor, target)
    note(exempt, ScalingReason.MEMORY_IN_USE)
    note(exempt & killed, ScalingReason.OUT_OF_MEMORY)

    moved = ~held | exempt
    in_use = np.minimum(np.where(limited, limit, 0.0), floor)
    most = np.maximum(np.minimum(high, capacity[node]), in_use)
    least = np.minimum(np.maximum(low, floor), most)
    bounded = np.maximum(np.clip(target, low, high), in_use)
    note(moved & (bounded != target), ScalingReason.BOUNDED)
    note(moved & (bounded > most), ScalingReason.NODE_SIZE)
    target = np.where(moved, np.minimum(bounded, most), target)

    free = moved & ~exempt
    counted = _zero_for_nan(target)
    if not _all_fit(counted, node, capacity):
        shared = share_nodes(counted, np.where(free, _zero_for_nan(use), counted), node, capacity)
        cut = note(free & (shared < counted * _ROUNDING), ScalingReason.NODE_SHARED)
        target = np.where(cut, np.maximum(shared, least), target)

    intended = target
    resting = free & limited & within_dead_band(target, limit, settings) & (limit >= least) & (limit <= most)
    target = np.where(note(resting, ScalingReason.WITHIN_DEAD_BAND), limit, target)

    counted = _zero_for_nan(target)
    if not _all_fit(counted, node, capacity):
        fitted = fit_nodes(counted, np.where(limited, limit, 0.0), ~free | ~limited, node, capacity)
        cut = note(free & (fitted < counted * _ROUNDING), ScalingReason.NODE_SHARED)
        fitted = np.maximum(fitted, least)
        # What is left of a raise may not be worth it any more.
        worthless = within_dead_band(fitted, limit, settings) & (limit >= least)
        target = np.where(cut, np.where(worthless, limit, fitted), target)

    too_small = np.where(exempt, target, np.maximum(low, intended / (1.0 + settings.raise_band)))
    return ResourceDecision(
        target=target,
        lower_bound=np.minimum(target, too_small),
        upper_bound=np.maximum(target, np.minimum(high, intended / (1.0 - settings.cut_band))),
        uncapped_target=np.where(best_effort, np.nan, wanted),
        reason=reason,
    )
