"""Weights back from a model bundle, to go on training where a shipped policy ended."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import nn

from policy_server.runtime.bundle import find_bundles
from policy_server.runtime.graph_contract import ENCODER, HEAD
from training.algorithms.cmmac import CmmacConfig, CmmacState, initial_state


def shipped_dispatch(models: Path | None) -> tuple[CmmacConfig, CmmacState]:
    """The latest dispatch policy, to go on training. Its critics were not shipped; they start from the actor's encoder.

    Args:
        models: root of the model bundles; None: those shipped.

    Raises:
        LookupError: there is no dispatch policy.
        BundleError: there is no such folder.
        ValueError: the policy has networks of other sizes than the default ones.
    """
    locations = find_bundles(models).get("kais")
    if not locations:
        raise LookupError(
            f"models: no model bundle 'kais' in {models or 'the package'}; export a dispatch policy"
        )
    config = CmmacConfig()
    state = initial_state(config)
    restore(state.actor.encoder, locations[0].path / f"{ENCODER}.onnx")
    restore(state.actor.head, locations[0].path / f"{HEAD}.onnx")
    state.outcome_critic.actor_like.encoder.load_state_dict(state.actor.encoder.state_dict())
    state.outcome_critic.actor_like.head.request_norm.load_state_dict(
        state.actor.head.request_norm.state_dict()
    )
    state.critic.encoder.load_state_dict(state.actor.encoder.system_encoder.state_dict())
    training = locations[0].load().manifest.training
    # Counted as trained, so that learning goes on with the small steps of a schedule's end.
    state.update, state.decisions, state.seconds = config.updates, training.steps, training.wall_seconds
    return config, state


def restore(network: nn.Module, model: Path) -> None:
    """Loads the weights and normalisers of an exported graph into the network it was exported from.

    Args:
        network: of the same form.
        model: ONNX file; the exporter keeps the names of parameters and buffers.

    Raises:
        ValueError: the graph lacks one of the network's tensors, or has it in another shape.
    """
    stored = {
        tensor.name: np.array(numpy_helper.to_array(tensor)) for tensor in onnx.load(model).graph.initializer
    }
    wanted = network.state_dict()
    for name, values in wanted.items():
        if name not in stored or stored[name].shape != tuple(values.shape):
            raise ValueError(
                f"{model}: {name} is missing or of another shape than {tuple(values.shape)}; it was exported from "
                "another network"
            )
    network.load_state_dict({name: torch.from_numpy(stored[name]) for name in wanted})
