"""Progress on fixed training scenarios: what the learning curve shows and model selection looks at.

The seeds lie in the training range but are not drawn in training; held-out seeds are never touched.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policy_server.policies.dispatch import DispatchPolicy
from policy_server.policies.heuristics import heuristic_dispatch
from training.environments.dispatch import DispatchEnvironment
from training.scenarios import Scenario, training_simulator
from training.workloads.patterns import Pattern
from training.workloads.seeds import TRAINING_SEEDS

VALIDATION_BASELINES = ("firmament", "prequal", "earliest-completion", "greedy", "round-robin")
VALIDATION_SEEDS = TRAINING_SEEDS[-1000:]
"""Left out when training scenarios are drawn."""


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Fixed scenarios: every pattern with a few seeds."""

    preset: str = "testbed-40"
    load: float = 1.2
    seeds_per_pattern: int = 3
    slots: int = 64

    def throughput_rate(self, policy: DispatchPolicy) -> float:
        """Mean throughput rate of a policy over the scenarios."""
        scenarios = [
            Scenario(preset=self.preset, seed=VALIDATION_SEEDS[index], load=self.load, pattern=pattern)
            for pattern in Pattern
            for index in range(self.seeds_per_pattern)
        ]
        environment = DispatchEnvironment(
            training_simulator(scenarios, self.slots), random=np.random.default_rng(0)
        )
        while not environment.simulator.done:
            environment.step(policy)
        return float(np.mean([result.throughput_rate for result in environment.simulator.results()]))

    def baselines(self) -> dict[str, float]:
        """Mean throughput rate of each of :data:`VALIDATION_BASELINES`."""
        return {name: self.throughput_rate(heuristic_dispatch(name)) for name in VALIDATION_BASELINES}
