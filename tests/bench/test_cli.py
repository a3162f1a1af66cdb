from __future__ import annotations

import io
import json
import socket
import subprocess
import sys

import pytest
from click.testing import CliRunner
from rich.console import Console

from bench.cli import main
from bench.flavour_comparison import FlavourFigures
from bench.load.errors import LoadError
from bench.server_process import free_port
from bench.tables import flavour_table
from bench.void import VoidRunError


@pytest.mark.parametrize("arguments", [[], ["latency"], ["orchestrate"], ["flavours"], ["echo"]])
def test_every_command_has_help(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, [*arguments, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["latency", "--replace-state"], "--replace-state needs --address"),
        (["latency", "--address", "h:1", "--", "--verbose"], "make no sense with --address"),
        (["latency", "--address", "nowhere"], "HOST:PORT"),
        (["latency", "--address", "host:port"], "HOST:PORT"),
        (["latency", "--repetitions", "0"], "--repetitions"),
        (["flavours", "--flavour", "threads-0"], "threads-N"),
        (["echo", "--port", "1", "--response-hex", "zz"], "not a serialized DispatchResponse"),
        (["echo", "--port", "1", "--response-hex", "ff"], "not a serialized DispatchResponse"),
    ],
)
def test_wrong_usage_is_explained(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize(
    "error",
    [VoidRunError("dispatch", ["achieved 90.0 of 100 requests/s"]), LoadError("no response for 10 s")],
)
def test_a_void_run_says_why_and_exits_with_one(monkeypatch: pytest.MonkeyPatch, error: LoadError) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("bench.latency_run.running_server", fail)
    result = CliRunner().invoke(main, ["latency", "--json", "--address", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert str(error) in result.stderr


def test_a_dead_address_exits_with_one() -> None:
    address = f"127.0.0.1:{free_port()}"
    result = CliRunner().invoke(main, ["latency", "--address", address])
    assert result.exit_code == 1
    assert address in result.stderr


def test_flavours_as_json_is_nothing_but_json() -> None:
    arguments = ["--flavour", "threads-1", "--work", "5", "--repetitions", "1", "--json"]
    finished = subprocess.run(
        [sys.executable, "-m", "bench.cli", "flavours", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    (row,) = json.loads(finished.stdout)["flavours"]
    assert row["flavour"] == "threads-1"
    assert row["work_us"] == 5
    assert 0 < row["p50_us"] <= row["p99_us"]
    assert row["rps"] > 0


def test_flavours_as_a_table() -> None:
    console = Console(width=100, file=io.StringIO())
    console.print(flavour_table([FlavourFigures("aio", 60.0, 300.0, 500.0, 4321.0, 250.0, 200.0)]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "aio" in text
    assert "4,321" in text


def test_a_port_in_use_is_explained() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        finished = subprocess.run(
            [sys.executable, "-m", "bench.cli", "echo", "--port", port],
            capture_output=True,
            text=True,
            check=False,
        )
    assert finished.returncode == 1
    assert port in finished.stderr
