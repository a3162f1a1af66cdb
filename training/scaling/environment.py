"""The application under control as a Gymnasium environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from policy_server.cluster.snapshot import Float32Array, Float64Array
from policy_server.features.scaling import DEFAULT_ECONOMY, SCALING_SCHEMA, scaling_features
from policy_server.policies.scaling.actor import action_to_recommendation
from training.scaling.application import Application
from training.scaling.loop import ScalingLoop
from training.scaling.objective import prices
from training.scaling.simulation import DEFAULT_INTERVAL_SECONDS
from training.scaling.sock_shop import sock_shop
from training.scaling.workload import generated_bursts, offered_rates

DEFAULT_EPISODE_SECONDS = 900


class ScalingEnvironment(gymnasium.Env[Float32Array, Float32Array]):
    """One application. Row s of observation and action belongs to container s.

    Observation: float32 [S, features] within [0, 1], see :mod:`policy_server.features.scaling`. Action: float32 [S, 2]
    within [-1, 1], see :func:`policy_server.policies.scaling.actor.action_to_recommendation`; the safety of served
    decisions applies. Reward: minus the cost of the interval, see :mod:`training.scaling.objective`. An episode never
    terminates; it is truncated when its load is used up. ``info``: ``container_rewards`` float64 [S], which add up to
    the reward, ``latency_seconds`` (mean), ``violation_rate``, ``cpu_cores`` and ``memory_bytes`` (sums of limits).
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own declaration

    def __init__(
        self,
        application: Application | None = None,
        *,
        load: Callable[[int], Float64Array] | None = None,
        economy: float = DEFAULT_ECONOMY,
        interval_seconds: float = DEFAULT_INTERVAL_SECONDS,
        work_variation: float = 0.0,
    ) -> None:
        """Describes the environment; :meth:`reset` starts it.

        Args:
            application: by default SockShop.
            load: requests per second in each second, float64 [seconds], for a seed; a whole number of intervals. By
                default a quarter of an hour with generated bursts.
            economy: how dear resources are, 0 to 1.
            interval_seconds: between two decisions.
            work_variation: see :class:`training.scaling.simulation.ScalingSimulation`.
        """
        self.application = application or sock_shop()
        self._load = load or self._bursts
        self._economy = economy
        self._interval_seconds = interval_seconds
        self._work_variation = work_variation
        containers = len(self.application.services)
        self.observation_space = spaces.Box(0.0, 1.0, (containers, len(SCALING_SCHEMA.container)), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (containers, 2), np.float32)
        self._loop: ScalingLoop | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float32Array, dict[str, Any]]:
        """Starts an episode; the seed decides load and chance."""
        super().reset(seed=seed)
        episode_seed = int(self.np_random.integers(2**31))
        self._loop = ScalingLoop(
            self.application,
            [episode_seed],
            self._load(episode_seed)[None],
            interval_seconds=self._interval_seconds,
            work_variation=self._work_variation,
        )
        return self._observe(self._loop), {}

    def step(self, action: Float32Array) -> tuple[Float32Array, float, bool, bool, dict[str, Any]]:
        """Applies an action for one interval."""
        loop = self._loop
        if loop is None:
            raise RuntimeError("step: no episode has been started; call reset first")
        made = loop.step(action_to_recommendation(np.asarray(action, np.float32), loop.history))
        price: NDArray[np.float64] = prices(np.array(self._economy))
        rewards = -(made.costs.stacked() @ price)
        outcome = made.outcome
        requests = max(int(outcome.requests[0]), 1)
        info = {
            "container_rewards": rewards,
            "latency_seconds": float(outcome.latency_seconds[0]) / requests,
            "violation_rate": float(outcome.violations[0]) / requests,
            "cpu_cores": float(loop.simulation.cpu_cores.sum()),
            "memory_bytes": float(loop.simulation.memory_bytes.sum()),
        }
        return self._observe(loop), float(rewards.sum()), False, loop.intervals_left == 0, info

    def _observe(self, loop: ScalingLoop) -> Float32Array:
        return scaling_features(loop.fleet, loop.history, self._economy)

    def _bursts(self, seed: int) -> Float64Array:
        curve = generated_bursts(seed, DEFAULT_EPISODE_SECONDS)
        return offered_rates(curve, self.application.mean_rate_per_second, seed)
