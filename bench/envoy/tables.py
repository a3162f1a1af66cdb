"""The comparison of gateways as a table for people."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.budgets import ENVOY_BUDGETS
from bench.envoy.report import (
    AUTHZ_DO_NOTHING,
    AUTHZ_PICKER,
    DO_NOTHING,
    ENVOY,
    PICKER,
    CpuOfSide,
    GatewayReport,
)
from bench.latency import Mode
from bench.report import Ratio, SideFigures

_LIMITS = {budget.figure.removeprefix("ratio."): str(budget) for budget in ENVOY_BUDGETS}


def gateway_tables(report: GatewayReport) -> RenderableType:
    """Renders a report."""
    return Group(_figures_table(report), _budget_lines(report), _recommendation(report), _footnotes(report))


def _figures_table(report: GatewayReport) -> Table:
    method = report.method
    table = Table(
        title=f"Through Envoy: {method.candidates} back ends, policy {method.policy}",
        caption=f"medians of {method.settings.repetitions} repetitions in turns; ratio: against the picker that does "
        "nothing, asked the same way",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("asked", no_wrap=True)
    table.add_column("picker", no_wrap=True)
    for heading in (
        "p50\nus",
        "p99\nus",
        "requests\nper s",
        "Envoy\nCPU, us",
        "picker\nCPU, us",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    cpu = report.cpu_us_per_request
    _add(table, "nobody", "", report.envoy, cpu[ENVOY])
    table.add_section()
    _add(table, "ext_proc", "does nothing", report.do_nothing, cpu[DO_NOTHING])
    _add(table, "", "policy-server", report.picker, cpu[PICKER])
    _add_ratio(table, report.ratio)
    table.add_section()
    _add(table, "ext_authz", "does nothing", report.ext_authz.do_nothing, cpu[AUTHZ_DO_NOTHING])
    _add(table, "", "policy-server", report.ext_authz.picker, cpu[AUTHZ_PICKER])
    _add_ratio(table, report.ext_authz.ratio)
    return table


def _add(table: Table, asked: str, picker: str, figures: SideFigures, cpu: CpuOfSide) -> None:
    spent = cpu.picker[Mode.SATURATED.value]
    table.add_row(
        asked,
        picker,
        f"{figures.p50_us:,.0f}",
        f"{figures.p99_us:,.0f}",
        f"{figures.rps:,.0f}",
        f"{cpu.envoy[Mode.SATURATED.value]:,.0f}",
        "" if spent is None else f"{spent:,.0f}",
    )


def _add_ratio(table: Table, ratio: Ratio) -> None:
    spent = "" if ratio.cpu is None else f"{ratio.cpu:.2f}"
    table.add_row(
        "",
        "ratio",
        f"{ratio.p50:.2f}",
        f"{ratio.p99:.2f}",
        f"{ratio.throughput:.2f}",
        "",
        spent,
        style="bold",
    )


def _budget_lines(report: GatewayReport) -> Text:
    text = Text()
    for figure, verdict in report.budgets.items():
        name = figure.removeprefix("ratio.")
        text.append(f"ext_proc, {name} ratio {verdict.value:.2f}, budget {_LIMITS[name]}: ")
        held = ("held", "green") if verdict.held else ("missed", "bold red")
        text.append(f"{held[0]}\n", style=held[1])
    return text


def _recommendation(report: GatewayReport) -> Text:
    advice = report.recommendation
    return Text.assemble(("Recommended: ", "bold"), (advice.way, "bold"), f". {advice.because}.\n")


def _footnotes(report: GatewayReport) -> Text:
    method, environment = report.method, report.environment
    in_flight = method.settings.connections * method.settings.streams
    lines = [
        f"{environment.cpu_model}, {environment.usable_cores} of {environment.logical_cores} cores, "
        f"load average {environment.load_average_1_minute}; Envoy {method.envoy_version or 'of the path'}, one worker "
        f"thread; gRPC {environment.versions['grpcio']}, {method.server_flavour}; load by {method.load_generator}",
        f"p50 and p99 with one request in flight; requests per s and CPU per request with {in_flight}",
    ]
    if report.void_runs:
        lines.append(
            f"runs that were void and made again: {len(report.void_runs)}; the last: {report.void_runs[-1]}"
        )
    return Text("\n".join(lines), style="dim")
