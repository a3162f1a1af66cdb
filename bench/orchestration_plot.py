"""The cost of orchestration over the size of the system as a picture."""

from __future__ import annotations

import statistics
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from bench.orchestration import OrchestrationReport


def plot_orchestration(report: OrchestrationReport, file: Path) -> None:
    """Writes the time of a call over nodes + links, both logarithmic, beside a line of linear growth.

    Raises:
        OSError: the file cannot be written.
    """
    sizes = sorted(report.sizes, key=lambda figures: figures.rows)
    rows = [figures.rows for figures in sizes]
    medians = [statistics.median(figures.held_ms) for figures in sizes]
    figure, axis = plt.subplots(figsize=(7, 4.8), layout="constrained")
    for figures in sizes:
        axis.plot([figures.rows] * len(figures.held_ms), figures.held_ms, "o", color="#1f6fb2", alpha=0.2)
    axis.plot(rows, medians, "o-", color="#1f6fb2", label="held state, median")
    if all(figures.inline_ms for figures in sizes):
        inline = [statistics.median(figures.inline_ms) for figures in sizes]
        axis.plot(rows, inline, "s--", color="#c0632b", label="inline state, median")
    linear = [medians[-1] * count / rows[-1] for count in rows]
    axis.plot(rows, linear, ":", color="0.5", label="linear in nodes + links")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("nodes + links")
    axis.set_ylabel("time of one Orchestrate call, ms")
    axis.grid(visible=True, which="both", alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    axis.set_title(f"Orchestrate, policy {report.policy}, {report.environment['cpu_model']}", fontsize=10)
    figure.savefig(file, dpi=144)
    plt.close(figure)
