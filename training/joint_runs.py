"""Folder of a run of ``policy-train joint``: where it stands, and the best pair so far.

``joint.json`` holds the configuration and the figures of every round, ``dispatch`` and ``orchestration`` the best pair
as runs to export, ``rounds/N`` the pair after the latest round to go on from. ``joint.json`` is written last: after a
crash a run goes on from the round that it names.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from training.algorithms.two_scales import JointConfig, JointState, learning_configs
from training.checkpoints import DISPATCH, ORCHESTRATION, RunError, load_checkpoint, write_run
from training.hyperparameters import command_line
from training.orchestration_validation import ValidationFigures

SUMMARY_FILE = "joint.json"
DISPATCH_RUN = "dispatch"
ORCHESTRATION_RUN = "orchestration"


@dataclass
class JointRun:
    """A run folder.

    Attributes:
        folder: of the run.
        config: hyperparameters.
        given_updates: updates of dispatch and of orchestration behind the pair that joint training began with.
        command: that trains the same; several, joined by ``&&``, if it was resumed with other hyperparameters.
        figures: of the pair given and of each round.
    """

    folder: Path
    config: JointConfig
    given_updates: tuple[int, int]
    command: str
    figures: list[ValidationFigures] = field(default_factory=list)

    @classmethod
    def create(cls, folder: Path, config: JointConfig, state: JointState) -> JointRun:
        """A run that begins with the pair ``state``.

        Raises:
            RunError: the folder holds a run already.
        """
        if (folder / SUMMARY_FILE).exists():
            raise RunError(f"{folder}: holds a run already; go on with --resume, or choose another folder")
        command = command_line(
            ("policy-train", "joint", "--run", "RUN", "--orchestration-run", "ORCHESTRATION_RUN"), config
        )
        return cls(folder, config, (state.dispatch.update, state.orchestration.update), command)

    @classmethod
    def resume(cls, folder: Path, changes: Mapping[str, Any]) -> tuple[JointRun, JointState]:
        """A run and its pair after the latest round. Changed hyperparameters hold from now on and are recorded.

        Args:
            folder: of the run.
            changes: hyperparameters by name.

        Raises:
            RunError: there is no such run, or it cannot be gone on with.
            ValueError: a hyperparameter has an impossible value.
        """
        path = folder / SUMMARY_FILE
        if not path.exists():
            raise RunError(
                f"{folder}: holds no {SUMMARY_FILE}; start with `policy-train joint` without --resume"
            )
        summary: dict[str, Any] = json.loads(path.read_text())
        if "given_updates" not in summary:
            raise RunError(f"{path}: was written by another version of the training code; train anew")
        config = JointConfig(**summary["config"])
        changed = replace(config, **changes)
        command: str = summary["command"]
        if changed != config:
            command += " && " + command_line(
                ("policy-train", "joint", "--run", "RUN", "--resume"), changed, unlike=config
            )
        run = cls(
            folder,
            changed,
            (summary["given_updates"][DISPATCH_RUN], summary["given_updates"][ORCHESTRATION_RUN]),
            command,
            [ValidationFigures(**figures) for figures in summary["validation"]],
        )
        latest = run._round(len(run.figures) - 1)
        dispatch_config, dispatch = load_checkpoint(latest / DISPATCH_RUN, DISPATCH)
        orchestration_config, orchestration = load_checkpoint(latest / ORCHESTRATION_RUN, ORCHESTRATION)
        return run, JointState(dispatch_config, dispatch, orchestration_config, orchestration)

    @property
    def scores(self) -> list[float]:
        """How good the pair given is and that of each round, at the price of bytes that is trained for now."""
        return [figures.score(self.config.cost_weight) for figures in self.figures]

    @property
    def best_round(self) -> int:
        """The first of the best rounds; 0: the pair given."""
        return self.scores.index(max(self.scores))

    def keep(self, state: JointState) -> None:
        """Writes the pair after the round that the last of ``figures`` belongs to."""
        number = len(self.figures) - 1
        _write_pair(self._round(number), self.config, state)
        if self.best_round == number:
            behind_dispatch, behind_orchestration = self.given_updates
            best = replace(
                state,
                dispatch=replace(state.dispatch, update=state.dispatch.update + behind_dispatch),
                orchestration=replace(
                    state.orchestration, update=state.orchestration.update + behind_orchestration
                ),
            )
            _write_pair(self.folder, self.config, best)
        partial = self.folder / f"{SUMMARY_FILE}.partial"
        partial.write_text(json.dumps(self.summary(), indent=2) + "\n")
        partial.replace(self.folder / SUMMARY_FILE)
        for other in self._round(number).parent.iterdir():
            if other != self._round(number):
                shutil.rmtree(other)

    def plot(self) -> Path:
        """Draws the figures of all rounds into the run folder."""
        from training.learning_plot import PLOT_FILE, plot_rounds

        return plot_rounds(
            self.folder / PLOT_FILE,
            {
                "throughput rate on validation scenarios": [f.throughput_rate for f in self.figures],
                "bytes moved per byte of payload": [f.moved_per_payload for f in self.figures],
                f"throughput rate - {self.config.cost_weight:g} x bytes": self.scores,
            },
            best_round=self.best_round,
            title=f"Joint training, schedule {self.config.schedule}, seed {self.config.seed} "
            "(ring: the pair that is kept)",
        )

    def summary(self) -> dict[str, Any]:
        """What ``joint.json`` holds."""
        return {
            "run": str(self.folder),
            "command": self.command,
            "config": asdict(self.config),
            "given_updates": dict(zip((DISPATCH_RUN, ORCHESTRATION_RUN), self.given_updates, strict=True)),
            "validation": [asdict(figures) for figures in self.figures],
            "validation_scores": self.scores,
            "best_round": self.best_round,
        }

    def _round(self, number: int) -> Path:
        return self.folder / "rounds" / str(number)


def joint_command(run: Path) -> str | None:
    """The command that trained a half of a pair; None for a run of its own."""
    summary = run.resolve().parent / SUMMARY_FILE
    if not summary.exists():
        return None
    command: str = json.loads(summary.read_text())["command"]
    return command


def _write_pair(folder: Path, config: JointConfig, state: JointState) -> None:
    dispatch_config, orchestration_config = learning_configs(config, state)
    write_run(folder / DISPATCH_RUN, dispatch_config, state.dispatch)
    write_run(folder / ORCHESTRATION_RUN, orchestration_config, state.orchestration)
