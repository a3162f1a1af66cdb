"""Everything a training run of a scaling policy depends on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Algorithm(StrEnum):
    """What learns."""

    TD3 = "td3"
    DDPG = "ddpg"
    DQN = "dqn"


@dataclass(frozen=True)
class ScalingTrainingConfig:
    """Everything a run depends on."""

    algorithm: Literal["td3", "ddpg", "dqn"] = "td3"
    """what learns"""
    seed: int = 1
    """of all random numbers"""
    instances: int = 24
    """applications simulated side by side"""
    episode_seconds: int = 900
    """simulated time of an episode"""
    log_episodes: int = 12
    """episodes of the logged history"""
    log_updates: int = 6000
    """updates from the log alone"""
    episodes: int = 20
    """online episodes"""
    updates_per_interval: int = 4
    """updates per online interval"""
    batch_size: int = 512
    """transitions of one update"""
    replay_capacity: int = 1_500_000
    """transitions kept"""
    work_variation: float = 0.3
    """how much the work of services varies between instances (standard deviation of the logarithm)"""
    validate_every: int = 5
    """online episodes between validations"""
    learning_rate: float = 5e-4
    """at the beginning; falls linearly to a tenth while online"""
    discount: float = 0.5
    """of costs: a limit is revised every interval, so little reaches further than a minute"""
    actor_hidden: tuple[int, ...] = (64, 64)
    """widths of the actor's hidden layers"""
    critic_hidden: tuple[int, ...] = (128, 128)
    """widths of a critic's hidden layers"""
    behaviour_cloning: float = 0.1
    """weight of staying near the log while learning from it (actor-critic algorithms)"""
