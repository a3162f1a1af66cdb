from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.load import h2load
from bench.load.errors import LoadError
from bench.load.plans import ClosedLoop, OpenLoop
from bench.load.target import Target
from bench.server_process import free_port

needs_h2load = pytest.mark.skipif(h2load.version() is None, reason=h2load.INSTALL_HINT)

rows = st.lists(
    st.tuples(st.integers(0, 2**53), st.sampled_from([200, 404, 503, -1]), st.integers(0, 10**9)),
    min_size=1,
    max_size=100,
)


@given(rows, st.integers(0, 5))
def test_a_log_yields_its_rows_by_start_time_and_counts_what_failed(
    written: list[tuple[int, int, int]], missing: int
) -> None:
    log = ["\t".join(map(str, row)) + "\n" for row in written]
    measurement = h2load.parse_log(log, len(written) + missing, client_cpu_seconds=1.0)
    ordered = sorted(written)
    assert measurement.sent_microseconds.tolist() == [start for start, _, _ in ordered]
    assert measurement.latency_microseconds.tolist() == [duration for _, _, duration in ordered]
    bad = sum(status != 200 for _, status, _ in written) + missing
    assert sum(measurement.failures.values()) == bad
    assert all(measurement.failures.values())


def test_failures_are_told_apart() -> None:
    log = ["1\t200\t5\n", "2\t503\t5\n", "3\t503\t5\n", "4\t-1\t5\n"]
    assert h2load.parse_log(log, 6, 0.0).failures == {
        "HTTP status 503": 2,
        "stream failed": 1,
        "no response": 2,
    }


def test_columns_of_later_versions_are_ignored() -> None:
    measurement = h2load.parse_log(["1690000000000000\t200\t512\textra\n"], 1, 0.0)
    assert measurement.latency_microseconds.tolist() == [512]
    assert measurement.sent_microseconds.dtype == np.int64


@pytest.mark.parametrize("row", ["", "1\t200", "1 200 5", "1\tOK\t5"])
def test_an_unreadable_row_is_named(row: str) -> None:
    with pytest.raises(LoadError, match="row 2"):
        h2load.parse_log(["1\t200\t5\n", row], 2, 0.0)


def test_an_empty_log_is_an_error() -> None:
    with pytest.raises(LoadError, match="empty"):
        h2load.parse_log([], 1, 0.0)


@needs_h2load
def test_a_closed_loop_sends_every_request_and_costs_cpu(echo_target: Target) -> None:
    measurement = h2load.generate_closed_loop(echo_target, ClosedLoop(200, connections=4, streams=3))
    assert measurement.generator == "h2load"
    assert measurement.requests == 200
    assert measurement.failures == {}
    assert (measurement.latency_microseconds > 0).all()
    assert measurement.client_cpu_seconds > 0


@needs_h2load
def test_fewer_requests_than_connections(echo_target: Target) -> None:
    assert h2load.generate_closed_loop(echo_target, ClosedLoop(2, connections=8, streams=8)).requests == 2


@needs_h2load
def test_requests_at_a_rate_do_not_wait_for_answers(echo_target: Target) -> None:
    plan = OpenLoop(100, requests_per_second=200.0)
    measurement = h2load.get_at_rate(f"http://{echo_target.address}/", plan, connections=2)
    assert measurement.requests == 100
    sent = measurement.sent_microseconds
    # Never faster than asked for; slower on a busy machine.
    assert int(sent[-1] - sent[0]) > 0.9 * 100 / 200 * 1e6


@needs_h2load
def test_no_server_is_an_error() -> None:
    with pytest.raises(LoadError, match="h2load"):
        h2load.generate_closed_loop(Target("127.0.0.1", free_port(), "/a.B/C", b""), ClosedLoop(1))
