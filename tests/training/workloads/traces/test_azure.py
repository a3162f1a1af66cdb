from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from training.workloads.requests import RequestSequence
from training.workloads.services import default_services
from training.workloads.traces.azure import AzureLlmTrace
from training.workloads.traces.errors import TraceError
from training.workloads.traces.read import read_trace
from training.workloads.traces.report import Outcome, ReadReport
from training.workloads.traces.windows import Split, TimeWindow, part_of

Write = Callable[..., Path]
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
SERVICES = default_services()


def stamp(second: float) -> str:
    whole = int(second)
    return f"2023-11-16 18:{whole // 60:02}:{whole % 60:02}.{round((second - whole) * 1e7):07}"


def synthetic_lines(count: int = 400) -> list[str]:
    rng = np.random.default_rng(0)
    return [f"{stamp(i * 3)},{rng.integers(3, 7000)},{rng.integers(1, 900)}" for i in range(count)]


def file(*rows: str, header: str = HEADER, end: str = "\r\n") -> str:
    return end.join([header, *rows]) + end


def read(path: Path) -> AzureLlmTrace:
    trace = read_trace(path)
    assert isinstance(trace, AzureLlmTrace)
    return trace


def found(report: ReadReport) -> dict[str, tuple[Outcome, int, int]]:
    return {f.reason: (f.outcome, f.rows, f.example_line) for f in report.findings}


def test_seven_fractional_digits_survive(write: Write) -> None:
    trace = read(write(file("2023-11-16 18:17:03.9799600,4808,10", "2023-11-16 18:17:04.0319607,3180,8")))
    assert np.diff(trace.table.timestamp_nanoseconds).tolist() == [52_000_700]
    first = datetime(2023, 11, 16, 18, 17, 3, 979960, tzinfo=UTC)
    assert trace.table.timestamp_nanoseconds[0] == int(first.timestamp()) * 10**9 + 979_960_000
    assert trace.table.seconds.tolist() == [0.0, 0.0520007]
    assert trace.table.context_tokens.tolist() == [4808, 3180]
    assert trace.table.generated_tokens.tolist() == [10, 8]
    assert trace.table.line.tolist() == [2, 3]


@pytest.mark.parametrize(
    "text",
    [
        "2023-11-16 18:17:03",
        "2023-11-16T18:17:03.0",
        "2023-11-16 18:17:03.000000Z",
        "2023-11-16 18:17:03.000000000+00:00",
        " 2023-11-16 18:17:03.0000000 ",
    ],
)
def test_other_spellings_of_utc_times_are_the_same(write: Write, text: str) -> None:
    trace = read(write(file(f"{text},1,1", "2023-11-16 18:17:04,1,1")))
    assert trace.report.rows_kept == 2
    assert trace.table.seconds.tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    "text",
    [
        "now",
        "NaT",
        "",
        "2023",
        "2023-11-16",
        "16/11/2023 18:17",
        "2023-02-30 00:00:00",
        "2023-11-16 24:17:03",
        "2023-11-16 18:17:60",
        "2023-11-16 18:17:03.0000000001",
        "2023-11-16 18:17:03+02:00",
        "9999-11-16 18:17:03",
        "1700191023.98",
        "٢٠٢٣-11-16 18:17:03",
    ],
)
def test_what_is_no_utc_time_is_dropped_and_counted(write: Write, text: str) -> None:
    trace = read(write(file(f"{stamp(1)},1,1", f"{text},2,2", f"{stamp(2)},3,3")))
    assert trace.table.context_tokens.tolist() == [1, 3]
    assert found(trace.report) == {
        "timestamp: not a UTC time YYYY-MM-DD HH:MM:SS.FFFFFFF": (Outcome.DROPPED, 1, 3)
    }


@pytest.mark.parametrize(
    ("bad", "reason", "outcome"),
    [
        (f"{stamp(3)},x,1", "context_tokens: not a number", Outcome.DROPPED),
        (f"{stamp(3)},1,-4", "generated_tokens: below 0", Outcome.DROPPED),
        (f"{stamp(3)},nan,4", "context_tokens: not finite", Outcome.DROPPED),
        (f"{stamp(3)},1.5,4", "context_tokens: not a whole number", Outcome.DROPPED),
        (f"{stamp(3)},1", "not 3 columns", Outcome.DROPPED),
        ("", "blank line", Outcome.DROPPED),
        (f"{stamp(0)},1,1", "out of order: sorted by time", Outcome.REPAIRED),
    ],
)
def test_each_rule_is_counted(write: Write, bad: str, reason: str, outcome: Outcome) -> None:
    report = read(write(file(f"{stamp(1)},1,1", f"{stamp(2)},1,1", bad, f"{stamp(4)},1,1"))).report
    assert found(report) == {reason: (outcome, 1, 4)}
    assert (report.rows_total, report.rows_kept) == (4, 3)


def test_a_file_without_header_is_read_too(write: Write) -> None:
    trace = read(write(f"{stamp(1)},1,2\n{stamp(2)},3,4\n"))
    assert trace.table.line.tolist() == [1, 2]


def test_header_only_and_foreign_headers_are_refused(write: Write) -> None:
    with pytest.raises(TraceError, match="no rows after the header"):
        read_trace(write(HEADER + "\n"))
    with pytest.raises(
        TraceError, match=r"recorded:1: unexpected header \('Time,A,B'\); the header must be TIMESTAMP"
    ):
        read_trace(write(file(f"{stamp(1)},1,2", header="Time,A,B")))


def test_a_mostly_bad_file_is_refused(write: Write) -> None:
    with pytest.raises(TraceError, match="2 of 3 rows are bad") as caught:
        read_trace(write(file(f"{stamp(1)},1,2", "never,1,2", f"{stamp(2)},1,-2")))
    assert (caught.value.line, caught.value.column, caught.value.value) == (3, "timestamp", "never")


@given(st.lists(st.tuples(st.integers(0, 29), st.sampled_from(["drop", "swap", "cell", "cut"])), max_size=10))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_dirty_file_is_refused_or_every_row_is_accounted_for(
    write: Write, mutations: list[tuple[int, str]]
) -> None:
    lines = synthetic_lines(30)
    for target, mutation in mutations:
        if mutation == "drop":
            lines[target] = ""
        elif mutation == "swap":
            lines[target], lines[0] = lines[0], lines[target]
        elif mutation == "cell":
            lines[target] = lines[target].replace("2023", "x23", 1)
        else:
            lines[target] = lines[target][:-5]
    trace = read(write(file(*lines)))
    report = trace.report
    assert report.rows_total == 30 - len(
        [line for line in lines[::-1] if not line][: _trailing_blanks(lines)]
    )
    assert report.rows_total == report.rows_kept + report.rows_repaired + report.rows_dropped
    assert len(trace.table) == report.rows_kept + report.rows_repaired
    assert np.all(np.diff(trace.table.timestamp_nanoseconds) >= 0)
    for line, context in zip(trace.table.line.tolist(), trace.table.context_tokens.tolist(), strict=True):
        assert lines[line - 2].split(",")[1] == str(context)


def _trailing_blanks(lines: list[str]) -> int:
    count = 0
    while count < len(lines) and not lines[-1 - count]:
        count += 1
    return count


def make(trace: AzureLlmTrace, window: TimeWindow, seed: int = 0) -> RequestSequence:
    return trace.requests(
        window,
        services=SERVICES,
        access_points=4,
        duration_seconds=60.0,
        mean_rate_per_second=200.0,
        seed=seed,
    )


@pytest.fixture
def synthetic(write: Write) -> AzureLlmTrace:
    return read(write(file(*synthetic_lines())))


def test_a_sequence_has_the_asked_size_and_bounded_marks(synthetic: AzureLlmTrace) -> None:
    requests = make(synthetic, synthetic.window_for(Split.HELD_OUT, 1, length_seconds=200.0))
    assert abs(len(requests) - 12_000) < 5 * np.sqrt(12_000)
    payload_factor = requests.payload_bytes / SERVICES.payload_bytes[requests.service]
    assert np.all((payload_factor > 0.0999) & (payload_factor < 4.001))
    assert payload_factor.std() > 0.2
    assert requests.work_factor.max() / requests.work_factor.min() <= 2.5 / 0.4 + 1e-5
    share = np.bincount(requests.service, minlength=30) / len(requests)
    np.testing.assert_allclose(share, SERVICES.popularity, atol=0.02)


def test_work_is_one_on_average_in_training_and_follows_the_generated_tokens(
    synthetic: AzureLlmTrace,
) -> None:
    requests = make(synthetic, part_of(synthetic.span, Split.TRAINING))
    assert requests.work_factor.mean() == pytest.approx(1.0, abs=0.03)
    generated = synthetic.table.generated_tokens[synthetic.table.seconds < 0.6 * synthetic.span.end_seconds]
    ratio = np.clip(np.sqrt(generated / generated.mean()), 0.4, 2.5)
    expected = (ratio / ratio.mean()).astype(np.float32)
    assert set(np.unique(requests.work_factor)) <= set(expected)


def test_the_same_seed_gives_the_same_bytes(synthetic: AzureLlmTrace) -> None:
    window = synthetic.window_for(Split.TRAINING, 0)
    first, again = make(synthetic, window, seed=4), make(synthetic, window, seed=4)
    for column in fields(RequestSequence):
        np.testing.assert_array_equal(getattr(first, column.name), getattr(again, column.name))
    assert len(make(synthetic, window, seed=5)) != len(first)


def test_a_window_without_requests_is_refused(synthetic: AzureLlmTrace) -> None:
    with pytest.raises(TraceError, match="no requests between 5000 and 5001 s"):
        make(synthetic, TimeWindow(5000.0, 5001.0))


def test_the_real_trace_is_read_whole(recorded: Callable[[str], Path]) -> None:
    trace = read(recorded("azure-llm-code.csv"))
    report = trace.report
    assert (report.rows_total, report.rows_kept, report.findings) == (8819, 8819, ())
    assert "carriage returns taken as line ends" in report.notes
    assert trace.table.context_tokens[[0, -1]].tolist() == [4808, 549]
    assert trace.table.generated_tokens[[0, -1]].tolist() == [10, 173]
    assert trace.table.seconds[-1] == pytest.approx(3435.948056, abs=1e-6)
