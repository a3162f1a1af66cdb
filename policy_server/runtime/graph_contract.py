"""Inputs and outputs that the graphs of each kind of policy have: what training exports and the service feeds."""

from __future__ import annotations

from collections.abc import Mapping

from policy_server.features.schema import SCHEMA
from policy_server.runtime.signature import Signature, SignatureError, TensorSpec

ENCODER = "encoder"
HEAD = "head"


def dispatch_signatures(context_width: int) -> dict[str, Signature]:
    """The two graphs of a dispatch policy, normalisation included.

    The encoder runs once per snapshot of N nodes, A access points, S systems, L links and R replicas; the head per
    decision, on Q queries with C candidates. ``systems`` carries nothing but its length; ``segment`` is the query
    of each candidate; ``score`` is a logit.

    Args:
        context_width: H, width of what the encoder hands to the head.
    """
    width = context_width
    replica_context = ("replica_context", "float32")
    return {
        ENCODER: Signature(
            inputs=(
                TensorSpec("node_features", "float32", ("N", len(SCHEMA.node))),
                TensorSpec("node_access_point", "int64", ("N",)),
                TensorSpec("access_point_features", "float32", ("A", len(SCHEMA.access_point))),
                TensorSpec("access_point_system", "int64", ("A",)),
                TensorSpec("systems", "float32", ("S",)),
                TensorSpec("link_features", "float32", ("L", len(SCHEMA.link))),
                TensorSpec("link_source", "int64", ("L",)),
                TensorSpec("link_target", "int64", ("L",)),
                TensorSpec("replica_features", "float32", ("R", len(SCHEMA.replica))),
                TensorSpec("replica_node", "int64", ("R",)),
            ),
            outputs=(
                TensorSpec(*replica_context, ("R", width)),
                TensorSpec("access_point_context", "float32", ("A", width)),
            ),
        ),
        HEAD: Signature(
            inputs=(
                TensorSpec(*replica_context, ("C", width)),
                TensorSpec("origin_context", "float32", ("Q", width)),
                TensorSpec("segment", "int64", ("C",)),
                TensorSpec("request_features", "float32", ("C", len(SCHEMA.request))),
            ),
            outputs=(TensorSpec("score", "float32", ("C",)),),
        ),
    }


def require_dispatch_graphs(signatures: Mapping[str, Signature]) -> None:
    """Checks the graphs of a dispatch policy, of whatever context width.

    Raises:
        SignatureError: naming the graph and the tensor that differs.
    """
    if set(signatures) != {ENCODER, HEAD}:
        raise SignatureError(f"models: {sorted(signatures)}, expected {sorted((ENCODER, HEAD))}")
    shape = signatures[ENCODER].outputs[0].shape if signatures[ENCODER].outputs else ()
    width = shape[-1] if shape and isinstance(shape[-1], int) else 0
    for name, expected in dispatch_signatures(width).items():
        try:
            signatures[name].require(expected)
        except SignatureError as error:
            raise SignatureError(f"{name}: {error}") from None
