"""Command-line options that several commands of ``policy-train`` have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from training.simulator.presets import PRESETS
from training.workloads.patterns import Pattern

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def run_option(text: str) -> Callable[[CommandT], CommandT]:
    """``--run``, as ``folder``."""
    return click.option(
        "--run", "folder", type=click.Path(path_type=Path, file_okay=False), required=True, help=text
    )


def threads_option(command: CommandT) -> CommandT:
    """``--threads``."""
    return click.option(
        "--threads",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="CPU threads of torch. More than there are idle cores make it many times slower.",
    )(command)


class Workloads(click.ParamType[tuple[Pattern, ...]]):
    """Comma-separated arrival patterns, each once."""

    name = "workloads"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Pattern, ...]:
        """``P1,P3`` as patterns."""
        names = dict.fromkeys(name.strip() for name in str(value).split(","))
        known = [pattern.value for pattern in Pattern]
        for name in names:
            if name not in known:
                self.fail(f"{name!r} is no arrival pattern; choose some of {', '.join(known)}", param, ctx)
        return tuple(Pattern(name) for name in names)


def scenario_options(preset_help: str, *, several_workloads: bool = False) -> Callable[[CommandT], CommandT]:
    """What is evaluated: ``preset``, ``workload``, ``trace``, ``seeds`` and ``load``.

    Args:
        preset_help: of ``--preset``.
        several_workloads: ``workload`` is a tuple of patterns, or None; else it is a name, or None.
    """
    workload_type: click.ParamType[Any] = click.Choice([pattern.value for pattern in Pattern])
    workload_help = "Arrival pattern. [default: P1]"
    if several_workloads:
        workload_type = Workloads()
        workload_help = "Arrival patterns, comma-separated, simulated side by side. [default: P1]"

    def decorate(command: CommandT) -> CommandT:
        for option in reversed(
            (
                click.option(
                    "--preset",
                    type=click.Choice(list(PRESETS)),
                    default="testbed-40",
                    show_default=True,
                    help=preset_help,
                ),
                click.option(
                    "--workload",
                    type=workload_type,
                    help=workload_help,
                ),
                click.option(
                    "--trace",
                    type=click.Path(path_type=Path, dir_okay=False),
                    help="Recorded trace to replay in place of a pattern.",
                ),
                click.option(
                    "--seeds", type=click.IntRange(2), default=20, show_default=True, help="Held-out seeds."
                ),
                click.option(
                    "--load",
                    type=click.FloatRange(0, min_open=True),
                    default=1.0,
                    show_default=True,
                    help="Request rate as a multiple of the preset's reference rate.",
                ),
            )
        ):
            command = option(command)
        return command

    return decorate


def labelled_folders(
    context: click.Context, option: click.Parameter, values: tuple[str, ...]
) -> dict[str, Path]:
    """``LABEL=FOLDER`` options by label.

    Raises:
        click.BadParameter: one has another form, or there is no such folder.
    """
    folders: dict[str, Path] = {}
    for value in values:
        label, equals, folder = value.partition("=")
        if not (label and equals and Path(folder).is_dir()):
            raise click.BadParameter(f"{value!r}: write LABEL=FOLDER with a folder that exists")
        folders[label] = Path(folder)
    return folders


def compare_option(text: str) -> Callable[[CommandT], CommandT]:
    """``--compare``, as ``others``: folders of bundles by label."""
    return click.option("--compare", "others", multiple=True, callback=labelled_folders, help=text)


def chosen_pattern(workload: str | None, trace: Path | None) -> Pattern | None:
    """The pattern asked for by ``--workload``; None where ``--trace`` is.

    Raises:
        click.UsageError: both are given.
    """
    if workload is not None and trace is not None:
        raise click.UsageError(f"--workload {workload} and --trace {trace}: give one of them")
    return Pattern(workload or "P1") if trace is None else None


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
