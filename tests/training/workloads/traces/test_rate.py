from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from training.workloads.requests import RequestSequence
from training.workloads.services import default_services
from training.workloads.traces.errors import TraceError
from training.workloads.traces.rate import RequestRateTrace
from training.workloads.traces.read import read_trace
from training.workloads.traces.report import Outcome
from training.workloads.traces.windows import Split, TimeWindow

Write = Callable[..., Path]
SERVICES = default_services()


def read(path: Path) -> RequestRateTrace:
    trace = read_trace(path)
    assert isinstance(trace, RequestRateTrace)
    return trace


def make(
    trace: RequestRateTrace, window: TimeWindow, *, duration: float = 60.0, rate: float = 200.0, seed: int = 0
) -> RequestSequence:
    return trace.requests(
        window,
        services=SERVICES,
        access_points=4,
        duration_seconds=duration,
        mean_rate_per_second=rate,
        seed=seed,
    )


def test_one_number_a_line(write: Write) -> None:
    trace = read(write("157\n158.5\r\n0\n"))
    assert trace.table.requests_per_second.tolist() == [157.0, 158.5, 0.0]
    assert (trace.span.start_seconds, trace.span.end_seconds) == (0.0, 3.0)
    assert trace.report.rows_kept == 3


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("", "empty"),
        ("x", "not a number"),
        ("1,2", "not a number"),
        ("nan", "not finite"),
        ("-3", "below 0"),
        ("1e8", "above 1e+07"),
    ],
)
def test_a_bad_line_is_interpolated_and_counted(write: Write, bad: str, problem: str) -> None:
    trace = read(write(f"10\n20\n{bad}\n40\n50\n"))
    assert trace.table.requests_per_second.tolist() == [10, 20, 30, 40, 50]
    (finding,) = trace.report.findings
    assert finding.reason == f"requests_per_second: {problem}: interpolated"
    assert (finding.outcome, finding.rows, finding.example_line) == (Outcome.REPAIRED, 1, 3)
    assert (trace.report.rows_total, trace.report.rows_repaired) == (5, 1)


def test_bad_lines_at_the_ends_take_the_nearest_value(write: Write) -> None:
    assert read(write("x\n20\n30\n40\nx\n")).table.requests_per_second.tolist() == [20, 20, 30, 40, 40]


def test_a_mostly_bad_file_is_refused(write: Write) -> None:
    with pytest.raises(TraceError, match="2 of 3 rows are bad") as caught:
        read_trace(write("10\nhello\nworld\n"))
    assert (caught.value.line, caught.value.column, caught.value.value) == (2, "requests_per_second", "hello")


@given(st.lists(st.sampled_from(["10", "20.5", "", "x", "nan", "-1", " 7 ", "1e3"]), min_size=1, max_size=30))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_dirty_file_is_refused_or_keeps_its_time(write: Write, lines: list[str]) -> None:
    path = write("\n".join(lines) + "\n")
    while lines and lines[-1] == "":
        lines.pop()
    bad = [line in ("", "x", "nan", "-1") for line in lines]
    if sum(bad) * 2 > len(bad) or not lines:
        with pytest.raises(TraceError):
            read_trace(path)
        return
    trace = read(path)
    assert len(trace.table) == trace.report.rows_total == len(lines)
    assert trace.report.rows_repaired == sum(bad)
    assert trace.report.rows_kept == len(bad) - sum(bad)
    for value, line, was_bad in zip(trace.table.requests_per_second, lines, bad, strict=True):
        assert was_bad or value == float(line)


def test_arrivals_follow_the_curve_at_the_asked_rate(write: Write) -> None:
    trace = read(write("\n".join(["0"] * 10 + ["10"] * 10 + ["30"] * 10 + ["7"] * 10) + "\n"))
    requests = make(trace, TimeWindow(0.0, 30.0), duration=60.0, rate=1000.0)
    thirds = np.bincount((requests.arrival_seconds / 20.0).astype(int), minlength=3)
    assert thirds[0] == 0
    assert thirds[2] / thirds[1] == pytest.approx(3.0, rel=0.05)
    assert abs(len(requests) - 60_000) < 5 * np.sqrt(60_000)


def test_within_constant_load_arrivals_are_uniform_even_over_part_of_a_second(write: Write) -> None:
    trace = read(write("100\n" * 20))
    requests = make(trace, TimeWindow(3.25, 9.6), duration=10.0, rate=500.0)
    assert stats.kstest(requests.arrival_seconds / 10.0, "uniform").pvalue > 0.01


def test_the_same_seed_gives_the_same_bytes(write: Write) -> None:
    trace = read(write("100\n" * 100))
    window = trace.window_for(Split.HELD_OUT, 2, length_seconds=20.0)
    first, again = make(trace, window, seed=1), make(trace, window, seed=1)
    for column in fields(RequestSequence):
        np.testing.assert_array_equal(getattr(first, column.name), getattr(again, column.name))
    assert len(make(trace, window, seed=2)) != len(first)


@pytest.mark.parametrize("window", [TimeWindow(0.0, 10.0), TimeWindow(500.0, 600.0)])
def test_a_window_without_load_is_refused(write: Write, window: TimeWindow) -> None:
    trace = read(write("0\n" * 10 + "5\n" * 10))
    with pytest.raises(TraceError, match="no requests between"):
        make(trace, window)


@pytest.mark.parametrize(
    ("name", "lowest", "highest"), [("rps-bursty.txt", 81, 397), ("rps-diurnal.txt", 177, 387)]
)
def test_the_real_curves_are_read_whole(
    recorded: Callable[[str], Path], name: str, lowest: float, highest: float
) -> None:
    trace = read(recorded(name))
    assert (trace.report.rows_total, trace.report.rows_kept) == (3600, 3600)
    assert trace.table.requests_per_second.min() == lowest
    assert trace.table.requests_per_second.max() == highest
