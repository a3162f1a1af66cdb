"""cMMAC: small real runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from training.algorithms.cmmac import CmmacConfig, CmmacState, SlotTensors, initial_state, train
from training.algorithms.rollout import collect
from training.checkpoints import (
    RunError,
    create_run,
    load_checkpoint,
    load_config,
    save_checkpoint,
)
from training.environments.dispatch import DispatchEnvironment
from training.networks.policies import TorchDispatch
from training.scenarios import Scenario, training_simulator
from training.workloads.patterns import Pattern

TINY = CmmacConfig(
    updates=2,
    systems=2,
    rollout_slots=4,
    tail_slots=8,
    settle_slots=4,
    rollouts_per_batch=1,
    warm_start_slots=8,
    presets=("testbed-40",),
    embedding=8,
    context=8,
)
PLAIN = replace(TINY, credit="team", warm_start_slots=0, clip=0.0, staleness_slots=0)


def run(config: CmmacConfig) -> CmmacState:
    state = initial_state(config)
    train(config, state, on_update=lambda current, figures: None)
    return state


def weights(state: CmmacState) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in state.actor.parameters()])


@pytest.mark.parametrize(
    "config", [TINY, replace(TINY, credit="difference"), PLAIN], ids=["own", "difference", "paper"]
)
def test_learning_moves_the_weights_and_gives_finite_figures(config: CmmacConfig) -> None:
    before = weights(initial_state(config))
    state = run(config)
    assert not torch.equal(before, weights(state))
    assert len(state.history) == 2
    assert all(np.isfinite(list(figures.values())).all() for figures in state.history)
    assert state.decisions > 500


def test_the_same_seed_learns_the_same_weights() -> None:
    assert torch.equal(weights(run(TINY)), weights(run(TINY)))


def rolled_out(state: CmmacState) -> list[SlotTensors]:
    scenarios = [Scenario(preset="testbed-40", seed=row, load=1.5, pattern=Pattern.P1) for row in range(2)]
    environment = DispatchEnvironment(training_simulator(scenarios, 20), random=np.random.default_rng(0))
    rollout = collect(environment, TorchDispatch(state.actor), 4, 10)
    return [SlotTensors.of(slot) for slot in rollout.slots]


def test_the_reward_reaches_the_weights() -> None:
    """In the authors' demo the gradient from the reward is exactly zero (a single valid choice, every time)."""
    state = run(TINY)
    tensors = rolled_out(state)[2]
    advantage = tensors.met - tensors.met.mean()
    assert bool((advantage != 0).any())
    log_probability = tensors.log_softmax(tensors.logits(state.actor))
    (-(log_probability[tensors.chosen] * advantage).mean()).backward()
    gradients = [p.grad for p in state.actor.parameters() if p.grad is not None]
    assert sum(float(gradient.abs().sum()) for gradient in gradients) > 1e-3


def test_recorded_probabilities_are_those_of_the_networks() -> None:
    state = run(TINY)
    for tensors in rolled_out(state):
        with torch.no_grad():
            log_probability = tensors.log_softmax(tensors.logits(state.actor))
        np.testing.assert_allclose(
            log_probability[tensors.chosen].numpy(), tensors.old_log_probability.numpy(), atol=1e-4
        )
        total = torch.zeros(len(tensors.chosen)).index_add(0, tensors.segment, log_probability.exp())
        np.testing.assert_allclose(total.numpy(), 1.0, atol=1e-5)


def test_a_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    create_run(folder, TINY)
    save_checkpoint(folder, run(TINY))
    config, state = load_checkpoint(folder)
    assert config == TINY == load_config(folder)
    assert state.update == 2
    assert len(state.history) == 2
    longer = replace(config, updates=3)
    seen: list[int] = []
    train(longer, state, on_update=lambda current, figures: seen.append(current.update))
    assert seen == [3]
    steps: list[Any] = [entry["step"] for entry in state.actor_optimiser.state_dict()["state"].values()]
    assert min(float(step) for step in steps) > 2


def test_run_folders_explain_themselves(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"holds no config.json; train into it first"):
        load_checkpoint(tmp_path)
    create_run(tmp_path, TINY)
    with pytest.raises(RunError, match="holds a run already; go on with --resume"):
        create_run(tmp_path, TINY)
    with pytest.raises(RunError, match=r"holds no checkpoint.pt yet"):
        load_checkpoint(tmp_path)
    save_checkpoint(tmp_path, initial_state(replace(TINY, context=16)))
    with pytest.raises(RunError, match="does not fit the networks of this version"):
        load_checkpoint(tmp_path)
