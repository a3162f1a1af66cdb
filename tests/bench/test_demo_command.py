from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner, Result

from bench.cli import main

QUICK = ("--seconds", "1", "--load", "0.2")


@pytest.fixture
def no_traces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLICY_TRACES", str(tmp_path / "absent"))


def demo(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["demo", *arguments])


def test_json_is_nothing_but_json_and_missing_traces_are_said(no_traces: None) -> None:
    result = demo(*QUICK, "--policies", "earliest-completion", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["workload"] == "P4"
    # The reference runs without being asked for.
    assert list(document["policies"]) == ["earliest-completion", "round-robin"]
    figures = document["policies"]["earliest-completion"]
    assert set(figures) == {
        "throughput_rate",
        "scheduling_cost",
        "decisions",
        "decision_seconds",
        "learned_share",
        "fallback_share",
        "calls_per_second",
    }
    assert figures["scheduling_cost"] < document["policies"]["round-robin"]["scheduling_cost"] == 1
    assert "no such trace" in result.stderr
    assert "generated bursty sequence" in result.stderr


def test_ends_with_one_table_and_the_meaning_of_its_columns(no_traces: None) -> None:
    result = demo(*QUICK, "--policies", "greedy,round-robin")
    assert result.exit_code == 0, result.output
    assert "generated, P4" in result.stdout
    rows = [line for line in result.stdout.splitlines() if line.startswith("│")]
    assert [row.split()[1] for row in rows] == ["greedy", "round-robin"]
    meanings = result.stdout[result.stdout.index("└") :]
    for column in ("throughput rate", "cost", "decision p50, p99", "by model", "fallbacks", "decisions"):
        assert column in meanings


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policies", "greedy,nonsense"], "'nonsense' is unknown; choose from"),
        (["--policies", "greedy,"], "'' is unknown"),
        (["--policies", "greedy,greedy"], "'greedy' is listed twice"),
        (["--seconds", "0"], "--seconds"),
        (["--load", "0"], "--load"),
        (["--preset", "testbed-41"], "--preset"),
    ],
)
def test_wrong_usage_is_explained(arguments: list[str], message: str, no_traces: None) -> None:
    result = demo(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("content", "message"), [(None, "No such file"), ("time,load\nsoon,much\n", "trace.csv:")]
)
def test_an_unreadable_trace_is_explained(content: str | None, message: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    if content is not None:
        trace.write_text(content)
    result = demo("--trace", str(trace))
    assert result.exit_code == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_says_what_to_install_without_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    class Absent:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "bench.demo":
                raise ModuleNotFoundError("No module named 'numba'", name="numba")

    monkeypatch.delitem(sys.modules, "bench.demo", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    result = demo(*QUICK)
    assert result.exit_code == 1
    assert "'numba'" in result.stderr
    assert "pip install 'policy-server[training,bench]'" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_server_behind(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "bench.cli", "demo", "--seconds", "1000", "--policies", "greedy"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        servers: list[psutil.Process] = []
        deadline = time.monotonic() + 60
        while not servers and time.monotonic() < deadline:
            servers = [
                c for c in psutil.Process(process.pid).children() if "policy_server.cli" in c.cmdline()
            ]
            time.sleep(0.05)
        assert servers
        process.send_signal(number)
        _, stderr = process.communicate(timeout=30)
        assert process.returncode != 0
        assert b"Traceback" not in stderr
        assert psutil.wait_procs(servers, timeout=10)[1] == []
    finally:
        process.kill()
        process.wait()
