from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from rich.console import Console

from bench.budgets import Verdict
from bench.cli import main
from bench.environment import describe_environment
from bench.extender import ExtenderFigures, ExtenderReport
from bench.extender_scenario import ExtenderCalls, generate_cluster, node_names
from bench.tables import extender_table


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.cli", "extender", "--seconds", "0", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_json_is_nothing_but_json() -> None:
    finished = run("--nodes", "20", "--nodes", "100", "--json")
    assert finished.returncode == 0, finished.stderr
    document = json.loads(finished.stdout)
    for mode in ("names_only", "full"):
        assert list(document[mode]) == ["20", "100"]
        for figures in document[mode].values():
            assert 0 < figures["p50_ms"] <= figures["p99_ms"] <= figures["max_ms"]
            assert figures["pods"] == 20
    assert document["full"]["100"]["body_bytes"] > 100 * document["names_only"]["100"]["body_bytes"]
    assert document["environment"]["versions"]["aiohttp"]
    assert document["budgets"] == {}


def test_a_policy_that_does_not_answer_makes_the_run_void() -> None:
    finished = run("--nodes", "20", "--", "--extender-own-namespace=edge")
    assert finished.returncode == 1
    assert finished.stdout == ""
    assert "all nodes were alike to it: the policy did not answer" in finished.stderr


def test_a_call_that_is_refused_is_said() -> None:
    finished = run("--nodes", "20", "--", "--extender-max-body-bytes=1024")
    assert finished.returncode == 1
    assert "/filter answered 413: body: larger than 1024 bytes" in finished.stderr


def test_table() -> None:
    row = ExtenderFigures(1.5, 11.25, 12.0, 1.1, 27_123, 1234)
    report = ExtenderReport(
        names_only={"1000": row},
        full={"1000": row},
        budgets={"names_only.1000.p99_ms": Verdict(11.25, 10.0, True, False)},
        seconds=5.0,
        environment=describe_environment(),
    )
    console = Console(width=120, file=io.StringIO())
    console.print(extender_table(report))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "<= 10" in text
    assert "missed" in text
    assert text.count("11.25") == 2


@pytest.mark.parametrize("names_only", [True, False])
def test_calls_differ_in_the_pod_alone(names_only: bool) -> None:
    first, second = (json.loads(ExtenderCalls(10, names_only=names_only).body(pod)) for pod in (1, 2))
    uids = [arguments["Pod"]["metadata"].pop("uid") for arguments in (first, second)]
    assert len(set(uids)) == 2
    assert first == second
    nodes = first["NodeNames"] or [node["metadata"]["name"] for node in first["Nodes"]["items"]]
    assert nodes == node_names(10) == [node.name for node in generate_cluster(10).topology.nodes]


def test_node_objects_are_of_realistic_size() -> None:
    per_node = len(ExtenderCalls(100, names_only=False).body(0)) / 100
    assert 5_000 < per_node < 10_000


def test_help_and_usage() -> None:
    assert CliRunner().invoke(main, ["extender", "--help"]).exit_code == 0
    assert CliRunner().invoke(main, ["extender", "--nodes", "3"]).exit_code == 2
