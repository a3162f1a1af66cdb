"""The harness against a server that freezes once: an open loop shows it in full, a closed loop cannot."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.load import generator, h2load
from bench.load.measurement import Measurement, latency_histogram
from bench.load.plans import ClosedLoop, OpenLoop
from bench.load.target import Target
from bench.server_process import ServerProcess, free_port
from bench.sides import DISPATCH_PATH

_SERVER = Path(__file__).parents[1] / "freezing_server.py"
_REQUESTS_PER_SECOND = 100.0
_SLACK_SECONDS = 0.1
"""A busy machine wakes the server late and answers what waited slowly."""

StartFreezingServer = Callable[[float, float], Target]


@pytest.fixture
def start_freezing_server() -> Iterator[StartFreezingServer]:
    with ExitStack() as servers:

        def start(freeze_after_seconds: float, freeze_seconds: float) -> Target:
            port = free_port()
            command = [
                sys.executable,
                str(_SERVER),
                str(port),
                str(freeze_after_seconds),
                str(freeze_seconds),
            ]
            servers.enter_context(ServerProcess("freezing server", command, port))
            return Target("127.0.0.1", port, DISPATCH_PATH, b"")

        yield start


@pytest.mark.parametrize("freeze_seconds", [0.2, pytest.param(1.0, marks=pytest.mark.slow)])
def test_an_open_loop_charges_the_freeze_to_every_request_that_was_due_in_it(
    start_freezing_server: StartFreezingServer, freeze_seconds: float
) -> None:
    run_seconds = 10 * freeze_seconds
    target = start_freezing_server(0.4 * run_seconds, freeze_seconds)
    requests = int(run_seconds * _REQUESTS_PER_SECOND)
    measurement = generator.generate_open_loop(target, OpenLoop(requests, _REQUESTS_PER_SECOND))

    assert measurement.failures == {}
    histogram = latency_histogram([measurement])
    p90, p95, p99, highest = (histogram.get_value_at_percentile(p) / 1e6 for p in (90, 95, 99, 100))
    assert p90 <= 0.1 * freeze_seconds + _SLACK_SECONDS
    assert 0.4 * freeze_seconds <= p95 <= 0.6 * freeze_seconds + _SLACK_SECONDS
    assert 0.85 * freeze_seconds <= p99 <= freeze_seconds + _SLACK_SECONDS
    assert 0.95 * freeze_seconds <= highest <= freeze_seconds + _SLACK_SECONDS


@pytest.mark.parametrize(
    "generate",
    [
        generator.generate_closed_loop,
        pytest.param(
            h2load.generate_closed_loop,
            marks=pytest.mark.skipif(h2load.version() is None, reason=h2load.INSTALL_HINT),
        ),
    ],
)
def test_a_closed_loop_with_one_caller_shows_a_single_slow_request(
    start_freezing_server: StartFreezingServer, generate: Callable[[Target, ClosedLoop], Measurement]
) -> None:
    freeze_seconds = 0.5
    measurement = generate(start_freezing_server(0.2, freeze_seconds), ClosedLoop(2000))
    assert measurement.failures == {}
    assert (measurement.latency_microseconds > 0.5 * freeze_seconds * 1e6).sum() == 1
    assert (
        0.9 * freeze_seconds
        <= measurement.latency_microseconds.max() / 1e6
        <= freeze_seconds + _SLACK_SECONDS
    )
