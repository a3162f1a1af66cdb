"""``policy-train orchestrate``, ``export`` of its runs and ``evaluate joint``, as they are typed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from policy_server.cluster.actions import AddReplica, DeleteReplica
from policy_server.runtime.bundle import load_bundle
from training import orchestration_validation
from training.algorithms.gpg import GpgConfig
from training.checkpoints import ORCHESTRATION, create_run, load_config
from training.cli import main, training_command
from training.evaluation import joint
from training.hyperparameters import given_hyperparameters
from training.orchestration_commands import train_orchestration
from training.orchestration_scenarios import DEFAULT_SETTING, OrchestrationSetting, orchestration_simulator
from training.scenarios import Scenario
from training.workloads.patterns import Pattern


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["orchestrate"], "Missing option '--run'"),
        (["orchestrate", "--run", "RUN", "--repeats", "1"], "repeats: 1; must be two or more"),
        (["orchestrate", "--run", "RUN", "--encoder", "flat"], "'graph', 'stacked'"),
        (["orchestrate", "--run", "RUN", "--runners", "0"], "x>=1"),
        (["joint", "--run", "RUN"], "Missing option '--orchestration-run'"),
        (["joint", "--run", "RUN", "--resume", "--orchestration-run", "."], "leave --orchestration-run"),
        (["joint", "--run", "RUN", "--orchestration-run", ".", "--rounds", "0"], "rounds: 0; must be one or"),
        (["evaluate", "joint", "--workload", "P1", "--trace", "t.csv"], "P1 and --trace t.csv: give one"),
        (
            ["evaluate", "joint", "--policies", "greedy"],
            "'greedy' is no combination; write DISPATCH+ORCHESTRATION",
        ),
        (["evaluate", "joint", "--policies", "greedy+magic"], "'magic' is unknown; choose one of static"),
        (["evaluate", "joint", "--policies", "magic+greedy"], "'magic' is unknown; choose one of random"),
        (["evaluate", "joint", "--policies", "greedy+greedy@0"], "no combination"),
        (["evaluate", "joint", "--compare", "flat"], "write LABEL=FOLDER"),
        (["evaluate", "joint", "--seeds", "1"], "x>=2"),
        (["evaluate", "joint", "--workload", "P1,P9"], "'P9' is no arrival pattern; choose some of P1, P2"),
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


def test_a_run_of_dispatch_is_no_run_of_orchestration(tmp_path: Path) -> None:
    create_run(tmp_path / "run", GpgConfig())
    result = invoke("dispatch", "--run", tmp_path / "run", "--resume")
    assert result.exit_code == 1
    assert "written by another command than `policy-train dispatch`" in " ".join(result.stderr.split())


def test_the_recorded_command_trains_with_the_same_hyperparameters() -> None:
    assert training_command(GpgConfig()) == "policy-train orchestrate --run RUN"
    config = GpgConfig(seed=3, presets=("testbed-100",), load_range=(0.5, 0.6), encoder="stacked")
    program, command, *arguments = shlex.split(training_command(config))
    assert (program, command) == ("policy-train", "orchestrate")
    context = train_orchestration.make_context(command, arguments)
    assert GpgConfig(**given_hyperparameters(GpgConfig, context.params)) == config


SHORT = OrchestrationSetting(frames=1, settle_slots=4)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_train_export_and_evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        orchestration_validation,
        "OrchestrationValidation",
        partial(orchestration_validation.OrchestrationValidation, seeds_per_pattern=1, setting=SHORT),
    )
    run, models, report = tmp_path / "run", tmp_path / "models", tmp_path / "report"
    tiny = (
        "--scenarios", 1, "--repeats", 2, "--presets", "testbed-40", "--load-range", 0.1, 0.2, "--frames", 1,
        "--warm-start-batches", 1, "--embedding", 8, "--hidden", 8,
    )  # fmt: skip
    result = invoke("orchestrate", "--run", run, *tiny, "--updates", 1, "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert (summary["updates"], summary["frames"]) == (1, 2)
    assert Path(summary["plot"]).read_bytes().startswith(b"\x89PNG")
    assert json.loads((run / "baselines.json").read_text()).keys() == {"static", "greedy", "gsp-ss"}
    result = invoke("orchestrate", "--run", run, "--resume", "--updates", 2, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["updates"] == 2

    result = invoke("export", "--run", run, "--models", models, "--version", "1.0.0", "--json")
    assert result.exit_code == 0, result.output
    bundle = load_bundle(Path(json.loads(result.stdout)["bundle"]))
    assert bundle.path == models / "kais-orchestration" / "1.0.0"
    assert bundle.manifest.kind == "orchestration"
    assert bundle.manifest.training.command == training_command(load_config(run, ORCHESTRATION))

    policies = "earliest-completion+ours,greedy+greedy,greedy+static,native+native"
    evaluate = (
        "evaluate", "joint", "--seeds", 2, "--frames", 1, "--load", 0.3, "--processes", 1, "--policies", policies,
        "--compare", f"ours={models}", "--report", report, "--run", f"GPG={run}",
    )  # fmt: skip
    result = invoke(*evaluate, "--json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert list(figures["policies"]) == policies.split(",")
    for row in figures["policies"].values():
        low, high = row["throughput_rate"]["ci95"]
        assert low <= row["throughput_rate"]["mean"] <= high
        assert 0 < row["throughput_rate"]["mean"] <= 1
        assert 0 < row["decision_seconds"]["p50"] <= row["decision_seconds"]["p99"]
    assert figures["policies"]["native+native"]["scheduling_cost"]["mean"] == 1.0
    assert figures["policies"]["greedy+static"]["actions_per_frame"] == 0.0
    assert "greedy+static" in invoke(*evaluate).stdout
    several = json.loads(invoke(*evaluate, "--workload", "P1,P4", "--json").stdout)["evaluations"]
    assert [document["workload"] for document in several] == ["P1", "P4"]
    assert several[0] == figures  # read from the report's outcomes
    text = (report / "report.md").read_text()
    assert "earliest-completion+ours" in text
    for picture in (
        "testbed-40-throughput_rate.png",
        "testbed-40-scheduling_cost.png",
        "testbed-40-trade-off.png",
        "learning.png",
    ):
        assert picture in text
        assert (report / picture).read_bytes().startswith(b"\x89PNG")
    missing = invoke("evaluate", "joint", "--seeds", 2, "--policies", "greedy+kais", "--models", tmp_path)
    assert missing.exit_code == 1
    assert "no model bundle 'kais-orchestration'" in missing.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_train_a_pair_go_on_and_export_both_halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        orchestration_validation,
        "OrchestrationValidation",
        partial(orchestration_validation.OrchestrationValidation, seeds_per_pattern=1, setting=SHORT),
    )
    alone, pair, models = tmp_path / "alone", tmp_path / "pair", tmp_path / "models"
    tiny = (
        "--scenarios", 1, "--repeats", 2, "--presets", "testbed-40", "--load-range", 0.1, 0.2, "--frames", 1,
        "--warm-start-batches", 1, "--embedding", 8, "--hidden", 8, "--steps", 3, "--updates", 1,
    )  # fmt: skip
    assert invoke("orchestrate", "--run", alone, *tiny).exit_code == 0
    updates = ("--orchestration-updates", 1, "--dispatch-updates", 1)
    result = invoke("joint", "--run", pair, "--orchestration-run", alone, "--rounds", 1, *updates, "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert len(summary["validation_scores"]) == 2
    assert Path(summary["plot"]).read_bytes().startswith(b"\x89PNG")
    again = invoke("joint", "--run", pair, "--orchestration-run", alone)
    assert again.exit_code == 1
    assert "go on with --resume" in again.stderr
    result = invoke(
        "joint", "--run", pair, "--resume", "--rounds", 2, "--schedule", "orchestration", "--json"
    )
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert len(summary["validation_scores"]) == 3
    for half, name, most in (("dispatch", "kais-joint", None), ("orchestration", "kais-orchestration", 3)):
        result = invoke("export", "--run", pair / half, "--models", models, "--version", "1.0.0", "--json")
        assert result.exit_code == 0, result.output
        manifest = load_bundle(Path(json.loads(result.stdout)["bundle"])).manifest
        assert (manifest.policy, manifest.maximum_actions) == (name, most)
        assert manifest.training.command == summary["command"]
        assert manifest.training.command.endswith("--resume --schedule orchestration --rounds 2")
        assert manifest.training.data.endswith("presets testbed-40")


def test_paired_figures_are_of_our_combination() -> None:
    evaluation = joint.JointEvaluation(
        preset="testbed-40", workload=None, combinations=("a+b",), setting=DEFAULT_SETTING
    )
    assert evaluation.runs == ("a+b", "native+native")
    assert evaluation.duration_seconds == 310.0


BRIEF = joint.JointEvaluation(
    preset="testbed-40", seeds=2, load=0.5, setting=SHORT, combinations=("greedy+greedy",)
)


def test_systems_of_several_workloads_side_by_side_come_to_what_each_comes_to_alone() -> None:
    p1, p4 = (replace(BRIEF, workload=pattern) for pattern in (Pattern.P1, Pattern.P4))
    together = joint.run_combination([p1, p4], "greedy+static")
    for evaluation, outcome in zip((p1, p4), together, strict=True):
        (alone,) = joint.run_combination([evaluation], "greedy+static")
        # Ties fall differently.
        assert outcome.throughput_rate == pytest.approx(alone.throughput_rate, abs=0.01)
        assert outcome.forwarded_bytes == pytest.approx(alone.forwarded_bytes, rel=0.05)
    assert abs(together[0].throughput_rate.mean() - together[1].throughput_rate.mean()) > 0.01


def test_what_was_run_is_read_and_what_decides_the_outcome_is_part_of_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = joint.OutcomeStore(tmp_path / "outcomes")
    p1, p2 = (replace(BRIEF, workload=pattern) for pattern in (Pattern.P1, Pattern.P2))
    first = joint.evaluate([p1], processes=1, outcomes=store)
    ran: list[tuple[str, int]] = []
    original = joint.run_combination

    def counted(evaluations: Sequence[joint.JointEvaluation], name: str) -> list[joint.CombinationOutcome]:
        ran.append((name, len(evaluations)))
        return original(evaluations, name)

    monkeypatch.setattr(joint, "run_combination", counted)
    assert joint.evaluate([p1], processes=1, outcomes=store) == first
    assert ran == []
    both = joint.evaluate([p1, p2], processes=1, outcomes=store)
    assert both[0] == first[0]
    assert sorted(ran) == [("greedy+greedy", 1), ("native+native", 1)]
    for changed in (
        replace(p1, seeds=3),
        replace(p1, load=0.6),
        replace(p1, steps=3),
        replace(p1, setting=replace(SHORT, frames=2)),
        replace(p1, preset="testbed-100"),
    ):
        assert store.read(changed, "greedy+greedy") is None, changed
    assert store.read(p1, "greedy+greedy@3") is None
    assert store.read(replace(p1, models=None), "greedy+greedy") is not None


def test_evaluations_of_different_systems_are_not_run_side_by_side() -> None:
    with pytest.raises(ValueError, match="differ in workload or trace alone"):
        joint.evaluate([replace(BRIEF, workload=Pattern.P1), replace(BRIEF, workload=Pattern.P1, load=2.0)])


def test_actions_are_counted_for_their_system() -> None:
    simulator = orchestration_simulator(
        [Scenario(preset="testbed-40", seed=row, pattern=Pattern.P1, load=0.2) for row in range(3)], SHORT
    )
    topology = simulator.topology
    systems = topology.access_points.system[topology.nodes.access_point]
    for system in range(3):
        node = int(np.flatnonzero(systems == system)[0])
        replica = int(np.flatnonzero(systems[topology.replicas.node] == system)[0])
        actions = [AddReplica(0, node), DeleteReplica(replica)]
        assert joint.systems_of(actions, topology).tolist() == [system, system]
    assert joint.systems_of([], topology).tolist() == []
