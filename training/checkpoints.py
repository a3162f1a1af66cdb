"""Training runs on disk: configuration, checkpoints, history.

A run folder holds ``config.json``, ``checkpoint.pt`` (weights, optimisers, counters; loaded with
``weights_only=True``, so nothing is unpickled), ``history.jsonl`` and TensorBoard event files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from training.algorithms.cmmac import CmmacConfig, CmmacState, initial_state

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    ConfigT = TypeVar("ConfigT", bound=DataclassInstance)

CONFIG_FILE = "config.json"
CHECKPOINT_FILE = "checkpoint.pt"
HISTORY_FILE = "history.jsonl"


class RunError(ValueError):
    """A run folder that cannot be used. The message names the folder, the trouble and the remedy."""


def create_run(folder: Path, config: DataclassInstance) -> None:
    """Starts a run folder.

    Raises:
        RunError: the folder holds a run already.
    """
    if (folder / CONFIG_FILE).exists():
        raise RunError(f"{folder}: holds a run already; go on with --resume, or choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, config)


def resume_run(folder: Path, changes: Mapping[str, Any]) -> tuple[CmmacConfig, CmmacState]:
    """Configuration and state to go on from. Changed hyperparameters hold from now on and are recorded.

    Args:
        folder: of the run.
        changes: hyperparameters by name.

    Raises:
        RunError: as :func:`load_checkpoint`, or the networks would change.
        ValueError: a hyperparameter has an impossible value.
    """
    config, state = load_checkpoint(folder)
    changed = replace(config, **changes)
    for name in ("embedding", "context"):
        if getattr(changed, name) != getattr(config, name):
            raise RunError(
                f"{folder}: {name} is {getattr(config, name)} there, not {getattr(changed, name)}; networks keep "
                "their size, train a new run for another"
            )
    for group in state.critic_optimiser.param_groups:
        group["lr"] = changed.critic_learning_rate
    write_config(folder, changed)
    return changed, state


def load_config(folder: Path) -> CmmacConfig:
    """The configuration of a run of request dispatch.

    Raises:
        RunError: as :func:`read_config`.
    """
    return read_config(folder, CmmacConfig, "policy-train dispatch")


def read_config(folder: Path, kind: type[ConfigT], command: str) -> ConfigT:
    """The configuration of a run.

    Args:
        folder: of the run.
        kind: dataclass of the hyperparameters.
        command: that trains into such a folder.

    Raises:
        RunError: there is none, or it has unknown keys.
    """
    path = folder / CONFIG_FILE
    if not path.exists():
        raise RunError(f"{folder}: holds no {CONFIG_FILE}; train into it first with `{command}`")
    values: dict[str, Any] = json.loads(path.read_text())
    try:
        arguments: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
        }
        return kind(**arguments)
    except (TypeError, ValueError) as error:
        raise RunError(f"{path}: {error}; it was written by another version of the training code") from None


def save_checkpoint(folder: Path, state: CmmacState) -> None:
    """Writes checkpoint and history."""
    write_tensors(
        folder / CHECKPOINT_FILE,
        {
            "actor": state.actor.state_dict(),
            "critic": state.critic.state_dict(),
            "outcome_critic": state.outcome_critic.state_dict(),
            "actor_optimiser": state.actor_optimiser.state_dict(),
            "critic_optimiser": state.critic_optimiser.state_dict(),
            "update": state.update,
            "decisions": state.decisions,
            "seconds": state.seconds,
        },
    )
    write_history(folder, state.history)


def load_checkpoint(folder: Path) -> tuple[CmmacConfig, CmmacState]:
    """Configuration and state of a run.

    Raises:
        RunError: no checkpoint, or one of other networks.
    """
    config = load_config(folder)
    path = folder / CHECKPOINT_FILE
    if not path.exists():
        raise RunError(
            f"{folder}: holds no {CHECKPOINT_FILE} yet; wait for the first checkpoint, or remove the folder and "
            "start anew if the run has ended"
        )
    state = initial_state(config)
    saved = torch.load(path, weights_only=True)
    try:
        for name in ("actor", "critic", "outcome_critic", "actor_optimiser", "critic_optimiser"):
            getattr(state, name).load_state_dict(saved[name])
    except (RuntimeError, KeyError, ValueError) as error:
        raise RunError(f"{path}: does not fit the networks of this version; train anew ({error})") from None
    state.update, state.decisions = int(saved["update"]), int(saved["decisions"])
    state.seconds = float(saved["seconds"])
    state.history = read_history(folder)
    return config, state


def write_config(folder: Path, config: DataclassInstance) -> None:
    """Records the hyperparameters of a run."""
    (folder / CONFIG_FILE).write_text(json.dumps(asdict(config), indent=2) + "\n")


def write_tensors(path: Path, content: Mapping[str, Any]) -> None:
    """Writes in one step: a crash leaves the old file or the new one."""
    temporary = path.with_name(f"{path.name}.partial")
    torch.save(dict(content), temporary)
    os.replace(temporary, path)


def write_history(folder: Path, history: Sequence[Mapping[str, float]]) -> None:
    """Figures of a run, one JSON object a line."""
    with (folder / HISTORY_FILE).open("w") as file:
        file.writelines(json.dumps(figures) + "\n" for figures in history)


def read_history(folder: Path) -> list[dict[str, float]]:
    """What :func:`write_history` wrote; nothing before that."""
    path = folder / HISTORY_FILE
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
