"""``policy-bench demo``: the demonstration behind ``make demo``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from training.simulator.presets import PRESETS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.demo import DemoPlan, DemoProgress, DemoResult

DEFAULT_TRACE = "alibaba-batch-a.csv"
_PIPED_WIDTH = 110


@click.command("demo")
@click.option("--preset", type=click.Choice(list(PRESETS)), default="testbed-40", show_default=True)
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"Recorded trace to replay. [default: {DEFAULT_TRACE} of the traces folder; a generated sequence without it]",
)
@click.option("--seconds", type=click.FloatRange(1), default=15.0, show_default=True, help="Simulated time.")
@click.option(
    "--load",
    type=click.FloatRange(0, min_open=True),
    default=1.6,
    show_default=True,
    help="Request rate as a multiple of the preset's reference rate.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Held-out seed and window."
)
@click.option(
    "--policies",
    help="Comma-separated names; round-robin, the reference, always runs. "
    "[default: kais, if a bundle of it ships, earliest-completion, greedy, round-robin]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def demo_command(
    preset: str,
    trace: Path | None,
    seconds: float,
    load: float,
    seed: int,
    policies: str | None,
    as_json: bool,
) -> None:
    """Serve a policy, replay a trace as real gRPC calls, and compare it with baselines.

    The server is the real one, in its own process; the cluster is simulated. Every request of the trace is one
    Dispatch call, and its answer decides where the simulated request goes.

    \b
    Exit status: 0 done; 1 the server or the trace failed; 2 wrong usage.
    """
    try:
        from bench.demo import REFERENCE, DemoError, DemoPlan, count_requests, run_demo
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"the demo simulates a cluster and needs the package {error.name!r}, which is not installed; "
            "install the extras: pip install 'policy-server[training,bench]'"
        ) from None
    from bench.server_process import ServerError
    from training.workloads.traces.errors import TraceError

    notices = Console(stderr=True)
    plan = DemoPlan(
        preset=preset,
        trace=trace or _default_trace(notices),
        seconds=seconds,
        load=load,
        seed=seed,
        policies=_policies(policies, notices),
    )
    try:
        with notices.status("preparing the requests; at first use the simulator is compiled"):
            requests = count_requests(plan)
        with _Bars(plan, requests, notices) as bars:
            results = run_demo(plan, bars.on_progress)
    except (DemoError, ServerError, TraceError) as error:
        raise click.ClickException(str(error)) from None
    reference = next(result.cost_bytes for result in results if result.policy == REFERENCE)
    if as_json:
        document = {
            "preset": preset,
            "workload": _workload(plan),
            "seconds": seconds,
            "load": load,
            "policies": {result.policy: result.to_json(reference) for result in results},
        }
        click.echo(json.dumps(document, indent=2))
        return
    console = Console()
    console = console if console.is_terminal else Console(width=_PIPED_WIDTH)
    console.print(_table(plan, results, reference))
    console.print(_explanations())


def _default_trace(notices: Console) -> Path | None:
    """The trace to replay when none is named; None where the traces are missing."""
    from training.workloads.traces.errors import TraceError
    from training.workloads.traces.location import trace_path

    try:
        return trace_path(DEFAULT_TRACE)
    except TraceError as error:
        notices.print(f"{error}. A generated bursty sequence (pattern P4) takes its place.", soft_wrap=True)
        return None


def _policies(listed: str | None, notices: Console) -> tuple[str, ...]:
    """The policies to run.

    Raises:
        click.BadParameter: a name is unknown or listed twice.
    """
    from bench.demo import LEARNED, REFERENCE, default_policies, known_policies

    if listed is None:
        names = default_policies()
        if LEARNED not in names:
            notices.print(f"no model bundle {LEARNED!r} ships with this installation: baselines only")
        return names
    names = tuple(name.strip() for name in listed.split(","))
    known = known_policies()
    for name in names:
        if name not in known:
            raise click.BadParameter(
                f"{name!r} is unknown; choose from {', '.join(known)}", param_hint="--policies"
            )
        if names.count(name) > 1:
            raise click.BadParameter(f"{name!r} is listed twice", param_hint="--policies")
    return names if REFERENCE in names else (*names, REFERENCE)


class _Bars(Progress):
    """A progress bar per policy."""

    def __init__(self, plan: DemoPlan, requests: int, console: Console) -> None:
        super().__init__(
            TextColumn("{task.description:<20}"),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[done]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._rows = {
            name: self.add_task(name, total=requests, done="", start=False) for name in plan.policies
        }

    def on_progress(self, progress: DemoProgress) -> None:
        """Moves the bar of the policy that runs."""
        row = self._rows[progress.policy]
        self.start_task(row)
        done = f"{progress.simulated_seconds:.1f} s simulated, {progress.calls_per_second:,.0f} calls/s"
        self.update(row, completed=progress.calls, done=done)


def _workload(plan: DemoPlan) -> str:
    return plan.trace.name if plan.trace is not None else "P4"


def _table(plan: DemoPlan, results: Sequence[DemoResult], reference_cost_bytes: float) -> RenderableType:
    workload = _workload(plan) if plan.trace is not None else "generated, P4"
    table = Table(
        title=f"{plan.preset}, {workload}: {plan.seconds:g} simulated seconds at {plan.load:g} x reference load"
    )
    table.add_column("policy", no_wrap=True)
    for heading in ("throughput rate", "cost", "decision p50", "p99", "by model", "fallbacks", "decisions"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        cost = result.cost_bytes / reference_cost_bytes if reference_cost_bytes else None
        table.add_row(
            result.policy,
            f"{result.throughput_rate:.3f}",
            "-" if cost is None else f"{cost:.2f}",
            f"{result.p50_seconds * 1e3:.2f} ms",
            f"{result.p99_seconds * 1e3:.2f} ms",
            f"{result.learned_share:.1%}",
            f"{result.fallback_share:.1%}",
            f"{result.decisions:,}",
        )
    return table


def _explanations() -> RenderableType:
    from bench.demo import CALLS_IN_FLIGHT

    grid = Table.grid(padding=(0, 2))
    for column, meaning in (
        (
            "throughput rate",
            "requests answered within their deadline / requests arrived, in the simulated cluster",
        ),
        (
            "cost",
            "bytes moved between access points and to the cloud, relative to round robin; less is better",
        ),
        (
            "decision p50, p99",
            f"one gRPC call of {CALLS_IN_FLIGHT} in flight, as the Python client sees it, which shares {_cores()} with "
            "the server and the simulator; `policy-bench latency` measures the server alone",
        ),
        ("by model", "share of the calls that the learned policy answered"),
        ("fallbacks", "share of the calls that the fallback answered in place of the policy asked for"),
        ("decisions", "gRPC calls made, one for each request of the trace"),
    ):
        grid.add_row(column, meaning)
    return grid


def _cores() -> str:
    count = len(os.sched_getaffinity(0))
    return f"{count} core{'s' if count > 1 else ''}"
