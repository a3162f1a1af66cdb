"""Whole runs, short ones, with an echo server in the place of the server under test."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import matplotlib.image
import pytest
from rich.console import Console

from bench.client import Client, fallback_reason, request_for
from bench.commands import echo_command, policy_server_command
from bench.echo import EXAMPLE_RESPONSE
from bench.latency import LatencySettings, Mode, compare
from bench.latency_run import LatencyRun, run_latency, running_server, started_server
from bench.load.errors import LoadError
from bench.load.generator import generate_closed_loop
from bench.load.measurement import Measurement
from bench.load.plans import ClosedLoop
from bench.load.target import Target
from bench.plot import plot_latency
from bench.report import BatchFigures, InProcessFigures, InProcessResult
from bench.scenario import generate_request, generate_state
from bench.server_process import ServerError, ServerProcess, free_port
from bench.sides import Side
from bench.tables import latency_tables
from bench.void import VoidRunError
from policy_server.proto.policy.v1.decision_pb2 import DecisionSource, FallbackReason
from policy_server.proto.policy.v1.dispatch_service_pb2 import DispatchRequest, DispatchResponse
from policy_server.proto.policy.v1.state_pb2 import Topology
from tests.support.models import write_example_bundle

SETTINGS = LatencySettings(
    repetitions=3,
    seconds=0.05,
    connections=2,
    streams=2,
    open_loop_repetitions=2,
    open_loop_seconds=0.3,
    open_loop_requests_per_second=200.0,
    one_core_repetitions=1,
)
IN_PROCESS = InProcessResult(
    {count: InProcessFigures(30.0, 60.0, 45.0, 12.0) for count in ("10", "100", "1000")},
    BatchFigures(256, 10, 150_000.0),
)


@pytest.fixture(scope="module")
def steps() -> list[str]:
    return []


@pytest.fixture(scope="module")
def run(echo_server: ServerProcess, steps: list[str]) -> LatencyRun:
    dispatch = Side("dispatch", echo_server.address, generate_request(), echo_server)
    with pytest.MonkeyPatch.context() as patch:
        # What is tested here does not depend on how busy the machine is.
        patch.setattr("bench.void.LARGEST_LAG_P99_MICROSECONDS", 1e9)
        patch.setattr("bench.void.LEAST_ACHIEVED_SHARE", 0.0)
        return run_latency(dispatch, SETTINGS, steps.append, lambda policy: IN_PROCESS)


@pytest.fixture(scope="module")
def document(run: LatencyRun) -> dict[str, object]:
    read: dict[str, object] = json.loads(json.dumps(run.report.document(), allow_nan=False))
    return read


def test_the_report_has_the_promised_keys(document: dict[str, object]) -> None:
    for side in ("echo", "dispatch"):
        figures = document[side]
        assert isinstance(figures, dict)
        assert set(figures) == {"p50_us", "p99_us", "rps"}
        assert 0 < figures["p50_us"] <= figures["p99_us"]
    ratio = document["ratio"]
    assert isinstance(ratio, dict)
    assert {"p50", "p99", "throughput"} <= set(ratio)
    assert document["in_process"] == {
        count: {"p50_us": 30.0, "p99_us": 60.0, "answer_p50_us": 45.0, "reference_p50_us": 12.0}
        for count in ("10", "100", "1000")
    }


def test_two_equal_servers_have_ratios_around_one(run: LatencyRun) -> None:
    ratio = run.report.ratio
    assert 0.4 < ratio.p50 < 2.5
    assert 0.4 < ratio.throughput < 2.5


def test_ratios_are_medians_over_pairs(run: LatencyRun) -> None:
    repetitions = run.report.repetitions
    pairs = zip(repetitions["echo"], repetitions["dispatch"], strict=True)
    ratios = sorted(dispatch.p50_us / echo.p50_us for echo, dispatch in pairs)
    assert run.report.ratio.p50 == pytest.approx(ratios[1], abs=1e-3)


def test_every_budget_with_a_figure_is_judged(run: LatencyRun) -> None:
    budgets = run.report.budgets
    assert len(budgets) == 7
    assert budgets["in_process.10.p50_us"].held
    assert not budgets["batch.decisions_per_second"].held


def test_all_modes_were_run_in_alternation(run: LatencyRun, steps: list[str]) -> None:
    assert len(steps) == SETTINGS.steps + 1
    for runs in (run.comparison.echo, run.comparison.dispatch):
        assert {mode: len(made) for mode, made in runs.runs.items()} == {
            Mode.ONE_CALLER: 3,
            Mode.SATURATED: 3,
            Mode.OPEN_LOOP: 2,
            Mode.ONE_CORE: 1,
        }
    one_caller = [step.split(",")[0] for step in steps if step.endswith("one caller")]
    assert one_caller == ["echo", "dispatch", "dispatch", "echo", "echo", "dispatch"]


def test_the_report_says_how_it_was_made(run: LatencyRun) -> None:
    method, environment = run.report.method, run.report.environment
    assert method.candidates == 10
    assert method.response_bytes == EXAMPLE_RESPONSE.ByteSize()
    assert method.settings == SETTINGS
    assert environment.cpu_model
    assert environment.usable_cores >= 1
    assert environment.versions["grpcio"]
    cpu = run.report.cpu_us_per_request["dispatch"]
    assert set(cpu.client) == set(cpu.server) == {mode.value for mode in Mode}
    assert all(figure is not None and figure >= 0 for figure in cpu.server.values())


def test_the_table_shows_figures_budgets_and_both_kinds_of_loop(run: LatencyRun) -> None:
    console = Console(width=100, file=io.StringIO())
    console.print(latency_tables(run.report))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for expected in (
        "one caller",
        "open loop, 200/s",
        "<= 1.2",
        "held",
        "missed",
        "256 x 10",
        "server CPU",
        "client CPU",
    ):
        assert expected in text


def test_the_plot_is_a_picture(run: LatencyRun, tmp_path: Path) -> None:
    file = tmp_path / "latency.png"
    plot_latency(run, file)
    height, width, _ = matplotlib.image.imread(file).shape
    assert width > height > 100


def test_the_real_server_is_measured_on_the_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.void.LARGEST_LAG_P99_MICROSECONDS", 1e9)
    monkeypatch.setattr("bench.void.LEAST_ACHIEVED_SHARE", 0.0)
    write_example_bundle(tmp_path)
    settings = replace(SETTINGS, repetitions=1, open_loop_repetitions=1)
    # On a busy machine a decision may miss the default budget, and the fallback would answer.
    patient = ("--model-budget-seconds", "10")
    command = partial(policy_server_command, models=tmp_path, arguments=patient)
    with started_server(command, policy="") as dispatch:
        method = run_latency(dispatch, settings, lambda step: None).report.method
        assert method.candidates == 10
        assert method.policy == "kais 1.0.0"
        held = running_server(dispatch.address, "earliest-completion", replace_state=False)
        assert held.probe().provenance.policy == "earliest-completion"


def test_a_server_that_dies_under_load_is_reported_as_dead() -> None:
    port = free_port()
    with ServerProcess("server", echo_command(port, "aio"), port) as process:
        side = Side("dispatch", process.address, generate_request(), process)

        def kill_and_ask(target: Target) -> Measurement:
            os.kill(process.pid, signal.SIGKILL)
            return generate_closed_loop(target, ClosedLoop(1000))

        with pytest.raises(ServerError, match="exit code -9"):
            side.run(kill_and_ask)


@pytest.fixture
def fallback_side() -> Iterator[Side]:
    template = DispatchResponse.FromString(EXAMPLE_RESPONSE.SerializeToString())
    template.provenance.source = DecisionSource.DECISION_SOURCE_FALLBACK
    template.provenance.fallback_reason = FallbackReason.FALLBACK_REASON_STALE_STATE
    port = free_port()
    with ServerProcess("echo", echo_command(port, "aio", template), port) as process:
        yield Side("dispatch", process.address, generate_request(), process)


def test_a_fallback_voids_the_run(fallback_side: Side) -> None:
    with pytest.raises(VoidRunError, match="STALE_STATE"):
        run_latency(fallback_side, SETTINGS, lambda step: None)


def test_only_fallbacks_have_a_reason() -> None:
    assert fallback_reason(EXAMPLE_RESPONSE) is None


def test_a_server_that_refuses_the_state_is_reported(echo_server: ServerProcess) -> None:
    side = Side("dispatch", echo_server.address, generate_request(), echo_server, generate_state())
    with pytest.raises(LoadError, match="ReportState failed: UNIMPLEMENTED"):
        side.prepare()


def test_a_server_that_does_not_start_is_reported() -> None:
    with (
        pytest.raises(ServerError, match="threads-0"),
        started_server(lambda port: echo_command(port, "threads-0"), policy=""),
    ):
        pass


def test_a_request_for_a_held_state_names_what_the_state_has() -> None:
    assert request_for(generate_state().topology) == DispatchRequest(
        service="service-01", access_point="edge-1"
    )


def test_an_empty_state_cannot_be_asked() -> None:
    with pytest.raises(LoadError, match="--replace-state"):
        request_for(Topology())


def test_a_dead_address_is_an_error() -> None:
    address = f"127.0.0.1:{free_port()}"
    with Client(address) as client, pytest.raises(LoadError, match=f"{address}: GetState failed"):
        client.topology()


def test_void_open_loops_are_made_again_a_few_times_only(
    echo_server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.latency._MOST_VOID_RUNS", 1)
    monkeypatch.setattr("bench.void.LARGEST_LAG_P99_MICROSECONDS", -1.0)
    echo = Side("echo", echo_server.address, generate_request(), echo_server)
    dispatch = Side("dispatch", echo_server.address, generate_request(), echo_server)
    steps: list[str] = []
    with pytest.raises(VoidRunError, match="lag"):
        compare(echo, dispatch, replace(SETTINGS, repetitions=1), steps.append)
    assert steps[-1] == "echo, open loop"
