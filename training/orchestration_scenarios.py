"""Systems in which it matters where replicas run: what orchestration is trained and evaluated on.

The dispatch scenarios (:mod:`training.scenarios`) fill 70 % of the memory with replicas, evenly, for requests that
ask for the same everywhere: moving replicas gains nothing there. The orchestration scenario of a preset is the same
system, with the same links, machines and requests, but

- a quarter of each edge node's memory is left to services (the rest belongs to the system and other tenants),
- the initial placement has two replicas of each service on random nodes (five on testbed-100), as of a cluster that
  knows nothing of its load yet; they hold about two thirds of that memory,
- the mix of services differs from access point to access point and drifts (:mod:`training.workloads.locality`),
- and an episode is ten seconds, in which load is observed and nothing changed, and then twelve frames of 25 s.

How much placement matters there is measured in ``docs/orchestration-training.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from training.scenarios import Scenario
from training.simulator.presets import SystemConfig, build_topology, preset
from training.simulator.simulator import SimulatorConfig, VectorSimulator
from training.workloads.locality import Locality, localised
from training.workloads.services import default_services


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestrationSetting:
    """What makes an orchestration scenario of a preset; our choice, the paper's placement is not published.

    Attributes:
        memory_for_services: share of each edge node's memory that replicas may use.
        initial_replicas_per_node: replicas at the start per edge node, the same number of each service.
        locality: see its class.
        settle_slots: slots before the first decision.
        frames: decisions of an episode.

    Raises:
        ValueError: naming the field, the value and what it must be.
    """

    memory_for_services: float = 0.25
    initial_replicas_per_node: float = 1.5
    locality: Locality = Locality(deviation=1.5, relaxation_seconds=200.0)  # noqa: RUF009 - frozen
    settle_slots: int = 40
    frames: int = 12

    def __post_init__(self) -> None:
        if not 0 < self.memory_for_services <= 1:
            raise ValueError(
                f"memory_for_services: {self.memory_for_services}; must be above 0 and at most 1"
            )
        if not 0 < self.initial_replicas_per_node < np.inf:
            raise ValueError(
                f"initial_replicas_per_node: {self.initial_replicas_per_node}; must be finite and above zero"
            )
        if self.settle_slots < 0:
            raise ValueError(f"settle_slots: {self.settle_slots}; must be zero or more")
        if self.frames < 1:
            raise ValueError(f"frames: {self.frames}; must be one or more")

    def system(self, config: SystemConfig) -> SystemConfig:
        """The orchestration variant of a system."""
        return replace(
            config,
            edge_memory_bytes=tuple(size * self.memory_for_services for size in config.edge_memory_bytes),
            edge_memory_share=1.0,
            edge_replicas_per_service=max(
                1, round(self.initial_replicas_per_node * config.edge_nodes / config.services)
            ),
        )


DEFAULT_SETTING = OrchestrationSetting()
DEFAULT_STEPS = 8
"""H of reported evaluations: most actions per frame and system of the learned policy. KaiS takes 2."""


def orchestration_simulator(
    scenarios: Sequence[Scenario],
    setting: OrchestrationSetting = DEFAULT_SETTING,
    *,
    repeats: int = 1,
    spare_frames: int = 0,
    config: SimulatorConfig = SimulatorConfig(),  # noqa: B008 - frozen
) -> VectorSimulator:
    """The orchestration variants of all scenarios side by side.

    Args:
        scenarios: at least one; presets have the same number of services.
        setting: see its class.
        repeats: identical copies of each scenario, one after another.
        spare_frames: requests go on for that many frames after the episode.
        config: of the simulator.

    Raises:
        ValueError: no scenario, or presets with different numbers of services.
    """
    if not scenarios:
        raise ValueError("scenarios: empty; give at least one")
    services = default_services(preset(scenarios[0].preset).services)
    slots = setting.settle_slots + (setting.frames + spare_frames) * config.slots_per_frame
    duration_seconds = slots * config.slot_seconds
    topologies, workloads = [], []
    for scenario in scenarios:
        system = preset(scenario.preset)
        topologies.append(build_topology(setting.system(system), services, scenario.seed))
        workloads.append(
            localised(
                scenario.requests(services, duration_seconds),
                setting.locality,
                access_points=system.access_points,
                services=len(services),
                seed=scenario.seed,
            )
        )
    rows = np.repeat(np.arange(len(scenarios)), repeats)
    return VectorSimulator([topologies[row] for row in rows], [workloads[row] for row in rows], config)
