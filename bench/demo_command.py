"""``policy-bench demo``: the demonstration behind ``make demo``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.demo import BASELINES, LEARNED, DemoPlan, DemoResult, default_policies, run_demo
from bench.server_process import ServerError
from training.simulator.presets import PRESETS
from training.simulator.simulator import VectorSimulator
from training.workloads.traces.errors import TraceError
from training.workloads.traces.location import trace_path

DEFAULT_TRACE = "alibaba-batch-a.csv"


@click.command("demo")
@click.option("--preset", type=click.Choice(list(PRESETS)), default="testbed-40", show_default=True)
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"Recorded trace to replay. [default: {DEFAULT_TRACE} of the traces folder; a generated sequence without it]",
)
@click.option("--seconds", type=click.FloatRange(1), default=12.0, show_default=True, help="Simulated time.")
@click.option(
    "--load",
    type=click.FloatRange(0, min_open=True),
    default=1.2,
    show_default=True,
    help="Request rate as a multiple of the preset's reference rate.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Held-out seed and window."
)
@click.option("--policies", help=f"Comma-separated names. [default: {LEARNED},{','.join(BASELINES)}]")
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
    """
    notices = Console(stderr=True)
    names = tuple(name.strip() for name in policies.split(",")) if policies else default_policies()
    if policies is None and LEARNED not in names:
        notices.print(f"no model bundle {LEARNED!r} ships with this installation: baselines only")
    if trace is None:
        recorded = trace_path(DEFAULT_TRACE)
        if recorded.exists():
            trace = recorded
        else:
            notices.print(f"{recorded} is missing: a generated bursty sequence (P4) takes its place")
    plan = DemoPlan(preset=preset, trace=trace, seconds=seconds, load=load, seed=seed, policies=names)
    progress = Progress(
        TextColumn("{task.description:<20}"),
        BarColumn(),
        TextColumn("{task.completed:5.1f} of {task.total:.1f} simulated s, {task.fields[calls]} calls"),
        TimeElapsedColumn(),
        console=notices,
    )
    tasks = {name: progress.add_task(name, total=seconds, calls=0, start=False) for name in names}

    def on_slot(policy: str, simulator: VectorSimulator, calls: int) -> None:
        progress.start_task(tasks[policy])
        progress.update(tasks[policy], completed=min(simulator.now_seconds, seconds), calls=calls)

    try:
        with progress:
            results = run_demo(plan, on_slot)
    except (ServerError, TraceError) as error:
        raise click.ClickException(str(error)) from None
    reference = max(result.cost_bytes for result in results)
    for result in results:
        if result.policy == "round-robin":
            reference = result.cost_bytes
    if as_json:
        click.echo(
            json.dumps(
                {
                    "preset": preset,
                    "workload": trace.name if trace is not None else "P4",
                    "seconds": seconds,
                    "load": load,
                    "policies": {result.policy: result.to_json(reference) for result in results},
                },
                indent=2,
            )
        )
        return
    console = Console()
    console = console if console.is_terminal else Console(width=110)
    console.print(_table(plan, results, reference))
    console.print(
        "throughput rate: requests answered within their deadline / requests arrived. cost: bytes moved between\n"
        "access points and to the cloud, relative to round robin. decision: one gRPC call as the Python client sees\n"
        f"it, which shares {_cores()} with the server and the simulator; `policy-bench latency` measures the server."
    )


def _table(plan: DemoPlan, results: list[DemoResult], reference: float) -> Table:
    workload = plan.trace.name if plan.trace is not None else "generated, P4"
    table = Table(
        title=f"{plan.preset}, {workload}: {plan.seconds:g} simulated seconds at {plan.load:g} x reference load"
    )
    table.add_column("policy", no_wrap=True)
    for heading in ("throughput rate", "cost", "decision p50", "p99", "by model", "fallbacks", "decisions"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        table.add_row(
            result.policy,
            f"{result.throughput_rate:.3f}",
            f"{result.cost_bytes / reference:.2f}" if reference else "-",
            f"{result.p50_seconds * 1e3:.2f} ms",
            f"{result.p99_seconds * 1e3:.2f} ms",
            f"{result.learned_share:.1%}",
            f"{result.fallback_share:.1%}",
            f"{result.decisions:,}",
        )
    return table


def _cores() -> str:
    count = len(os.sched_getaffinity(0))
    return f"{count} core{'s' if count > 1 else ''}"
