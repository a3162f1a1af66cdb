"""A report on joint evaluations: tables and plots from the figures of every run that a folder holds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.lines import Line2D

from policy_server.policies.heuristics import HEURISTIC_DISPATCH_NAMES
from policy_server.policies.orchestration.rules import HEURISTIC_ORCHESTRATION_NAMES
from training.evaluation.dispatch import LEARNED
from training.evaluation.joint import OURS
from training.workloads.patterns import Pattern

REPORT_FILE = "report.md"

Evaluation = Mapping[str, Any]


def add_to_report(folder: Path, evaluation: Evaluation, runs: Mapping[str, Path]) -> Path:
    """Adds an evaluation to a report and writes the whole report anew.

    Args:
        folder: of the report; holds one JSON file per evaluation, named after system, workload and load.
        evaluation: what ``policy-train evaluate joint --json`` prints.
        runs: folders of training runs by label, whose learning curves the report shows.

    Returns:
        The report, ``report.md``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{evaluation['preset']}-{Path(evaluation['workload']).stem}-load-{evaluation['load']:g}"
    (folder / f"{name}.json").write_text(json.dumps(evaluation, indent=2) + "\n")
    evaluations = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    curves = _learning_curves(folder, runs)
    presets = list(dict.fromkeys(entry["preset"] for entry in evaluations))
    parts = [
        "# Dispatch and orchestration together\n",
        "Held-out seeds only; mean and half of the 95 % interval over seeds. A combination is "
        "`DISPATCH+ORCHESTRATION`; `@H` after it is the most actions per frame. Costs are bytes forwarded and pulled "
        "relative to `native+native` on the same seed.\n",
    ]
    for preset in presets:
        of_preset = [entry for entry in evaluations if entry["preset"] == preset]
        names = _names(of_preset)
        ablations = [name for name in names if is_ablation(name)]
        parts.append(f"## {preset}\n")
        parts += _section(folder, preset, of_preset, [name for name in names if name not in ablations])
        if ablations:
            parts.append(f"### {preset}, ablations\n\n{_ABLATIONS}\n")
            parts += _section(folder, f"{preset}-ablations", of_preset, [OURS, *ablations])
        curve = _actions_curve(folder, preset, of_preset)
        parts += [f"![most actions per frame]({curve.name})\n"] if curve else []
    parts += [f"## Learning\n\n![learning curves]({curves.name})\n"] if curves else []
    report = folder / REPORT_FILE
    report.write_text("\n".join(parts))
    return report


_ABLATIONS = (
    "One time scale in place of two: `kais+static` decides every slot only, `native+kais` and `greedy+kais` every "
    "frame only. `kais-alone+kais` has halves that were trained apart, `@H` takes at most H actions per frame, other "
    "names are models trained otherwise."
)


def is_ablation(name: str) -> bool:
    """Whether a combination is ours with a part missing or changed, and not a baseline."""
    dispatch, _, orchestration = name.partition("+")
    plain = dispatch in (LEARNED, *HEURISTIC_DISPATCH_NAMES) and orchestration in (
        LEARNED,
        *HEURISTIC_ORCHESTRATION_NAMES,
    )
    return not plain or name in {"kais+static", "native+kais", "greedy+kais"}


def _section(folder: Path, stem: str, evaluations: Sequence[Evaluation], names: Sequence[str]) -> list[str]:
    """Tables and plots of some combinations."""
    parts = [
        f"{title}:\n\n{_table(evaluations, figure, names)}\n"
        for figure, title in (
            ("throughput_rate", "Throughput rate"),
            ("scheduling_cost", "Scheduling cost / native+native"),
            ("pulled_cost", "Of it images pulled"),
            ("kais_advantage", f"Throughput rate of {OURS} minus that of the combination, paired by seed"),
            ("kais_cost_ratio", f"Cost of {OURS} over that of the combination, paired by seed"),
        )
    ]
    for figure, label in (
        ("throughput_rate", "throughput rate"),
        ("scheduling_cost", "cost / native+native"),
    ):
        picture = folder / f"{stem}-{figure}.png"
        _plot(evaluations, names, figure, label, f"{stem}: {label} by workload", picture)
        parts.append(f"![{label}]({picture.name})\n")
    picture = folder / f"{stem}-trade-off.png"
    _plot_trade_off(evaluations, names, picture)
    parts.append(f"![throughput rate over cost]({picture.name})\n")
    return parts


def _actions_curve(folder: Path, preset: str, evaluations: Sequence[Evaluation]) -> Path | None:
    """Throughput rate and cost over H, where several were evaluated."""
    limits: dict[int, str] = {}
    for evaluation in evaluations:
        for name in evaluation["policies"]:
            combination, at, steps = name.partition("@")
            if combination == OURS:
                limits[int(steps) if at else evaluation["steps"]] = name
    if len(limits) < 3:
        return None
    picture, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for axis, figure, label in zip(
        axes, ("throughput_rate", "scheduling_cost"), ("throughput rate", "cost / native+native"), strict=True
    ):
        for evaluation in evaluations:
            points = [
                (steps, evaluation["policies"][name][figure])
                for steps, name in sorted(limits.items())
                if name in evaluation["policies"]
            ]
            means = [value["mean"] for _, value in points]
            halves = [(value["ci95"][1] - value["ci95"][0]) / 2 for _, value in points]
            axis.errorbar(
                [steps for steps, _ in points],
                means,
                halves,
                marker="o",
                capsize=2,
                label=evaluation["workload"],
            )
        axis.set_xlabel("H, most actions per frame")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    axes[0].legend()
    path = folder / f"{preset}-actions.png"
    picture.savefig(path, dpi=130)
    plt.close(picture)
    return path


def _column(evaluation: Evaluation) -> str:
    load = "" if evaluation["load"] == 1 else f", load {evaluation['load']:g}"
    unit = "seeds" if evaluation["workload"] in list(Pattern) else "windows"
    return f"{evaluation['workload']}{load} ({evaluation['seeds']} {unit})"


def _names(evaluations: Sequence[Evaluation]) -> list[str]:
    """All combinations, the best on average first."""
    rates: dict[str, list[float]] = {}
    for evaluation in evaluations:
        for name, figures in evaluation["policies"].items():
            rates.setdefault(name, []).append(figures["throughput_rate"]["mean"])
    return sorted(rates, key=lambda name: -sum(rates[name]) / len(rates[name]))


def _table(evaluations: Sequence[Evaluation], figure: str, names: Sequence[str]) -> str:
    heading = ["combination", *map(_column, evaluations)]
    lines = ["| " + " | ".join(heading) + " |", "| --- " + "| ---: " * len(evaluations) + "|"]
    for name in names:
        cells = []
        for evaluation in evaluations:
            value = evaluation["policies"].get(name, {}).get(figure)
            if value is None:
                cells.append("")
                continue
            low, high = value["ci95"]
            sign = "+" if figure == "kais_advantage" else ""
            cells.append(f"{value['mean']:{sign}.3f} ±{(high - low) / 2:.3f}")
        if any(cells):
            lines.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join(lines)


def _plot(
    evaluations: Sequence[Evaluation], names: Sequence[str], figure: str, axis: str, title: str, path: Path
) -> None:
    picture, axes = plt.subplots(figsize=(11, 5.5), layout="constrained")
    width = 0.85 / max(len(names), 1)
    for row, name in enumerate(names):
        label: str | None = name
        for column, evaluation in enumerate(evaluations):
            value = evaluation["policies"].get(name, {}).get(figure)
            if value is None:
                continue
            low, high = value["ci95"]
            axes.bar(
                column + (row - (len(names) - 1) / 2) * width,
                value["mean"],
                width,
                yerr=[[value["mean"] - low], [high - value["mean"]]],
                color=plt.get_cmap("tab20")(row % 20),
                edgecolor="black" if name == OURS else "none",
                label=label,
                capsize=1.5,
            )
            label = None
    ticks = [_column(evaluation).replace(" (", "\n(") for evaluation in evaluations]
    axes.set_xticks(range(len(evaluations)), ticks)
    axes.set_ylabel(axis)
    axes.set_title(title)
    if figure == "throughput_rate":
        axes.set_ylim(bottom=max(0.0, axes.dataLim.ymin - 0.2))
    axes.grid(axis="y", alpha=0.3)
    axes.legend(ncols=2, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    picture.savefig(path, dpi=130)
    plt.close(picture)


def _plot_trade_off(evaluations: Sequence[Evaluation], names: Sequence[str], path: Path) -> None:
    """Throughput rate over cost, a panel per evaluation: marks tell dispatch halves, colours orchestration halves."""
    dispatch = list(dict.fromkeys(name.partition("+")[0] for name in names))
    orchestration = list(dict.fromkeys(name.partition("+")[2] for name in names))
    columns = min(len(evaluations), 5)
    rows = -(-len(evaluations) // columns)
    picture, panels = plt.subplots(
        rows,
        columns,
        figsize=(2.8 * columns + 2, 3.4 * rows),
        layout="constrained",
        squeeze=False,
        sharey=True,
    )
    for axes, evaluation in zip(panels.flat, evaluations, strict=False):
        for name in names:
            figures = evaluation["policies"].get(name)
            if figures is None:
                continue
            first, _, second = name.partition("+")
            cost, rate = figures["scheduling_cost"], figures["throughput_rate"]
            axes.errorbar(
                cost["mean"],
                rate["mean"],
                xerr=[[cost["mean"] - cost["ci95"][0]], [cost["ci95"][1] - cost["mean"]]],
                yerr=[[rate["mean"] - rate["ci95"][0]], [rate["ci95"][1] - rate["mean"]]],
                marker=_MARKS[dispatch.index(first) % len(_MARKS)],
                color=plt.get_cmap("tab10")(orchestration.index(second) % 10),
                markeredgecolor="black" if name == OURS else None,
                markersize=9 if name == OURS else 6,
                elinewidth=0.8,
            )
        axes.set_title(_column(evaluation), fontsize=9)
        axes.set_xlabel("cost / native+native")
        axes.grid(alpha=0.3)
    for axes in panels.flat[len(evaluations) :]:
        axes.remove()
    for axes in panels[:, 0]:
        axes.set_ylabel("throughput rate")
    marks = [
        Line2D(
            [], [], linestyle="", marker=_MARKS[index % len(_MARKS)], color="grey", label=f"{half} dispatch"
        )
        for index, half in enumerate(dispatch)
    ]
    colours = [
        Line2D([], [], linestyle="", marker="o", color=plt.get_cmap("tab10")(index % 10), label=f"+{half}")
        for index, half in enumerate(orchestration)
    ]
    picture.legend(handles=[*marks, *colours], loc="outside right center", fontsize=8)
    picture.savefig(path, dpi=130)
    plt.close(picture)


_MARKS = "osD^vP*X<>"


def _learning_curves(folder: Path, runs: Mapping[str, Path]) -> Path | None:
    if not runs:
        return None
    picture, axes = plt.subplots(figsize=(9, 5), layout="constrained")
    for label, run in runs.items():
        history = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
        points = [figures for figures in history if "validation_throughput_rate" in figures]
        axes.plot(
            [figures.get("frames", figures.get("decisions", 0)) for figures in points],
            [figures["validation_throughput_rate"] for figures in points],
            marker="o",
            markersize=3,
            label=label,
        )
    axes.set_xlabel("frames learned from")
    axes.set_ylabel("throughput rate on validation scenarios")
    axes.grid(alpha=0.3)
    axes.legend()
    path = folder / "learning.png"
    picture.savefig(path, dpi=130)
    plt.close(picture)
    return path
