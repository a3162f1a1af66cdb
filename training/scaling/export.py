"""From a trained scaling policy to a model bundle that the server loads.

Export fails when torch and ONNX Runtime disagree on batches of 1 to 1 000 containers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from policy_server.features.scaling import SCALING_SCHEMA
from policy_server.runtime.bundle import write_bundle
from policy_server.runtime.goldens import Golden
from policy_server.runtime.manifest import TrainingRecord
from policy_server.runtime.scaling_graph import ACTOR, scaling_signature
from policy_server.runtime.session import ModelSession
from training.export import ExportError, require_agreement, run_torch, to_onnx

SIZES = (1, 2, 3, 50, 1000)
_GOLDEN_SIZES = (1, 50)


def export_scaling(policy: nn.Module, seed: int = 0) -> tuple[bytes, list[Golden]]:
    """Exports and verifies a policy: float32 [C, features] -> float32 [C, 2].

    Args:
        policy: trained; left in evaluation mode.
        seed: of the verification cases.

    Returns:
        The serialised graph, and example runs computed by torch.

    Raises:
        ExportError: torch and ONNX Runtime disagree, or an action leaves [-1, 1].
    """
    policy.eval()
    signature = scaling_signature()
    width = len(SCALING_SCHEMA.container)
    random = np.random.default_rng(seed)
    model = to_onnx(policy, {"features": np.zeros((3, width), np.float32)}, signature, ACTOR)
    session = ModelSession(model)
    goldens = []
    for case, size in enumerate(SIZES):
        inputs = {"features": random.random((size, width), np.float32)}
        expected = run_torch(policy, inputs, ("action",))
        require_agreement(ACTOR, case, expected, {"action": session.run(inputs)[0]})
        largest = np.abs(expected["action"]).max()
        if not largest <= 1.0:
            raise ExportError(f"{ACTOR}, case {case}: an action is {largest:.3g}, outside [-1, 1]")
        if size in _GOLDEN_SIZES:
            goldens.append(Golden(ACTOR, inputs, expected))
    return model, goldens


def write_scaling_bundle(
    policy: nn.Module,
    root: Path,
    *,
    name: str,
    version: str,
    training: TrainingRecord,
    evaluation: Mapping[str, Any],
) -> Path:
    """Exports a policy and writes ``root/name/version``; the directory.

    Raises:
        ExportError: see :func:`export_scaling`.
        BundleError: see :func:`policy_server.runtime.bundle.write_bundle`.
    """
    model, goldens = export_scaling(policy)
    return write_bundle(
        root,
        policy=name,
        version=version,
        kind="scaling",
        models={ACTOR: model},
        goldens=goldens,
        sampling_temperature=0.0,
        training=training,
        evaluation=evaluation,
    )
