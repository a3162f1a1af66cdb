"""What a request carries beside its place and time: deadline, payload and amount of work ("marks" of the process)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from policy_server.cluster.snapshot import Float32Array, Float64Array, Int32Array
from training.workloads.columns import WorkloadError, check_column, check_index
from training.workloads.requests import RequestSequence
from training.workloads.services import ServiceCatalogue

DEADLINE_SPREAD = 0.1
WORK_SIGMA, WORK_BOUNDS = 0.25, (0.4, 2.5)
PAYLOAD_SIGMA, PAYLOAD_BOUNDS = 0.5, (0.2, 5.0)


class Marks(NamedTuple):
    """float32 [n] each; see :class:`RequestSequence`."""

    deadline_seconds: Float32Array
    payload_bytes: Float32Array
    work_factor: Float32Array


def draw_marks(service: Int32Array, services: ServiceCatalogue, rng: np.random.Generator) -> Marks:
    """Marks around the typical figures of each request's service.

    * deadline = typical deadline x U(0.9, 1.1)
    * payload = typical payload x lognormal(mean 1, sigma 0.5), within 0.2 to 5 times the typical one
    * work factor = lognormal(mean 1, sigma 0.25), within 0.4 to 2.5
    """
    count = len(service)
    deadline_factor = rng.uniform(1.0 - DEADLINE_SPREAD, 1.0 + DEADLINE_SPREAD, count)
    payload_factor = _bounded_lognormal(PAYLOAD_SIGMA, PAYLOAD_BOUNDS, count, rng)
    work_factor = _bounded_lognormal(WORK_SIGMA, WORK_BOUNDS, count, rng)
    return Marks(
        deadline_seconds=(services.deadline_seconds[service] * deadline_factor).astype(np.float32),
        payload_bytes=(services.payload_bytes[service] * payload_factor).astype(np.float32),
        work_factor=work_factor.astype(np.float32),
    )


@dataclass(frozen=True, slots=True, eq=False)
class RequestTemplates:
    """Recorded requests (m rows) whose marks generated requests of the same service take over, as one joint draw.

    Attributes:
        service: int32 [m].
        deadline_seconds: float32 [m].
        payload_bytes: float32 [m].
        work_factor: float32 [m].

    Raises:
        WorkloadError: naming the field, the first offending row and its value; no rows.
    """

    service: Int32Array
    deadline_seconds: Float32Array
    payload_bytes: Float32Array
    work_factor: Float32Array

    def __post_init__(self) -> None:
        count = len(self.service)
        if not count:
            raise WorkloadError("service: empty; give at least one recorded request")
        check_index("service", self.service, count)
        check_column("deadline_seconds", self.deadline_seconds, np.float32, count, positive=True)
        check_column("payload_bytes", self.payload_bytes, np.float32, count, positive=True)
        check_column("work_factor", self.work_factor, np.float32, count, positive=True)

    @staticmethod
    def from_sequence(sequence: RequestSequence) -> RequestTemplates:
        """The marks of a sequence, for example of a trace's training windows."""
        return RequestTemplates(
            service=sequence.service,
            deadline_seconds=sequence.deadline_seconds,
            payload_bytes=sequence.payload_bytes,
            work_factor=sequence.work_factor,
        )

    def draw(self, service: Int32Array, services: ServiceCatalogue, rng: np.random.Generator) -> Marks:
        """Marks of a random template of each request's service; of :func:`draw_marks` where it has no template.

        Raises:
            WorkloadError: a template names a service that the catalogue does not have.
        """
        check_index("source.service", self.service, len(self.service), len(services))
        marks = draw_marks(service, services, rng)
        order = np.argsort(self.service, kind="stable")
        template_count = np.bincount(self.service, minlength=len(services))
        first = np.cumsum(template_count) - template_count
        recorded = template_count[service] > 0
        asked = service[recorded]
        position = (rng.random(len(asked)) * template_count[asked]).astype(np.int64)
        chosen = order[first[asked] + position]
        for drawn, templates in zip(
            marks, (self.deadline_seconds, self.payload_bytes, self.work_factor), strict=True
        ):
            drawn[recorded] = templates[chosen]
        return marks


def _bounded_lognormal(
    sigma: float, bounds: tuple[float, float], count: int, rng: np.random.Generator
) -> Float64Array:
    return np.clip(np.exp(sigma * rng.standard_normal(count) - sigma**2 / 2), *bounds)
