"""What a training run leaves to look at: TensorBoard events and a plot of learning beside its baselines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import matplotlib as mpl
from torch.utils.tensorboard import SummaryWriter

mpl.use("Agg")
from matplotlib import pyplot as plt

BASELINES_FILE = "baselines.json"
PLOT_FILE = "learning.png"


class TrainingLog:
    """TensorBoard events of a run, as a context manager.

    Args:
        folder: of the run.
        group: that the figures appear in.
    """

    def __init__(self, folder: Path, group: str) -> None:
        self._writer = SummaryWriter(str(folder / "tensorboard"))
        self._group = group

    def __enter__(self) -> TrainingLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()

    def write(self, update: int, figures: dict[str, float]) -> None:
        """One value per figure."""
        for name, value in figures.items():
            self._writer.add_scalar(f"{self._group}/{name}", value, update)


def plot_learning(
    folder: Path, history: list[dict[str, float]], title: str, *, learned: str, effort: str, unit: float
) -> Path:
    """Draws the validation throughput rate over what was learned from, with the baselines as lines.

    Args:
        folder: of the run; ``baselines.json`` in it holds the baselines' throughput rates, if it exists.
        history: figures of each update; those with ``validation_throughput_rate`` are drawn.
        title: of the plot.
        learned: name of the learned policy.
        effort: figure that says how much was learned from.
        unit: what that figure is shown in.

    Returns:
        The picture's path.
    """
    points = [figures for figures in history if "validation_throughput_rate" in figures]
    baselines = folder / BASELINES_FILE
    return plot_curves(
        folder / PLOT_FILE,
        {
            learned: (
                [point[effort] / unit for point in points],
                [point["validation_throughput_rate"] for point in points],
            )
        },
        json.loads(baselines.read_text()) if baselines.exists() else {},
        labels=(
            f"{effort} learned from{f', {unit:,.0f}' if unit != 1 else ''}",
            "throughput rate on validation scenarios",
        ),
        title=title,
        best=max,
    )


def plot_curves(
    path: Path,
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    baselines: Mapping[str, float],
    *,
    labels: tuple[str, str],
    title: str,
    best: Callable[[Iterable[float]], float],
) -> Path:
    """Draws curves of learning, with baselines as lines, the best baseline first in the legend.

    Args:
        path: of the picture (PNG, SVG, PDF).
        curves: experience and figure, by name.
        baselines: figures by name.
        labels: of experience and figure.
        title: of the plot.
        best: ``max`` or ``min``: which figures are good.

    Returns:
        The picture's path.
    """
    figure, axes = plt.subplots(figsize=(9, 5.5), layout="constrained")
    for row, (name, (experience, figures)) in enumerate(curves.items()):
        label = name if len(curves) == 1 else f"{name} ({best(figures):.3f})"
        axes.plot(
            experience,
            figures,
            color=f"C{row}",
            linewidth=2.2,
            marker="o",
            markersize=4,
            label=label,
            zorder=5,
        )
    ordered = sorted(baselines.items(), key=lambda item: item[1], reverse=best is max)
    for row, (name, value) in enumerate(ordered, start=len(curves)):
        axes.axhline(value, color=f"C{row}", linewidth=1.3, linestyle="--", label=f"{name} ({value:.3f})")
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right" if best is max else "upper right", framealpha=0.95)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)
    plt.close(figure)
    return path


def plot_rounds(path: Path, panels: Mapping[str, Sequence[float]], *, best_round: int, title: str) -> Path:
    """Draws figures of the rounds of joint training side by side, with a ring around the round that was kept.

    Args:
        path: of the picture (PNG, SVG, PDF).
        panels: figures of the pair given and of each round, by what they are.
        best_round: that was kept.
        title: of the plot.

    Returns:
        The picture's path.
    """
    figure, axes = plt.subplots(1, len(panels), figsize=(4.5 * len(panels), 4), layout="constrained")
    for axis, (label, figures) in zip(axes, panels.items(), strict=True):
        axis.plot(range(len(figures)), figures, linewidth=2.2, marker="o", markersize=4)
        axis.plot(best_round, figures[best_round], marker="o", markersize=10, fillstyle="none", color="black")
        axis.set_xlabel("round; 0: the pair given")
        axis.set_title(f"{label}: {figures[best_round]:.3f}", fontsize=10)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=140)
    plt.close(figure)
    return path
