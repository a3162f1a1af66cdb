"""Going on with a shipped policy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from policy_server.features.schema import SCHEMA
from policy_server.runtime.bundle import find_bundles, shipped_bundles_root
from policy_server.runtime.graph_contract import ENCODER, HEAD
from training.export import encoder_cases, head_cases
from training.networks.dispatch import DispatchActor, DispatchNetworkSizes
from training.restore import restore, shipped_dispatch


def test_the_restored_actor_computes_what_the_shipped_graphs_compute() -> None:
    config, state = shipped_dispatch(None)
    sessions = find_bundles()["kais"][0].load().sessions
    cases = (
        (ENCODER, state.actor.encoder, encoder_cases(SCHEMA, 1)),
        (HEAD, state.actor.head, head_cases(SCHEMA, config.context, 1)),
    )
    for name, network, examples in cases:
        for inputs in examples:
            with torch.no_grad():
                outputs = network(**{key: torch.from_numpy(values) for key, values in inputs.items()})
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            for ours, theirs in zip(outputs, sessions[name].run(inputs), strict=True):
                np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-4, atol=1e-4)
    assert state.decisions > 1e6
    assert torch.equal(
        state.outcome_critic.actor_like.encoder.replica.weight, state.actor.encoder.replica.weight
    )


def test_another_network_is_refused(tmp_path: Path) -> None:
    other = DispatchActor(SCHEMA, DispatchNetworkSizes(embedding=8, context=8))
    with pytest.raises(ValueError, match="exported from another network"):
        restore(other.encoder, shipped_bundles_root() / "kais" / "1.0.0" / "encoder.onnx")
    with pytest.raises(LookupError, match="no model bundle 'kais'"):
        shipped_dispatch(tmp_path)
