"""The services requests ask for: what one request needs, what one replica holds, how often it is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from policy_server.cluster.snapshot import Float32Array, Float64Array, Int32Array
from training.workloads.columns import WorkloadError, check_column

MEBIBYTE = 1024.0**2


@dataclass(frozen=True, slots=True, eq=False)
class ServiceCatalogue:
    """Services (W rows).

    Attributes:
        names: W unique names.
        cpu_millicores: float32 [W], CPU that one running request holds.
        execution_seconds: float32 [W], mean execution time of one request at speed 1.
        memory_bytes: float32 [W], memory one replica holds.
        image_bytes: float32 [W], bytes pulled when a node starts its first replica.
        cold_start_seconds: float32 [W], time from pulled image to ready.
        deadline_seconds: float32 [W], typical delay requirement.
        payload_bytes: float32 [W], typical request body.
        concurrency: int32 [W], requests one replica runs at the same time.
        popularity: float64 [W], share of the requests; sums to 1.

    Raises:
        WorkloadError: naming the field, the first offending row and its value.
    """

    names: tuple[str, ...]
    cpu_millicores: Float32Array
    execution_seconds: Float32Array
    memory_bytes: Float32Array
    image_bytes: Float32Array
    cold_start_seconds: Float32Array
    deadline_seconds: Float32Array
    payload_bytes: Float32Array
    concurrency: Int32Array
    popularity: Float64Array

    def __post_init__(self) -> None:
        count = len(self.names)
        if not count:
            raise WorkloadError("names: empty; give at least one service")
        if len(set(self.names)) != count:
            repeated = next(name for row, name in enumerate(self.names) if name in self.names[:row])
            raise WorkloadError(f"names: {repeated!r} appears twice; names must be unique")
        check_column("cpu_millicores", self.cpu_millicores, np.float32, count, positive=True)
        check_column("execution_seconds", self.execution_seconds, np.float32, count, positive=True)
        check_column("memory_bytes", self.memory_bytes, np.float32, count)
        check_column("image_bytes", self.image_bytes, np.float32, count)
        check_column("cold_start_seconds", self.cold_start_seconds, np.float32, count)
        check_column("deadline_seconds", self.deadline_seconds, np.float32, count, positive=True)
        check_column("payload_bytes", self.payload_bytes, np.float32, count, positive=True)
        check_column("concurrency", self.concurrency, np.int32, count, positive=True)
        check_column("popularity", self.popularity, np.float64, count)
        total = float(self.popularity.sum())
        if abs(total - 1.0) > 1e-6:
            raise WorkloadError(f"popularity: sums to {total}; divide by the sum so that it is 1")

    def __len__(self) -> int:
        return len(self.names)


class _Range(NamedTuple):
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class _Profile:
    """A kind of service: its members and the range of each of their figures."""

    names: tuple[str, ...]
    cpu_millicores: _Range
    execution_seconds: _Range
    memory_mebibytes: _Range
    image_megabytes: _Range
    cold_start_seconds: _Range
    payload_kilobytes: _Range
    concurrency: _Range


_CPU_HEAVY = _Profile(
    names=(
        "object-detection",
        "video-transcoding",
        "speech-recognition",
        "face-matching",
        "image-segmentation",
        "plate-reading",
        "pose-estimation",
        "route-planning",
        "scene-rendering",
        "anomaly-detection",
    ),
    cpu_millicores=_Range(400, 800),
    execution_seconds=_Range(0.12, 0.6),
    memory_mebibytes=_Range(128, 384),
    image_megabytes=_Range(100, 400),
    cold_start_seconds=_Range(1.0, 4.0),
    payload_kilobytes=_Range(50, 1000),
    concurrency=_Range(2, 4),
)
_MEMORY_HEAVY = _Profile(
    names=(
        "product-search",
        "recommendation",
        "map-tiles",
        "graph-query",
        "translation",
        "feature-store",
        "document-index",
        "digital-twin",
        "time-series-query",
        "content-cache",
    ),
    cpu_millicores=_Range(150, 400),
    execution_seconds=_Range(0.05, 0.25),
    memory_mebibytes=_Range(384, 768),
    image_megabytes=_Range(120, 400),
    cold_start_seconds=_Range(1.5, 4.0),
    payload_kilobytes=_Range(10, 200),
    concurrency=_Range(3, 6),
)
_LIGHT = _Profile(
    names=(
        "authentication",
        "telemetry-ingest",
        "notification",
        "device-registry",
        "tariff-lookup",
        "weather",
        "configuration",
        "chat-relay",
        "payment-check",
        "presence",
    ),
    cpu_millicores=_Range(100, 200),
    execution_seconds=_Range(0.02, 0.08),
    memory_mebibytes=_Range(64, 192),
    image_megabytes=_Range(20, 120),
    cold_start_seconds=_Range(0.5, 1.5),
    payload_kilobytes=_Range(2, 50),
    concurrency=_Range(4, 8),
)
_PROFILES = (_CPU_HEAVY, _MEMORY_HEAVY, _LIGHT)

SLACK_FACTOR = _Range(1.6, 8.0)
"""Deadline over mean execution time. The tight end leaves no time for a round trip to the cloud."""

DEADLINE_FLOOR_SECONDS = 0.15
"""No service is asked to answer faster than this."""

POPULARITY_EXPONENT = 0.6
"""The k-th most popular service gets a share proportional to ``k ** -POPULARITY_EXPONENT`` (Zipf)."""


def default_services(count: int = 30, seed: int = 0) -> ServiceCatalogue:
    """Heterogeneous services in the manner of the KaiS paper's thirty, whose own figures are not published.

    A third each is CPU heavy, memory heavy and light, in turn. Within its kind, each figure is spread
    log-uniformly, one service per equal part of the range, so that no draw is lopsided:

    ======================  ==========  ============  ==========
    figure                  CPU heavy   memory heavy  light
    ======================  ==========  ============  ==========
    CPU, millicores         400-800     150-400       100-200
    execution, s            0.12-0.6    0.05-0.25     0.02-0.08
    replica memory, MiB     128-384     384-768       64-192
    image, MB               100-400     120-400       20-120
    cold start, s           1-4         1.5-4         0.5-1.5
    payload, kB             50-1000     10-200        2-50
    concurrency             2-4         3-6           4-8
    ======================  ==========  ============  ==========

    The deadline is execution time times a slack factor in 1.6-8 and at least 0.15 s; popularity follows Zipf's
    law with exponent 0.6 over a random order. The same arguments give the same catalogue.

    Raises:
        WorkloadError: ``count`` is below one.
    """
    if count < 1:
        raise WorkloadError(f"count: {count}; must be one or more")
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_CATALOGUE_STREAM,)))
    kind_of = np.arange(count) % len(_PROFILES)

    def drawn(figure: str, unit: float = 1.0) -> Float64Array:
        values = np.empty(count)
        for kind, profile in enumerate(_PROFILES):
            members = kind_of == kind
            values[members] = _spread(getattr(profile, figure), int(members.sum()), rng)
        return np.round(values / unit) * unit

    execution_seconds = drawn("execution_seconds", 0.001)
    slack_factor = np.empty(count)
    for kind in range(len(_PROFILES)):
        members = kind_of == kind
        slack_factor[members] = _spread(SLACK_FACTOR, int(members.sum()), rng)
    deadline_seconds = np.maximum(DEADLINE_FLOOR_SECONDS, np.round(execution_seconds * slack_factor, 3))
    weight = (rng.permutation(count) + 1.0) ** -POPULARITY_EXPONENT
    return ServiceCatalogue(
        names=tuple(_name(row) for row in range(count)),
        cpu_millicores=drawn("cpu_millicores", 10).astype(np.float32),
        execution_seconds=execution_seconds.astype(np.float32),
        memory_bytes=(drawn("memory_mebibytes", 16) * MEBIBYTE).astype(np.float32),
        image_bytes=(drawn("image_megabytes", 1) * 1e6).astype(np.float32),
        cold_start_seconds=drawn("cold_start_seconds", 0.1).astype(np.float32),
        deadline_seconds=deadline_seconds.astype(np.float32),
        payload_bytes=(drawn("payload_kilobytes", 1) * 1e3).astype(np.float32),
        concurrency=drawn("concurrency", 1).astype(np.int32),
        popularity=weight / weight.sum(),
    )


_CATALOGUE_STREAM = 0x5E71


def _spread(bounds: _Range, count: int, rng: np.random.Generator) -> Float64Array:
    """Log-uniform values in random order, one from each of ``count`` equal parts of the range."""
    position = (rng.permutation(count) + rng.random(count)) / max(count, 1)
    return np.asarray(bounds.low * (bounds.high / bounds.low) ** position)


def _name(row: int) -> str:
    names = _PROFILES[row % len(_PROFILES)].names
    repeat, position = divmod(row // len(_PROFILES), len(names))
    return names[position] if repeat == 0 else f"{names[position]}-{repeat + 1}"
