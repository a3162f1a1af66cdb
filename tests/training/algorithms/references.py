"""What the algorithms compute, in plain numpy, for networks that are plain numpy too."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from training.algorithms.transitions import Transitions

Array = NDArray[np.float64]


def forward(network: nn.Module, rows: Array) -> Array:
    """Linear layers with ReLU between them, read out of a network's parameters."""
    parameters = [parameter.detach().numpy().astype(np.float64) for parameter in network.parameters()]
    for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
        rows = rows @ weight.T + bias
        if weight is not parameters[-2]:
            rows = np.maximum(rows, 0)
    return rows


def centred(rows: Array) -> Array:
    return 2 * rows - 1


def actor_action(actor: nn.Module, observation: Array) -> Array:
    return np.tanh(forward(actor, centred(observation)))


def critic_value(critic: nn.Module, observation: Array, action: Array) -> Array:
    return forward(critic, np.concatenate((centred(observation), action), axis=1))[:, 0]


def example_transitions(inputs: int, actions: int | None, count: int = 64, seed: int = 3) -> Transitions:
    """Random transitions, a quarter of them final; discrete actions below 5 where ``actions`` is None."""
    random = np.random.default_rng(seed)
    action = (
        torch.from_numpy(random.integers(5, size=count))
        if actions is None
        else torch.from_numpy(random.uniform(-1, 1, (count, actions)).astype(np.float32))
    )
    return Transitions(
        observation=torch.from_numpy(random.random((count, inputs), np.float32)),
        action=action,
        reward=torch.from_numpy(random.normal(0, 2, count).astype(np.float32)),
        next_observation=torch.from_numpy(random.random((count, inputs), np.float32)),
        terminated=torch.from_numpy((random.random(count) < 0.25).astype(np.float32)),
    )


def parameters_of(module: nn.Module) -> list[Array]:
    return [parameter.detach().numpy().astype(np.float64).copy() for parameter in module.parameters()]


def changed(before: list[Array], module: nn.Module) -> bool:
    return any(not np.array_equal(a, b) for a, b in zip(before, parameters_of(module), strict=True))


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint saved and loaded."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def with_constant_action(batch: Transitions, action: float) -> Transitions:
    return batch._replace(action=torch.full_like(batch.action, action))
