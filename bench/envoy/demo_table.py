"""The figures of the Envoy demo as a table for people."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.envoy.demo import BACK_ENDS, ENVOYS_OWN, NOTEWORTHY_STALL_MILLISECONDS, DemoFigures, DemoPlan


def demo_table(plan: DemoPlan, results: Mapping[str, DemoFigures]) -> RenderableType:
    """Renders the results, Envoy's own balancing first."""
    table = Table(
        title=f"{len(BACK_ENDS)} back ends of unequal and changing speed, {plan.requests_per_second:g} requests/s"
    )
    table.add_column("who chooses", no_wrap=True)
    for heading in ("p50\nms", "p90\nms", "p99\nms", "answered\nper s", "failed"):
        table.add_column(heading, justify="right", no_wrap=True)
    best = min(results, key=lambda name: results[name].p99_ms)
    for name, figures in results.items():
        table.add_row(
            name,
            f"{figures.p50_ms:,.0f}",
            f"{figures.p90_ms:,.0f}",
            f"{figures.p99_ms:,.0f}",
            f"{figures.rps:,.0f}",
            f"{figures.failed:,}",
            style="bold" if name == best else None,
            end_section=name == ENVOYS_OWN[-1].name,
        )
    return Group(table, _explanation(plan, results))


def _explanation(plan: DemoPlan, results: Mapping[str, DemoFigures]) -> Text:
    speeds = ", ".join(f"{back_end.speed:g}" for back_end in BACK_ENDS)
    slow = "; ".join(
        f"back end {position + 1} at {slowdown.factor:.0%} of its speed from {slowdown.begin_seconds:g} to "
        f"{slowdown.end_seconds:g} s"
        for position, back_end in enumerate(BACK_ENDS)
        for slowdown in back_end.slowdowns
    )
    lines = [
        f"Speeds {speeds}; {slow}.",
        "Real Envoy and policy-server; h2load sends at a fixed rate, whatever becomes of the requests. Back ends "
        f"report their queues every {plan.report_seconds * 1000:g} ms.",
    ]
    lines += [
        f"{name}: {figures.unpicked} requests were not picked for in time; Envoy balanced them by itself."
        for name, figures in results.items()
        if figures.unpicked
    ]
    lines += [
        f"{name}: the machine stalled for {figures.stall_ms:,.0f} ms meanwhile; run again for better figures."
        for name, figures in results.items()
        if figures.stall_ms > NOTEWORTHY_STALL_MILLISECONDS
    ]
    return Text("\n".join(lines), style="dim")
