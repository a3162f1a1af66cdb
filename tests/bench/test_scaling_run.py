"""Short comparisons of Scale and echo, by real servers."""

from __future__ import annotations

import io
import json
from functools import partial
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner
from rich.console import Console

from bench.cli import main
from bench.commands import policy_server_command, scale_echo_command
from bench.load import h2load
from bench.load.errors import LoadError
from bench.scaling_run import ScalingReport, ScalingSettings, run_scaling
from bench.scaling_scenario import INTERVALS, generate_scale_request
from bench.server_process import ServerProcess, free_port
from bench.tables import scaling_table
from bench.void import VoidRunError
from policy_server.policies.scaling.actor import ActorScaling
from policy_server.proto.policy.v1.decision_pb2 import Provenance
from policy_server.proto.policy.v1.scaling_service_pb2 import ScaleResponse
from policy_server.proto.policy.v1.scaling_service_pb2_grpc import ScalingServiceStub
from tests.support.models import write_scaling_bundle

SETTINGS = ScalingSettings(containers=(1, 50), repetitions=2, calls=20, warm_up_calls=5)
PATIENT = ("--model-budget-seconds", "10")
NEEDS_H2LOAD = pytest.mark.skipif(h2load.version() is None, reason=h2load.INSTALL_HINT)


@pytest.fixture(scope="module")
def steps() -> list[str]:
    return []


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> ScalingReport:
    models = tmp_path_factory.mktemp("models")
    write_scaling_bundle(models)
    command = partial(policy_server_command, models=models, arguments=PATIENT)
    with pytest.MonkeyPatch.context() as patch:
        # Of so short a run the start of the load generator is the greater part.
        patch.setattr("bench.void.MOST_CLIENT_CORES", 1e9)
        return run_scaling(command, "", SETTINGS, steps.append, models)


@NEEDS_H2LOAD
def test_the_report_has_the_promised_keys(report: ScalingReport) -> None:
    document = json.loads(json.dumps(report.document(), allow_nan=False))
    assert list(document["containers"]) == ["1", "50"]
    for figures in document["containers"].values():
        for side in ("echo", "scale"):
            assert set(figures[side]) == {"p50_us", "p99_us", "cpu_us"}
            assert 0 < figures[side]["p50_us"] <= figures[side]["p99_us"]
        assert set(figures["ratio"]) == {"p50", "p99", "cpu"}
        assert figures["policy"] == "td3 1.0.0"
        assert figures["in_process_p50_us"] > 0
    assert list(document["budgets"]) == ["containers.50.scale.p50_us"]
    assert document["method"]["intervals"] == INTERVALS
    assert document["environment"]["versions"]["grpcio"]


@NEEDS_H2LOAD
def test_servers_take_turns(report: ScalingReport, steps: list[str]) -> None:
    assert len(steps) == SETTINGS.steps
    first = [step for step in steps if " 1 containers" in step]
    assert first == [
        "echo, 1 containers, warm-up",
        "scale, 1 containers, warm-up",
        "scale, 1 containers",
        "echo, 1 containers",
        "echo, 1 containers",
        "scale, 1 containers",
    ]


@NEEDS_H2LOAD
def test_the_table_shows_figures_and_budgets(report: ScalingReport) -> None:
    console = Console(width=80, file=io.StringIO())
    console.print(scaling_table(report))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for expected in ("td3 1.0.0", "p50, us", "server CPU, us", "without gRPC, us", "<= 1,000"):
        assert expected in text
    assert "…" not in text


@NEEDS_H2LOAD
def test_a_server_whose_fallback_answers_is_not_measured(tmp_path: Path) -> None:
    bundle = write_scaling_bundle(tmp_path)
    (bundle / "actor.onnx").write_bytes(b"garbage")
    command = partial(policy_server_command, models=tmp_path, arguments=("--scaling-policy", "td3"))
    with pytest.raises(VoidRunError, match="NO_MODEL"):
        run_scaling(command, "", SETTINGS, lambda step: None)


@NEEDS_H2LOAD
def test_an_unknown_policy_is_reported(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["scale", "--policy", "td4", "--models", str(tmp_path)])
    assert result.exit_code == 1
    assert "NOT_FOUND: policy: 'td4' is unknown" in result.stderr


def test_without_h2load_the_run_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(h2load, "version", lambda: None)
    with pytest.raises(LoadError, match="nghttp2-client"):
        run_scaling(policy_server_command, "", SETTINGS, lambda step: None)


def test_the_echo_answers_with_the_response_it_was_given(tmp_path: Path) -> None:
    answer = ScaleResponse(provenances=[Provenance(policy="p")], apply=[True] * 3)
    file = tmp_path / "response"
    file.write_bytes(answer.SerializeToString())
    port = free_port()
    with (
        ServerProcess("echo", scale_echo_command(port, "aio-uvloop", file), port) as process,
        grpc.insecure_channel(process.address) as channel,
    ):
        assert ScalingServiceStub(channel).Scale(generate_scale_request(2), timeout=10) == answer


@pytest.mark.parametrize(
    ("flavour", "content", "complaint"),
    [("threads-1", b"", "asynchronous flavour"), ("aio", b"\xff", "not a serialized ScaleResponse")],
)
def test_an_echo_that_cannot_be(tmp_path: Path, flavour: str, content: bytes, complaint: str) -> None:
    file = tmp_path / "response"
    file.write_bytes(content)
    result = CliRunner().invoke(
        main, ["echo", "--port=1", f"--flavour={flavour}", f"--scale-response={file}"]
    )
    assert result.exit_code == 2
    assert complaint in result.stderr


def test_the_scenario_is_the_same_every_time_and_as_long_as_the_model_looks_back() -> None:
    assert generate_scale_request(30) == generate_scale_request(30)
    assert generate_scale_request(30).history.intervals == ActorScaling(lambda _: _).history_intervals
