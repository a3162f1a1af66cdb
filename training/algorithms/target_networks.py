"""Networks that move slowly after others, so that learning does not chase its own estimates."""

from __future__ import annotations

import torch
from torch import nn


@torch.no_grad()
def move_towards(target: nn.Module, source: nn.Module, rate: float) -> None:
    """target <- rate x source + (1 - rate) x target, for every parameter."""
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), rate)
