from __future__ import annotations

import numpy as np
import pytest

from bench.load.measurement import Measurement, OpenLoopMeasurement
from bench.void import VoidRunError, void_reasons


def closed_loop(*, failures: dict[str, int] | None = None, client_cpu_seconds: float = 0.01) -> Measurement:
    sent = np.arange(1000, dtype=np.int64) * 1000
    return Measurement("test", sent, np.full(1000, 900, np.int64), failures or {}, client_cpu_seconds)


def open_loop(
    *, lag_microseconds: int = 50, late: int = 0, service_microseconds: int = 500
) -> OpenLoopMeasurement:
    """1000 requests at 100/s, of which the last ``late`` are sent ``lag_microseconds`` late, the others at once."""
    scheduled = np.arange(1000, dtype=np.int64) * 10_000
    sent = scheduled.copy()
    sent[len(sent) - late :] += lag_microseconds
    return OpenLoopMeasurement(
        "test",
        sent,
        sent - scheduled + service_microseconds,
        {},
        client_cpu_seconds=5.0,
        target_requests_per_second=100.0,
        scheduled_microseconds=scheduled,
    )


def test_good_runs_are_not_void() -> None:
    assert void_reasons(closed_loop()) == []
    assert void_reasons(open_loop()) == []


def test_a_single_failed_request_voids_a_run() -> None:
    assert void_reasons(closed_loop(failures={"HTTP status 503": 1})) == [
        "1 requests failed: HTTP status 503"
    ]


def test_a_client_that_is_the_bottleneck_voids_a_closed_loop() -> None:
    (reason,) = void_reasons(closed_loop(client_cpu_seconds=0.95))
    assert "0.95 cores" in reason
    assert void_reasons(closed_loop(client_cpu_seconds=0.85)) == []


def test_lag_of_more_than_one_in_a_hundred_requests_voids_an_open_loop() -> None:
    (reason,) = void_reasons(open_loop(lag_microseconds=1500, late=20))
    assert "lag" in reason
    assert "1.50 ms" in reason
    assert void_reasons(open_loop(lag_microseconds=1500, late=5)) == []
    assert void_reasons(open_loop(lag_microseconds=900, late=1000)) == []


@pytest.mark.parametrize(("service_microseconds", "is_void"), [(90_000, False), (150_000, True)])
def test_an_achieved_rate_below_99_per_cent_voids_an_open_loop(
    service_microseconds: int, is_void: bool
) -> None:
    reasons = void_reasons(open_loop(service_microseconds=service_microseconds))
    assert [("of 100 requests/s" in reason) for reason in reasons] == [True] * is_void


def test_the_error_names_the_run_and_all_reasons() -> None:
    assert str(VoidRunError("dispatch", ["a", "b"])) == "void run (dispatch): a; b"
