"""One simulated system as an episode of rounds, below the Gymnasium and PettingZoo interfaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from policy_server.cluster.snapshot import Int64Array
from policy_server.features.schema import SCHEMA
from training.algorithms.slot_reward import slot_reward
from training.environments.dispatch import DispatchEnvironment, OpenRound
from training.scenarios import Scenario, training_simulator
from training.simulator.presets import preset
from training.simulator.simulator import VectorSimulator
from training.workloads.patterns import Pattern
from training.workloads.seeds import TRAINING_SEEDS

FEATURE_LIMIT = 100.0
"""Features are clipped to plus and minus this, so that observations are bounded."""

FEATURE_NAMES = (
    *SCHEMA.request,
    *(f"replica_{name}" for name in SCHEMA.replica),
    *(f"node_{name}" for name in SCHEMA.node),
    *(f"access_point_{name}" for name in SCHEMA.access_point),
)
"""Columns of an observation: the candidate as seen from the request, its replica, its node, and the access point
that the request is at. Units and formulas are those of :mod:`policy_server.features.candidates` and
:mod:`policy_server.features.load_table`."""

Observation: TypeAlias = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class EpisodeConfig:
    """What an episode plays.

    Attributes:
        preset: system configuration.
        pattern: arrival pattern.
        load: request rate as a multiple of the preset's reference rate.
        slots: length of the episode.
        maximum_candidates: rows of an observation; of more candidates, those estimated to answer first are offered.
        balance_weight: w of the paper's reward.

    Raises:
        ValueError: naming the field, the value and what it must be.
    """

    preset: str = "testbed-40"
    pattern: Pattern = Pattern.P1
    load: float = 1.0
    slots: int = 400
    maximum_candidates: int = 32
    balance_weight: float = 0.5

    def __post_init__(self) -> None:
        preset(self.preset)
        for name in ("slots", "maximum_candidates"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)}; must be one or more")

    def observation_space(self) -> spaces.Dict:
        """Space of :meth:`DispatchEpisode.observation`."""
        shape = (self.maximum_candidates, len(FEATURE_NAMES))
        return spaces.Dict(
            {
                "observation": spaces.Box(-FEATURE_LIMIT, FEATURE_LIMIT, shape, np.float32),
                "action_mask": spaces.MultiBinary(self.maximum_candidates),
            }
        )

    def action_space(self) -> spaces.Discrete:
        """Rows of an observation."""
        return spaces.Discrete(self.maximum_candidates)

    def empty_observation(self) -> Observation:
        """The observation of an agent that has nothing to dispatch: zeros."""
        return {
            "observation": np.zeros((self.maximum_candidates, len(FEATURE_NAMES)), np.float32),
            "action_mask": np.zeros(self.maximum_candidates, np.int8),
        }


class DispatchEpisode:
    """Plays rounds: in each, one request per acting dispatcher waits for a candidate.

    Args:
        config: what to play.
        random: draws the scenario's seed from the training range.
        central: one request per round in order of arrival, decided knowing all picks before it; otherwise at most one
            per access point, each knowing its own picks only.
    """

    def __init__(self, config: EpisodeConfig, random: np.random.Generator, *, central: bool) -> None:
        self._config = config
        self._central = central
        scenario = Scenario(
            preset=config.preset,
            seed=int(random.integers(len(TRAINING_SEEDS))),
            load=config.load,
            pattern=config.pattern,
        )
        self.simulator: VectorSimulator = training_simulator([scenario], config.slots)
        self._environment = DispatchEnvironment(self.simulator, random=random)
        self._rounds = self._environment.rounds(shares_picks=central)
        self._offered: list[Int64Array] = []
        self._round: OpenRound | None = None
        self._unpaid = self._open_next_round()

    @property
    def finished(self) -> bool:
        """Whether the episode's slots are over."""
        return self._round is None

    @property
    def access_points(self) -> list[int]:
        """Access point row of each of the Q requests of the round; none once finished."""
        return [] if self._round is None else self._round.candidates.queries.access_point.tolist()

    def observation(self, query: int) -> Observation:
        """What is known of the candidates of a request, those that are estimated to answer first in the first rows.

        Args:
            query: position within the round.

        Returns:
            ``observation`` float32 [maximum_candidates, :data:`FEATURE_NAMES`], and ``action_mask`` int8, 1 where a
            row is a candidate; rows beyond the candidates are zero.
        """
        observation = self._config.empty_observation()
        if self._round is None:
            return observation
        candidates, table = self._round.candidates, self._round.view.table
        offered = self._offered[query]
        count = len(offered)
        access_point = table.access_point_features[candidates.queries.access_point[query]]
        features = np.hstack(
            (
                candidates.features[offered],
                table.replica_features[candidates.replica[offered]],
                table.node_features[candidates.node[offered]],
                np.broadcast_to(access_point, (count, len(access_point))),
            )
        )
        np.clip(features, -FEATURE_LIMIT, FEATURE_LIMIT, out=observation["observation"][:count])
        observation["action_mask"][:count] = 1
        return observation

    def act(self, actions: Int64Array) -> float:
        """Sends each request of the round to a candidate; an action that is not one rejects the request.

        Args:
            actions: int64 [Q], rows of the observations.

        Returns:
            The reward exp(-lambda - w * sigma) summed over the slots that ended with this round (and, at the first
            round, before it); 0 while the slot goes on.

        Raises:
            RuntimeError: the episode is over.
        """
        if self._round is None:
            raise RuntimeError("act: the episode is over; start another")
        position = np.full(len(actions), -1, np.int64)
        for query, (action, offered) in enumerate(zip(actions.tolist(), self._offered, strict=True)):
            if 0 <= action < len(offered):
                position[query] = offered[action]
        self._environment.decide(self._round, position)
        reward = self._unpaid + self._open_next_round()
        self._unpaid = 0.0
        return reward

    def _open_next_round(self) -> float:
        """Goes on to the next round, through slots without any; the reward of the slots that ended."""
        reward = 0.0
        self._round = next(self._rounds, None)
        while self._round is None:
            outcome = self._environment.finish_slot()
            reward += float(slot_reward(outcome, self._config.balance_weight)[0])
            if self.simulator.slot >= self._config.slots:
                return reward
            self._rounds = self._environment.rounds(shares_picks=self._central)
            self._round = next(self._rounds, None)
        candidates = self._round.candidates
        self._offered = [
            first + np.argsort(candidates.completion_seconds[first:last], kind="stable")
            for first, last in zip(candidates.offsets[:-1], candidates.offsets[1:], strict=True)
        ]
        self._offered = [offered[: self._config.maximum_candidates] for offered in self._offered]
        return reward
