"""The scaling commands of ``policy-train``."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from training.hyperparameters import command_line, given_hyperparameters, hyperparameter_options
from training.options import bundle_options, recorded_evaluations, run_option
from training.progress import progress_bar
from training.scaling.config import ScalingTrainingConfig
from training.scaling.contenders import CONTENDER_NAMES
from training.scaling.tuning import GRIDS, TunedRule
from training.scaling.workload import Load

if TYPE_CHECKING:
    from rich.progress import TaskID

    from training.evaluation.statistics import Estimate
    from training.scaling.application import Application
    from training.scaling.evaluation import Comparison, SeedFigures

_notices = Console(stderr=True)
_PAPER_VIOLATION_RATE = 0.0047

_application_option = click.option(
    "--application",
    "application_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="JSON file of the application to control.  [default: SockShop]",
)
_models_option = click.option(
    "--models",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder of model bundles.  [default: those shipped]",
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")


@click.command("scale")
@run_option("Folder of checkpoints, history and TensorBoard events.")
@click.option("--resume", is_flag=True, help="Go on from the run's checkpoint.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="CPU threads of torch.")
@_application_option
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON.")
@hyperparameter_options(ScalingTrainingConfig)
def scale_command(
    folder: Path,
    resume: bool,
    threads: int,
    application_file: Path | None,
    as_json: bool,
    **arguments: Any,
) -> None:
    """Train vertical scaling by TD3 (TD3-Sched), or by DDPG or DQN as baselines.

    First from logged history of rule policies, then online. Writes checkpoints and a plot of learning into the run
    folder; stop with Ctrl-C and go on with --resume. Held-out seeds and windows are never trained on.
    """
    import torch

    from training.checkpoints import RunError
    from training.learning_plot import BASELINES_FILE, PLOT_FILE, TrainingLog
    from training.scaling.plot import plot_learning
    from training.scaling.training import load_config, train
    from training.scaling.tuning import try_rule

    torch.set_num_threads(threads)
    application = _application(application_file)
    given = given_hyperparameters(ScalingTrainingConfig, arguments)
    try:
        config = replace(load_config(folder), **given) if resume else ScalingTrainingConfig(**given)
        with TrainingLog(folder, "scale") as log, progress_bar() as progress:
            tasks: dict[str, Any] = {}

            def on_progress(stage: str, done: int, total: int, figures: dict[str, float]) -> None:
                if stage not in tasks:
                    tasks[stage] = progress.add_task(f"{config.algorithm}: {stage}", total=total, figures="")
                shown = (
                    f"validation cost {figures['validation_cost']:.3f}"
                    if "validation_cost" in figures
                    else ""
                )
                progress.update(tasks[stage], completed=done, figures=shown)
                log.write(done, {f"{stage}/{name}": value for name, value in figures.items()})

            state = train(application, config, folder, resume=resume, on_progress=on_progress)
    except RunError as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        _notices.print(f"stopped; go on from the last validation with --run {folder} --resume")
        raise click.exceptions.Exit(130) from None
    with _notices.status("running the rules on the validation episodes"):
        rules = {name: try_rule(application, name, {}).cost for name in GRIDS}
    (folder / BASELINES_FILE).write_text(json.dumps(rules, indent=2) + "\n")
    plot = plot_learning(
        folder / PLOT_FILE,
        {config.algorithm: state.history},
        rules,
        f"Learning to scale: {config.algorithm}, seed {config.seed}",
    )
    summary = {
        "run": str(folder),
        "algorithm": config.algorithm,
        "episodes": state.episode,
        "transitions": state.transitions,
        "seconds": state.seconds,
        "validation_cost": state.best_cost,
        "validation_cost_of_rules": rules,
        "plot": str(plot),
    }
    if as_json:
        click.echo(json.dumps(summary))
    else:
        _notices.print(
            f"trained {config.algorithm} on {state.transitions / 1e6:.1f} M container intervals in "
            f"{state.seconds / 60:.1f} minutes: validation cost {state.best_cost:.3f}, best rule "
            f"{min(rules.values()):.3f}; learning curve: {plot}"
        )


@click.command("plot-scale")
@click.option(
    "--run",
    "folders",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    multiple=True,
    required=True,
    help="Folder of a finished run; may be repeated.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Picture (PNG, SVG, PDF).",
)
def plot_scale_command(folders: tuple[Path, ...], output: Path) -> None:
    """Draw the learning of several runs of `policy-train scale` in one picture."""
    from training.checkpoints import RunError, read_history
    from training.learning_plot import BASELINES_FILE
    from training.scaling.plot import plot_learning
    from training.scaling.training import load_config

    try:
        histories = {str(load_config(folder).algorithm): read_history(folder) for folder in folders}
        rules = json.loads((folders[0] / BASELINES_FILE).read_text())
    except (RunError, OSError) as error:
        raise click.ClickException(f"{error}; give runs that `policy-train scale` has finished") from None
    _notices.print(f"drew {plot_learning(output, histories, rules, 'Learning to scale')}")


@click.command("scale")
@click.option(
    "--load",
    type=click.Choice([load.value for load in Load]),
    default=Load.NORMAL.value,
    show_default=True,
    help="How much the application is offered.",
)
@click.option("--seeds", type=click.IntRange(2), default=10, show_default=True, help="Held-out seeds.")
@click.option("--policies", help=f"Comma-separated names.  [default: {','.join(CONTENDER_NAMES)}]")
@click.option(
    "--equal-allocation",
    is_flag=True,
    help="Also compare td3 with every other policy at the setting that allocates as much CPU as td3.",
)
@click.option(
    "--trade-off",
    "trade_off_plot",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also sweep every policy and draw latency against allocation (PNG, SVG, PDF).",
)
@_models_option
@_application_option
@click.option(
    "--processes",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Policies evaluated side by side.",
)
@_json_option
def evaluate_scale_command(
    load: str,
    seeds: int,
    policies: str | None,
    equal_allocation: bool,
    trade_off_plot: Path | None,
    models: Path | None,
    application_file: Path | None,
    processes: int,
    as_json: bool,
) -> None:
    """Compare scaling policies on held-out load: latency, violations, allocation and changes with 95 % intervals."""
    from policy_server.runtime.bundle import BundleError
    from training.scaling.evaluation import (
        OURS,
        ScalingEvaluation,
        compare_at_equal_allocation,
        curves_to_json,
        evaluate,
        trade_off,
    )

    application = _application(application_file)
    evaluation = ScalingEvaluation(
        load=Load(load),
        seeds=seeds,
        models=models,
        policies=tuple(name.strip() for name in policies.split(",")) if policies else CONTENDER_NAMES,
        application=application,
    )
    unknown = sorted(set(evaluation.policies) - set(CONTENDER_NAMES))
    if unknown:
        raise click.UsageError(f"--policies: {', '.join(unknown)}; choose from {', '.join(CONTENDER_NAMES)}")
    if equal_allocation and OURS not in evaluation.policies:
        raise click.UsageError(f"--equal-allocation compares with {OURS}; name it in --policies too")
    document: dict[str, Any] = {"load": load, "seeds": seeds}
    compared: list[Comparison] = []
    try:
        with progress_bar() as progress:
            task = progress.add_task("evaluate", total=len(evaluation.policies), figures="")
            figures = evaluate(
                evaluation,
                processes=processes,
                on_done=lambda name: progress.update(task, advance=1, figures=name),
            )
            document["policies"] = {name: found.to_json() for name, found in figures.items()}
            if equal_allocation:
                others = len(evaluation.policies) - 1
                second = progress.add_task("equal allocation", total=others, figures="")
                compared = compare_at_equal_allocation(
                    evaluation,
                    figures[OURS],
                    on_done=lambda name: progress.update(second, advance=1, figures=name),
                )
                document["equal_allocation"] = [row.to_json() for row in compared]
            if trade_off_plot is not None:
                from training.scaling.plot import plot_trade_off

                third = progress.add_task("trade-off", total=len(evaluation.policies), figures="")
                curves = trade_off(
                    evaluation, on_done=lambda name: progress.update(third, advance=1, figures=name)
                )
                document["trade_off"] = curves_to_json(curves)
                plot_trade_off(
                    trade_off_plot,
                    curves,
                    _PAPER_VIOLATION_RATE,
                    f"{application.name}, {load} load, {seeds} seeds",
                )
    except (LookupError, BundleError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps(document, indent=2))
        return
    console = Console()
    console.print(
        _table(f"{application.name}, {load} load, {seeds} held-out seeds: mean [95 % interval]", figures)
    )
    if compared:
        console.print(_comparison_table(compared))


@click.command("export-scale")
@run_option("Folder of the run.")
@bundle_options
def export_scale_command(
    folder: Path, root: Path, version: str, evaluations: tuple[Path, ...], as_json: bool
) -> None:
    """Export a trained scaling policy as a model bundle, verified against torch."""
    import torch

    from policy_server.runtime.bundle import BundleError
    from policy_server.runtime.manifest import TrainingRecord
    from training.checkpoints import RunError
    from training.export import ExportError
    from training.provenance import git_commit
    from training.scaling.export import write_scaling_bundle
    from training.scaling.training import load_policy

    try:
        config, policy, figures = load_policy(folder)
        bundle = write_scaling_bundle(
            policy,
            root,
            name=config.algorithm,
            version=version,
            training=TrainingRecord(
                command=training_command(config),
                seed=config.seed,
                data="SockShop under the training parts of rps-diurnal.txt and azure-llm-code.csv and generated "
                "bursts, training seeds",
                git_commit=git_commit(),
                torch_version=str(torch.__version__),
                steps=int(figures["transitions"]),
                wall_seconds=figures["seconds"],
            ),
            evaluation={"validation": figures, **recorded_evaluations(evaluations)},
        )
    except (RunError, ExportError, BundleError) as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps({"bundle": str(bundle)}))
    else:
        _notices.print(f"exported {bundle}")


@click.command("tune-scale")
@click.option("--rules", help=f"Comma-separated names.  [default: {','.join(GRIDS)}]")
@click.option(
    "--repetitions", type=click.IntRange(1), default=3, show_default=True, help="Of every training curve."
)
@_application_option
@_json_option
def tune_scale_command(
    rules: str | None, repetitions: int, application_file: Path | None, as_json: bool
) -> None:
    """Tune the scaling rules on validation episodes; prints the best combinations of each."""
    from training.scaling.tuning import combinations, tune_rule

    names = tuple(name.strip() for name in rules.split(",")) if rules else tuple(GRIDS)
    unknown = sorted(set(names) - set(GRIDS))
    if unknown:
        raise click.UsageError(f"--rules: {', '.join(unknown)}; choose from {', '.join(GRIDS)}")
    application = _application(application_file)
    best: dict[str, list[dict[str, Any]]] = {}
    with progress_bar() as progress:
        for name in names:
            task = progress.add_task(name, total=sum(1 for _ in combinations(name)), figures="")

            def on_done(rule: TunedRule, task: TaskID = task) -> None:
                progress.update(task, advance=1, figures=f"cost {rule.cost:.3f}")

            tried = tune_rule(application, name, repetitions=repetitions, on_done=on_done)
            best[name] = [asdict(rule) for rule in tried[:3]]
    if as_json:
        click.echo(json.dumps(best, indent=2))
        return
    table = Table(title="best combinations on validation episodes, normal and high load")
    for heading in ("rule", "parameters", "cost", "latency ms", "violations %", "cores"):
        table.add_column(heading, justify="left" if heading in ("rule", "parameters") else "right")
    for name, rows in best.items():
        for row in rows:
            table.add_row(
                name,
                ", ".join(f"{key} {value}" for key, value in row["parameters"].items()),
                f"{row['cost']:.3f}",
                f"{1000 * row['latency_seconds']:.1f}",
                f"{100 * row['violation_rate']:.2f}",
                f"{row['cpu_cores']:.2f}",
            )
    Console().print(table)


def training_command(config: ScalingTrainingConfig) -> str:
    """The command line that trains with this configuration: every value that differs from its default."""
    return command_line(("policy-train", "scale", "--run", "RUN"), config)


def _application(file: Path | None) -> Application:
    from training.scaling.application import ApplicationError, read_application
    from training.scaling.sock_shop import sock_shop

    if file is None:
        return sock_shop()
    try:
        return read_application(file)
    except ApplicationError as error:
        raise click.ClickException(str(error)) from None


def _table(title: str, figures: dict[str, SeedFigures]) -> Table:
    table = Table(title=title)
    for heading in (
        "policy",
        "latency mean ms",
        "p99 ms",
        "violations %",
        "CPU cores",
        "memory MiB",
        "changes / h",
    ):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for name, found in figures.items():
        e = found.estimates
        table.add_row(
            name,
            *(
                f"{factor * e[column].mean:.{digits}f} [{factor * e[column].low:.{digits}f}, "
                f"{factor * e[column].high:.{digits}f}]"
                for column, factor, digits in (
                    ("mean_latency_seconds", 1000, 1),
                    ("p99_latency_seconds", 1000, 0),
                    ("slo_violation_rate", 100, 2),
                    ("cpu_cores", 1, 2),
                    ("memory_mib", 1, 0),
                    ("changes", 1, 0),
                )
            ),
        )
    return table


def _comparison_table(compared: list[Comparison]) -> Table:
    table = Table(title="td3 against each policy at equal allocation, paired by seed: mean [95 % interval]")
    for heading in (
        "policy",
        "setting",
        "CPU, td3 / policy",
        "mean latency %",
        "p99 %",
        "violations, points",
    ):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for row in compared:
        table.add_row(
            row.policy,
            f"{row.setting:.3g}",
            f"{row.cpu_ratio.mean:.3f} [{row.cpu_ratio.low:.3f}, {row.cpu_ratio.high:.3f}]",
            _change(row.latency_reduction, -100, 1),
            _change(row.p99_reduction, -100, 1),
            _change(row.violation_difference, 100, 2),
        )
    return table


def _change(change: Estimate, factor: float, digits: int) -> str:
    low, high = sorted((factor * change.low, factor * change.high))
    return f"{factor * change.mean:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"
