"""Training runs on disk: configuration, checkpoints, history.

A run folder holds ``config.json``, ``checkpoint.pt`` (weights, optimisers, counters; loaded with
``weights_only=True``, so nothing is unpickled), ``history.jsonl`` and TensorBoard event files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from training.algorithms import cmmac, gpg
from training.algorithms.cmmac import CmmacConfig, CmmacState
from training.algorithms.gpg import GpgConfig, GpgState

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

CONFIG_FILE = "config.json"
CHECKPOINT_FILE = "checkpoint.pt"
HISTORY_FILE = "history.jsonl"

ConfigT = TypeVar("ConfigT", CmmacConfig, GpgConfig)
StateT = TypeVar("StateT", CmmacState, GpgState)
BuiltT = TypeVar("BuiltT")


@dataclass(frozen=True)
class Algorithm(Generic[ConfigT, StateT]):
    """What a run folder holds of an algorithm.

    Attributes:
        command: of ``policy-train`` that trains by it.
        config: class of the hyperparameters.
        initial_state: an untrained state.
        parts: attributes of the state that hold networks and optimisers.
        counters: whole numbers among its attributes.
        sizes: hyperparameters that fix the form of the networks.
    """

    command: str
    config: Callable[..., ConfigT]
    initial_state: Callable[[ConfigT], StateT]
    parts: tuple[str, ...]
    counters: tuple[str, ...]
    sizes: tuple[str, ...]


DISPATCH = Algorithm(
    command="dispatch",
    config=CmmacConfig,
    initial_state=cmmac.initial_state,
    parts=("actor", "critic", "outcome_critic", "actor_optimiser", "critic_optimiser"),
    counters=("update", "decisions"),
    sizes=("embedding", "context"),
)
ORCHESTRATION = Algorithm(
    command="orchestrate",
    config=GpgConfig,
    initial_state=gpg.initial_state,
    parts=("actor", "critic", "actor_optimiser", "critic_optimiser"),
    counters=("update", "frames"),
    sizes=("embedding", "hidden", "encoder"),
)


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


def resume_run(
    folder: Path, changes: Mapping[str, Any], algorithm: Algorithm[ConfigT, StateT]
) -> tuple[ConfigT, StateT]:
    """Configuration and state to go on from. Changed hyperparameters hold from now on and are recorded.

    Args:
        folder: of the run.
        changes: hyperparameters by name.
        algorithm: of the run.

    Raises:
        RunError: as :func:`load_checkpoint`, or the networks would change.
        ValueError: a hyperparameter has an impossible value.
    """
    config, state = load_checkpoint(folder, algorithm)
    changed = replace(config, **changes)
    for name in algorithm.sizes:
        if getattr(changed, name) != getattr(config, name):
            raise RunError(
                f"{folder}: {name} is {getattr(config, name)} there, not {getattr(changed, name)}; networks keep "
                "their size, train a new run for another"
            )
    for group in state.critic_optimiser.param_groups:
        group["lr"] = changed.critic_learning_rate
    write_config(folder, changed)
    return changed, state


def load_config(folder: Path, algorithm: Algorithm[ConfigT, StateT]) -> ConfigT:
    """The configuration of a run.

    Raises:
        RunError: as :func:`read_config`.
    """
    return read_config(folder, algorithm.config, f"policy-train {algorithm.command}")


def read_config(folder: Path, build: Callable[..., BuiltT], command: str) -> BuiltT:
    """The configuration of a run.

    Args:
        folder: of the run.
        build: makes a configuration of hyperparameters by name.
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
        return build(**arguments)
    except (TypeError, ValueError) as error:
        raise RunError(
            f"{path}: {error}; it was written by another command than `{command}`, or by another version of the "
            "training code"
        ) from None


def orchestrates(folder: Path) -> bool:
    """Whether a run folder is one of ``policy-train orchestrate``.

    Raises:
        RunError: it holds no configuration.
    """
    path = folder / CONFIG_FILE
    if not path.exists():
        raise RunError(
            f"{folder}: holds no {CONFIG_FILE}; train into it first with `policy-train {DISPATCH.command}` or "
            f"`policy-train {ORCHESTRATION.command}`"
        )
    return set(json.loads(path.read_text())) == {column.name for column in fields(GpgConfig)}


def save_checkpoint(folder: Path, state: CmmacState | GpgState) -> None:
    """Writes the state in one step: a crash leaves the old checkpoint or the new one."""
    algorithm = DISPATCH if isinstance(state, CmmacState) else ORCHESTRATION
    write_tensors(
        folder / CHECKPOINT_FILE,
        {
            **{name: getattr(state, name).state_dict() for name in algorithm.parts},
            **{name: getattr(state, name) for name in algorithm.counters},
            "seconds": state.seconds,
        },
    )
    write_history(folder, state.history)


def write_run(folder: Path, config: CmmacConfig | GpgConfig, state: CmmacState | GpgState) -> None:
    """Writes a whole run, over one that is there."""
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, config)
    save_checkpoint(folder, state)


def load_checkpoint(folder: Path, algorithm: Algorithm[ConfigT, StateT]) -> tuple[ConfigT, StateT]:
    """Configuration and state of a run.

    Raises:
        RunError: no checkpoint, or one of other networks.
    """
    config = load_config(folder, algorithm)
    path = folder / CHECKPOINT_FILE
    if not path.exists():
        raise RunError(
            f"{folder}: holds no {CHECKPOINT_FILE} yet; wait for the first checkpoint, or remove the folder and "
            "start anew if the run has ended"
        )
    state = algorithm.initial_state(config)
    saved = torch.load(path, weights_only=True)
    try:
        for name in algorithm.parts:
            getattr(state, name).load_state_dict(saved[name])
        for name in algorithm.counters:
            setattr(state, name, int(saved[name]))
    except (RuntimeError, KeyError, ValueError) as error:
        raise RunError(f"{path}: does not fit the networks of this version; train anew ({error})") from None
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
