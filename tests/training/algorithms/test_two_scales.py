"""Dispatch and orchestration trained for each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from policy_server.policies.heuristics import heuristic_dispatch
from training.algorithms import cmmac, gpg, two_scales
from training.algorithms.cmmac import CmmacConfig
from training.algorithms.gpg import GpgConfig
from training.algorithms.runners import InlineRunner
from training.algorithms.two_scales import (
    JointConfig,
    JointState,
    OrchestratedDispatchEnvironment,
    Schedule,
)
from training.orchestration_scenarios import OrchestrationSetting, orchestration_simulator
from training.scenarios import Scenario
from training.simulator.simulator import SimulatorConfig
from training.workloads.patterns import Pattern

DISPATCH = CmmacConfig(
    updates=1, systems=1, rollout_slots=4, tail_slots=8, settle_slots=4, rollouts_per_batch=1, presets=("testbed-40",),
    load_range=(0.1, 0.2), embedding=8, context=8,
)  # fmt: skip
ORCHESTRATION = GpgConfig(
    updates=1, scenarios=1, repeats=2, presets=("testbed-40",), load_range=(0.05, 0.1), frames=1, embedding=8, hidden=8,
)  # fmt: skip


def pair() -> JointState:
    dispatch, orchestration = cmmac.initial_state(DISPATCH), gpg.initial_state(ORCHESTRATION)
    dispatch.update, dispatch.decisions = 1, 1
    orchestration.update, orchestration.frames = 1, 1
    return JointState(DISPATCH, dispatch, ORCHESTRATION, orchestration)


@pytest.mark.parametrize(
    ("schedule", "portions"),
    [
        ("orchestration", [(2, 0)]),
        ("dispatch", [(0, 5)]),
        ("alternating", [(2, 0), (0, 5)]),
        ("joint", [(1, 2), (1, 3)]),
    ],
)
def test_what_a_round_trains(schedule: Schedule, portions: list[tuple[int, int]]) -> None:
    config = JointConfig(schedule=schedule, orchestration_updates=2, dispatch_updates=5)
    assert two_scales._portions(config) == portions


def test_replicas_change_at_frames_and_at_no_other_slot() -> None:
    simulator = orchestration_simulator(
        [Scenario(preset="testbed-40", seed=1, pattern=Pattern.P1, load=0.3)],
        OrchestrationSetting(frames=1, settle_slots=0),
        config=SimulatorConfig(slots_per_frame=10),
    )
    actor = pair().orchestration.actor
    with torch.no_grad():
        actor.head.scores.bias[1] += 100.0  # it adds wherever it can
    environment = OrchestratedDispatchEnvironment(simulator, actor, steps=6, random=np.random.default_rng(0))
    rule = heuristic_dispatch("earliest-completion")
    began = []
    while simulator.slot < 25:
        before = set(simulator.topology.replicas.endpoints)
        slot = simulator.slot
        environment.step(rule)
        if set(simulator.topology.replicas.endpoints) - before:
            began.append(slot)
    assert began == [10, 20]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_best_pair_of_all_rounds_is_kept() -> None:
    state = pair()
    given = {name: values.clone() for name, values in state.dispatch.actor.state_dict().items()}
    rates = iter((0.5, 0.7, 0.6))
    seen: list[tuple[int, float]] = []
    kept: dict[str, torch.Tensor] = {}

    def on_round(number: int, current: JointState, rate: float) -> None:
        seen.append((number, rate))
        if number == 1:
            kept.update({name: v.clone() for name, v in current.orchestration.actor.state_dict().items()})

    result = two_scales.train(
        JointConfig(rounds=2, orchestration_updates=1, dispatch_updates=1),
        state,
        InlineRunner(),
        lambda current: next(rates),
        on_round=on_round,
    )
    assert result == [0.5, 0.7, 0.6]
    assert seen == [(0, 0.5), (1, 0.7), (2, 0.6)]
    for name, values in state.orchestration.actor.state_dict().items():
        assert torch.equal(values, kept[name]), name
    assert state.dispatch.update == state.orchestration.update == 2
    assert any(not torch.equal(v, given[n]) for n, v in state.dispatch.actor.state_dict().items())


def test_a_pair_that_only_gets_worse_is_given_back() -> None:
    state = pair()
    given = {name: values.clone() for name, values in state.dispatch.actor.state_dict().items()}
    rates = iter((0.9, 0.1))
    two_scales.train(
        JointConfig(rounds=1, schedule="dispatch", dispatch_updates=1),
        state,
        InlineRunner(),
        lambda current: next(rates),
        on_round=lambda number, current, rate: None,
    )
    assert all(torch.equal(given[name], v) for name, v in state.dispatch.actor.state_dict().items())
    assert state.dispatch.update == 1


def test_wrong_values_are_named() -> None:
    with pytest.raises(ValueError, match="rounds: 0; must be one or more"):
        JointConfig(rounds=0)
