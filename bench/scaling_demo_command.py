"""``policy-bench demo-scale``: the second half of ``make demo``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.scaling_demo import ScalingDemoResult

DEFAULT_PLOT = Path("reports/scaling-demo.png")
_LOADS = ("normal", "high")
_PIPED_WIDTH = 128


@click.command("demo-scale")
@click.option(
    "--load", type=click.Choice(_LOADS), default="high", show_default=True, help="How much is offered."
)
@click.option(
    "--policies",
    help="Comma-separated names. [default: td3, if a bundle of it ships, threshold, autothrottle]",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    default=DEFAULT_PLOT,
    show_default=True,
    help="Picture of the hour (PNG, SVG, PDF).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def scaling_demo_command(load: str, policies: str | None, plot: Path, as_json: bool) -> None:
    """Serve vertical scaling and let it resize a simulated SockShop through an hour with a burst.

    The server is the real one, in its own process; the application is simulated, faster than real time. Every five
    simulated seconds its measurements go to the server in one Scale call, and the answer becomes its limits.

    \b
    Exit status: 0 done; 1 the server failed; 2 wrong usage.
    """
    try:
        from bench.scaling_demo import ScalingDemoError, plot_scaling_demo, run_scaling_demo
        from training.scaling.workload import Load
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"the demo simulates an application and needs the package {error.name!r}, which is not installed; "
            "install the extras: pip install 'policy-server[training,bench]'"
        ) from None
    from bench.server_process import ServerError

    names = _policies(policies)
    notices = Console(stderr=True)
    bars = Progress(
        TextColumn("{task.description:<20}"), BarColumn(bar_width=16), TimeElapsedColumn(), console=notices
    )
    try:
        with bars:
            rows = {name: bars.add_task(name, total=None, start=False) for name in names}

            def on_interval(name: str, done: int, total: int) -> None:
                bars.start_task(rows[name])
                bars.update(rows[name], completed=done, total=total)

            results = run_scaling_demo(names, Load(load), on_interval)
        plot_scaling_demo(plot, results, Load(load))
    except (ScalingDemoError, ServerError, OSError) as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        document = {
            "load": load,
            "plot": str(plot),
            "policies": {name: result.to_json() for name, result in results.items()},
        }
        click.echo(json.dumps(document, indent=2))
        return
    console = Console()
    console = console if console.is_terminal else Console(width=_PIPED_WIDTH)
    console.print(_table(load, results))
    console.print(f"load, latency and allocation over the hour: {plot}", soft_wrap=True, highlight=False)


def _policies(listed: str | None) -> tuple[str, ...]:
    """The policies to run.

    Raises:
        click.BadParameter: a name is unknown or listed twice.
    """
    from bench.scaling_demo import default_policies, known_policies

    if listed is None:
        return default_policies()
    names = tuple(name.strip() for name in listed.split(","))
    for name in names:
        if name not in known_policies():
            raise click.BadParameter(
                f"{name!r} is unknown; choose from {', '.join(known_policies())}", param_hint="--policies"
            )
        if names.count(name) > 1:
            raise click.BadParameter(f"{name!r} is listed twice", param_hint="--policies")
    return names


def _table(load: str, results: Mapping[str, ScalingDemoResult]) -> Table:
    requests = max(result.requests for result in results.values())
    table = Table(
        title=f"SockShop, an hour of the bursty trace at {load} load, {requests:,} requests; objective 200 ms"
    )
    table.add_column("policy", no_wrap=True)
    for heading in (
        "latency\nmean, ms",
        "\np99, ms",
        "violations\n%",
        "CPU\ncores",
        "memory\nMiB",
        "limits\nchanged",
        "Scale call\np50, ms",
        "\np99, ms",
        "by model\n%",
        "fallbacks\n%",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, result in results.items():
        table.add_row(
            name,
            f"{result.mean_latency_seconds * 1e3:.1f}",
            f"{result.p99_latency_seconds * 1e3:.0f}",
            f"{result.violation_rate * 100:.2f}",
            f"{result.hour.cpu_cores.mean():.2f}",
            f"{result.hour.memory_bytes.mean() / 2**20:,.0f}",
            f"{result.hour.changes.sum():,.0f}",
            f"{result.p50_seconds * 1e3:.2f}",
            f"{result.p99_seconds * 1e3:.2f}",
            f"{result.learned_share * 100:.1f}",
            f"{result.fallback_share * 100:.1f}",
        )
    return table
