"""A sequence of requests, as column arrays in arrival order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from policy_server.cluster.snapshot import Float32Array, Float64Array, Int32Array
from training.workloads.columns import WorkloadError, check_column, check_index, check_positive

MAXIMUM_REQUESTS = 100_000_000
MAXIMUM_DURATION_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True, eq=False)
class RequestSequence:
    """Requests in arrival order (n rows).

    Attributes:
        arrival_seconds: float64 [n], ascending, counted from the start of the sequence.
        access_point: int32 [n], row of the access point that receives the request.
        service: int32 [n], row of the service it asks for.
        deadline_seconds: float32 [n], counted from arrival, above zero.
        payload_bytes: float32 [n], request body that forwarding moves, above zero.
        work_factor: float32 [n], multiplies the service's mean execution time; above zero, about 1 on average.
        duration_seconds: length of the sequence; no request arrives later.

    Raises:
        WorkloadError: naming the field, the first offending row and its value.
    """

    arrival_seconds: Float64Array
    access_point: Int32Array
    service: Int32Array
    deadline_seconds: Float32Array
    payload_bytes: Float32Array
    work_factor: Float32Array
    duration_seconds: float

    def __post_init__(self) -> None:
        check_positive("duration_seconds", self.duration_seconds)
        count = len(self.arrival_seconds)
        check_column("arrival_seconds", self.arrival_seconds, np.float64, count)
        check_index("access_point", self.access_point, count)
        check_index("service", self.service, count)
        check_column("deadline_seconds", self.deadline_seconds, np.float32, count, positive=True)
        check_column("payload_bytes", self.payload_bytes, np.float32, count, positive=True)
        check_column("work_factor", self.work_factor, np.float32, count, positive=True)
        backwards = np.diff(self.arrival_seconds) < 0
        if backwards.any():
            row = int(np.argmax(backwards)) + 1
            raise WorkloadError(
                f"arrival_seconds[{row}]: {self.arrival_seconds[row]} after {self.arrival_seconds[row - 1]}; "
                "sort the requests by arrival"
            )
        if count and self.arrival_seconds[-1] > self.duration_seconds:
            raise WorkloadError(
                f"arrival_seconds[{count - 1}]: {self.arrival_seconds[-1]} is after the end of the sequence; "
                f"raise duration_seconds ({self.duration_seconds})"
            )

    def __len__(self) -> int:
        return len(self.arrival_seconds)

    @property
    def mean_rate_per_second(self) -> float:
        """Requests per second over the whole sequence."""
        return len(self) / self.duration_seconds

    def window(self, start_seconds: float, end_seconds: float) -> RequestSequence:
        """The requests that arrive in [start, end), with time counted from ``start_seconds``.

        Raises:
            WorkloadError: the window is empty or reaches outside the sequence.
        """
        if not 0 <= start_seconds < end_seconds <= self.duration_seconds:
            raise WorkloadError(
                f"window: {start_seconds} to {end_seconds}; must have a length above zero and lie within "
                f"0 to {self.duration_seconds}"
            )
        first, last = np.searchsorted(self.arrival_seconds, (start_seconds, end_seconds))
        return RequestSequence(
            arrival_seconds=self.arrival_seconds[first:last] - start_seconds,
            access_point=self.access_point[first:last],
            service=self.service[first:last],
            deadline_seconds=self.deadline_seconds[first:last],
            payload_bytes=self.payload_bytes[first:last],
            work_factor=self.work_factor[first:last],
            duration_seconds=end_seconds - start_seconds,
        )

    @staticmethod
    def concatenate(sequences: Sequence[RequestSequence]) -> RequestSequence:
        """Plays the sequences one after the other.

        Raises:
            WorkloadError: no sequence given.
        """
        if not sequences:
            raise WorkloadError("sequences: empty; give at least one")
        ends = np.cumsum([sequence.duration_seconds for sequence in sequences])
        starts = np.concatenate([[0.0], ends[:-1]])
        columns = {
            column.name: np.concatenate([getattr(sequence, column.name) for sequence in sequences])
            for column in fields(RequestSequence)
            if column.name != "duration_seconds"
        }
        columns["arrival_seconds"] += np.repeat(starts, [len(sequence) for sequence in sequences])
        return RequestSequence(**columns, duration_seconds=float(ends[-1]))


def check_sequence_arguments(
    access_points: int, duration_seconds: float, mean_rate_per_second: float, seed: int
) -> None:
    """Refuses the arguments of a sequence that cannot be made or would not fit into memory.

    Raises:
        WorkloadError: naming the argument, its value and the limit.
    """
    if access_points < 1:
        raise WorkloadError(f"access_points: {access_points}; must be one or more")
    if seed < 0:
        raise WorkloadError(f"seed: {seed}; must be zero or more")
    check_positive("duration_seconds", duration_seconds)
    check_positive("mean_rate_per_second", mean_rate_per_second)
    if duration_seconds > MAXIMUM_DURATION_SECONDS:
        raise WorkloadError(
            f"duration_seconds: {duration_seconds}; must be at most {MAXIMUM_DURATION_SECONDS:g}, "
            "concatenate several sequences for more"
        )
    if duration_seconds * mean_rate_per_second > MAXIMUM_REQUESTS:
        raise WorkloadError(
            f"mean_rate_per_second: {mean_rate_per_second} over {duration_seconds} s; must give at most "
            f"{MAXIMUM_REQUESTS} requests, make several sequences for more"
        )
