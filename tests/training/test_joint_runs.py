"""Joint training on disk: the best pair is kept, and an interrupted run goes on as if nothing had happened."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from tests.training.joint_pairs import tiny_pair
from training.algorithms import two_scales
from training.algorithms.runners import InlineRunner
from training.algorithms.two_scales import JointConfig, JointState
from training.checkpoints import DISPATCH, ORCHESTRATION, RunError, load_checkpoint
from training.joint_runs import JointRun, joint_command
from training.orchestration_validation import ValidationFigures

CONFIG = JointConfig(rounds=2, orchestration_updates=1, dispatch_updates=1, cost_weight=0.5)


def trained(run: JointRun, state: JointState, figures: Iterable[ValidationFigures]) -> None:
    """Trains on, with these figures in place of the validation's; an interrupt where they end."""
    given = iter(figures)

    def validate(pair: JointState) -> float:
        found = next(given, None)
        if found is None:
            raise KeyboardInterrupt
        run.figures.append(found)
        return run.scores[-1]

    two_scales.train(
        run.config,
        state,
        InlineRunner(),
        validate,
        on_round=lambda number, pair: run.keep(pair),
        scores=run.scores,
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    _, dispatch = load_checkpoint(folder / "dispatch", DISPATCH)
    _, orchestration = load_checkpoint(folder / "orchestration", ORCHESTRATION)
    return {
        **{f"dispatch.{name}": values for name, values in dispatch.actor.state_dict().items()},
        **{f"orchestration.{name}": values for name, values in orchestration.actor.state_dict().items()},
    }


GIVEN, BETTER, DEARER = (
    ValidationFigures(throughput_rate=0.8, moved_per_payload=0.6),
    ValidationFigures(throughput_rate=0.8, moved_per_payload=0.5),
    ValidationFigures(throughput_rate=0.82, moved_per_payload=0.7),
)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_interrupted_run_goes_on_to_the_same_pair(tmp_path: Path) -> None:
    whole = JointRun.create(tmp_path / "whole", CONFIG, state := tiny_pair())
    trained(whole, state, (GIVEN, DEARER, BETTER))

    parts = JointRun.create(tmp_path / "parts", CONFIG, state := tiny_pair())
    with pytest.raises(KeyboardInterrupt):
        trained(parts, state, (GIVEN, DEARER))
    parts, state = JointRun.resume(tmp_path / "parts", {})
    assert parts.figures == [GIVEN, DEARER]
    assert parts.best_round == 0
    trained(parts, state, (BETTER,))

    assert {**parts.summary(), "run": ""} == {**whole.summary(), "run": ""}
    assert parts.best_round == 2
    expected = weights(tmp_path / "whole")
    for name, values in weights(tmp_path / "parts").items():
        assert torch.equal(values, expected[name]), name


def test_the_best_pair_is_that_of_the_best_price(tmp_path: Path) -> None:
    run = JointRun.create(tmp_path / "run", CONFIG, state := tiny_pair())
    dispatch, orchestration = state.dispatch.update, state.orchestration.update
    state.dispatch.update = state.orchestration.update = 0
    name, parameter = next(state.dispatch.actor.named_parameters())
    kept = []
    for number, figures in enumerate((GIVEN, BETTER, DEARER)):
        with torch.no_grad():
            parameter.fill_(float(number))
        state.dispatch.update = number
        run.figures.append(figures)
        run.keep(state)
        kept.append(weights(tmp_path / "run")[f"dispatch.{name}"].flatten()[0].item())
    assert kept == [0.0, 1.0, 1.0]
    assert run.best_round == 1
    config, best = load_checkpoint(tmp_path / "run" / "dispatch", DISPATCH)
    assert best.update == dispatch + 1
    assert config.cost_weight == CONFIG.cost_weight
    assert load_checkpoint(tmp_path / "run" / "orchestration", ORCHESTRATION)[1].update == orchestration
    assert [path.name for path in (tmp_path / "run" / "rounds").iterdir()] == ["2"]
    command = joint_command(tmp_path / "run" / "dispatch")
    assert command is not None
    assert "--cost-weight 0.5" in command
    assert joint_command(tmp_path) is None
    assert run.plot().read_bytes().startswith(b"\x89PNG")


def test_a_crash_between_files_loses_no_more_than_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = JointRun.create(tmp_path / "run", CONFIG, state := tiny_pair())
    run.figures.append(GIVEN)
    run.keep(state)
    run.figures.append(BETTER)
    monkeypatch.setattr(Path, "replace", lambda *paths: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space left"):
        run.keep(state)
    monkeypatch.undo()
    resumed, _ = JointRun.resume(tmp_path / "run", {"rounds": 5})
    assert resumed.figures == [GIVEN]
    assert resumed.config.rounds == 5
    assert resumed.command == f"{run.command} && policy-train joint --run RUN --resume --rounds 5"


def test_folders_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        RunError, match=r"holds no joint\.json; start with `policy-train joint` without --resume"
    ):
        JointRun.resume(tmp_path, {})
    run = JointRun.create(tmp_path, CONFIG, state := tiny_pair())
    run.figures.append(GIVEN)
    run.keep(state)
    with pytest.raises(RunError, match="holds a run already; go on with --resume"):
        JointRun.create(tmp_path, CONFIG, state)
    with pytest.raises(ValueError, match="rounds: 0"):
        JointRun.resume(tmp_path, {"rounds": 0})
    summary = json.loads((tmp_path / "joint.json").read_text())
    del summary["given_updates"]
    (tmp_path / "joint.json").write_text(json.dumps(summary))
    with pytest.raises(RunError, match="another version"):
        JointRun.resume(tmp_path, {})
