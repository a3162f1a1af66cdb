"""Pictures: learning, the trade-off between latency and allocation, and an hour under control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np

from policy_server.cluster.snapshot import Float64Array
from training.learning_plot import plot_curves
from training.scaling.evaluation import OURS, CurvePoint

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.figure import Figure


def plot_learning(
    path: Path, histories: Mapping[str, Sequence[Mapping[str, float]]], rules: Mapping[str, float], title: str
) -> Path:
    """Validation cost over experience, with the rules' costs as lines.

    Args:
        path: of the picture.
        histories: figures of each validation, by algorithm.
        rules: validation cost by name.
        title: of the plot.
    """
    return plot_curves(
        path,
        {
            name: (
                [point["transitions"] / 1e6 for point in history],
                [point["validation_cost"] for point in history],
            )
            for name, history in histories.items()
        },
        rules,
        labels=("container intervals experienced, million", "cost of an interval on validation episodes"),
        title=title,
        best=min,
    )


def plot_trade_off(
    path: Path, curves: Mapping[str, Sequence[CurvePoint]], objective_violations: float, title: str
) -> Path:
    """Mean latency, 99th percentile and violations against allocated CPU, one line per policy.

    Args:
        path: of the picture.
        curves: points by policy.
        objective_violations: drawn as a line, a share of requests.
        title: of the plot.
    """
    figure, axes = plt.subplots(1, 3, figsize=(16, 5), layout="constrained")
    panels = (
        ("mean_latency_seconds", 1000.0, "mean latency, ms"),
        ("p99_latency_seconds", 1000.0, "99th percentile of latency, ms"),
        ("slo_violation_rate", 100.0, "requests that violate the objective, %"),
    )
    for panel, (column, factor, label) in zip(axes, panels, strict=True):
        for row, (name, points) in enumerate(curves.items()):
            ordered = sorted(points, key=lambda point: point.cpu_cores)
            panel.plot(
                [point.cpu_cores for point in ordered],
                [factor * getattr(point, column) for point in ordered],
                color=f"C{row}",
                linewidth=2.4 if name == OURS else 1.4,
                marker="o",
                markersize=4,
                label=name,
                zorder=5 if name == OURS else 2,
            )
        panel.set_yscale("log")
        panel.set_xlabel("allocated CPU, cores")
        panel.set_ylabel(label)
        panel.grid(alpha=0.3, which="both")
    axes[2].axhline(100.0 * objective_violations, color="black", linewidth=1, linestyle=":")
    axes[0].legend()
    figure.suptitle(title)
    return _save(figure, path)


def plot_hour(
    path: Path,
    *,
    seconds: Float64Array,
    requests_per_second: Float64Array,
    latency_end_seconds: Float64Array,
    p99_latency_seconds: Mapping[str, Float64Array],
    cpu_cores: Mapping[str, Float64Array],
    cpu_usage_cores: Float64Array,
    latency_objective_seconds: float,
    title: str,
) -> Path:
    """Load, latency with its objective, and allocation over time.

    Args:
        path: of the picture.
        seconds: float64 [n], end of each interval.
        requests_per_second: float64 [n].
        latency_end_seconds: float64 [m], end of each minute.
        p99_latency_seconds: float64 [m] by policy.
        cpu_cores: float64 [n] by policy, allocated.
        cpu_usage_cores: float64 [n], in use under the first policy.
        latency_objective_seconds: drawn as a line.
        title: of the plot.
    """
    minutes = seconds / 60.0
    figure, (load, latency, allocation) = plt.subplots(
        3, 1, figsize=(11, 9), sharex=True, layout="constrained"
    )
    load.plot(minutes, requests_per_second, color="tab:gray")
    load.set_ylabel("requests per second")
    lines = [
        (name, {"color": f"C{row}", "label": name, "zorder": 5 - row}) for row, name in enumerate(cpu_cores)
    ]
    for name, style in lines:
        latency.plot(latency_end_seconds / 60.0, 1000.0 * p99_latency_seconds[name], linewidth=1.8, **style)
    latency.axhline(1000.0 * latency_objective_seconds, color="black", linestyle=":", label="objective")
    latency.set_ylim(bottom=0.0)
    latency.set_ylabel("99th percentile of latency\nin each minute, ms")
    latency.legend(ncols=4)
    for name, style in lines:
        allocation.plot(minutes, cpu_cores[name], linewidth=1.3, **style)
    allocation.fill_between(minutes, cpu_usage_cores, color="tab:gray", alpha=0.3, label="in use")
    allocation.set_ylabel("allocated CPU, cores")
    allocation.set_xlabel("minutes")
    allocation.legend(ncols=4)
    for axes in (load, latency, allocation):
        axes.grid(alpha=0.3)
    load.set_title(title)
    load.set_xlim(float(np.min(minutes)), float(np.max(minutes)))
    return _save(figure, path)


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)
    plt.close(figure)
    return path
