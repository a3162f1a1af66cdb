"""What the commands of ``policy-bench`` share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from bench.latency import OnStep


@contextmanager
def errors_reported() -> Iterator[None]:
    """Turns what can go wrong in a run into a message and exit code 1."""
    from bench.load.errors import LoadError
    from bench.server_process import ServerError

    try:
        yield
    except (LoadError, ServerError, OSError) as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def progress(steps: int) -> Iterator[OnStep]:
    """A progress bar on standard error; yields the function that advances it to the next step."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=steps)
        started = False

        def on_step(description: str) -> None:
            nonlocal started
            progress.update(task, description=description, advance=1 if started else 0)
            started = True

        yield on_step
