"""Reports as tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.budgets import DISPATCH_BUDGETS, EXTENDER_BUDGETS, Verdict
from bench.environment import Environment
from bench.extender import ExtenderReport
from bench.flavour_comparison import FlavourFigures
from bench.latency import Mode
from bench.orchestration import OrchestrationReport
from bench.report import Report
from bench.scaling_run import ScalingReport

_MODE_TEXT = {Mode.ONE_CALLER: "one caller", Mode.SATURATED: "saturated", Mode.OPEN_LOOP: "open loop"}
_BUDGET_TEXT = {budget.figure: str(budget) for budget in (*DISPATCH_BUDGETS, *EXTENDER_BUDGETS)}


def latency_tables(report: Report) -> RenderableType:
    """Renders a latency report."""
    parts: list[RenderableType] = [_comparison_table(report)]
    if report.in_process:
        parts.append(_in_process_table(report))
    parts.append(_footnotes(report))
    return Group(*parts)


def scaling_table(report: ScalingReport) -> RenderableType:
    """Renders a comparison of Scale and echo."""
    method = report.method
    policies = ", ".join({row.policy: None for row in report.containers.values()})
    table = Table(
        title=f"Scale against echo: {method.intervals} intervals of history, policy {policies}",
        caption=f"one caller, {method.settings.repetitions} alternating repetitions of {method.settings.calls} calls",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("containers", no_wrap=True)
    table.add_column("figure", no_wrap=True)
    for heading in ("echo", "scale", "ratio", "budget"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for count, row in report.containers.items():
        verdict = report.budgets.get(f"containers.{count}.scale.p50_us")
        budget = "" if verdict is None else f"<= {verdict.limit:,g}"
        table.add_row(
            *(f"{int(count):,}", "p50, us", _number(row.echo.p50_us), _number(row.scale.p50_us)),
            *(_number(row.ratio.p50, 2), budget, _verdict(verdict)),
        )
        for label, figure, below, above, ratio in (
            (
                f"  {row.request_bytes / 1024:,.0f} KiB",
                "p99, us",
                row.echo.p99_us,
                row.scale.p99_us,
                row.ratio.p99,
            ),
            ("", "server CPU, us", row.echo.cpu_us, row.scale.cpu_us, row.ratio.cpu),
        ):
            table.add_row(label, figure, _number(below), _number(above), _number(ratio, 2), "", "")
        table.add_row("", "without gRPC, us", "", _number(row.in_process_p50_us), "", "", "")
        table.add_section()
    return table


def flavour_table(rows: Sequence[FlavourFigures]) -> RenderableType:
    """Renders a comparison of server flavours."""
    table = Table(
        title="Echo servers by flavour",
        caption="medians of alternating repetitions; CPU: of the server, per request",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("flavour", no_wrap=True)
    for heading in (
        "work\nus",
        "1 caller\np50, us",
        "1 caller\np99, us",
        "1 caller\nCPU, us",
        "saturated\nreq/s",
        "saturated\nCPU, us",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for row, following in zip_longest(rows, rows[1:]):
        table.add_row(
            row.flavour,
            _number(row.work_us),
            _number(row.p50_us),
            _number(row.p99_us),
            _number(row.one_caller_cpu_us),
            _number(row.rps),
            _number(row.saturated_cpu_us),
            end_section=following is not None and following.work_us != row.work_us,
        )
    return table


def extender_table(report: ExtenderReport) -> RenderableType:
    """Renders figures of the extender."""
    table = Table(
        title="kube-scheduler extender: filter and prioritize of one pod",
        caption="both calls together, as the caller sees them, over one kept connection; CPU: of the server",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("nodes come", no_wrap=True)
    for heading in (
        "nodes",
        "body\nkB",
        "p50\nms",
        "p99\nms",
        "max\nms",
        "CPU\nms",
        "pods",
        "budget\np99, ms",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for mode, label, rows in (
        ("names_only", "by name", report.names_only),
        ("full", "as objects", report.full),
    ):
        for count, row in rows.items():
            figure = f"{mode}.{count}.p99_ms"
            verdict = report.budgets.get(figure)
            table.add_row(
                label,
                f"{int(count):,}",
                _number(row.body_bytes / 1000),
                _number(row.p50_ms, 2),
                _number(row.p99_ms, 2),
                _number(row.max_ms, 2),
                _number(row.server_cpu_ms, 2),
                _number(row.pods),
                _BUDGET_TEXT[figure] if verdict else "",
                _verdict(verdict),
            )
        table.add_section()
    return Group(table, Text("\n".join(_machine(report.environment)), style="dim"))


def orchestration_table(report: OrchestrationReport) -> RenderableType:
    """Renders what orchestration costs by size."""
    document = report.document()
    table = Table(
        title=f"Orchestrate, policy {report.policy}",
        caption="as one caller sees it; held state and state carried inline",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for heading in (
        "nodes",
        "nodes +\nlinks",
        "held\np50, ms",
        "budget\nms",
        "",
        "inline\np50, ms",
        "report\nms",
        "memory\nMiB",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for size, figures in document["sizes"].items():
        verdict = document["budgets"].get(f"sizes.{size}.p50_ms")
        table.add_row(
            size,
            _number(figures["nodes"] + figures["links"]),
            _number(figures["p50_ms"], 2),
            _number(verdict["limit"] if verdict else None),
            _verdict(Verdict(**verdict) if verdict else None),
            _number(figures["inline_p50_ms"], 1),
            _number(figures["report_ms"]),
            _number(figures["resident_mib"]),
        )
    growth = document["growth_exponent"]
    if growth is None:
        return table
    return Group(table, f"cost grows with (nodes + links) ^ {growth:.2f} between the two largest")


def _verdict(verdict: Verdict | None) -> Text:
    if verdict is None:
        return Text("")
    return Text("held", style="green") if verdict.held else Text("missed", style="bold red")


def _number(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _budget_cells(report: Report, figure: str) -> tuple[str, Text]:
    verdict = report.budgets.get(figure)
    return (_BUDGET_TEXT[figure] if verdict else "", _verdict(verdict))


def _comparison_table(report: Report) -> Table:
    method, settings = report.method, report.method.settings
    table = Table(
        title=f"Dispatch against echo: {method.candidates} candidates, policy {method.policy}",
        caption=f"medians of {settings.repetitions} alternating repetitions; of the open loop, all together",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for heading in ("load", "figure"):
        table.add_column(heading, no_wrap=True)
    for heading in ("echo", "dispatch", "ratio", "budget"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)

    def row(
        load: str, figure: str, echo: float | None, dispatch: float | None, ratio: float | None, key: str
    ) -> None:
        budget, verdict = _budget_cells(report, key) if key else ("", Text(""))
        table.add_row(load, figure, _number(echo), _number(dispatch), _number(ratio, 2), budget, verdict)

    echo, dispatch, ratio = report.echo, report.dispatch, report.ratio
    row("one caller", "p50, us", echo.p50_us, dispatch.p50_us, ratio.p50, "ratio.p50")
    row("", "p99, us", echo.p99_us, dispatch.p99_us, ratio.p99, "ratio.p99")
    in_flight = settings.connections * settings.streams
    row(f"{in_flight} in flight", "requests/s", echo.rps, dispatch.rps, ratio.throughput, "ratio.throughput")
    cores = report.one_core_rps
    if len(cores) == 2:
        row(
            "  on one core",
            "requests/s",
            cores["echo"],
            cores["dispatch"],
            cores["dispatch"] / cores["echo"],
            "",
        )
    table.add_section()
    loop = report.open_loop
    for load, figure, below, above in (
        (f"open loop, {loop.target_rps:g}/s", "p50, us", loop.echo.p50_us, loop.dispatch.p50_us),
        ("  from due time", "p99, us", loop.echo.p99_us, loop.dispatch.p99_us),
        ("", "max, us", loop.echo.max_us, loop.dispatch.max_us),
    ):
        row(load, figure, below, above, above / below, "")
    table.add_section()
    below_cpu, above_cpu = report.cpu_us_per_request["echo"], report.cpu_us_per_request["dispatch"]
    for mode in (Mode.ONE_CALLER, Mode.SATURATED, Mode.OPEN_LOOP):
        spent, more = below_cpu.server.get(mode), above_cpu.server.get(mode)
        quotient = more / spent if more and spent else None
        row(_MODE_TEXT[mode], "server CPU, us", spent, more, quotient, "")
    for mode in (Mode.ONE_CALLER, Mode.SATURATED, Mode.OPEN_LOOP):
        row(_MODE_TEXT[mode], "client CPU, us", below_cpu.client[mode], above_cpu.client[mode], None, "")
    return table


def _in_process_table(report: Report) -> Table:
    table = Table(
        title="Decisions inside the process",
        caption="logic: from names to names; bare: gather, two-layer head, argmax",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for heading in ("candidates", "figure"):
        table.add_column(heading, no_wrap=True)
    for heading in ("value", "p99", "logic", "bare", "budget"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for count, figures in report.in_process.items():
        table.add_row(
            count,
            "p50, us",
            _number(figures.p50_us, 1),
            _number(figures.p99_us, 1),
            _number(figures.answer_p50_us, 1),
            _number(figures.reference_p50_us, 1),
            *_budget_cells(report, f"in_process.{count}.p50_us"),
        )
    if report.batch is not None:
        table.add_row(
            f"{report.batch.size} x {report.batch.candidates}",
            "decisions/s",
            _number(report.batch.decisions_per_second),
            "",
            "",
            "",
            *_budget_cells(report, "batch.decisions_per_second"),
        )
    return table


def _footnotes(report: Report) -> Text:
    method = report.method
    ready = (
        "" if method.server_ready_seconds is None else f"; ready after {method.server_ready_seconds:.1f} s"
    )
    lines = [
        *_machine(report.environment),
        f"server {method.server_flavour}{ready}; request {method.request_bytes} B, response {method.response_bytes} B",
        f"closed loops by {method.closed_loop_generator}, open loop by {method.open_loop_generator} "
        f"(lag p99 {report.open_loop.dispatch.lag_p99_us:.0f} us); warm-up: {method.warm_up}",
    ]
    void_runs = report.open_loop.void_runs
    if void_runs:
        lines.append(f"open loops that were void and made again: {len(void_runs)}; the last: {void_runs[-1]}")
    if report.open_loop.dispatch.fallback_share:
        lines.append(
            f"the fallback policy gave {report.open_loop.dispatch.fallback_share:.1%} of the open loop's answers"
        )
    return Text("\n".join(lines), style="dim")


def _machine(environment: Environment) -> tuple[str, str]:
    quota = environment.cpu_quota_cores
    versions = ", ".join(f"{name} {number or 'missing'}" for name, number in environment.versions.items())
    return (
        f"{environment.cpu_model}, {environment.usable_cores} of {environment.logical_cores} cores, "
        f"CPU quota {'none' if quota is None else f'{quota:g} cores'}, "
        f"load average {environment.load_average_1_minute}",
        f"{environment.system}; {versions}",
    )
