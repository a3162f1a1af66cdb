from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from training.workloads.columns import WorkloadError
from training.workloads.services import default_services
from training.workloads.traces.alibaba import AlibabaBatchTrace
from training.workloads.traces.azure import AzureLlmTrace
from training.workloads.traces.errors import TraceError
from training.workloads.traces.rate import RequestRateTrace
from training.workloads.traces.read import read_trace
from training.workloads.traces.trace import SPREAD_SECONDS, Trace, replay_rows
from training.workloads.traces.windows import Split, TimeWindow

Write = Callable[..., Path]

CONTENT: dict[type[Trace], str] = {
    AlibabaBatchTrace: "M1,1,j,1,Terminated,10,12,50,0.2\nM2,1,j,1,Terminated,20,22,50,0.2\n",
    AzureLlmTrace: "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
    "2023-11-16 18:17:04.9799600,4808,10\n",
    RequestRateTrace: "10\n20\n",
}


@pytest.mark.parametrize("kind", CONTENT)
def test_the_kind_follows_from_the_content_and_not_from_the_name(write: Write, kind: type[Trace]) -> None:
    path = write(CONTENT[kind])
    trace = read_trace(path)
    assert type(trace) is kind
    assert trace.report.kind == kind.kind
    assert type(read_trace(str(path))) is kind


def test_an_unknown_kind_is_refused_with_what_was_seen_and_expected(write: Write) -> None:
    with pytest.raises(
        TraceError, match=r"recorded:1: no known kind .* have 5 columns .*'sn,cpu,.*\(9 columns\)"
    ):
        read_trace(write("sn,cpu,memory,gpu,model\na,1,2,0,\nb,1,2,0,\n"))


def test_a_few_broken_first_lines_do_not_hide_the_kind(write: Write) -> None:
    trace = read_trace(write("\nM1,1\n" + CONTENT[AlibabaBatchTrace]))
    assert type(trace) is AlibabaBatchTrace
    assert trace.report.rows_dropped == 2


def test_traces_of_no_known_kind_beside_the_real_ones_are_refused(recorded: Callable[[str], Path]) -> None:
    with pytest.raises(TraceError, match="no known kind of trace: most of its first lines have 11 columns"):
        read_trace(recorded("alibaba-openb-pods.csv"))


@given(st.binary(max_size=200))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_read_or_refused_by_name(write: Write, content: bytes) -> None:
    path = write(content)
    try:
        report = read_trace(path).report
    except TraceError as error:
        assert str(error).startswith(str(path))  # noqa: PT017
        assert error.remedy  # noqa: PT017
    else:
        assert report.rows_total == report.rows_kept + report.rows_repaired + report.rows_dropped > 0


@pytest.mark.parametrize("kind", CONTENT)
def test_bad_arguments_are_refused_by_name(write: Write, kind: type[Trace]) -> None:
    trace = read_trace(write(CONTENT[kind]))
    with pytest.raises(WorkloadError, match="access_points: 0"):
        trace.requests(
            trace.span,
            services=default_services(),
            access_points=0,
            duration_seconds=1.0,
            mean_rate_per_second=1.0,
            seed=0,
        )
    with pytest.raises(WorkloadError, match="index: -1"):
        trace.window_for(Split.TRAINING, -1)


@pytest.mark.parametrize(
    "name", ["alibaba-batch-a.csv", "azure-llm-code.csv", "rps-bursty.txt", "rps-diurnal.txt"]
)
@pytest.mark.parametrize("split", Split)
def test_real_traces_give_distinct_windows_of_the_asked_load(
    recorded: Callable[[str], Path], name: str, split: Split
) -> None:
    trace = read_trace(recorded(name))
    services = default_services()
    digests = set()
    for index in range(5):
        requests = trace.requests(
            trace.window_for(split, index),
            services=services,
            access_points=5,
            duration_seconds=120.0,
            mean_rate_per_second=100.0,
            seed=index,
        )
        assert abs(len(requests) - 12_000) < 5 * np.sqrt(12_000)
        hopeless = (
            requests.work_factor * services.execution_seconds[requests.service] > requests.deadline_seconds
        )
        assert hopeless.mean() < 0.02
        digests.add(requests.arrival_seconds.tobytes())
    assert len(digests) == 5


def test_replayed_rows_arrive_within_the_spread_after_their_row_in_proportion_to_weight() -> None:
    row_seconds = np.array([100.0, 120.0, 150.0])
    weights = np.array([1.0, 0.0, 3.0])
    arrivals, rows = replay_rows(
        row_seconds, weights, TimeWindow(100.0, 200.0), 50.0, 400.0, np.random.default_rng(0)
    )
    assert np.all(np.diff(arrivals) >= 0)
    assert set(np.unique(rows)) == {0, 2}
    for row, scaled_start in ((0, 0.0), (2, 25.0)):
        delay = arrivals[rows == row] - scaled_start
        assert np.all((delay >= 0) & (delay <= SPREAD_SECONDS))
        assert delay.mean() == pytest.approx(SPREAD_SECONDS / 2, rel=0.05)
    assert np.sum(rows == 2) / np.sum(rows == 0) == pytest.approx(3.0, rel=0.08)
    assert abs(len(rows) - 20_000) < 5 * np.sqrt(20_000)


def test_what_falls_beyond_the_end_comes_in_at_the_start() -> None:
    arrivals, _ = replay_rows(
        np.array([99.0]), np.ones(1), TimeWindow(0.0, 100.0), 100.0, 20.0, np.random.default_rng(0)
    )
    assert arrivals.max() < 100.0
    assert np.mean(arrivals < SPREAD_SECONDS) == pytest.approx(
        (SPREAD_SECONDS - 1.0) / SPREAD_SECONDS, abs=0.05
    )
