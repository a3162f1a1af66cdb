"""Dispatch as a PettingZoo parallel environment: one agent per access point, as in KaiS."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from training.environments.episode import DispatchEpisode, EpisodeConfig, Observation
from training.simulator.presets import preset


class DispatchParallelEnvironment(ParallelEnv[str, Observation, int]):  # type: ignore[misc]
    """Each step is a round: every access point that has a request waiting dispatches one.

    Observation of an agent: ``observation`` and ``action_mask``, see
    :meth:`training.environments.episode.DispatchEpisode.observation`; all zeros when it has nothing to dispatch, and
    its action is ignored then. Action: the row of a candidate; any other row rejects the request. The reward is
    shared: the paper's, when a round ends a slot, 0 otherwise. Nobody terminates; all are truncated together after
    ``config.slots`` slots.

    Args:
        config: what to play.
    """

    metadata: dict[str, Any] = {"name": "dispatch_v0", "render_modes": []}  # noqa: RUF012 - PettingZoo's own form

    def __init__(self, config: EpisodeConfig = EpisodeConfig()) -> None:  # noqa: B008 - frozen
        self.config = config
        self.possible_agents = [f"ap-{row}" for row in range(preset(config.preset).access_points)]
        self.agents: list[str] = []
        # Spaces carry the random state they are sampled with, so each agent has its own.
        self.observation_spaces = {agent: config.observation_space() for agent in self.possible_agents}
        self.action_spaces = {agent: config.action_space() for agent in self.possible_agents}
        self._random = np.random.default_rng()
        self._episode: DispatchEpisode | None = None

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """The same for all agents."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """A row of the observation."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Observation], dict[str, dict[str, Any]]]:
        """Starts an episode of a system and requests drawn by the seed."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._episode = DispatchEpisode(self.config, self._random, central=False)
        self.agents = list(self.possible_agents)
        return self._observations(self._episode), {agent: {} for agent in self.agents}

    def step(
        self, actions: dict[str, int]
    ) -> tuple[
        dict[str, Observation], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]
    ]:
        """Plays a round.

        Raises:
            RuntimeError: there is no episode, or it is over; call ``reset``.
        """
        episode = self._episode
        if episode is None or episode.finished:
            raise RuntimeError("step: no episode is going on; call reset first")
        chosen = [actions[self.possible_agents[row]] for row in episode.access_points]
        reward = episode.act(np.array(chosen, np.int64))
        agents = self.agents
        observations = self._observations(episode)
        if episode.finished:
            self.agents = []
        return (
            observations,
            dict.fromkeys(agents, reward),
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, episode.finished),
            {agent: {} for agent in agents},
        )

    def _observations(self, episode: DispatchEpisode) -> dict[str, Observation]:
        observations = {agent: self.config.empty_observation() for agent in self.agents}
        for query, row in enumerate(episode.access_points):
            observations[self.possible_agents[row]] = episode.observation(query)
        return observations
