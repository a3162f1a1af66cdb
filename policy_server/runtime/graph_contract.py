"""Inputs and outputs that the graphs of each kind of policy have: what training exports and the service feeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from policy_server.features.orchestration_schema import ORCHESTRATION_SCHEMA
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


def orchestration_signatures(embedding_width: int) -> dict[str, Signature]:
    """The two graphs of an orchestration policy, normalisation included.

    The encoder runs once per snapshot, on the disjoint union of S systems with N nodes, A access points, L links,
    R replicas and D demands (a service at an access point): what
    :func:`policy_server.features.graph.encoder_inputs` returns. ``systems`` carries nothing but its length.
    ``node_score`` is the logit by which nodes of one system are picked.

    The head runs on K picked nodes, of whatever systems, with what the encoder said of each, of its access point and
    of its system; and on their P pairs, each a service on the picked node ``pair_node``, with
    :meth:`~policy_server.features.graph.OrchestrationGraph.pair_features`. Of each picked node the policy takes one
    action by the logits ``delete_score`` and ``add_score`` of its pairs and ``nothing_score`` of its own. Services
    have no number: permuting the pairs of a node permutes their scores.

    Masks are no part of the graphs: see :mod:`policy_server.policies.orchestration`.

    Args:
        embedding_width: E, width of what the encoder hands to the head.
    """
    schema, width = ORCHESTRATION_SCHEMA, embedding_width
    return {
        ENCODER: Signature(
            inputs=(
                TensorSpec("node_features", "float32", ("N", len(schema.node))),
                TensorSpec("node_access_point", "int64", ("N",)),
                TensorSpec("access_point_features", "float32", ("A", len(schema.access_point))),
                TensorSpec("access_point_system", "int64", ("A",)),
                TensorSpec("systems", "float32", ("S",)),
                TensorSpec("link_features", "float32", ("L", len(schema.link))),
                TensorSpec("link_source", "int64", ("L",)),
                TensorSpec("link_target", "int64", ("L",)),
                TensorSpec("replica_features", "float32", ("R", len(schema.replica))),
                TensorSpec("replica_node", "int64", ("R",)),
                TensorSpec("demand_features", "float32", ("D", len(schema.demand))),
                TensorSpec("demand_access_point", "int64", ("D",)),
            ),
            outputs=(
                TensorSpec("node_embedding", "float32", ("N", width)),
                TensorSpec("access_point_summary", "float32", ("A", width)),
                TensorSpec("system_summary", "float32", ("S", width)),
                TensorSpec("node_score", "float32", ("N",)),
            ),
        ),
        HEAD: Signature(
            inputs=(
                TensorSpec("node_embedding", "float32", ("K", width)),
                TensorSpec("access_point_summary", "float32", ("K", width)),
                TensorSpec("system_summary", "float32", ("K", width)),
                TensorSpec("pair_features", "float32", ("P", len(schema.demand) + len(schema.pair))),
                TensorSpec("pair_node", "int64", ("P",)),
            ),
            outputs=(
                TensorSpec("delete_score", "float32", ("P",)),
                TensorSpec("nothing_score", "float32", ("K",)),
                TensorSpec("add_score", "float32", ("P",)),
            ),
        ),
    }


def require_dispatch_graphs(signatures: Mapping[str, Signature]) -> None:
    """Checks the graphs of a dispatch policy, of whatever context width.

    Raises:
        SignatureError: naming the graph and the tensor that differs.
    """
    _require_graphs(signatures, dispatch_signatures)


def require_orchestration_graphs(signatures: Mapping[str, Signature]) -> None:
    """Checks the graphs of an orchestration policy, of whatever embedding width.

    Raises:
        SignatureError: naming the graph and the tensor that differs.
    """
    _require_graphs(signatures, orchestration_signatures)


def _require_graphs(
    signatures: Mapping[str, Signature], expected_of_width: Callable[[int], Mapping[str, Signature]]
) -> None:
    if set(signatures) != {ENCODER, HEAD}:
        raise SignatureError(f"models: {sorted(signatures)}, expected {sorted((ENCODER, HEAD))}")
    shape = signatures[ENCODER].outputs[0].shape if signatures[ENCODER].outputs else ()
    width = shape[-1] if shape and isinstance(shape[-1], int) else 0
    for name, expected in expected_of_width(width).items():
        try:
            signatures[name].require(expected)
        except SignatureError as error:
            raise SignatureError(f"{name}: {error}") from None
