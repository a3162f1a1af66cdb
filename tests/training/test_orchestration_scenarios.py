"""Orchestration scenarios of the presets."""

from __future__ import annotations

import numpy as np
import pytest

from training.orchestration_scenarios import OrchestrationSetting, orchestration_simulator
from training.scenarios import Scenario, build_simulator
from training.workloads.patterns import Pattern

SCENARIO = Scenario(preset="testbed-40", seed=5, pattern=Pattern.P1, load=0.1)
SHORT = OrchestrationSetting(frames=1, settle_slots=4)


def test_the_scenario_is_the_preset_with_less_memory_and_fewer_replicas() -> None:
    plain = build_simulator([SCENARIO], 1.0).topology
    variant = orchestration_simulator([SCENARIO], SHORT).topology
    assert np.array_equal(variant.nodes.cpu_millicores, plain.nodes.cpu_millicores)
    assert np.array_equal(variant.links.delay_seconds, plain.links.delay_seconds)
    edge = slice(0, -1)
    assert np.array_equal(variant.nodes.memory_bytes[edge], plain.nodes.memory_bytes[edge] / 4)
    assert variant.nodes.memory_bytes[-1] == plain.nodes.memory_bytes[-1]
    on_edge = variant.replicas.node < 40
    per_service = np.bincount(variant.replicas.service[on_edge], minlength=30)
    assert per_service.tolist() == [2] * 30
    memory = np.bincount(
        variant.replicas.node, variant.services.memory_bytes[variant.replicas.service], minlength=41
    )
    assert (memory[edge] <= variant.nodes.memory_bytes[edge]).all()
    assert 0.5 < memory[edge].sum() / variant.nodes.memory_bytes[edge].sum() < 0.75


def test_copies_are_identical_and_requests_go_on_in_spare_frames() -> None:
    simulator = orchestration_simulator([SCENARIO, SCENARIO], SHORT, repeats=2)
    spare = orchestration_simulator([SCENARIO], SHORT, spare_frames=1)
    assert simulator.systems == 4
    rates = simulator.coming_rates(26.0).reshape(4, 6, 30)
    for copy in rates[1:]:
        assert np.array_equal(copy, rates[0])
    # Up to the end of the episode, and beyond it.
    assert simulator.coming_rates(60.0).sum() * 60 == pytest.approx(rates.sum() * 26)
    assert spare.coming_rates(51.0).sum() * 51 > 1.5 * rates[0].sum() * 26


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory_for_services": 0.0}, "memory_for_services: 0.0"),
        ({"initial_replicas_per_node": 0.0}, "initial_replicas_per_node: 0.0"),
        ({"frames": 0}, "frames: 0"),
        ({"settle_slots": -1}, "settle_slots: -1"),
    ],
)
def test_wrong_settings_are_named(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OrchestrationSetting(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="scenarios: empty"):
        orchestration_simulator([])
