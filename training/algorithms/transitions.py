"""Transitions that off-policy algorithms learn from."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Transitions(NamedTuple):
    """A batch of n transitions."""

    observation: Tensor
    """float32 [n, inputs]"""
    action: Tensor
    """float32 [n, actions] within [-1, 1], or int64 [n] for discrete actions."""
    reward: Tensor
    """float32 [n]"""
    next_observation: Tensor
    """float32 [n, inputs]"""
    terminated: Tensor
    """float32 [n], 1 where nothing follows; an episode cut off by a time limit is not terminated."""
