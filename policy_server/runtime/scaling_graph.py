"""Inputs and outputs of the graph of a scaling policy: what training exports and the service feeds."""

from __future__ import annotations

from collections.abc import Mapping

from policy_server.features.scaling import SCALING_SCHEMA
from policy_server.runtime.signature import Signature, SignatureError, TensorSpec

ACTOR = "actor"


def scaling_signature() -> Signature:
    """C containers in, one action each out, normalisation included.

    An action is CPU and memory, each within [-1, 1]; see
    :func:`policy_server.policies.scaling.actor.action_to_recommendation`.
    """
    return Signature(
        inputs=(TensorSpec("features", "float32", ("C", len(SCALING_SCHEMA.container))),),
        outputs=(TensorSpec("action", "float32", ("C", 2)),),
    )


def require_scaling_graph(signatures: Mapping[str, Signature]) -> None:
    """Checks the graph of a scaling policy.

    Raises:
        SignatureError: naming the graph and the tensor that differs.
    """
    if set(signatures) != {ACTOR}:
        raise SignatureError(f"models: {sorted(signatures)}, expected {[ACTOR]}")
    try:
        signatures[ACTOR].require(scaling_signature())
    except SignatureError as error:
        raise SignatureError(f"{ACTOR}: {error}") from None
