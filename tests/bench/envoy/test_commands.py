from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from bench.cli import main
from bench.load import h2load
from bench.load.errors import LoadError
from bench.void import VoidRunError
from tests.support.envoy import needs_envoy

needs_h2load = pytest.mark.skipif(h2load.version() is None, reason=h2load.INSTALL_HINT)


@pytest.mark.parametrize("command", ["envoy", "do-nothing", "demo-envoy"])
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(main, [command, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["envoy", "--repetitions", "0"], "--repetitions"),
        (["envoy", "--seconds", "0"], "--seconds"),
        (["do-nothing", "--port", "1"], "--endpoint"),
        (["do-nothing", "--port", "1", "--endpoint", "nowhere"], "HOST:PORT"),
        (["demo-envoy", "--rate", "0"], "--rate"),
        (["demo-envoy", "--policies", "kais,nonsense"], "'nonsense' is unknown; choose from"),
        (["demo-envoy", "--policies", ","], "name at least one"),
    ],
)
def test_wrong_usage_is_explained(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    "error", [VoidRunError("picker", ["99 requests failed"]), FileNotFoundError("missing")]
)
def test_what_goes_wrong_is_said_with_exit_code_one(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("bench.envoy.run.run_gateways", fail)
    result = CliRunner().invoke(main, ["envoy", "--json"])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert str(error) in result.stderr


@pytest.mark.parametrize("command", ["envoy", "demo-envoy"])
def test_without_h2load_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr(h2load, "version", lambda: None)
    result = CliRunner().invoke(main, [command])
    assert result.exit_code == 1
    assert "nghttp2-client" in result.stderr


def as_json(*arguments: str) -> Any:
    """What the command prints; busy machines may void a run, so a few attempts are made."""
    for _ in range(3):
        finished = subprocess.run(
            [sys.executable, "-m", "bench.cli", *arguments, "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
        if finished.returncode == 0:
            return json.loads(finished.stdout)
        assert "void run" in finished.stderr, finished.stderr
    raise LoadError(finished.stderr)


@needs_envoy
@needs_h2load
@pytest.mark.slow
def test_a_short_comparison_as_json() -> None:
    document = as_json("envoy", "--repetitions", "1", "--seconds", "0.05", "--policy", "earliest-completion")
    for side in (document["envoy"], document["do_nothing"], document["picker"]):
        assert set(side) == {"p50_us", "p99_us", "rps"}
        assert 0 < side["p50_us"] <= side["p99_us"]
        assert side["rps"] > 0
    assert set(document["ratio"]) >= {"p50", "p99", "throughput"}
    assert document["method"]["candidates"] == 10
    assert document["method"]["policy"].startswith("earliest-completion")
    assert document["recommendation"]["way"] in ("ext_proc", "ext_authz")
    # Asking costs more than not asking.
    assert document["envoy"]["rps"] > document["picker"]["rps"]


@needs_envoy
@needs_h2load
@pytest.mark.slow
def test_a_short_demo_as_json() -> None:
    document = as_json("demo-envoy", "--seconds", "1", "--rate", "100", "--policies", "earliest-completion")
    contestants = document["contestants"]
    assert list(contestants) == [
        "round robin",
        "random",
        "least request",
        "least request, all",
        "policy-server, earliest-completion",
    ]
    for figures in contestants.values():
        assert 0 < figures["p50_ms"] <= figures["p90_ms"] <= figures["p99_ms"]
        assert 0 < figures["rps"] <= 110


@needs_envoy
@needs_h2load
def test_an_interrupted_demo_leaves_nothing_behind() -> None:
    command = [sys.executable, "-m", "bench.cli", "demo-envoy", "--seconds", "1000"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        children: list[psutil.Process] = []
        deadline = time.monotonic() + 60
        while len(children) < 3 and time.monotonic() < deadline:
            children = psutil.Process(process.pid).children()
            time.sleep(0.05)
        # Back ends, Envoy and h2load.
        assert len(children) == 3
        process.terminate()
        _, stderr = process.communicate(timeout=30)
        assert process.returncode != 0
        assert b"Traceback" not in stderr
        assert psutil.wait_procs(children, timeout=10)[1] == []
    finally:
        process.kill()
        process.wait()
