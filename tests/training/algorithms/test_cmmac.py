"""cMMAC: small real runs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from training.algorithms import cmmac
from training.algorithms.cmmac import CmmacConfig, CmmacState, Credit, SlotTensors, initial_state, train
from training.algorithms.rollout import collect
from training.checkpoints import (
    DISPATCH,
    RunError,
    create_run,
    load_checkpoint,
    load_config,
    resume_run,
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
    load_range=(0.3, 0.5),
    embedding=8,
    context=8,
)
PLAIN = replace(TINY, credit="team", warm_start_slots=0, clip=0.0, staleness_slots=0)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Sums of several threads are rounded in the order the threads finish, so only one thread repeats bit by bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run(config: CmmacConfig) -> CmmacState:
    state = initial_state(config)
    train(config, state, on_update=lambda current, figures: None)
    return state


def weights(state: CmmacState) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in state.actor.parameters()])


@pytest.fixture(scope="module")
def learned() -> CmmacState:
    return run(TINY)


@pytest.mark.parametrize(
    "config",
    [TINY, replace(TINY, credit="difference"), replace(TINY, credit="team"), PLAIN],
    ids=["own", "difference", "team", "paper"],
)
def test_learning_moves_the_weights_and_is_repeatable(config: CmmacConfig) -> None:
    before = weights(initial_state(config))
    first, second = run(config), run(config)
    assert not torch.equal(before, weights(first))
    assert torch.equal(weights(first), weights(second))
    assert len(first.history) == 2
    assert all(np.isfinite(list(figures.values())).all() for figures in first.history)
    assert first.decisions > 500


def test_another_seed_learns_other_weights(learned: CmmacState) -> None:
    assert not torch.equal(weights(learned), weights(run(replace(TINY, seed=1))))


@pytest.mark.parametrize("credit", ["own", "difference", "team"])
def test_learning_without_entropy_bonus_moves_the_weights(credit: Credit) -> None:
    """In the authors' demo only the entropy term moves any weight; here the reward alone must."""
    config = replace(PLAIN, credit=credit, entropy_weight=0.0, updates=1)
    state = initial_state(config)
    before = weights(state)
    train(config, state, on_update=lambda current, figures: None)
    assert float((weights(state) - before).abs().max()) > 1e-4


def rolled_out(state: CmmacState) -> list[SlotTensors]:
    scenarios = [Scenario(preset="testbed-40", seed=row, load=1.5, pattern=Pattern.P1) for row in range(2)]
    environment = DispatchEnvironment(training_simulator(scenarios, 20), random=np.random.default_rng(0))
    rollout = collect(environment, TorchDispatch(state.actor), 4, 10)
    return [SlotTensors.of(slot) for slot in rollout.slots]


def test_forwarding_is_priced_against_what_the_policy_would_forward(learned: CmmacState) -> None:
    scenarios = [Scenario(preset="testbed-40", seed=row, load=1.5, pattern=Pattern.P1) for row in range(2)]
    environment = DispatchEnvironment(training_simulator(scenarios, 20), random=np.random.default_rng(0))
    rollout = collect(environment, TorchDispatch(learned.actor), 4, 10)
    tensors = [SlotTensors.of(slot) for slot in rollout.slots]
    free, _ = cmmac._outcome_advantages(TINY, copy.deepcopy(learned), rollout, tensors)
    priced, _ = cmmac._outcome_advantages(
        replace(TINY, cost_weight=0.4), copy.deepcopy(learned), rollout, tensors
    )
    for slot, without, with_price in zip(tensors, free, priced, strict=True):
        with torch.no_grad():
            probability = slot.log_softmax(slot.logits(learned.actor)).exp()
        for decision in range(len(slot.chosen)):
            own = slot.segment == decision
            expected = float((probability[own] * slot.forwarded[own]).sum())
            price = 0.4 * (float(slot.forwarded[slot.chosen[decision]]) - expected)
            assert float(without[decision] - with_price[decision]) == pytest.approx(price, abs=1e-5)


def test_the_reward_reaches_the_weights(learned: CmmacState) -> None:
    """In the authors' demo the gradient from the reward is exactly zero (a single valid choice, every time)."""
    state = copy.deepcopy(learned)
    tensors = rolled_out(state)[2]
    advantage = tensors.met - tensors.met.mean()
    assert bool((advantage != 0).any())
    log_probability = tensors.log_softmax(tensors.logits(state.actor))
    (-(log_probability[tensors.chosen] * advantage).mean()).backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad for p in state.actor.parameters() if p.grad is not None]
    assert sum(float(gradient.abs().sum()) for gradient in gradients) > 1e-3


def test_recorded_probabilities_are_those_of_the_networks(learned: CmmacState) -> None:
    for tensors in rolled_out(learned):
        with torch.no_grad():
            log_probability = tensors.log_softmax(tensors.logits(learned.actor))
        np.testing.assert_allclose(
            log_probability[tensors.chosen].numpy(), tensors.old_log_probability.numpy(), atol=1e-4
        )
        total = torch.zeros(len(tensors.chosen)).index_add(0, tensors.segment, log_probability.exp())
        np.testing.assert_allclose(total.numpy(), 1.0, atol=1e-5)


def test_a_checkpoint_holds_everything(learned: CmmacState, tmp_path: Path) -> None:
    create_run(tmp_path, TINY)
    save_checkpoint(tmp_path, learned)
    config, state = load_checkpoint(tmp_path, DISPATCH)
    assert config == TINY == load_config(tmp_path, DISPATCH)
    assert (state.update, state.decisions, state.seconds) == (2, learned.decisions, learned.seconds)
    assert state.history == learned.history
    for name in ("actor", "critic", "outcome_critic"):
        saved, loaded = getattr(learned, name).state_dict(), getattr(state, name).state_dict()
        assert saved.keys() == loaded.keys()
        assert all(torch.equal(saved[key], loaded[key]) for key in saved)
    for name in ("actor_optimiser", "critic_optimiser"):
        moments = [
            torch.cat([entry["exp_avg"].flatten() for entry in optimiser.state_dict()["state"].values()])
            for optimiser in (getattr(learned, name), getattr(state, name))
        ]
        assert float(moments[0].abs().max()) > 0
        assert torch.equal(*moments)


def test_a_run_goes_on_with_changed_hyperparameters(learned: CmmacState, tmp_path: Path) -> None:
    create_run(tmp_path, TINY)
    save_checkpoint(tmp_path, learned)
    config, state = resume_run(tmp_path, {"updates": 3, "critic_learning_rate": 2e-3}, DISPATCH)
    assert config == replace(TINY, updates=3, critic_learning_rate=2e-3) == load_config(tmp_path, DISPATCH)
    assert [group["lr"] for group in state.critic_optimiser.param_groups] == [2e-3]
    steps_before = actor_steps(state)
    seen: list[int] = []
    train(config, state, on_update=lambda current, figures: seen.append(current.update))
    assert seen == [3]
    assert actor_steps(state) > steps_before > 0
    with pytest.raises(RunError, match="context is 8 there, not 16; networks keep their size"):
        resume_run(tmp_path, {"context": 16}, DISPATCH)
    with pytest.raises(ValueError, match="updates: 0; must be one or more"):
        resume_run(tmp_path, {"updates": 0}, DISPATCH)
    assert load_config(tmp_path, DISPATCH) == config


def actor_steps(state: CmmacState) -> int:
    """Steps that the actor's optimiser has made."""
    return min(int(entry["step"]) for entry in state.actor_optimiser.state_dict()["state"].values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"systems": 0}, "systems: 0; must be one or more"),
        ({"staleness_slots": -1}, "staleness_slots: -1; must be zero or more"),
        ({"clip": float("nan")}, "clip: nan; must be finite, zero or more"),
        ({"learning_rate": 0.0}, "learning_rate: 0.0; must be finite and above zero"),
        ({"discount": 1.5}, "discount: 1.5; must be from 0 to 1"),
        ({"load_range": (1.4, 0.6)}, r"load_range: \(1.4, 0.6\); must be .* the lower first"),
        (
            {"presets": ("testbed-41",)},
            r"presets: \('testbed-41',\); must be some of testbed-40, testbed-100",
        ),
        ({"presets": ()}, r"presets: \(\); must be some of"),
    ],
)
def test_impossible_hyperparameters_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **changes)


def test_run_folders_explain_themselves(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"holds no config.json; train into it first"):
        load_checkpoint(tmp_path, DISPATCH)
    create_run(tmp_path, TINY)
    with pytest.raises(RunError, match="holds a run already; go on with --resume"):
        create_run(tmp_path, TINY)
    with pytest.raises(RunError, match=r"holds no checkpoint.pt yet"):
        load_checkpoint(tmp_path, DISPATCH)
    save_checkpoint(tmp_path, initial_state(replace(TINY, context=16)))
    with pytest.raises(RunError, match="does not fit the networks of this version"):
        load_checkpoint(tmp_path, DISPATCH)
