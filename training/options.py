"""Command-line options that several commands of ``policy-train`` have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def run_option(text: str) -> Callable[[CommandT], CommandT]:
    """``--run``, as ``folder``."""
    return click.option(
        "--run", "folder", type=click.Path(path_type=Path, file_okay=False), required=True, help=text
    )


def bundle_options(command: CommandT) -> CommandT:
    """Where an export goes and what it records: ``root``, ``version``, ``evaluations``, ``as_json``."""
    for decorate in reversed(
        (
            click.option(
                "--models",
                "root",
                type=click.Path(path_type=Path, file_okay=False),
                default=Path("exported_models"),
                show_default=True,
                help="Root of the model bundles.",
            ),
            click.option(
                "--version", required=True, help="Semantic version of the bundle; a version never changes."
            ),
            click.option(
                "--evaluation",
                "evaluations",
                type=click.Path(path_type=Path, dir_okay=False, exists=True),
                multiple=True,
                help="JSON output of `policy-train evaluate` to record in the manifest; may be repeated.",
            ),
            click.option("--json", "as_json", is_flag=True, help="Print the bundle's folder as JSON."),
        )
    ):
        command = decorate(command)
    return command


def recorded_evaluations(paths: tuple[Path, ...]) -> dict[str, Any]:
    """The figures in the files, by file name without suffix.

    Raises:
        click.UsageError: two files of one name, or one that is not JSON.
    """
    recorded: dict[str, Any] = {}
    for path in paths:
        if path.stem in recorded:
            raise click.UsageError(f"--evaluation {path}: another {path.stem!r} is given; rename one of them")
        try:
            recorded[path.stem] = json.loads(path.read_text())
        except ValueError as error:
            raise click.UsageError(
                f"--evaluation {path}: not JSON ({error}); give the output of `policy-train evaluate --json`"
            ) from None
    return recorded
