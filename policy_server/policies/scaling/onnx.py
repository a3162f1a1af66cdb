"""The scaling policy behind a model bundle."""

from __future__ import annotations

import numpy as np

from policy_server.cluster.snapshot import Float32Array
from policy_server.features.scaling import DEFAULT_ECONOMY
from policy_server.policies.scaling.actor import ActorScaling
from policy_server.runtime.bundle import Bundle
from policy_server.runtime.scaling_graph import ACTOR


def onnx_scaling(bundle: Bundle, economy: float = DEFAULT_ECONOMY) -> ActorScaling:
    """Serves a bundle of kind ``scaling``; all containers of a call are one run of the graph.

    Args:
        bundle: loaded.
        economy: what the operator chooses between latency (0) and allocation (1).
    """
    run = bundle.sessions[ACTOR].run

    def act(features: Float32Array) -> Float32Array:
        action: Float32Array = run({"features": features})[0]
        # An infinity would be clipped to the end of the range and look sound.
        return np.where(np.isfinite(action), action, np.float32(np.nan))

    return ActorScaling(act, economy, name=bundle.manifest.policy, version=bundle.manifest.version)
