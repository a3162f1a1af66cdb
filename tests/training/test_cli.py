"""``policy-train``, as it is typed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from policy_server.runtime.bundle import find_bundles, load_bundle
from training import checkpoints, validation
from training.algorithms.cmmac import CmmacConfig
from training.checkpoints import DISPATCH, create_run, load_checkpoint, load_config
from training.cli import main, train_dispatch, training_command
from training.hyperparameters import given_hyperparameters


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def every_command(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from every_command(child, (*path, name))


@pytest.mark.parametrize("path", list(every_command(main)), ids=" ".join)
def test_every_command_and_every_option_has_help(path: tuple[str, ...]) -> None:
    result = invoke(*path, "--help")
    assert result.exit_code == 0
    assert f"Usage: {' '.join(('main', *path))}" in result.output
    command: click.Command = main
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    assert command.help
    for option in command.params:
        assert getattr(option, "help", None), option.name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dispatch"], "Missing option '--run'"),
        (["dispatch", "--run", "RUN", "--updates", "0"], "updates: 0; must be one or more"),
        (["dispatch", "--run", "RUN", "--updates", "many"], "'many' is not a valid integer"),
        (["dispatch", "--run", "RUN", "--credit", "mine"], "'difference', 'own', 'team'"),
        (["dispatch", "--run", "RUN", "--presets", "testbed-41"], "must be some of testbed-40, testbed-100"),
        (["dispatch", "--run", "RUN", "--load-range", "1.4", "0.6"], "the lower first"),
        (["dispatch", "--run", "RUN", "--clip", "nan"], "clip: nan; must be finite"),
        (["evaluate", "dispatch", "--workload", "P9"], "'P1', 'P2', 'P3', 'P4'"),
        (["evaluate", "dispatch", "--preset", "testbed-41"], "'testbed-40', 'testbed-100'"),
        (["evaluate", "dispatch", "--seeds", "1"], "x>=2"),
        (["evaluate", "dispatch", "--load", "0"], "x>0"),
        (["evaluate", "dispatch", "--workload", "P1", "--trace", "t.csv"], "P1 and --trace t.csv: give one"),
        (
            ["evaluate", "dispatch", "--policies", "random,grredy"],
            "'grredy' is unknown; choose one of random",
        ),
        (["evaluate", "dispatch", "--models", "nowhere"], "'nowhere' does not exist"),
        (["export", "--run", "RUN"], "Missing option '--version'"),
        (["export", "--run", "RUN", "--version", "1.0.0", "--sampling-temperature", "-1"], "x>=0"),
    ],
)
def test_wrong_usage_is_explained(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def failure(*arguments: object) -> str:
    """Standard error of a command that fails for another reason than its usage."""
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    return result.stderr


def test_run_folders_that_cannot_be_used(tmp_path: Path) -> None:
    create_run(tmp_path / "old", CmmacConfig())
    assert "holds a run already; go on with --resume" in failure("dispatch", "--run", tmp_path / "old")
    assert "holds no checkpoint.pt yet" in failure("dispatch", "--run", tmp_path / "old", "--resume")
    assert "holds no config.json; train into it first" in failure(
        "dispatch", "--run", tmp_path / "new", "--resume"
    )
    assert "holds no config.json" in failure("export", "--run", tmp_path / "new", "--version", "1.0.0")
    assert not (tmp_path / "new").exists()


SHORT = ("--seeds", 2, "--processes", 1, "--duration-seconds", 1)


def test_evaluations_that_cannot_be_made(tmp_path: Path) -> None:
    evaluate = ("evaluate", "dispatch", *SHORT)
    missing = tmp_path / "none.csv"
    message = failure(*evaluate, "--policies", "random", "--trace", missing)
    assert f"{missing}: cannot be read: No such file" in message
    assert "POLICY_TRACES" in message
    assert "no model bundle 'kais'" in failure(*evaluate, "--policies", "kais", "--models", tmp_path)
    message = failure(*evaluate, "--policies", "kais-orchestration")
    assert "'kais-orchestration' is for orchestration; name a dispatch policy" in message
    assert "mean_rate_per_second" in failure(*evaluate, "--policies", "random", "--load", "1e9")


def interval(figure: dict[str, Any]) -> tuple[float, float, float]:
    assert figure.keys() == {"mean", "ci95"}
    low, high = figure["ci95"]
    return low, figure["mean"], high


def test_evaluation_as_json() -> None:
    result = invoke(
        "evaluate", "dispatch", *SHORT, "--policies", "random, earliest-completion", "--workload", "P3", "--json"
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report.keys() == {
        "preset", "workload", "seeds", "load", "duration_seconds", "staleness_slots", "policies",
    }  # fmt: skip
    assert report["staleness_slots"] == 0
    assert (report["preset"], report["workload"], report["seeds"]) == ("testbed-40", "P3", 2)
    assert list(report["policies"]) == ["random", "earliest-completion"]
    for figures in report["policies"].values():
        assert figures.keys() == {"throughput_rate", "scheduling_cost", "decision_seconds"}
        low, mean, high = interval(figures["throughput_rate"])
        assert low < mean < high
        assert 0 < mean <= 1
        low, mean, high = interval(figures["scheduling_cost"])
        assert low < mean < high
        assert 0 < mean < 2
        assert 0 < figures["decision_seconds"]["p50"] <= figures["decision_seconds"]["p99"] < 1
    rates = {name: figures["throughput_rate"]["mean"] for name, figures in report["policies"].items()}
    assert rates["earliest-completion"] > rates["random"]


def test_late_reports_cost_throughput_and_other_models_have_names() -> None:
    shipped = find_bundles(None)["kais"][0].path.parent.parent
    options = ("--policies", "kais,same,least-loaded,kais-joint", "--compare", f"same={shipped}")
    rates = []
    for slots in (0, 4):
        result = invoke("evaluate", "dispatch", *SHORT, *options, "--staleness-slots", slots, "--json")
        assert result.exit_code == 0, result.output
        report = json.loads(result.stdout)
        assert report["staleness_slots"] == slots
        figures = report["policies"]
        assert figures["same"]["throughput_rate"] == figures["kais"]["throughput_rate"]
        assert figures["same"]["kais_advantage"]["mean"] == 0
        assert figures["kais-joint"]["throughput_rate"] != figures["kais"]["throughput_rate"]
        rates.append([row["throughput_rate"]["mean"] for row in figures.values()])
    assert rates[1] != rates[0]
    assert sum(rates[1]) < sum(rates[0])


def test_evaluation_of_the_shipped_policy_on_a_trace_as_a_table(tmp_path: Path) -> None:
    trace = tmp_path / "rates.txt"
    trace.write_text("".join(f"{100 + second % 7}\n" for second in range(3000)))
    options = ("--trace", trace, "--policies", "kais,random")
    as_json = invoke("evaluate", "dispatch", *SHORT, *options, "--json")
    report = json.loads(as_json.stdout)
    assert report["workload"] == "rates.txt"
    assert "kais_advantage" not in report["policies"]["kais"]
    low, mean, high = interval(report["policies"]["random"]["kais_advantage"])
    assert low < mean < high
    rates = [report["policies"][name]["throughput_rate"]["mean"] for name in ("kais", "random")]
    assert mean == pytest.approx(rates[0] - rates[1])
    table = invoke("evaluate", "dispatch", *SHORT, *options)
    assert table.exit_code == 0
    assert "rates.txt" in table.stdout
    assert f"{rates[0]:.3f}" in table.stdout


@given(
    st.builds(
        CmmacConfig,
        seed=st.integers(0, 2**31),
        updates=st.integers(1, 1000),
        credit=st.sampled_from(["own", "team", "difference"]),
        presets=st.lists(st.sampled_from(["testbed-40", "testbed-100"]), min_size=1, max_size=3).map(tuple),
        load_range=st.tuples(st.floats(0.01, 1), st.floats(1, 10)),
        clip=st.floats(0, 1),
        learning_rate=st.floats(1e-6, 1),
    )
)
def test_the_recorded_command_trains_with_the_same_hyperparameters(config: CmmacConfig) -> None:
    program, command, *arguments = shlex.split(training_command(config))
    assert (program, command) == ("policy-train", "dispatch")
    context = train_dispatch.make_context(command, arguments)
    assert CmmacConfig(**given_hyperparameters(CmmacConfig, context.params)) == config


def test_the_recorded_command_leaves_defaults_out() -> None:
    assert training_command(CmmacConfig()) == "policy-train dispatch --run RUN"
    assert training_command(CmmacConfig(seed=3, presets=("testbed-100",))) == (
        "policy-train dispatch --run RUN --seed 3 --presets testbed-100"
    )


TINY = (
    "--systems", 1, "--rollout-slots", 2, "--tail-slots", 8, "--settle-slots", 2, "--rollouts-per-batch", 1,
    "--warm-start-slots", 8, "--presets", "testbed-40", "--load-range", 0.2, 0.3, "--embedding", 8, "--context", 8,
)  # fmt: skip


@pytest.mark.slow
def test_train_resume_and_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        validation, "Validation", partial(validation.Validation, seeds_per_pattern=1, slots=2)
    )
    run, models = tmp_path / "run", tmp_path / "models"
    train = ("dispatch", "--run", run, "--threads", 1, "--json")
    result = invoke(*train, *TINY, "--updates", 2, "--checkpoint-every", 1)
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert (summary["updates"], summary["run"]) == (2, str(run))
    assert Path(summary["plot"]).read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in run.iterdir()} == {
        "config.json", "checkpoint.pt", "history.jsonl", "baselines.json", "learning.png", "tensorboard",
    }  # fmt: skip
    assert list((run / "tensorboard").iterdir())
    baselines = json.loads((run / "baselines.json").read_text())
    assert baselines.keys() == set(validation.VALIDATION_BASELINES)

    result = invoke(*train, "--resume", "--updates", 3)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["updates"] == 3
    config, state = load_checkpoint(run, DISPATCH)
    assert (config.updates, config.systems, state.update) == (3, 1, 3)
    assert "validation_throughput_rate" in state.history[-1]
    assert "networks keep their size" in failure(*train, "--resume", "--context", 16)

    figures = tmp_path / "P1.json"
    figures.write_text(json.dumps({"seeds": 2}))
    export = ("export", "--run", run, "--models", models, "--version")
    result = invoke(*export, "1.0.0", "--evaluation", figures, "--json")
    assert result.exit_code == 0, result.output
    bundle = load_bundle(Path(json.loads(result.stdout)["bundle"]))
    assert bundle.path == models / "kais" / "1.0.0"
    assert bundle.manifest.training.command == training_command(load_config(run, DISPATCH))
    assert bundle.manifest.training.steps == state.decisions
    assert bundle.manifest.evaluation == {"P1": {"seeds": 2}}
    assert "a version never changes" in failure(*export, "1.0.0")
    assert "version '1'" in failure(*export, "1")
    figures.write_text("not JSON")
    refused = invoke(*export, "1.0.1", "--evaluation", figures)
    assert refused.exit_code == 2
    assert "not JSON" in refused.stderr


@pytest.mark.slow
def test_an_interrupted_run_can_be_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        validation, "Validation", partial(validation.Validation, seeds_per_pattern=1, slots=2)
    )
    save = checkpoints.save_checkpoint
    saved: list[int] = []

    def interrupted(folder: Path, state: Any) -> None:
        save(folder, state)
        saved.append(state.update)
        if len(saved) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, "save_checkpoint", interrupted)
    result = invoke("dispatch", "--run", tmp_path, *TINY, "--updates", 2, "--checkpoint-every", 1)
    assert result.exit_code == 130
    assert "go on with --run" in " ".join(result.stderr.split())
    assert saved == [1, 1]
    result = invoke("dispatch", "--run", tmp_path, "--resume", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["updates"] == 2
