from __future__ import annotations

import csv
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from training.workloads.requests import RequestSequence
from training.workloads.services import default_services
from training.workloads.traces.alibaba import AlibabaBatchTrace, ServiceClasses, request_weights
from training.workloads.traces.errors import TraceError
from training.workloads.traces.read import read_trace
from training.workloads.traces.report import Outcome, ReadReport
from training.workloads.traces.windows import Split, TimeWindow, part_of

Write = Callable[..., Path]
SERVICES = default_services()


def row(start: float, seconds: float = 10, /, **changes: object) -> str:
    cells = {
        "task": "M1",
        "instances": 2,
        "job": "j_1",
        "type": 1,
        "status": "Terminated",
        "start": start,
        "end": start + seconds,
        "cpu": 50,
        "memory": 0.2,
    }
    return ",".join(str(cell) for cell in (cells | changes).values())


def synthetic_rows(count: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [
        row(
            1000 + 10 * i,
            int(rng.integers(0, 100)),
            instances=int(rng.integers(1, 50)),
            job=f"j_{rng.integers(5)}",
            cpu=int(rng.choice([5, 50, 100, 400])),
            memory=float(rng.choice([0.03, 0.2, 0.39])),
        )
        for i in range(count)
    ]


def read(path: Path) -> AlibabaBatchTrace:
    trace = read_trace(path)
    assert isinstance(trace, AlibabaBatchTrace)
    return trace


def found(report: ReadReport) -> dict[str, tuple[Outcome, int, int]]:
    return {f.reason: (f.outcome, f.rows, f.example_line) for f in report.findings}


def test_a_clean_file_is_read_as_it_is(write: Write) -> None:
    trace = read(write(row(100, 10, task="M1", job="j_7") + "\n" + row(105, 3, task="R2", cpu=100) + "\n"))
    assert (trace.report.rows_total, trace.report.rows_kept) == (2, 2)
    assert trace.report.findings == ()
    table = trace.table
    assert table.task_name.tolist() == ["M1", "R2"]
    assert table.job.tolist() == ["j_7", "j_1"]
    assert table.instances.tolist() == [2, 2]
    assert table.start_seconds.tolist() == [100, 105]
    assert table.end_seconds.tolist() == [110, 108]
    assert table.cpu_percent.tolist() == [50, 100]
    assert table.memory_normalised.tolist() == [0.2, 0.2]
    assert table.line.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("bad", "reason", "outcome"),
    [
        (row(100, -100), "ends before it starts", Outcome.DROPPED),
        (row(100, 0), "zero duration: taken as half a second", Outcome.REPAIRED),
        (row(100, cpu=0), "zero CPU: ranks as the lightest", Outcome.KEPT),
        (row(100, status="Running"), "status Running", Outcome.KEPT),
        (row(100, status="Failed"), "status Failed", Outcome.KEPT),
        (row(100, status="?"), "status unknown", Outcome.KEPT),
        (row(50), "out of order: sorted by time", Outcome.REPAIRED),
        (row(100, start="x"), "start_seconds: not a number", Outcome.DROPPED),
        (row(100, end="nan"), "end_seconds: not finite", Outcome.DROPPED),
        (row(100, cpu="-5"), "cpu_percent: below 0", Outcome.DROPPED),
        (row(100, memory=""), "memory_normalised: empty", Outcome.DROPPED),
        (row(100, instances=0), "instances: below 1", Outcome.DROPPED),
        (row(100, instances=1.5), "instances: not a whole number", Outcome.DROPPED),
        (row(100, type="1e300"), "task_type: above 1e+06", Outcome.DROPPED),
        (row(100) + ",", "not 9 columns", Outcome.DROPPED),
        ("", "blank line", Outcome.DROPPED),
    ],
)
def test_each_rule_is_counted_with_the_line_it_first_applied_to(
    write: Write, bad: str, reason: str, outcome: Outcome
) -> None:
    report = read(write("\n".join([row(90), row(95), bad, row(100), bad, row(120), row(130)]) + "\n")).report
    assert found(report) == {reason: (outcome, 2, 3)}
    assert report.rows_total == 7
    assert {
        Outcome.KEPT: report.rows_kept,
        Outcome.REPAIRED: report.rows_repaired,
        Outcome.DROPPED: report.rows_dropped,
    } == {Outcome.KEPT: 5, Outcome.REPAIRED: 0, Outcome.DROPPED: 0} | (
        {outcome: 2} if outcome is not Outcome.KEPT else {Outcome.KEPT: 7}
    )


def test_the_truncated_last_line_is_counted_as_such(write: Write) -> None:
    report = read(write("\n".join([row(90), row(95), "M3,1,j_1,1,Termi"]))).report
    assert found(report) == {"truncated last line": (Outcome.DROPPED, 1, 3)}


def test_one_bad_row_has_every_reason_that_applies_and_one_place_in_the_totals(write: Write) -> None:
    report = read(
        write("\n".join([row(100), row(100, -100, status="Running", cpu=0), row(100, 0, cpu=0)]) + "\n")
    ).report
    assert found(report) == {
        "ends before it starts": (Outcome.DROPPED, 1, 2),
        "zero duration: taken as half a second": (Outcome.REPAIRED, 1, 3),
        "zero CPU: ranks as the lightest": (Outcome.KEPT, 2, 2),
        "status Running": (Outcome.KEPT, 1, 2),
    }
    assert (report.rows_kept, report.rows_repaired, report.rows_dropped) == (1, 1, 1)


def test_unsorted_rows_are_sorted_and_keep_file_order_among_equals(write: Write) -> None:
    trace = read(
        write("\n".join([row(100), row(300, task="A"), row(200), row(300, task="B"), row(250)]) + "\n")
    )
    assert trace.table.start_seconds.tolist() == [100, 200, 250, 300, 300]
    assert trace.table.line.tolist() == [1, 3, 5, 2, 4]
    assert found(trace.report) == {"out of order: sorted by time": (Outcome.REPAIRED, 2, 3)}


def test_a_mostly_bad_file_is_refused_with_line_column_and_value(write: Write) -> None:
    path = write("\n".join([row(100), row(100, start="soon"), row(100, start="later"), row(1)]) + "\n")
    assert read(path).report.rows_dropped == 2
    path = write("\n".join([row(100), row(100, start="soon"), row(100, -1)]) + "\n")
    with pytest.raises(TraceError, match="2 of 3 rows are bad") as caught:
        read_trace(path)
    assert (caught.value.line, caught.value.column, caught.value.value) == (2, "start_seconds", "soon")


def reference(content: str) -> tuple[Counter[str], dict[int, list[str]]]:
    """The rules row by row, the slow obvious way: outcomes, and the cells of the rows not dropped by line."""
    outcomes: Counter[str] = Counter()
    kept: dict[int, list[str]] = {}
    latest = -1.0
    lines = content.rstrip("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        cells = next(csv.reader([line], quoting=csv.QUOTE_NONE), [])
        try:
            if len(cells) != 9:
                raise ValueError
            instances, kind, start, end, cpu, memory = (
                float(cells[i].replace("_", "?")) for i in (1, 3, 5, 6, 7, 8)
            )
            if not (1 <= instances <= 1e7 and instances % 1 == 0 and 0 <= kind <= 1e6 and kind % 1 == 0):
                raise ValueError
            if not (0 <= start <= end <= 4e9 and 0 <= cpu <= 1e6 and 0 <= memory <= 1e6):
                raise ValueError
        except ValueError:
            outcomes["dropped"] += 1
            continue
        outcomes["repaired" if start == end or start < latest else "kept"] += 1
        latest = max(latest, start)
        kept[number] = cells
    return outcomes, kept


def corrupted_cell(rows: list[list[str]], draw: DataObject) -> None:
    target = draw.draw(st.integers(0, len(rows) - 1))
    column = draw.draw(st.integers(0, 8))
    if column < len(rows[target]):
        rows[target][column] = draw.draw(
            st.sampled_from(
                ["", " ", "x", "nan", "inf", "-1", "-0", "1e9", "1e300", "0", "1.5", "7_0", "�", "é"]
            )
        )


def removed_cell(rows: list[list[str]], draw: DataObject) -> None:
    target = draw.draw(st.integers(0, len(rows) - 1))
    if len(rows[target]) > 1:
        del rows[target][draw.draw(st.integers(0, len(rows[target]) - 1))]


def swapped_rows(rows: list[list[str]], draw: DataObject) -> None:
    first, second = (draw.draw(st.integers(0, len(rows) - 1)) for _ in range(2))
    rows[first], rows[second] = rows[second], rows[first]


def blank_row(rows: list[list[str]], draw: DataObject) -> None:
    rows.insert(draw.draw(st.integers(0, len(rows) - 1)), [""])


@given(
    data=st.data(),
    mutations=st.lists(st.sampled_from([corrupted_cell, removed_cell, swapped_rows, blank_row]), max_size=12),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    mark=st.booleans(),
    cut=st.integers(0, 30),
)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_dirty_file_is_refused_or_every_row_is_accounted_for(
    write: Write,
    data: DataObject,
    mutations: Sequence[Callable[[list[list[str]], DataObject], None]],
    line_end: str,
    mark: bool,
    cut: int,
) -> None:
    rows = [line.split(",") for line in synthetic_rows(12)]
    for mutate in mutations:
        mutate(rows, data)
    content = "\n".join(",".join(cells) for cells in rows) + "\n"
    content = content[: len(content) - cut]
    encoded = (b"\xef\xbb\xbf" if mark else b"") + content.replace("\n", line_end).encode()
    outcomes, kept = reference(content)
    path = write(encoded)
    if outcomes["dropped"] * 2 > outcomes.total():
        with pytest.raises(TraceError) as caught:
            read_trace(path)
        assert caught.value.path == path
        return
    trace = read(path)
    report, table = trace.report, trace.table
    assert (report.rows_kept, report.rows_repaired, report.rows_dropped) == (
        outcomes["kept"],
        outcomes["repaired"],
        outcomes["dropped"],
    )
    assert report.rows_total == report.rows_kept + report.rows_repaired + report.rows_dropped
    assert sum(f.rows for f in report.findings if f.outcome is Outcome.DROPPED) >= report.rows_dropped
    assert str(path) in str(report)
    assert "\n" not in str(report)
    assert sorted(table.line.tolist()) == sorted(kept)
    assert np.all(np.diff(table.start_seconds) >= 0)
    for position, line in enumerate(table.line.tolist()):
        cells = kept[line]
        assert [table.task_name[position], table.job[position], table.status[position]] == [
            cells[0],
            cells[2],
            cells[4],
        ]
        assert [
            table.instances[position],
            table.task_type[position],
            table.start_seconds[position],
            table.end_seconds[position],
            table.cpu_percent[position],
            table.memory_normalised[position],
        ] == [float(cells[i]) for i in (1, 3, 5, 6, 7, 8)]


def test_the_real_trace_shows_the_known_facts(recorded: Callable[[str], Path]) -> None:
    path = recorded("alibaba-batch-a.csv")
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    assert len(rows) == 20_000
    assert Counter(cells[4] for cells in rows) == {"Terminated": 19_641, "Running": 210, "Failed": 149}
    backwards = [i for i, cells in enumerate(rows, 1) if int(cells[6]) < int(cells[5])]
    instant = [i for i, cells in enumerate(rows, 1) if cells[5] == cells[6]]
    no_cpu = [i for i, cells in enumerate(rows, 1) if float(cells[7]) == 0]
    assert (len(backwards), len(instant), len(no_cpu)) == (47, 844, 50)

    trace = read(path)
    first = {
        status: next(i for i, cells in enumerate(rows, 1) if cells[4] == status)
        for status in ("Running", "Failed")
    }
    assert found(trace.report) == {
        "ends before it starts": (Outcome.DROPPED, 47, backwards[0]),
        "zero duration: taken as half a second": (Outcome.REPAIRED, 844, instant[0]),
        "zero CPU: ranks as the lightest": (Outcome.KEPT, 50, no_cpu[0]),
        "status Running": (Outcome.KEPT, 210, first["Running"]),
        "status Failed": (Outcome.KEPT, 149, first["Failed"]),
    }
    report = trace.report
    assert (report.rows_total, report.rows_kept, report.rows_repaired, report.rows_dropped) == (
        20_000,
        19_109,
        844,
        47,
    )
    assert set(range(1, 20_001)) - set(trace.table.line.tolist()) == set(backwards)
    assert np.mean(trace.table.task_type == 1) == pytest.approx(0.89, abs=0.005)


def make(trace: AlibabaBatchTrace, window: TimeWindow, seed: int = 0, rate: float = 200.0) -> RequestSequence:
    return trace.requests(
        window,
        services=SERVICES,
        access_points=4,
        duration_seconds=60.0,
        mean_rate_per_second=rate,
        seed=seed,
    )


def assert_same(left: RequestSequence, right: RequestSequence) -> None:
    for column in fields(RequestSequence):
        np.testing.assert_array_equal(getattr(left, column.name), getattr(right, column.name))


@pytest.fixture
def synthetic(write: Write) -> AlibabaBatchTrace:
    return read(write("\n".join(synthetic_rows(600)) + "\n"))


def test_a_sequence_has_the_asked_size_and_bounded_marks(synthetic: AlibabaBatchTrace) -> None:
    window = synthetic.window_for(Split.HELD_OUT, 0, length_seconds=1000.0)
    requests = make(synthetic, window)
    assert requests.duration_seconds == 60.0
    assert abs(len(requests) - 12_000) < 5 * np.sqrt(12_000)
    assert set(np.unique(requests.access_point)) == {0, 1, 2, 3}
    np.testing.assert_allclose(np.bincount(requests.access_point) / len(requests), 0.25, atol=0.03)
    assert requests.work_factor.max() / requests.work_factor.min() <= 2.5 / 0.4 + 1e-5
    typical = SERVICES.deadline_seconds[requests.service]
    assert np.all(requests.deadline_seconds >= typical * 0.8 * 0.899)
    assert np.all(requests.deadline_seconds <= typical * 2.0 * 1.101)


def test_longer_tasks_mean_more_work_and_more_time(synthetic: AlibabaBatchTrace) -> None:
    requests = make(synthetic, part_of(synthetic.span, Split.TRAINING))
    relative_deadline = requests.deadline_seconds / SERVICES.deadline_seconds[requests.service]
    assert np.corrcoef(requests.work_factor, relative_deadline)[0, 1] > 0.5


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(synthetic: AlibabaBatchTrace) -> None:
    window = synthetic.window_for(Split.TRAINING, 3, length_seconds=1000.0)
    assert_same(make(synthetic, window, seed=5), make(synthetic, window, seed=5))
    other = make(synthetic, window, seed=6)
    assert not np.array_equal(
        other.arrival_seconds[:50], make(synthetic, window, seed=5).arrival_seconds[:50]
    )


def test_popularity_in_training_is_the_catalogues(recorded: Callable[[str], Path]) -> None:
    trace = read(recorded("alibaba-batch-a.csv"))
    requests = make(trace, part_of(trace.span, Split.TRAINING), rate=2000.0)
    share = np.bincount(requests.service, minlength=30) / len(requests)
    np.testing.assert_allclose(share, SERVICES.popularity, atol=0.01)
    assert requests.work_factor.mean() == pytest.approx(1.0, abs=0.02)


def test_nothing_of_the_held_out_part_reaches_training(write: Write) -> None:
    rows = synthetic_rows(600)
    altered = [
        line if number < 400 else row(1000 + 10 * number, 77, cpu=400, memory=0.7, instances=9, job="other")
        for number, line in enumerate(rows)
    ]
    sequences = []
    for lines in (rows, altered):
        trace = read(write("\n".join(lines) + "\n"))
        window = trace.window_for(Split.TRAINING, 4, length_seconds=1500.0)
        sequences.append(make(trace, window))
    assert_same(*sequences)


@given(st.integers(0, 2**32 - 1), st.integers(1, 35))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_classes_equal_a_comparison_of_tuples(write: Write, seed: int, services: int) -> None:
    table = read(write("\n".join(synthetic_rows(80, seed)) + "\n")).table
    catalogue = default_services(services)
    training = np.arange(50)
    classes = ServiceClasses.learn(table, training, catalogue)

    def key(i: int) -> tuple[float, ...]:
        return (
            table.cpu_percent[i],
            table.memory_normalised[i],
            table.task_type[i],
            max(table.end_seconds[i] - table.start_seconds[i], 0.5),
            zlib.crc32(str(table.job[i]).encode()),
        )

    cuts = [tuple(cut) for cut in classes.cuts]
    assert cuts == sorted(cuts)
    by_weight = sorted(
        range(services), key=lambda w: (catalogue.cpu_millicores[w], catalogue.memory_bytes[w])
    )
    keys = np.array([key(i) for i in range(len(table))])
    for i, service in enumerate(classes.service_of(keys)):
        assert service == by_weight[sum(cut <= key(i) for cut in cuts)]
    assert classes.typical_seconds.shape == (services,)


def test_heavier_tasks_never_get_a_lighter_service(synthetic: AlibabaBatchTrace) -> None:
    rows = np.arange(len(synthetic.table))
    classes = ServiceClasses.learn(synthetic.table, rows, SERVICES)
    cpu = synthetic.table.cpu_percent
    keys = np.stack([cpu, *np.zeros((4, len(cpu)))], axis=1)
    millicores = SERVICES.cpu_millicores[classes.service_of(keys)]
    order = np.argsort(cpu, kind="stable")
    assert np.all(np.diff(millicores[order]) >= 0)
    assert len(np.unique(millicores)) > 1


def test_wide_tasks_weigh_more_up_to_a_limit(write: Write) -> None:
    table = read(write("\n".join(row(100, instances=i) for i in (1, 2, 8, 128, 90_000)) + "\n")).table
    np.testing.assert_allclose(request_weights(table, np.arange(5)), [1, 2, 4, 8, 8])


def test_a_window_without_tasks_is_refused(synthetic: AlibabaBatchTrace) -> None:
    with pytest.raises(
        TraceError, match=r"no requests between 0 and 10 s of the trace; take a longer window"
    ):
        make(synthetic, TimeWindow(0.0, 10.0))
