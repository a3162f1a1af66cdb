"""Dispatch and orchestration trained for each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from policy_server.policies.heuristics import heuristic_dispatch
from tests.training.joint_pairs import tiny_pair
from training.algorithms import two_scales
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
    actor = tiny_pair().orchestration.actor
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


def test_rounds_are_numbered_and_judged_one_by_one() -> None:
    state = tiny_pair()
    rates = iter((0.5, 0.7, 0.6))
    seen: list[int] = []
    weights: list[torch.Tensor] = []

    def on_round(number: int, current: JointState) -> None:
        seen.append(number)
        weights.append(next(current.dispatch.actor.parameters()).detach().clone())

    scores = two_scales.train(
        JointConfig(rounds=2, schedule="dispatch", dispatch_updates=1),
        state,
        InlineRunner(),
        lambda current: next(rates),
        on_round=on_round,
    )
    assert scores == [0.5, 0.7, 0.6]
    assert seen == [0, 1, 2]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    assert (state.dispatch.update, state.orchestration.update) == (2, 0)


def test_wrong_values_are_named() -> None:
    with pytest.raises(ValueError, match="rounds: 0; must be one or more"):
        JointConfig(rounds=0)
