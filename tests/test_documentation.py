"""What the documentation names must exist: files it links to, commands and options it tells readers to type."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import bench.cli
import policy_server.cli
import training.cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md")))
CONSOLES: dict[str, click.Command] = {
    "policy-server": policy_server.cli.main,
    "policy-train": training.cli.main,
    "policy-bench": bench.cli.main,
}


def links_of(page: Path) -> list[str]:
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    return [
        target.partition("#")[0] for target in targets if "://" not in target and not target.startswith("#")
    ]


def command_lines_of(page: Path) -> Iterator[str]:
    """Lines of code blocks that begin with a console command, those with shell variables left out."""
    for block in re.findall(r"^```[a-z]*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if line.split(" ")[0] in CONSOLES and "$" not in line:
                yield line


def parse(line: str) -> None:
    """Parses a command line as its console command does, and runs nothing."""
    name, *words = shlex.split(line.partition(" > ")[0].removesuffix("&"), comments=True)
    command = CONSOLES[name]
    while isinstance(command, click.Group):
        child = command.get_command(click.Context(command), words[0])
        assert child is not None, f"{line!r}: no command {words[0]!r}"
        command, words = child, words[1:]
    # --help ends parsing with status 0.
    with contextlib.suppress(click.exceptions.Exit):
        command.make_context(name, words)


@pytest.fixture(autouse=True)
def readers_files_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader's files and folders are not here."""
    monkeypatch.setattr(click.Path, "convert", lambda self, value, param, ctx: value)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in links_of(page) if not (page.parent / link).exists()] == []


COMMANDS = [
    pytest.param(line, id=f"{page.name}: {line}") for page in PAGES for line in command_lines_of(page)
]


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_are_understood(line: str) -> None:
    parse(line)


def test_wrong_commands_would_be_noticed() -> None:
    with pytest.raises(click.UsageError):
        parse("policy-bench latency --no-such-option")
    with pytest.raises(AssertionError, match="no command"):
        parse("policy-server dance")


def table_of(page: str, first_heading: str) -> tuple[list[str], dict[str, list[str]]]:
    """Column headings and cells by row of the table whose first heading is given."""
    lines = (ROOT / page).read_text().splitlines()
    start = next(row for row, line in enumerate(lines) if line.startswith(f"| {first_heading} |"))
    headings = [cell.strip() for cell in lines[start].split("|")[2:-1]]
    rows = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        name, *cells = [cell.strip() for cell in line.split("|")[1:-1]]
        rows[name] = cells
    return headings, rows


def shown(figure: dict[str, Any], form: str) -> str:
    low, high = figure["ci95"]
    return f"{figure['mean']:{form}} ±{(high - low) / 2:{form.removeprefix('+')}}"


def test_reported_throughput_rates_are_those_of_the_manifest() -> None:
    evaluation = json.loads((ROOT / "exported_models/kais/1.0.0/manifest.json").read_text())["evaluation"]
    headings, rows = table_of("docs/results.md", "throughput rate")
    assert (len(headings), len(rows)) == (6, 12)
    for name, cells in rows.items():
        for heading, cell in zip(headings, cells, strict=True):
            of_system = evaluation[heading.replace(", ", "-")]["policies"]
            assert cell == shown(of_system[name]["throughput_rate"], ".3f"), (name, heading)


@pytest.mark.parametrize(
    ("first_heading", "figure", "form"),
    [
        ("throughput rate", "throughput_rate", ".3f"),
        ("kais+kais ahead by", "kais_advantage", "+.3f"),
        ("cost / native+native", "scheduling_cost", ".2f"),
        ("cost of kais+kais over that of", "kais_cost_ratio", ".2f"),
    ],
)
def test_reported_figures_of_the_pair_are_those_of_the_manifest(
    first_heading: str, figure: str, form: str
) -> None:
    for bundle in ("kais-orchestration", "kais-joint"):
        (manifest,) = (ROOT / "exported_models" / bundle).glob("*/manifest.json")
        evaluation = json.loads(manifest.read_text())["evaluation"]
        headings, rows = table_of("docs/orchestration-training.md", first_heading)
        assert len(headings) == 9
        assert len(rows) >= 8
        for name, cells in rows.items():
            for heading, cell in zip(headings, cells, strict=True):
                of_system = evaluation[heading.replace(", ", "-")]["policies"]
                expected = shown(of_system[name][figure], form) if name in of_system else ""
                assert cell == expected, (name, heading)
