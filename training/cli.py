"""``policy-train``: train, evaluate and export policies."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from training.bundle_names import DISPATCH_BUNDLE, JOINT_DISPATCH_BUNDLE
from training.hyperparameters import command_line, given_hyperparameters, hyperparameter_options
from training.options import (
    bundle_options,
    chosen_pattern,
    compare_option,
    recorded_evaluations,
    run_option,
    scenario_options,
    threads_option,
)
from training.progress import progress_bar
from training.provenance import git_commit
from training.scaling.cli import (
    evaluate_scale_command,
    export_scale_command,
    plot_scale_command,
    scale_command,
    tune_scale_command,
)
from training.workloads.patterns import Pattern

if TYPE_CHECKING:
    from policy_server.runtime.manifest import TrainingRecord

# torch and matplotlib take seconds to import, so the commands that need them import them.
from training.algorithms.cmmac import CmmacConfig  # isort: skip
from training.algorithms.gpg import GpgConfig  # isort: skip
from training.orchestration_commands import (  # isort: skip
    evaluate_joint,
    train_jointly,
    train_orchestration,
)

_notices = Console(stderr=True)


@click.group()
def main() -> None:
    """Train, evaluate and export policies for edge-cloud systems."""


@main.command("dispatch")
@run_option("Folder of checkpoints, history and TensorBoard events.")
@click.option("--resume", is_flag=True, help="Go on from the run's checkpoint.")
@click.option("--checkpoint-every", type=click.IntRange(1), default=5, show_default=True, help="Updates.")
@click.option("--validate-every", type=click.IntRange(1), default=10, show_default=True, help="Updates.")
@threads_option
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON.")
@hyperparameter_options(CmmacConfig)
def train_dispatch(
    folder: Path,
    resume: bool,
    checkpoint_every: int,
    validate_every: int,
    threads: int,
    as_json: bool,
    **arguments: Any,
) -> None:
    """Train request dispatch by cMMAC (KaiS).

    Writes checkpoints and a plot of learning into the run folder; stop with Ctrl-C and go on with --resume. Seeds of
    held-out evaluation are never trained on.
    """
    import torch

    from training.algorithms import cmmac
    from training.checkpoints import DISPATCH, RunError, create_run, resume_run, save_checkpoint
    from training.learning_plot import BASELINES_FILE, TrainingLog, plot_learning
    from training.networks.policies import TorchDispatch
    from training.validation import Validation

    torch.set_num_threads(threads)
    given = given_hyperparameters(CmmacConfig, arguments)
    try:
        if resume:
            config, state = resume_run(folder, given, DISPATCH)
        else:
            config = CmmacConfig(**given)
            create_run(folder, config)
            state = cmmac.initial_state(config)
    except RunError as error:
        raise click.ClickException(str(error)) from None
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    validation = Validation()
    if not (folder / BASELINES_FILE).exists():
        with _notices.status("running the baselines on the validation scenarios"):
            (folder / BASELINES_FILE).write_text(json.dumps(validation.baselines(), indent=2) + "\n")
    with TrainingLog(folder, "cmmac") as log, progress_bar() as progress:
        task = progress.add_task("cMMAC", total=config.updates, completed=state.update, figures="warm start")

        def on_update(current: cmmac.CmmacState, figures: dict[str, float]) -> None:
            if current.update % validate_every == 0 or current.update == config.updates:
                rate = validation.throughput_rate(TorchDispatch(current.actor, 0.0))
                figures["validation_throughput_rate"] = rate
            log.write(current.update, figures)
            progress.update(
                task,
                completed=current.update,
                figures=f"throughput rate {figures['throughput_rate']:.3f}, "
                f"{current.decisions / 1e6:.1f} M decisions",
            )
            if current.update % checkpoint_every == 0 or current.update == config.updates:
                save_checkpoint(folder, current)

        try:
            cmmac.train(config, state, on_update=on_update)
        except KeyboardInterrupt:
            save_checkpoint(folder, state)
            _notices.print(f"stopped at update {state.update}; go on with --run {folder} --resume")
            raise click.exceptions.Exit(130) from None
    plot = plot_learning(
        folder,
        state.history,
        f"Learning to dispatch, seed {config.seed}, credit {config.credit}",
        learned="kais (cMMAC)",
        effort="decisions",
        unit=1e6,
    )
    summary = {
        "run": str(folder),
        "updates": state.update,
        "decisions": state.decisions,
        "seconds": state.seconds,
        "throughput_rate": state.history[-1]["throughput_rate"] if state.history else None,
        "plot": str(plot),
    }
    if as_json:
        click.echo(json.dumps(summary))
    else:
        _notices.print(
            f"trained {state.update} updates on {state.decisions / 1e6:.1f} M decisions in "
            f"{state.seconds / 60:.1f} minutes; learning curve: {plot}"
        )


main.add_command(train_orchestration)
main.add_command(train_jointly)


@main.group("evaluate")
def evaluate_group() -> None:
    """Evaluate policies on held-out seeds and windows."""


evaluate_group.add_command(evaluate_joint)


@evaluate_group.command("dispatch")
@scenario_options("System configuration.")
@click.option(
    "--duration-seconds",
    type=click.FloatRange(1),
    default=25.0,
    show_default=True,
    help="Simulated, per seed.",
)
@click.option(
    "--policies",
    help="Comma-separated names of rules and of dispatch bundles. [default: kais and all heuristics]",
)
@click.option(
    "--staleness-slots",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Decide on reports that are 0 to so many slots (0.25 s) late, drawn per slot.",
)
@click.option(
    "--models",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder of model bundles. [default: those shipped]",
)
@compare_option("LABEL=FOLDER of bundles: LABEL names another learned policy in --policies; may be repeated.")
@click.option(
    "--processes",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Policies evaluated side by side.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def evaluate_dispatch(
    preset: str,
    workload: str | None,
    trace: Path | None,
    seeds: int,
    load: float,
    duration_seconds: float,
    policies: str | None,
    staleness_slots: int,
    models: Path | None,
    others: dict[str, Path],
    processes: int,
    as_json: bool,
) -> None:
    """Compare dispatch policies: throughput rate and scheduling cost with 95 % intervals, and decision time."""
    from policy_server.policies.heuristics import UnknownPolicyError
    from policy_server.runtime.bundle import BundleError
    from training.evaluation.dispatch import LEARNED, DispatchEvaluation, evaluate
    from training.workloads.columns import WorkloadError
    from training.workloads.traces.errors import TraceError

    pattern = chosen_pattern(workload, trace)
    evaluation = DispatchEvaluation(
        preset=preset,
        workload=pattern,
        trace=trace,
        seeds=seeds,
        load=load,
        duration_seconds=duration_seconds,
        staleness_slots=staleness_slots,
        models=models,
        others=others,
    )
    if policies is not None:
        evaluation = replace(evaluation, policies=tuple(name.strip() for name in policies.split(",")))
    try:
        with progress_bar() as progress:
            task = progress.add_task("evaluate", total=len(evaluation.runs), figures="")
            figures = evaluate(
                evaluation,
                processes=processes,
                on_done=lambda name: progress.update(task, advance=1, figures=name),
            )
    except UnknownPolicyError as error:
        raise click.UsageError(f"{error} or {LEARNED}") from None
    except (LookupError, BundleError, TraceError, WorkloadError, OSError) as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(
            json.dumps(
                {
                    "preset": preset,
                    "workload": evaluation.workload_name,
                    "seeds": seeds,
                    "load": load,
                    "duration_seconds": duration_seconds,
                    "staleness_slots": staleness_slots,
                    "policies": {name: policy.to_json() for name, policy in figures.items()},
                },
                indent=2,
            )
        )
        return
    table = Table(
        title=f"{preset}, {evaluation.workload_name}, load {load:g}: {seeds} held-out seeds of "
        f"{duration_seconds:g} s, {f'reports up to {staleness_slots} slots late, ' if staleness_slots else ''}"
        "mean and half of the 95 % interval",
    )
    for heading in ("policy", "throughput rate", "cost / native", "kais ahead by", "decision p50", "p99"):
        table.add_column(heading, justify="left" if heading == "policy" else "right", no_wrap=True)
    for name, row in sorted(figures.items(), key=lambda item: -item[1].throughput_rate.mean):
        advantage = row.learned_advantage
        table.add_row(
            name,
            f"{row.throughput_rate.mean:.3f} ±{row.throughput_rate.half_width:.3f}",
            f"{row.scheduling_cost.mean:.2f} ±{row.scheduling_cost.half_width:.2f}",
            "" if advantage is None else f"{advantage.mean:+.3f} ±{advantage.half_width:.3f}",
            f"{row.decision_p50_seconds * 1e6:.0f} us",
            f"{row.decision_p99_seconds * 1e6:.0f} us",
        )
    console = Console()
    Console(width=None if console.is_terminal else 120).print(table)


@main.command("export")
@run_option("Folder of the run.")
@click.option(
    "--sampling-temperature",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="0 serves the best score; above 0 samples from softmax(score / temperature).",
)
@bundle_options
def export_command(
    folder: Path,
    root: Path,
    version: str,
    sampling_temperature: float,
    evaluations: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Export a trained dispatch or orchestration policy as a model bundle, verified against torch.

    The policy is named kais or kais-orchestration; dispatch that `policy-train joint` trained kais-joint.
    """
    from policy_server.runtime.bundle import BundleError
    from training.checkpoints import DISPATCH, ORCHESTRATION, RunError, load_checkpoint, orchestrates
    from training.export import ExportError, write_dispatch_bundle, write_orchestration_bundle
    from training.joint_runs import joint_command

    recorded = recorded_evaluations(evaluations)
    command = joint_command(folder)
    try:
        if orchestrates(folder):
            gpg_config, gpg_state = load_checkpoint(folder, ORCHESTRATION)
            bundle = write_orchestration_bundle(
                gpg_state.actor,
                root,
                version=version,
                sampling_temperature=sampling_temperature,
                training=_training_record(gpg_config, gpg_state.frames, gpg_state.seconds, command),
                evaluation=recorded,
                maximum_actions=gpg_config.steps,
            )
        else:
            config, state = load_checkpoint(folder, DISPATCH)
            bundle = write_dispatch_bundle(
                state.actor,
                root,
                policy=DISPATCH_BUNDLE if command is None else JOINT_DISPATCH_BUNDLE,
                version=version,
                sampling_temperature=sampling_temperature,
                training=_training_record(config, state.decisions, state.seconds, command),
                evaluation=recorded,
            )
    except (RunError, ExportError, BundleError) as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps({"bundle": str(bundle)}))
    else:
        _notices.print(f"exported {bundle}")


def _training_record(
    config: CmmacConfig | GpgConfig, steps: int, seconds: float, command: str | None
) -> TrainingRecord:
    import torch

    from policy_server.runtime.manifest import TrainingRecord

    alone = isinstance(config, CmmacConfig) and command is None
    scenario = "" if alone else "orchestration scenarios of "
    return TrainingRecord(
        command=command or training_command(config),
        seed=config.seed,
        data=f"generated patterns {', '.join(Pattern)}, training seeds, {scenario}presets "
        f"{', '.join(dict.fromkeys(config.presets))}",
        git_commit=git_commit(),
        torch_version=str(torch.__version__),
        steps=steps,
        wall_seconds=seconds,
    )


def training_command(config: CmmacConfig | GpgConfig) -> str:
    """The command line that trains with this configuration: every value that differs from its default."""
    command = "dispatch" if isinstance(config, CmmacConfig) else "orchestrate"
    return command_line(("policy-train", command, "--run", "RUN"), config)


main.add_command(scale_command)
main.add_command(tune_scale_command)
main.add_command(plot_scale_command)
main.add_command(export_scale_command)
evaluate_group.add_command(evaluate_scale_command)


if __name__ == "__main__":
    sys.exit(main())
