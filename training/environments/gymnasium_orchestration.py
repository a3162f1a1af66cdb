"""Orchestration as a Gymnasium environment: one action on one replica per step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from policy_server.cluster.actions import OrchestrationAction
from policy_server.features.orchestration_schema import ORCHESTRATION_SCHEMA
from policy_server.policies.orchestration.plan import FramePlan, OrchestrationOptions
from training.environments.compiled_dispatch import CompiledDispatch
from training.environments.orchestration import DEFAULT_COST_WEIGHT, OrchestrationEnvironment
from training.orchestration_scenarios import (
    DEFAULT_SETTING,
    DEFAULT_STEPS,
    OrchestrationSetting,
    orchestration_simulator,
)
from training.scenarios import Scenario
from training.simulator.presets import preset
from training.workloads.patterns import Pattern
from training.workloads.seeds import TRAINING_SEEDS

FEATURE_LIMIT = 100.0
"""Features are clipped to plus and minus this, so that observations are bounded."""

END_OF_FRAME = 0
"""The action that lets the frame begin."""

Observation: TypeAlias = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class OrchestrationEpisodeConfig:
    """What an episode plays.

    Attributes:
        preset: system configuration, in its orchestration scenario.
        pattern: arrival pattern.
        load: request rate as a multiple of the preset's reference rate.
        steps: H, most actions per frame.
        cost_weight: price of moved bytes in the reward.
        setting: see its class; its frames are the length of the episode.

    Raises:
        ValueError: naming the field, the value and what it must be.
    """

    preset: str = "testbed-40"
    pattern: Pattern = Pattern.P1
    load: float = 1.0
    steps: int = DEFAULT_STEPS
    cost_weight: float = DEFAULT_COST_WEIGHT
    setting: OrchestrationSetting = DEFAULT_SETTING

    def __post_init__(self) -> None:
        preset(self.preset)
        if self.steps < 1:
            raise ValueError(f"steps: {self.steps}; must be one or more")
        if not 0 <= self.cost_weight < np.inf:
            raise ValueError(f"cost_weight: {self.cost_weight}; must be finite, zero or more")

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Edge nodes N, access points A without the cloud's, and services W."""
        system = preset(self.preset)
        return system.edge_nodes, system.access_points, system.services


class OrchestrationGymEnvironment(gymnasium.Env[Observation, np.int64]):
    """Each step adds or deletes one replica, or lets the frame of 25 s begin; so does the H-th action of a frame.

    N edge nodes, A access points, W services. Observation, as of the beginning of the frame but for the last two:

    - ``nodes`` float32 [N, F]: features of each edge node, columns ``ORCHESTRATION_SCHEMA.node``.
    - ``node_access_point`` float32 [N, A]: 1 at the access point of each node.
    - ``demand`` float32 [A, W, F]: of each service at each access point, columns ``ORCHESTRATION_SCHEMA.demand``.
    - ``replicas`` float32 [N, W]: replicas that do not drain.
    - ``delays`` float32 [A, A]: seconds one way between access points, 0 to itself, -1 without a link.
    - ``steps_left`` float32 [1]: share of the frame's H actions that is left.
    - ``action_mask`` int8 [1 + 2NW]: feasible actions, those of this frame before it taken into account.

    Action: 0 lets the frame begin, 1 + 2W n + w deletes a replica of service w from node n, and 1 + 2W n + W + w adds
    one. One that is not feasible changes nothing but is counted among the H. Requests are dispatched by earliest
    completion.

    Reward: that of :mod:`training.environments.orchestration` for the frame that an action let begin, 0 otherwise. An
    episode never terminates; it is truncated after its frames. ``info`` holds ``frame``, the number of frames that have
    ended, and ``throughput_rate``, that of the latest of them.

    Args:
        config: what to play.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own declaration

    def __init__(self, config: OrchestrationEpisodeConfig = OrchestrationEpisodeConfig()) -> None:
        self.config = config
        nodes, access_points, services = config.sizes
        schema = ORCHESTRATION_SCHEMA

        def box(low: float, high: float, *shape: int) -> spaces.Box:
            return spaces.Box(low, high, shape, np.float32)

        self.observation_space: spaces.Space[Any] = spaces.Dict(
            {
                "nodes": box(-FEATURE_LIMIT, FEATURE_LIMIT, nodes, len(schema.node)),
                "node_access_point": box(0, 1, nodes, access_points),
                "demand": box(-FEATURE_LIMIT, FEATURE_LIMIT, access_points, services, len(schema.demand)),
                "replicas": box(0, FEATURE_LIMIT, nodes, services),
                "delays": box(-1, FEATURE_LIMIT, access_points, access_points),
                "steps_left": box(0, 1, 1),
                "action_mask": spaces.MultiBinary(1 + 2 * nodes * services),
            }
        )
        self.action_space = spaces.Discrete(1 + 2 * nodes * services)
        self._environment: OrchestrationEnvironment | None = None
        self._frame = 0
        self._taken = 0
        self._throughput_rate = 0.0
        self._state: Observation = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts an episode of a system and requests drawn by the seed, after the setting's time of observation."""
        super().reset(seed=seed)
        config = self.config
        scenario = Scenario(
            preset=config.preset,
            seed=int(self.np_random.integers(len(TRAINING_SEEDS))),
            load=config.load,
            pattern=config.pattern,
        )
        simulator = orchestration_simulator([scenario], config.setting, spare_frames=1)
        self._environment = OrchestrationEnvironment(
            simulator,
            CompiledDispatch(simulator),
            cost_weight=config.cost_weight,
            options=OrchestrationOptions(maximum_actions=config.steps),
        )
        if config.setting.settle_slots:
            self._environment.step([], slots=config.setting.settle_slots)
        self._frame = 0
        self._begin_planning()
        return self._observation(), self._info()

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Takes one action.

        Raises:
            RuntimeError: there is no episode, or it is over; call ``reset``.
        """
        environment = self._environment
        if environment is None or self._frame >= self.config.setting.frames:
            raise RuntimeError("step: no episode is going on; call reset first")
        reward = 0.0
        if action != END_OF_FRAME:
            services = self.config.sizes[2]
            node, change = divmod(int(action) - 1, 2 * services)
            # The plan's columns have doing nothing between deletions and additions.
            self._plan.choose(node, change if change < services else change + 1)
            self._taken += 1
        if action == END_OF_FRAME or self._taken == self.config.steps:
            outcome = environment.step(self.planned_actions)
            reward = float(outcome.reward[0])
            self._throughput_rate = float(outcome.met[0] / max(int(outcome.met[0] + outcome.failed[0]), 1))
            self._frame += 1
            self._begin_planning()
        truncated = self._frame >= self.config.setting.frames
        return self._observation(), reward, False, truncated, self._info()

    @property
    def planned_actions(self) -> list[OrchestrationAction]:
        """What is to be done when the frame begins, as rows of the present topology."""
        return [planned.action for planned in self._plan.actions]

    def _begin_planning(self) -> None:
        assert self._environment is not None
        query = self._environment.query()
        # Actions that change nothing count too, so the plan itself has no limit.
        self._plan = FramePlan(replace(query, options=OrchestrationOptions()))
        self._taken = 0
        graph = query.graph
        nodes, access_points, services = self.config.sizes
        topology = graph.snapshot.topology
        links = topology.link_row[:access_points, :access_points]
        delays = np.where(links < 0, -1.0, topology.links.delay_seconds[links])
        np.fill_diagonal(delays, 0.0)
        demand = graph.demand_features.reshape(-1, services, len(ORCHESTRATION_SCHEMA.demand))
        self._state = {
            "nodes": graph.node_features[:nodes],
            "node_access_point": np.eye(access_points)[topology.nodes.access_point[:nodes]],
            "demand": demand[:access_points],
            "replicas": graph.node_live[:nodes],
            "delays": delays,
        }

    def _observation(self) -> Observation:
        nodes, _, services = self.config.sizes
        space = self.observation_space
        assert isinstance(space, spaces.Dict)
        mask = self._plan.mask(np.arange(nodes))
        observation: Observation = {}
        for name, values in self._state.items():
            box = space[name]
            assert isinstance(box, spaces.Box)
            observation[name] = np.clip(values, box.low, box.high).astype(np.float32)
        observation["steps_left"] = np.array([1 - self._taken / self.config.steps], np.float32)
        observation["action_mask"] = np.concatenate(
            (np.ones(1, np.int8), np.delete(mask, services, axis=1).ravel().astype(np.int8))
        )
        return observation

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {"frame": self._frame}
        if self._frame:
            info["throughput_rate"] = self._throughput_rate
        return info
