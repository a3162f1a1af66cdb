"""What a training run leaves to look at: TensorBoard events and a plot of learning beside its baselines."""

from __future__ import annotations

import json
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
        algorithm: first part of every figure's name.
    """

    def __init__(self, folder: Path, algorithm: str) -> None:
        self._algorithm = algorithm
        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def __enter__(self) -> TrainingLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()

    def write(self, update: int, figures: dict[str, float]) -> None:
        """One value per figure."""
        for name, value in figures.items():
            self._writer.add_scalar(f"{self._algorithm}/{name}", value, update)


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
    figure, axes = plt.subplots(figsize=(9, 5.5), layout="constrained")
    axes.plot(
        [point[effort] / unit for point in points],
        [point["validation_throughput_rate"] for point in points],
        color="tab:blue",
        linewidth=2.2,
        marker="o",
        markersize=4,
        label=learned,
        zorder=5,
    )
    baselines = folder / BASELINES_FILE
    if baselines.exists():
        rates: dict[str, float] = json.loads(baselines.read_text())
        for row, (name, rate) in enumerate(sorted(rates.items(), key=lambda item: -item[1])):
            axes.axhline(
                rate, color=f"C{row + 1}", linewidth=1.3, linestyle="--", label=f"{name} ({rate:.3f})"
            )
    axes.set_xlabel(f"{effort} learned from{f', {unit:,.0f}' if unit != 1 else ''}")
    axes.set_ylabel("throughput rate on validation scenarios")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", framealpha=0.95)
    path = folder / PLOT_FILE
    figure.savefig(path, dpi=140)
    plt.close(figure)
    return path
