"""Containers whose CPU and memory are set, and what was measured of them.

Rows of a fleet belong to any number of applications and nodes; vertical scaling decides for all of them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from policy_server.cluster.snapshot import Float64Array, Int64Array

UNLIMITED = float("inf")


class ContainerError(ValueError):
    """Columns that contradict each other. The message names the column, the offending value and the remedy."""


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """What is known of C containers on N nodes, apart from measurements.

    Attributes:
        application: int64 [C], containers that serve the same requests have the same number, 0 or above.
        node: int64 [C], row of the node, 0 to N - 1.
        latency_objective_seconds: float64 [C], objective of the application's end-to-end latency.
        node_cpu_cores: float64 [N], allocatable; ``UNLIMITED`` where unknown.
        node_memory_bytes: float64 [N], allocatable; ``UNLIMITED`` where unknown.
    """

    application: Int64Array
    node: Int64Array
    latency_objective_seconds: Float64Array
    node_cpu_cores: Float64Array
    node_memory_bytes: Float64Array

    def __post_init__(self) -> None:
        count = len(self.application)
        for name in ("node", "latency_objective_seconds"):
            if len(getattr(self, name)) != count:
                raise ContainerError(
                    f"{name}: {len(getattr(self, name))} values for {count} containers; give one each"
                )
        if len(self.node_cpu_cores) != len(self.node_memory_bytes):
            raise ContainerError(
                f"node_memory_bytes: {len(self.node_memory_bytes)} values for {len(self.node_cpu_cores)} nodes; "
                "give one each"
            )
        if count and (self.node.min() < 0 or self.node.max() >= len(self.node_cpu_cores)):
            raise ContainerError(
                f"node: {self.node.min()} to {self.node.max()}; must name a row from 0 to "
                f"{len(self.node_cpu_cores) - 1}"
            )
        if not (self.latency_objective_seconds > 0).all():
            raise ContainerError("latency_objective_seconds: must be above zero")

    def __len__(self) -> int:
        return len(self.application)

    @classmethod
    def joined(cls, fleets: Sequence[Fleet]) -> Fleet:
        """All containers of one or more fleets, in order. Their nodes and applications stay apart."""
        applications = _offsets([int(fleet.application.max(initial=-1)) + 1 for fleet in fleets])
        nodes = _offsets([len(fleet.node_cpu_cores) for fleet in fleets])
        return cls(
            np.concatenate([f.application + first for f, first in zip(fleets, applications, strict=True)]),
            np.concatenate([f.node + first for f, first in zip(fleets, nodes, strict=True)]),
            np.concatenate([fleet.latency_objective_seconds for fleet in fleets]),
            np.concatenate([fleet.node_cpu_cores for fleet in fleets]),
            np.concatenate([fleet.node_memory_bytes for fleet in fleets]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Measurements:
    """One interval of C containers, all float64 [C]; NaN where something was not measured.

    Attributes:
        cpu_usage_cores: mean over the interval.
        throttled_fraction: share of the CPU bandwidth controller's periods in which the container was throttled.
        memory_usage_bytes: largest working set in the interval.
        latency_seconds: mean response time, calls it waits for included; NaN without requests.
        requests_per_second: answered.
        cpu_limit_cores: in force at the end of the interval.
        memory_limit_bytes: in force at the end of the interval.
        oom_kills: times the container was killed for lack of memory.
    """

    cpu_usage_cores: Float64Array
    throttled_fraction: Float64Array
    memory_usage_bytes: Float64Array
    latency_seconds: Float64Array
    requests_per_second: Float64Array
    cpu_limit_cores: Float64Array
    memory_limit_bytes: Float64Array
    oom_kills: Float64Array

    def __post_init__(self) -> None:
        count = len(self.cpu_usage_cores)
        for name in MEASURED:
            if getattr(self, name).shape != (count,):
                raise ContainerError(
                    f"{name}: shape {getattr(self, name).shape}; must be ({count},), one value per container"
                )

    def __len__(self) -> int:
        return len(self.cpu_usage_cores)


MEASURED: tuple[str, ...] = tuple(column.name for column in fields(Measurements))
"""Names of what is measured."""

_ROW = {name: row for row, name in enumerate(MEASURED)}


class MeasurementHistory:
    """The last K intervals of the same C containers, oldest first; NaN where something was not measured.

    Immutable. What is missing at the old end (a container that came later) is NaN as well.
    """

    def __init__(self, values: Float64Array) -> None:
        """Wraps an array.

        Args:
            values: float64 [len(MEASURED), K, C], K at least 1.
        """
        if values.ndim != 3 or values.shape[0] != len(MEASURED) or values.shape[1] < 1:
            raise ContainerError(
                f"values: shape {values.shape}; must be ({len(MEASURED)}, intervals, containers), one interval or more"
            )
        self._values = values

    @classmethod
    def of(cls, intervals: Sequence[Measurements]) -> MeasurementHistory:
        """Of one or more intervals, oldest first."""
        return cls(np.stack([_stacked(measurements) for measurements in intervals], axis=1))

    @classmethod
    def joined(cls, histories: Sequence[MeasurementHistory]) -> MeasurementHistory:
        """Of the containers of one or more histories, in order, as long as the longest of them."""
        longest = max(history.intervals for history in histories)
        values = np.full((len(MEASURED), longest, sum(h.containers for h in histories)), np.nan)
        first = 0
        for history in histories:
            after = first + history.containers
            values[:, longest - history.intervals :, first:after] = history._values
            first = after
        return cls(values)

    def extended(self, newest: Measurements, intervals: int) -> MeasurementHistory:
        """With a further interval; at most ``intervals`` of them are kept, the newest."""
        kept = self._values[:, max(0, self.intervals - intervals + 1) :]
        return MeasurementHistory(np.concatenate((kept, _stacked(newest)[:, None]), axis=1))

    @property
    def intervals(self) -> int:
        """K."""
        return int(self._values.shape[1])

    @property
    def containers(self) -> int:
        """C."""
        return int(self._values.shape[2])

    def column(self, name: str, intervals: int | None = None) -> Float64Array:
        """float64 [up to ``intervals``, C]: the newest intervals of one of ``MEASURED``, oldest first."""
        column: Float64Array = self._values[_ROW[name]]
        return column if intervals is None else column[-intervals:]

    def newest_intervals(self, intervals: int) -> Float64Array:
        """float64 [len(MEASURED), up to ``intervals``, C]: of everything, oldest first; read only."""
        newest: Float64Array = self._values[:, -intervals:]
        return newest

    def newest(self, name: str) -> Float64Array:
        """float64 [C]: the newest interval of one of ``MEASURED``."""
        newest: Float64Array = self._values[_ROW[name], -1]
        return newest


def _offsets(counts: Sequence[int]) -> list[int]:
    """Where each part begins when parts of these lengths are put one after another."""
    return [0, *np.cumsum(counts[:-1]).tolist()]


def _stacked(measurements: Measurements) -> Float64Array:
    return np.stack([getattr(measurements, name) for name in MEASURED])
