"""The networks of vertical scaling: a deterministic actor, a critic of actions, and a critic of discrete levels.

Plain multi-layer perceptrons over the features of one container, so that one network serves any number of them.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

DEFAULT_HIDDEN = (128, 128)


def perceptron(inputs: int, hidden: tuple[int, ...], outputs: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    widths = (inputs, *hidden)
    for width, next_width in pairwise(widths):
        layers += [nn.Linear(width, next_width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


class Standardise(nn.Module):
    """Centres observations that are known to lie between two bounds; part of the exported graph."""

    centre: Tensor
    scale: Tensor

    def __init__(self, inputs: int, low: float | Tensor = 0.0, high: float | Tensor = 1.0) -> None:
        super().__init__()
        low_row = torch.broadcast_to(torch.as_tensor(low, dtype=torch.float32), (inputs,))
        high_row = torch.broadcast_to(torch.as_tensor(high, dtype=torch.float32), (inputs,))
        self.register_buffer("centre", (low_row + high_row) / 2)
        self.register_buffer("scale", 2 / (high_row - low_row))

    def forward(self, observation: Tensor) -> Tensor:
        """float32 [rows, inputs] -> float32 [rows, inputs], within [-1, 1]."""
        return (observation - self.centre) * self.scale


class Actor(nn.Module):
    """A deterministic policy: observation -> action within [-1, 1]."""

    def __init__(
        self,
        inputs: int,
        actions: int,
        hidden: tuple[int, ...] = DEFAULT_HIDDEN,
        standardise: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.standardise = standardise or Standardise(inputs)
        self.layers = perceptron(inputs, hidden, actions)

    def forward(self, features: Tensor) -> Tensor:
        """float32 [rows, inputs] -> float32 [rows, actions]."""
        return torch.tanh(self.layers(self.standardise(features)))


class Critic(nn.Module):
    """The value of an action within [-1, 1] in an observation."""

    def __init__(
        self,
        inputs: int,
        actions: int,
        hidden: tuple[int, ...] = DEFAULT_HIDDEN,
        standardise: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.standardise = standardise or Standardise(inputs)
        self.layers = perceptron(inputs + actions, hidden, 1)

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """float32 [rows, inputs], float32 [rows, actions] -> float32 [rows]."""
        value: Tensor = self.layers(torch.cat((self.standardise(observation), action), dim=1)).squeeze(1)
        return value


class LevelCritic(nn.Module):
    """The values of all discrete actions in an observation."""

    def __init__(
        self,
        inputs: int,
        levels: int,
        hidden: tuple[int, ...] = DEFAULT_HIDDEN,
        standardise: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.standardise = standardise or Standardise(inputs)
        self.layers = perceptron(inputs, hidden, levels)

    def forward(self, observation: Tensor) -> Tensor:
        """float32 [rows, inputs] -> float32 [rows, levels]."""
        values: Tensor = self.layers(self.standardise(observation))
        return values
