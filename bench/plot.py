"""Latency by percentile as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from bench.latency import Mode
from bench.latency_run import LatencyRun
from bench.load.measurement import Measurement, latency_histogram

_TICKS = (0, 50, 90, 99, 99.9, 99.99)
_COLOURS = {"echo": "#7f8c8d", "dispatch": "#1f6fb2"}


def plot_latency(run: LatencyRun, file: Path) -> None:
    """Writes latency over percentile for both servers, one caller beside the open loop.

    The percentile axis is stretched logarithmically towards 100, so that each further nine has the same room.

    Raises:
        OSError: the file cannot be written.
    """
    report, comparison = run.report, run.comparison
    panels = (
        (Mode.ONE_CALLER, "one caller, closed loop"),
        (Mode.OPEN_LOOP, f"open loop, {report.open_loop.target_rps:g} requests/s, from the scheduled time"),
    )
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.8), sharey=True, layout="constrained")
    for axis, (mode, title) in zip(axes, panels, strict=True):
        for name, runs in (("echo", comparison.echo), ("dispatch", comparison.dispatch)):
            _draw(axis, runs.measurements(mode), name)
        _decorate(axis, title)
    axes[0].set_ylabel("latency, ms")
    method, environment = report.method, report.environment
    figure.suptitle(
        f"Dispatch ({method.candidates} candidates, policy {method.policy}) against a bare echo server"
    )
    figure.text(
        1.0,
        -0.03,
        f"{environment.cpu_model}, {environment.usable_cores} cores; gRPC {environment.versions['grpcio']}, "
        f"{method.server_flavour}",
        ha="right",
        fontsize=8,
        color="0.4",
    )
    figure.savefig(file, dpi=144, bbox_inches="tight")
    plt.close(figure)


def _position(percentile: float) -> float:
    return -float(np.log10(1 - percentile / 100))


def _draw(axis: Axes, measurements: Sequence[Measurement], name: str) -> None:
    histogram = latency_histogram(measurements)
    # The last percentile shown is the one that still has a request beyond it.
    last = _position(100 * (1 - 1 / histogram.get_total_count()))
    positions = np.linspace(0, last, 400)
    percentiles = 100 * (1 - 10**-positions)
    latencies = [histogram.get_value_at_percentile(percentile) / 1000 for percentile in percentiles]
    axis.plot(positions, latencies, color=_COLOURS[name], linewidth=2, label=name, drawstyle="steps-post")
    for percentile in (50, 99):
        value = histogram.get_value_at_percentile(percentile) / 1000
        axis.plot(_position(percentile), value, "o", color=_COLOURS[name], markersize=5)
        axis.annotate(
            f"{value:.2f}",
            (_position(percentile), value),
            textcoords="offset points",
            xytext=(0, 8 if name == "dispatch" else -14),
            ha="center",
            fontsize=8,
            color=_COLOURS[name],
        )


def _decorate(axis: Axes, title: str) -> None:
    axis.set_title(title, fontsize=10)
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("{x:g}")
    axis.tick_params(axis="y", which="both", labelsize=8)
    axis.set_xticks([_position(tick) for tick in _TICKS], [f"{tick:g}" for tick in _TICKS])
    axis.set_xlabel("percentile")
    axis.grid(visible=True, which="both", axis="both", alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="upper left")
