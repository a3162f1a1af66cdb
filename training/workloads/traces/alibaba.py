"""Batch tasks of an Alibaba cluster: the ``batch_task`` table of the 2018 trace, the workload of the KaiS paper.

Nine columns without header: task name, instances, job, task type, status, start, end (seconds), CPU (100 is one
core), memory (normalised).

What happens to a row, beside rows with a cell that does not parse, which are dropped:

* ends before it starts (in practice: still running, end recorded as 0): dropped, its duration is unknown.
* zero duration: repaired. The clock ticks in seconds, so the task counts as half a second long.
* zero CPU: kept. Only the order of CPU requests matters here, and the row ranks as the lightest.
* status other than ``Terminated``: kept. It was asked for all the same, and where its end is recorded it has a
  duration; each status is counted.
* earlier than a row before it: repaired, the rows are sorted by start.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from policy_server.cluster.snapshot import BoolArray, Float64Array, Int32Array, Int64Array
from training.workloads.marks import draw_marks
from training.workloads.requests import RequestSequence, check_sequence_arguments
from training.workloads.services import ServiceCatalogue
from training.workloads.traces.report import Outcome, ReadReport, RowAudit
from training.workloads.traces.text import NumberColumn, TraceText, line_numbers, note_unsorted, split_rows
from training.workloads.traces.trace import (
    Trace,
    bounded_work_factor,
    deadline_factor,
    random_access_points,
    replay_rows,
    trace_random,
)
from training.workloads.traces.windows import Split, TimeWindow, part_of

COLUMNS = (
    "task_name",
    "instances",
    "job",
    "task_type",
    "status",
    "start_seconds",
    "end_seconds",
    "cpu_percent",
    "memory_normalised",
)
_LATEST_SECONDS = 4e9
_NUMBERS = (
    NumberColumn("instances", minimum=1, maximum=1e7, whole=True),
    NumberColumn("task_type", maximum=1e6, whole=True),
    NumberColumn("start_seconds", maximum=_LATEST_SECONDS),
    NumberColumn("end_seconds", maximum=_LATEST_SECONDS),
    NumberColumn("cpu_percent", maximum=1e6),
    NumberColumn("memory_normalised", maximum=1e6),
)
_UNFINISHED = ("Running", "Failed", "Waiting", "Ready", "Cancelled", "Interrupted")

ZERO_DURATION_SECONDS = 0.5
MAXIMUM_WEIGHT = 8.0
DURATION_EXPONENT = 0.25


@dataclass(frozen=True, slots=True, eq=False)
class AlibabaBatchTable:
    """The rows not dropped, by start time, with the values of the file (n rows).

    Attributes:
        line: int64 [n], 1-based line in the file.
        task_name: str [n].
        instances: int64 [n], one or more.
        job: str [n].
        task_type: int64 [n].
        status: str [n].
        start_seconds: float64 [n].
        end_seconds: float64 [n], not before the start.
        cpu_percent: float64 [n], 100 is one core.
        memory_normalised: float64 [n].
    """

    line: Int64Array
    task_name: NDArray[np.str_]
    instances: Int64Array
    job: NDArray[np.str_]
    task_type: Int64Array
    status: NDArray[np.str_]
    start_seconds: Float64Array
    end_seconds: Float64Array
    cpu_percent: Float64Array
    memory_normalised: Float64Array

    def __len__(self) -> int:
        return len(self.line)

    @property
    def duration_seconds(self) -> Float64Array:
        """float64 [n]: end minus start, half a second where that is zero."""
        recorded = self.end_seconds - self.start_seconds
        return np.where(recorded > 0, recorded, ZERO_DURATION_SECONDS)


@dataclass(frozen=True, slots=True, eq=False)
class ServiceClasses:
    """Which service a task stands for, and how its duration compares with its class. Learned, then applied.

    Tasks are ordered by (CPU, memory, type, duration, hash of the job), services by (CPU, memory of a replica).
    Cutting the ordered training tasks, weighted by the requests they stand for, in proportion to the services'
    popularity pairs the lightest tasks with the lightest service and so on up. Held-out tasks fall between the
    same cuts, so that their popularity is the trace's own.

    Attributes:
        cuts: float64 [W - 1, 5], first key of each class but the lightest, ascending.
        service_order: int64 [W], services from light to heavy.
        typical_seconds: float64 [W], geometric mean of the durations of each service's training tasks.
        mean_work: mean of the bounded duration ratio over the training requests.
    """

    cuts: Float64Array
    service_order: Int64Array
    typical_seconds: Float64Array
    mean_work: float

    @staticmethod
    def learn(table: AlibabaBatchTable, rows: Int64Array, services: ServiceCatalogue) -> ServiceClasses:
        """Learns from the given rows, of which there is at least one."""
        keys = _class_keys(table, rows)
        weights = request_weights(table, rows)
        order = _ascending(keys)
        cumulative = np.cumsum(weights[order])
        service_order = np.lexsort((services.memory_bytes, services.cpu_millicores))
        share = np.cumsum(services.popularity[service_order])[:-1]
        first = np.minimum(np.searchsorted(cumulative, share * cumulative[-1], side="right"), len(rows) - 1)
        classes = ServiceClasses(keys[order[first]], service_order, np.ones(len(services)), 1.0)

        service = classes.service_of(keys)
        log_seconds = np.log(table.duration_seconds[rows])
        members = np.bincount(service, minlength=len(services))
        log_typical = np.full(len(services), log_seconds.mean())
        np.divide(
            np.bincount(service, log_seconds, len(services)), members, out=log_typical, where=members > 0
        )
        ratio = np.exp(DURATION_EXPONENT * (log_seconds - log_typical[service]))
        mean_work = float(np.average(bounded_work_factor(ratio), weights=weights))
        return ServiceClasses(classes.cuts, service_order, np.exp(log_typical), mean_work)

    def service_of(self, keys: Float64Array) -> Int32Array:
        """int32 [n]: service of each key, float64 [n, 5]."""
        is_cut = np.arange(len(self.cuts) + len(keys)) < len(self.cuts)
        # A stable order puts cuts, which come first, before equal keys.
        order = _ascending(np.concatenate([self.cuts, keys]))
        cuts_before = np.empty(len(order), dtype=np.int64)
        cuts_before[order] = np.cumsum(is_cut[order])
        return self.service_order[cuts_before[len(self.cuts) :]].astype(np.int32)

    def work_factor(self, duration_seconds: Float64Array, service: Int32Array) -> Float64Array:
        """float64 [n]: (duration / typical duration of the service)^(1/4), bounded, mean 1 in training."""
        ratio = (duration_seconds / self.typical_seconds[service]) ** DURATION_EXPONENT
        return bounded_work_factor(ratio) / self.mean_work


@dataclass(frozen=True, slots=True, eq=False)
class AlibabaBatchTrace(Trace):
    """Batch tasks turned into requests.

    A task is a client that sends requests for one service (:class:`ServiceClasses`, learned on the training part
    only). Its weight is min(1 + log2(instances), 8), so that wide tasks make bursts without drowning the rest.
    Work factor: (duration / typical duration of the service)^(1/4) within 0.4 to 2.5, over its mean. Deadline: that of
    :func:`~training.workloads.marks.draw_marks` times the work factor within 0.8 to 2. Payload: that of
    ``draw_marks``. Arrivals: :func:`~training.workloads.traces.trace.replay_rows`.
    """

    kind: ClassVar[str] = "alibaba-batch"
    default_window_seconds: ClassVar[float] = 6 * 3600.0

    table: AlibabaBatchTable
    report: ReadReport

    @staticmethod
    def parse(text: TraceText) -> AlibabaBatchTrace:
        """Parses the file.

        Raises:
            TraceError: more than half of the rows are bad.
        """
        audit = RowAudit(text.path, AlibabaBatchTrace.kind, line_numbers(text, 0))
        columns, problems = split_rows(text, 0, len(COLUMNS))
        cells = dict(zip(COLUMNS, columns, strict=True))
        well_formed = ~np.logical_or.reduce(list(problems.values()))
        values: dict[str, Float64Array] = {}
        for column in _NUMBERS:
            values[column.name], found = column.parse(cells[column.name])
            problems |= {reason: rows & well_formed for reason, rows in found.items()}
        recorded_seconds = values["end_seconds"] - values["start_seconds"]
        problems["ends before it starts"] = recorded_seconds < 0
        for reason, rows in problems.items():
            audit.note(rows, reason, Outcome.DROPPED)
        audit.refuse_if_mostly_bad(problems, cells, text.lines)

        audit.note(recorded_seconds == 0, "zero duration: taken as half a second", Outcome.REPAIRED)
        audit.note(values["cpu_percent"] == 0, "zero CPU: ranks as the lightest", Outcome.KEPT)
        _note_status(np.array(cells["status"]), well_formed, audit)
        order = note_unsorted(values["start_seconds"], audit.usable, audit)
        table = AlibabaBatchTable(
            line=line_numbers(text, 0)[order],
            task_name=np.array(cells["task_name"])[order],
            instances=values["instances"][order].astype(np.int64),
            job=np.array(cells["job"])[order],
            task_type=values["task_type"][order].astype(np.int64),
            status=np.array(cells["status"])[order],
            start_seconds=values["start_seconds"][order],
            end_seconds=values["end_seconds"][order],
            cpu_percent=values["cpu_percent"][order],
            memory_normalised=values["memory_normalised"][order],
        )
        return AlibabaBatchTrace(table, audit.report(text.notes))

    @property
    def span(self) -> TimeWindow:
        """From the first start to one clock tick after the last."""
        start_seconds = self.table.start_seconds
        return TimeWindow(float(start_seconds[0]), float(start_seconds[-1]) + 1.0)

    def requests(
        self,
        window: TimeWindow,
        *,
        services: ServiceCatalogue,
        access_points: int,
        duration_seconds: float,
        mean_rate_per_second: float,
        seed: int,
    ) -> RequestSequence:
        """See :meth:`Trace.requests`."""
        check_sequence_arguments(access_points, duration_seconds, mean_rate_per_second, seed)
        table = self.table
        rows = self._rows_in(table.start_seconds, window)
        training_rows = self._rows_in(table.start_seconds, part_of(self.span, Split.TRAINING))
        classes = ServiceClasses.learn(table, training_rows, services)
        row_service = classes.service_of(_class_keys(table, rows))
        row_work = classes.work_factor(table.duration_seconds[rows], row_service)

        rng = trace_random(seed)
        arrival_seconds, row = replay_rows(
            table.start_seconds[rows],
            request_weights(table, rows),
            window,
            duration_seconds,
            mean_rate_per_second,
            rng,
        )
        service = row_service[row]
        marks = draw_marks(service, services, rng)
        work_factor = row_work[row]
        return RequestSequence(
            arrival_seconds=arrival_seconds,
            access_point=random_access_points(access_points, len(row), rng),
            service=service,
            deadline_seconds=(marks.deadline_seconds * deadline_factor(work_factor)).astype(np.float32),
            payload_bytes=marks.payload_bytes,
            work_factor=work_factor.astype(np.float32),
            duration_seconds=float(duration_seconds),
        )


def request_weights(table: AlibabaBatchTable, rows: Int64Array) -> Float64Array:
    """float64 [m]: requests a task stands for, up to a common factor: min(1 + log2(instances), 8)."""
    return np.minimum(1.0 + np.log2(table.instances[rows]), MAXIMUM_WEIGHT)


def _class_keys(table: AlibabaBatchTable, rows: Int64Array) -> Float64Array:
    """float64 [m, 5]: what orders tasks, most significant first."""
    job_hash = np.array([zlib.crc32(job.encode()) for job in table.job[rows].tolist()], dtype=np.float64)
    return np.stack(
        [
            table.cpu_percent[rows],
            table.memory_normalised[rows],
            table.task_type[rows].astype(np.float64),
            table.duration_seconds[rows],
            job_hash,
        ],
        axis=1,
    )


def _ascending(keys: Float64Array) -> Int64Array:
    return np.lexsort(keys.T[::-1])


def _note_status(status: NDArray[np.str_], well_formed: BoolArray, audit: RowAudit) -> None:
    for name in _UNFINISHED:
        audit.note(status == name, f"status {name}", Outcome.KEPT)
    known = np.isin(status, ("Terminated", *_UNFINISHED))
    audit.note(well_formed & ~known, "status unknown", Outcome.KEPT)
