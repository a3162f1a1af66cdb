from __future__ import annotations

import numpy as np
import pytest

from bench.load import generator
from bench.load.closed_loop import closed_loop_generator, run_closed_loop
from bench.load.errors import LoadError
from bench.load.plans import ClosedLoop, OpenLoop
from bench.load.target import Target
from bench.server_process import free_port
from policy_server.proto.policy.v1.dispatch_service_pb2 import DispatchResponse


def test_a_closed_loop_in_its_own_process(echo_target: Target) -> None:
    measurement = generator.generate_closed_loop(echo_target, ClosedLoop(100, connections=2, streams=5))
    assert measurement.generator == "policy-bench"
    assert measurement.requests == 100
    assert measurement.failures == {}
    assert measurement.client_cpu_seconds > 0
    assert {DispatchResponse.FromString(response).candidate_count for response in measurement.responses} == {
        10
    }


def test_never_more_in_flight_than_asked(echo_target: Target) -> None:
    measurement = generator.generate_closed_loop(echo_target, ClosedLoop(60, connections=1, streams=3))
    sent = measurement.sent_microseconds
    ended = sent + measurement.latency_microseconds
    in_flight = [(int(((sent <= moment) & (ended > moment)).sum())) for moment in sent]
    assert max(in_flight) <= 3


def test_an_open_loop_keeps_to_its_schedule(echo_target: Target) -> None:
    measurement = generator.generate_open_loop(echo_target, OpenLoop(100, 400.0))
    assert measurement.failures == {}
    assert np.diff(measurement.scheduled_microseconds).tolist() == [2500] * 99
    assert (measurement.lag_microseconds >= 0).all()
    assert (measurement.latency_microseconds >= measurement.lag_microseconds).all()


@pytest.mark.parametrize("plan", [ClosedLoop(1), OpenLoop(1, 10.0)])
def test_no_server_is_an_error_that_names_the_address(plan: ClosedLoop | OpenLoop) -> None:
    target = Target("127.0.0.1", free_port(), "/a.B/C", b"")
    generate = (
        generator.generate_closed_loop if isinstance(plan, ClosedLoop) else generator.generate_open_loop
    )
    with pytest.raises(LoadError, match=target.address):
        generate(target, plan)  # type: ignore[arg-type]


def test_without_h2load_the_own_generator_steps_in(
    echo_target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.load.h2load.version", lambda: None)
    assert closed_loop_generator() == "policy-bench"
    assert run_closed_loop(echo_target, ClosedLoop(10)).generator == "policy-bench"
