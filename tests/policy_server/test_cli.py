"""The command line, run in this process; tests/e2e runs it as a process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from policy_server import serving
from policy_server.cli import main
from policy_server.client.scaling import scale_request_of_document
from policy_server.policies.heuristics import HEURISTIC_DISPATCH_NAMES
from policy_server.policies.orchestration.rules import HEURISTIC_ORCHESTRATION_NAMES
from policy_server.policies.scaling import RULE_SCALING_NAMES
from policy_server.settings import Settings
from tests.support.models import write_example_bundle, write_orchestration_bundle, write_scaling_bundle


def run(*arguments: str, stdin: str | None = None, **environment: str) -> Result:
    return CliRunner().invoke(main, arguments, input=stdin, env=environment)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings that servers would have been run with."""
    settings: list[Settings] = []
    monkeypatch.setattr(serving, "run_server", settings.append)
    return settings


def test_flag_beats_variable_beats_file_beats_default(tmp_path: Path, served: list[Settings]) -> None:
    file = tmp_path / "server.toml"
    file.write_text("port = 1001\ndrain_seconds = 1.5\ngrace_seconds = 2.5\n[state_options]\nseed = 3\n")
    result = run(
        "serve",
        f"--config={file}",
        "--port=3003",
        POLICY_SERVER_PORT="2002",
        POLICY_SERVER_DRAIN_SECONDS="0.5",
    )
    assert result.exit_code == 0, result.output
    (settings,) = served
    assert settings.port == 3003
    assert settings.drain_seconds == 0.5
    assert settings.grace_seconds == 2.5
    assert settings.state_options == {"seed": "3"}
    assert settings.flush_seconds == Settings().flush_seconds


def test_defaults_are_those_of_the_settings(served: list[Settings]) -> None:
    assert run("serve").exit_code == 0
    assert served == [Settings()]


def test_every_kind_of_setting_can_be_given(tmp_path: Path, served: list[Settings]) -> None:
    result = run(
        "serve",
        "--host=::1",
        f"--models={tmp_path}",
        "--policy=random",
        "--no-reflection",
        "--metrics-port=9090",
        "--state-source=simulator",
        "--state-option=preset=testbed-40",
        "--state-option=seed=a=b",
    )
    assert result.exit_code == 0, result.output
    (settings,) = served
    assert settings.host == "::1"
    assert settings.models == tmp_path
    assert settings.policy == "random"
    assert not settings.reflection
    assert settings.metrics_port == 9090
    assert settings.state_options == {"preset": "testbed-40", "seed": "a=b"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--port=70000"], "port: 70000; must be a number from 0 to 65535"),
        (["--port=http"], "'http' is not a valid integer"),
        (["--state-option=preset"], "state_options: 'preset'; give KEY=VALUE"),
        (["--config=absent.toml"], "absent.toml"),
    ],
)
def test_wrong_usage(served: list[Settings], arguments: list[str], complaint: str) -> None:
    result = run("serve", *arguments)
    assert result.exit_code == 2
    assert complaint in result.output
    assert not served


def test_policies_lists_bundles_and_heuristics(tmp_path: Path) -> None:
    write_example_bundle(tmp_path, version="1.0.0")
    write_example_bundle(tmp_path, version="1.1.0")
    write_scaling_bundle(tmp_path)
    result = run("policies", f"--models={tmp_path}", "--json")
    assert result.exit_code == 0
    listed = json.loads(result.stdout)
    assert [(entry["name"], entry["version"], entry["decides"]) for entry in listed[:3]] == [
        ("kais", "1.1.0", "dispatch"),
        ("kais", "1.0.0", "dispatch"),
        ("td3", "1.0.0", "scaling"),
    ]
    rules = [(entry["name"], entry["decides"]) for entry in listed[3:]]
    assert rules == [
        *((name, "dispatch") for name in HEURISTIC_DISPATCH_NAMES),
        *((name, "orchestration") for name in HEURISTIC_ORCHESTRATION_NAMES),
        *((name, "scaling") for name in RULE_SCALING_NAMES),
    ]
    assert "kais" in run("policies", f"--models={tmp_path}").stdout


def test_policies_says_what_each_decides(tmp_path: Path) -> None:
    write_example_bundle(tmp_path)
    write_orchestration_bundle(tmp_path)
    listed = json.loads(run("policies", f"--models={tmp_path}", "--json").stdout)
    decides = {entry["name"]: entry["decides"] for entry in listed if entry["kind"] == "model"}
    assert decides == {"gpg": "orchestration", "kais": "dispatch"}


def test_policies_tells_of_a_bundle_that_is_refused(tmp_path: Path) -> None:
    bundle = write_example_bundle(tmp_path)
    (bundle / "head.onnx").write_bytes(b"garbage")
    result = run("policies", f"--models={tmp_path}", "--json")
    assert result.exit_code == 1
    assert "head.onnx" in json.loads(result.stdout)[0]["refused"]


def test_policies_of_no_directory(tmp_path: Path) -> None:
    result = run("policies", f"--models={tmp_path / 'absent'}")
    assert result.exit_code == 1
    assert "no such directory" in result.output


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["serve"],
        ["query"],
        ["query", "dispatch"],
        ["query", "orchestrate"],
        ["query", "pick"],
        ["query", "scale"],
        ["query", "state"],
        ["policies"],
    ],
)
def test_every_command_has_help(command: list[str]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_an_example_of_measurements_can_be_asked_for_and_is_sound() -> None:
    example = run("query", "scale", "--example")
    assert example.exit_code == 0
    request = scale_request_of_document(yaml.safe_load(example.stdout))
    assert len(request.containers.id) == 3
    asked = run("query", "scale", "-", "--address=127.0.0.1:1", stdin=example.stdout)
    assert asked.exit_code == 1
    assert "no server answers at 127.0.0.1:1" in asked.stderr


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("containers: [{id: a, colour: red}]", "-: containers[0].colour: unknown; known are id, node"),
        ('{"containers": 3}', "-: containers: 3; must be a list"),
        ("a: [", "-: neither JSON nor YAML"),
    ],
)
def test_measurements_that_cannot_be_used(text: str, complaint: str) -> None:
    result = run("query", "scale", "-", stdin=text)
    assert result.exit_code == 2
    assert complaint in result.stderr


def test_query_scale_needs_a_file() -> None:
    result = run("query", "scale")
    assert result.exit_code == 2
    assert "--example shows what it may hold" in result.stderr


def test_query_where_nobody_listens() -> None:
    for command in (["dispatch", "--service=s", "--access-point=a"], ["orchestrate"], ["state"]):
        result = run("query", *command, "--address=127.0.0.1:1")
        assert result.exit_code == 1
        assert "no server answers at 127.0.0.1:1" in result.stderr
        assert result.stdout == ""
