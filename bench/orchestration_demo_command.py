"""``policy-bench demo-orchestrate``: the orchestration half of ``make demo``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from training.simulator.presets import PRESETS
from training.workloads.patterns import Pattern

if TYPE_CHECKING:
    from bench.orchestration_demo import OrchestrationDemoPlan, OrchestrationDemoResult

_PIPED_WIDTH = 120


@click.command("demo-orchestrate")
@click.option("--preset", type=click.Choice(list(PRESETS)), default="testbed-40", show_default=True)
@click.option(
    "--workload",
    type=click.Choice([pattern.value for pattern in Pattern]),
    default="P4",
    show_default=True,
    help="Arrival pattern.",
)
@click.option(
    "--frames", type=click.IntRange(1), default=6, show_default=True, help="Frames of 25 simulated seconds."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Held-out seed.")
@click.option(
    "--dispatch", help="Comma-separated names. [default: native, greedy, earliest-completion, kais]"
)
@click.option(
    "--orchestration", help="Comma-separated names. [default: static, greedy, native, gsp-ss, kais]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def orchestration_demo_command(
    preset: str,
    workload: str,
    frames: int,
    seed: int,
    dispatch: str | None,
    orchestration: str | None,
    as_json: bool,
) -> None:
    """Combine dispatch and orchestration policies on a simulated cluster that asks the real server every frame.

    The server is the real one, in its own process, and gets one Orchestrate call per frame with the cluster's state.
    Requests between two frames are dispatched within the simulation, by the server's own policies. native+native, the
    reference, always runs.

    \b
    Exit status: 0 done; 1 the server failed; 2 wrong usage.
    """
    try:
        from bench.orchestration_demo import (
            DISPATCH,
            ORCHESTRATION,
            REFERENCE,
            OrchestrationDemoError,
            default_plan,
            run_orchestration_demo,
        )
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"the demo simulates a cluster and needs the package {error.name!r}, which is not installed; "
            "install the extras: pip install 'policy-server[training,bench]'"
        ) from None
    from bench.server_process import ServerError

    plan = replace(default_plan(), preset=preset, pattern=Pattern(workload), frames=frames, seed=seed)
    if dispatch is not None:
        plan = replace(plan, dispatch=_names("--dispatch", dispatch, DISPATCH))
    if orchestration is not None:
        plan = replace(plan, orchestration=_names("--orchestration", orchestration, ORCHESTRATION))
    notices = Console(stderr=True)
    bars = Progress(
        TextColumn("{task.description:<34}"), BarColumn(bar_width=16), TimeElapsedColumn(), console=notices
    )
    try:
        with bars:
            names = plan.combinations
            row = bars.add_task("starting the server", total=len(names) * frames)

            def on_frame(name: str, done: int) -> None:
                completed = names.index(name) * frames + done
                bars.update(row, completed=completed, description=name)

            results = run_orchestration_demo(plan, on_frame)
    except (OrchestrationDemoError, ServerError) as error:
        raise click.ClickException(str(error)) from None
    reference = results[REFERENCE].cost_bytes
    if as_json:
        document = {
            "preset": preset,
            "workload": workload,
            "frames": frames,
            "seed": seed,
            "combinations": {name: result.to_json(reference) for name, result in results.items()},
        }
        click.echo(json.dumps(document, indent=2))
        return
    console = Console()
    console = console if console.is_terminal else Console(width=_PIPED_WIDTH)
    console.print(_rates(plan, results, reference))
    console.print(_calls(plan, results))
    console.print(_explanations())
    console.print(_reading(results, reference), highlight=False)


def _names(option: str, listed: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """The halves asked for.

    Raises:
        click.BadParameter: a name is unknown or listed twice.
    """
    names = tuple(name.strip() for name in listed.split(","))
    for name in names:
        if name not in known:
            raise click.BadParameter(
                f"{name!r} is unknown; choose from {', '.join(known)}", param_hint=option
            )
        if names.count(name) > 1:
            raise click.BadParameter(f"{name!r} is listed twice", param_hint=option)
    return names


def _rates(
    plan: OrchestrationDemoPlan, results: Mapping[str, OrchestrationDemoResult], reference: float
) -> Table:
    requests = max(result.requests for result in results.values())
    table = Table(
        title=f"{plan.preset}, {plan.pattern.value}: {plan.frames} frames, {requests:,} requests per combination\n"
        "throughput rate, and cost relative to native+native",
    )
    table.add_column("dispatch \\ orchestration", no_wrap=True)
    for half in plan.orchestration:
        table.add_column(half, justify="right", no_wrap=True)
    for dispatch in plan.dispatch:
        cells = (results[f"{dispatch}+{half}"] for half in plan.orchestration)
        table.add_row(
            dispatch,
            *(f"{cell.throughput_rate:.3f}  {cell.cost_bytes / reference:.2f}" for cell in cells),
        )
    return table


def _calls(plan: OrchestrationDemoPlan, results: Mapping[str, OrchestrationDemoResult]) -> Table:
    from bench.orchestration_demo import OrchestrateCalls

    table = Table(title="orchestration, over all dispatch policies")
    table.add_column("policy", no_wrap=True)
    for heading in ("actions/frame", "pulled, GB", "calls", "p50", "slowest", "by model", "fallbacks"):
        table.add_column(heading, justify="right", no_wrap=True)
    for half in plan.orchestration:
        own = [results[f"{dispatch}+{half}"] for dispatch in plan.dispatch]
        asked = sum((result.asked for result in own), OrchestrateCalls()).to_json()
        seconds = asked["decision_seconds"]
        table.add_row(
            half,
            f"{sum(result.actions_per_frame for result in own) / len(own):.1f}",
            f"{sum(result.pulled_bytes for result in own) / len(own) / 1e9:.1f}",
            *(
                (
                    f"{asked['orchestrate_calls']:,}",
                    f"{seconds['p50'] * 1e3:.1f} ms",
                    f"{seconds['slowest'] * 1e3:.1f} ms",
                    f"{asked['learned_share']:.0%}",
                    f"{asked['fallback_share']:.0%}",
                )
                if seconds
                else ("none", "-", "-", "-", "-")
            ),
        )
    return table


def _explanations() -> Table:
    grid = Table.grid(padding=(0, 2))
    for column, meaning in (
        (
            "throughput rate",
            "requests answered within their deadline / requests arrived; requests are dispatched within the "
            "simulation, by the server's own policies",
        ),
        ("cost", "second number: bytes of requests forwarded and images pulled, relative to native+native"),
        (
            "calls",
            "Orchestrate calls over gRPC, one per frame with the state of the cluster; static asks nothing, and the "
            "autoscaler of native runs beside the server, on the simulated clock",
        ),
        (
            "p50, slowest",
            "as the Python client sees them, which shares the cores with server and simulator; `policy-bench "
            "orchestrate` measures the server alone",
        ),
        ("by model", "share of the calls that the learned policy answered"),
        ("fallbacks", "share of the calls that the fallback answered in place of the policy asked for"),
    ):
        grid.add_row(column, meaning)
    return grid


def _reading(results: Mapping[str, OrchestrationDemoResult], reference: float) -> str:
    best = max(results, key=lambda name: results[name].throughput_rate)
    found = results[best]
    return (
        f"Most requests in time: {best}, {found.throughput_rate:.3f}, at {found.cost_bytes / reference:.2f} times the "
        "bytes of native+native. One seed; intervals over 20 are in docs/orchestration-training.md."
    )
