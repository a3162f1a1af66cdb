"""Progress of orchestration on fixed training scenarios; held-out seeds are never touched.

The seeds lie in the training range but are not drawn in training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from policy_server.cluster.actions import OrchestrationAction
from policy_server.policies.orchestration.plan import FramePlan, OrchestrationOptions
from policy_server.policies.orchestration.rules import heuristic_orchestration
from training.algorithms.episode_jobs import dispatch_by
from training.algorithms.frames import pick_frame
from training.environments.compiled_dispatch import slot_stepper
from training.environments.orchestration import OrchestrationEnvironment, decided
from training.networks.dispatch import DispatchActor
from training.networks.orchestration import OrchestrationActor
from training.orchestration_scenarios import DEFAULT_SETTING, OrchestrationSetting, orchestration_simulator
from training.scenarios import Scenario
from training.validation import VALIDATION_SEEDS
from training.workloads.patterns import Pattern

Decide = Callable[[OrchestrationEnvironment], list[OrchestrationAction]]

VALIDATION_RULES = ("static", "greedy", "gsp-ss")


@dataclass(frozen=True)
class ValidationFigures:
    """Means over the scenarios.

    Attributes:
        throughput_rate: requests answered in time / requests arrived.
        moved_per_payload: bytes forwarded and pulled / payload bytes that arrived, frame by frame.
    """

    throughput_rate: float
    moved_per_payload: float

    def score(self, cost_weight: float) -> float:
        """What training maximises: throughput rate minus the price of the bytes moved."""
        return self.throughput_rate - cost_weight * self.moved_per_payload


@dataclass(frozen=True, kw_only=True)
class OrchestrationValidation:
    """Fixed scenarios: every pattern with a few seeds.

    Attributes:
        preset: system configuration.
        seeds_per_pattern: systems of each pattern.
        steps: most actions per frame and system, of learned policies and rules alike.
        setting: see its class.
        dispatch: a learned dispatch; None: earliest completion.
    """

    preset: str = "testbed-40"
    seeds_per_pattern: int = 2
    steps: int = 4
    setting: OrchestrationSetting = DEFAULT_SETTING
    dispatch: DispatchActor | None = None

    def play(self, decide: Decide) -> ValidationFigures:
        """What a policy makes of the scenarios."""
        simulator = orchestration_simulator(
            [
                Scenario(preset=self.preset, seed=VALIDATION_SEEDS[index], pattern=pattern)
                for pattern in Pattern
                for index in range(self.seeds_per_pattern)
            ],
            self.setting,
        )
        environment = OrchestrationEnvironment(
            simulator,
            slot_stepper(simulator, dispatch_by(self.dispatch)),
            cost_weight=1.0,
            options=OrchestrationOptions(maximum_actions=self.steps),
        )
        environment.step([], slots=self.setting.settle_slots)
        cost = np.zeros(simulator.systems)
        for _ in range(self.setting.frames):
            cost -= environment.step(decide(environment)).cost_reward.sum(axis=1)
        while not simulator.done:
            environment.step([], slots=1)
        return ValidationFigures(
            throughput_rate=float(np.mean([result.throughput_rate for result in simulator.results()])),
            moved_per_payload=float(cost.mean()) / self.setting.frames,
        )

    def actor(self, actor: OrchestrationActor) -> ValidationFigures:
        """What the actor's best choices come to."""
        random = np.random.default_rng(0)

        def decide(environment: OrchestrationEnvironment) -> list[OrchestrationAction]:
            plan = FramePlan(environment.query())
            return pick_frame(actor, plan, random, steps=self.steps, temperature=0.0).actions

        return self.play(decide)

    def baselines(self) -> dict[str, float]:
        """Mean throughput rate of each of :data:`VALIDATION_RULES`; GSP-SS is given the rates to come."""
        random = np.random.default_rng(0)
        rates = {}
        for name in VALIDATION_RULES:
            rule = heuristic_orchestration(name)
            given = name == "gsp-ss"
            rates[name] = self.play(
                lambda environment, rule=rule, given=given: decided(  # type: ignore[misc]
                    rule, environment.query(rates_to_come=given), random
                )
            ).throughput_rate
        return rates
