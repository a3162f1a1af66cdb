"""Compiled earliest completion against the policy object."""

from __future__ import annotations

import numpy as np
import pytest

from policy_server.policies.heuristics import heuristic_dispatch
from training.environments.compiled_dispatch import CompiledDispatch
from training.environments.dispatch import DispatchEnvironment
from training.orchestration_scenarios import OrchestrationSetting, orchestration_simulator
from training.scenarios import Scenario
from training.simulator.simulator import VectorSimulator
from training.workloads.patterns import Pattern

SETTING = OrchestrationSetting(frames=1, settle_slots=0)


def simulator(load: float) -> VectorSimulator:
    return orchestration_simulator(
        [
            Scenario(preset="testbed-40", seed=1, pattern=Pattern.P1, load=load),
            Scenario(preset="testbed-40", seed=2, pattern=Pattern.P4, load=load),
        ],
        SETTING,
    )


def test_the_first_slot_is_decided_alike() -> None:
    compiled, policy = simulator(0.6), simulator(0.6)
    CompiledDispatch(compiled).step()
    DispatchEnvironment(policy, random=np.random.default_rng(0)).step(
        heuristic_dispatch("earliest-completion")
    )
    for system in range(2):
        decided = compiled.arrivals().index[compiled.arrivals().system == system]
        nodes = [s.outcomes(system).node[: decided.min()] for s in (compiled, policy)]
        assert len(nodes[0]) > 50
        assert np.mean(nodes[0] == nodes[1]) > 0.98


@pytest.mark.parametrize("load", [0.5, 1.2])
def test_a_frame_ends_alike_while_replicas_come_and_go(load: float) -> None:
    rates = []
    for kind in ("compiled", "policy"):
        systems = simulator(load)
        if kind == "compiled":
            step = CompiledDispatch(systems).step
        else:
            environment = DispatchEnvironment(systems, random=np.random.default_rng(0))
            rule = heuristic_dispatch("earliest-completion")
            step = lambda environment=environment, rule=rule: environment.step(rule)  # type: ignore[misc]  # noqa: E731
        while systems.slot < 60:
            if systems.slot == 20:
                systems.add_replica(0, 3)
                systems.delete_replica(0)
            step()
        rates.append([result.throughput_rate for result in systems.results()])
    assert rates[0] == pytest.approx(rates[1], abs=0.01)
    assert 0.3 < np.mean(rates[0]) < 0.999
