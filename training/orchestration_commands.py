"""``policy-train orchestrate``, ``policy-train joint`` and ``policy-train evaluate joint``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from training.algorithms.gpg import GpgConfig
from training.algorithms.two_scales import JointConfig
from training.hyperparameters import given_hyperparameters, hyperparameter_options
from training.options import compare_option, labelled_folders, scenario_options, threads_option
from training.orchestration_scenarios import DEFAULT_SETTING, DEFAULT_STEPS
from training.progress import progress_bar
from training.workloads.patterns import Pattern

if TYPE_CHECKING:
    from training.evaluation.joint import CombinationFigures, JointEvaluation

_notices = Console(stderr=True)


@click.command("orchestrate")
@click.option(
    "--run",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder of checkpoints, history and TensorBoard events.",
)
@click.option("--resume", is_flag=True, help="Go on from the run's checkpoint.")
@click.option("--checkpoint-every", type=click.IntRange(1), default=5, show_default=True, help="Updates.")
@click.option("--validate-every", type=click.IntRange(1), default=5, show_default=True, help="Updates.")
@threads_option
@click.option(
    "--runners",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Processes that play episodes; 1: this one. The episodes do not depend on it.",
)
@click.option(
    "--ray-address",
    help="Play episodes on this Ray cluster instead, at most --runners at a time; `local` starts one here.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON.")
@hyperparameter_options(GpgConfig)
def train_orchestration(
    folder: Path,
    resume: bool,
    checkpoint_every: int,
    validate_every: int,
    threads: int,
    runners: int,
    ray_address: str | None,
    as_json: bool,
    **arguments: Any,
) -> None:
    """Train orchestration by GPG (KaiS): a graph encoder and a policy gradient, frame by frame.

    Requests are dispatched by earliest completion meanwhile. Writes checkpoints and a plot of learning into the run
    folder; stop with Ctrl-C and go on with --resume. Seeds of held-out evaluation are never trained on.
    """
    import torch

    from training.algorithms import gpg
    from training.algorithms.runners import JobSource, RunnerError, start_runners
    from training.checkpoints import ORCHESTRATION, RunError, create_run, resume_run, save_checkpoint
    from training.learning_plot import BASELINES_FILE, TrainingLog, plot_learning
    from training.orchestration_validation import OrchestrationValidation

    torch.set_num_threads(threads)
    given = given_hyperparameters(GpgConfig, arguments)
    try:
        if resume:
            config, state = resume_run(folder, given, ORCHESTRATION)
        else:
            config = GpgConfig(**given)
            create_run(folder, config)
            state = gpg.initial_state(config)
        started_runners = start_runners(runners, ray_address)
    except (RunError, RunnerError) as error:
        raise click.ClickException(str(error)) from None
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    validation = OrchestrationValidation(preset=config.presets[0], steps=config.steps)
    if not (folder / BASELINES_FILE).exists():
        with _notices.status("running the rules on the validation scenarios"):
            (folder / BASELINES_FILE).write_text(json.dumps(validation.baselines(), indent=2) + "\n")
    with started_runners, TrainingLog(folder, "gpg") as log, progress_bar() as progress:
        task = progress.add_task("GPG", total=config.updates, completed=state.update, figures="warm start")

        def on_update(current: gpg.GpgState, figures: dict[str, float]) -> None:
            if current.update % validate_every == 0 or current.update in (0, config.updates):
                found = validation.actor(current.actor)
                figures["validation_throughput_rate"] = found.throughput_rate
                figures["validation_moved_per_payload"] = found.moved_per_payload
            log.write(current.update, figures)
            progress.update(
                task,
                completed=current.update,
                figures=f"throughput rate {figures.get('throughput_rate', 0):.3f}, {current.frames} frames",
            )
            if current.update % checkpoint_every == 0 or current.update == config.updates:
                save_checkpoint(folder, current)

        try:
            gpg.train(config, state, JobSource(config, started_runners), on_update=on_update)
        except RunnerError as error:
            save_checkpoint(folder, state)
            raise click.ClickException(str(error)) from None
        except KeyboardInterrupt:
            save_checkpoint(folder, state)
            _notices.print(f"stopped at update {state.update}; go on with --run {folder} --resume")
            raise click.exceptions.Exit(130) from None
    plot = plot_learning(
        folder,
        state.history,
        f"Learning to orchestrate, seed {config.seed}, H = {config.steps}, {config.encoder} encoder",
        learned="kais (GPG)",
        effort="frames",
        unit=1.0,
    )
    summary = {
        "run": str(folder),
        "updates": state.update,
        "frames": state.frames,
        "seconds": state.seconds,
        "throughput_rate": state.history[-1].get("throughput_rate") if state.history else None,
        "plot": str(plot),
    }
    if as_json:
        click.echo(json.dumps(summary))
    else:
        _notices.print(
            f"trained {state.update} updates on {state.frames} frames in {state.seconds / 60:.1f} minutes; "
            f"learning curve: {plot}"
        )


@click.command("joint")
@click.option(
    "--run",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder for the best pair, as the runs `dispatch` and `orchestration` to export, and for joint.json.",
)
@click.option("--resume", is_flag=True, help="Go on after the run's latest round.")
@click.option(
    "--orchestration-run",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Run of `policy-train orchestrate` to start from.  [required without --resume]",
)
@click.option(
    "--models",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder of bundles with the dispatch policy to start from. [default: those shipped]",
)
@threads_option
@click.option(
    "--runners",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Processes that play orchestration's episodes; 1: this one.",
)
@click.option("--ray-address", help="Play episodes on this Ray cluster instead; `local` starts one here.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON.")
@hyperparameter_options(JointConfig)
def train_jointly(
    folder: Path,
    resume: bool,
    orchestration_run: Path | None,
    models: Path | None,
    threads: int,
    runners: int,
    ray_address: str | None,
    as_json: bool,
    **arguments: Any,
) -> None:
    """Train dispatch and orchestration for each other: one alone, in turn or together; keep the best pair.

    Every round is kept when it ends; stop with Ctrl-C and go on with --resume.
    """
    import torch

    from policy_server.runtime.bundle import BundleError
    from training.algorithms import two_scales
    from training.algorithms.runners import RunnerError, start_runners
    from training.checkpoints import ORCHESTRATION, RunError, load_checkpoint
    from training.joint_runs import JointRun
    from training.orchestration_validation import OrchestrationValidation
    from training.restore import shipped_dispatch

    torch.set_num_threads(threads)
    given = given_hyperparameters(JointConfig, arguments)
    if resume and (orchestration_run or models):
        raise click.UsageError(
            "--resume goes on with the run's own pair; leave --orchestration-run and --models out"
        )
    if not resume and orchestration_run is None:
        raise click.UsageError(
            "Missing option '--orchestration-run': a run of `policy-train orchestrate` to start from, or --resume"
        )
    try:
        if orchestration_run is None:
            run, state = JointRun.resume(folder, given)
        else:
            try:
                config = JointConfig(**given)
            except ValueError as error:
                raise click.UsageError(str(error)) from None
            orchestration = load_checkpoint(orchestration_run, ORCHESTRATION)
            state = two_scales.JointState(*shipped_dispatch(models), *orchestration)
            run = JointRun.create(folder, config, state)
        started_runners = start_runners(runners, ray_address)
    except (RunError, RunnerError, BundleError, LookupError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    config = run.config

    def validate(pair: two_scales.JointState) -> float:
        validation = OrchestrationValidation(
            preset=pair.orchestration_config.presets[0],
            steps=pair.orchestration_config.steps,
            dispatch=pair.dispatch.actor,
        )
        run.figures.append(validation.actor(pair.orchestration.actor))
        return run.scores[-1]

    with started_runners, progress_bar() as progress:
        task = progress.add_task(
            config.schedule,
            total=config.rounds,
            completed=max(len(run.figures) - 1, 0),
            figures="going on" if run.figures else "validating the pair given",
        )

        def on_round(number: int, pair: two_scales.JointState) -> None:
            run.keep(pair)
            latest = run.figures[-1]
            progress.update(
                task,
                completed=number,
                figures=f"validation: throughput rate {latest.throughput_rate:.4f}, "
                f"{latest.moved_per_payload:.3f} bytes moved per byte of payload",
            )

        try:
            two_scales.train(config, state, started_runners, validate, on_round=on_round, scores=run.scores)
        except RunnerError as error:
            raise click.ClickException(str(error)) from None
        except KeyboardInterrupt:
            if not run.figures:
                raise
            _notices.print(f"stopped after round {len(run.figures) - 1}; go on with --run {folder} --resume")
            raise click.exceptions.Exit(130) from None
    plot = run.plot()
    if as_json:
        click.echo(json.dumps({**run.summary(), "plot": str(plot)}))
        return
    first, best = run.figures[0], run.figures[run.best_round]
    _notices.print(
        f"{config.schedule}: validation throughput rate {first.throughput_rate:.4f} at "
        f"{first.moved_per_payload:.3f} bytes moved per byte of payload before, best {best.throughput_rate:.4f} at "
        f"{best.moved_per_payload:.3f} after round {run.best_round} of {config.rounds}; the pair is in {folder}, "
        f"the rounds are drawn in {plot}"
    )


@click.command("joint")
@scenario_options("System configuration, in its orchestration scenario.", several_workloads=True)
@click.option(
    "--frames",
    type=click.IntRange(1),
    default=DEFAULT_SETTING.frames,
    show_default=True,
    help="Frames of 25 s, per seed.",
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=DEFAULT_STEPS,
    show_default=True,
    help="H: most actions per frame of the learned orchestration and of Greedy.",
)
@click.option(
    "--policies",
    help="Comma-separated combinations DISPATCH+ORCHESTRATION or DISPATCH+ORCHESTRATION@H. "
    "[default: kais+kais, its halves with others, and the baselines]",
)
@click.option(
    "--models",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder of model bundles. [default: those shipped]",
)
@compare_option("LABEL=FOLDER of bundles: LABEL names another learned half in --policies; may be repeated.")
@click.option(
    "--processes",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Combinations evaluated side by side.",
)
@click.option(
    "--outcomes",
    "outcome_folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder that keeps what each combination came to, to go on where a run was interrupted. "
    "[default: `outcomes` in the report's folder]",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of a report with tables and plots; every evaluation that is written there adds to it.",
)
@click.option(
    "--run",
    "runs",
    multiple=True,
    callback=labelled_folders,
    help="LABEL=FOLDER of a training run whose learning curve the report shows; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def evaluate_joint(
    preset: str,
    workload: tuple[Pattern, ...] | None,
    trace: Path | None,
    seeds: int,
    load: float,
    frames: int,
    steps: int,
    policies: str | None,
    models: Path | None,
    others: dict[str, Path],
    processes: int,
    outcome_folder: Path | None,
    report: Path | None,
    runs: dict[str, Path],
    as_json: bool,
) -> None:
    """Compare combinations of dispatch and orchestration over whole episodes: throughput rate and scheduling cost."""
    from policy_server.policies.heuristics import UnknownPolicyError
    from policy_server.runtime.bundle import BundleError
    from training.evaluation.joint import JointEvaluation, OutcomeStore, evaluate
    from training.evaluation.joint_report import add_to_report
    from training.workloads.columns import WorkloadError
    from training.workloads.traces.errors import TraceError

    if workload is not None and trace is not None:
        given = ",".join(pattern.value for pattern in workload)
        raise click.UsageError(f"--workload {given} and --trace {trace}: give one of them")
    patterns: tuple[Pattern | None, ...] = (None,) if trace is not None else workload or (Pattern.P1,)
    evaluation = JointEvaluation(
        preset=preset,
        trace=trace,
        seeds=seeds,
        load=load,
        steps=steps,
        setting=replace(DEFAULT_SETTING, frames=frames),
        models=models,
        others=others,
    )
    if policies is not None:
        names = tuple(dict.fromkeys(name.strip() for name in policies.split(",")))
        evaluation = replace(evaluation, combinations=names)
    if outcome_folder is None and report is not None:
        outcome_folder = report / "outcomes"
    evaluations = [replace(evaluation, workload=pattern) for pattern in patterns]
    try:
        with progress_bar() as progress:
            task = progress.add_task("evaluate", total=len(evaluation.runs), figures="")
            figures = evaluate(
                evaluations,
                processes=processes,
                outcomes=OutcomeStore(outcome_folder) if outcome_folder is not None else None,
                on_done=lambda name: progress.update(task, advance=1, figures=name),
            )
    except UnknownPolicyError as error:
        raise click.UsageError(str(error)) from None
    except (LookupError, BundleError, TraceError, WorkloadError, OSError) as error:
        raise click.ClickException(str(error)) from None
    documents = [
        {
            "preset": preset,
            "workload": each.workload_name,
            "seeds": seeds,
            "load": load,
            "duration_seconds": each.duration_seconds,
            "frames": frames,
            "steps": steps,
            "policies": {name: row.to_json() for name, row in rows.items()},
        }
        for each, rows in zip(evaluations, figures, strict=True)
    ]
    if report is not None:
        for document in documents:
            written = add_to_report(report, document, runs)
        _notices.print(f"report: {written}")
    if as_json:
        click.echo(json.dumps(documents[0] if len(documents) == 1 else {"evaluations": documents}, indent=2))
        return
    console = Console()
    for each, rows in zip(evaluations, figures, strict=True):
        Console(width=None if console.is_terminal else 140).print(_table(each, rows))


def _table(evaluation: JointEvaluation, rows: Mapping[str, CombinationFigures]) -> Table:
    table = Table(
        title=f"{evaluation.preset}, {evaluation.workload_name}, load {evaluation.load:g}: {evaluation.seeds} held-out "
        f"seeds of {evaluation.setting.frames} frames, mean and half of the 95 % interval",
    )
    for heading in (
        "combination", "throughput rate", "cost / native", "of it pulled", "kais+kais ahead by", "actions/frame",
        "decision p50",
    ):  # fmt: skip
        table.add_column(heading, justify="left" if heading == "combination" else "right", no_wrap=True)
    for name, row in sorted(rows.items(), key=lambda item: -item[1].throughput_rate.mean):
        advantage = row.learned_advantage
        table.add_row(
            name,
            f"{row.throughput_rate.mean:.3f} ±{row.throughput_rate.half_width:.3f}",
            f"{row.scheduling_cost.mean:.2f} ±{row.scheduling_cost.half_width:.2f}",
            f"{row.pulled_cost.mean:.2f}",
            "" if advantage is None else f"{advantage.mean:+.3f} ±{advantage.half_width:.3f}",
            f"{row.actions_per_frame:.1f}",
            f"{row.decision_p50_seconds * 1e3:.2f} ms",
        )
    return table
