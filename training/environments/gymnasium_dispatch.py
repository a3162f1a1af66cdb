"""Dispatch as a Gymnasium environment: one central agent, one request per step."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from training.environments.episode import DispatchEpisode, EpisodeConfig, Observation


class DispatchGymEnvironment(gymnasium.Env[Observation, np.int64]):
    """Each step dispatches one request, in order of arrival.

    Observation: ``observation`` and ``action_mask``, see
    :meth:`training.environments.episode.DispatchEpisode.observation`. Action: the row of a candidate; any other row
    rejects the request. Reward: the paper's, at the last step of each slot, 0 otherwise. An episode never terminates;
    it is truncated after ``config.slots`` slots, with an observation of zeros.

    Args:
        config: what to play.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own declaration

    def __init__(self, config: EpisodeConfig = EpisodeConfig()) -> None:  # noqa: B008 - frozen
        self.config = config
        self.observation_space: spaces.Space[Any] = config.observation_space()
        self.action_space = config.action_space()
        self._episode: DispatchEpisode | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts an episode of a system and requests drawn by the seed."""
        super().reset(seed=seed)
        self._episode = DispatchEpisode(self.config, self.np_random, central=True)
        return self._episode.observation(0), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Dispatches the request at hand.

        Raises:
            RuntimeError: there is no episode, or it is over; call ``reset``.
        """
        episode = self._episode
        if episode is None or episode.finished:
            raise RuntimeError("step: no episode is going on; call reset first")
        reward = episode.act(np.array([action], np.int64))
        return episode.observation(0), reward, False, episode.finished, {}
