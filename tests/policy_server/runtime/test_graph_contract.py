from dataclasses import replace

import pytest

from policy_server.features.schema import SCHEMA
from policy_server.runtime.graph_contract import ENCODER, HEAD, dispatch_signatures, require_dispatch_graphs
from policy_server.runtime.session import ModelSession
from policy_server.runtime.signature import SignatureError, TensorSpec
from tests.support.models import encoder_model, head_model


def test_real_graphs_of_any_width_pass() -> None:
    require_dispatch_graphs(
        {
            name: ModelSession(model).signature
            for name, model in ((ENCODER, encoder_model()), (HEAD, head_model()))
        }
    )
    require_dispatch_graphs(dispatch_signatures(48))


def test_widths_are_those_of_the_features() -> None:
    inputs = {tensor.name: tensor for tensor in dispatch_signatures(8)[ENCODER].inputs}
    assert inputs["node_features"].shape == ("N", len(SCHEMA.node))
    assert inputs["replica_features"].shape == ("R", len(SCHEMA.replica))


def test_encoder_and_head_must_agree_on_the_context_width() -> None:
    graphs = {ENCODER: dispatch_signatures(8)[ENCODER], HEAD: dispatch_signatures(9)[HEAD]}
    with pytest.raises(
        SignatureError, match=r"head: input replica_context: float32 \[C, 9\], expected .*\[C, 8\]"
    ):
        require_dispatch_graphs(graphs)


def test_frozen_row_counts_are_refused() -> None:
    graphs = dispatch_signatures(8)
    frozen = TensorSpec("node_features", "float32", (2, len(SCHEMA.node)))
    graphs[ENCODER] = replace(graphs[ENCODER], inputs=(frozen, *graphs[ENCODER].inputs[1:]))
    with pytest.raises(SignatureError, match=r"encoder: input node_features: float32 \[2, 10\], expected"):
        require_dispatch_graphs(graphs)


def test_both_graphs_are_needed() -> None:
    with pytest.raises(SignatureError, match="models: "):
        require_dispatch_graphs({HEAD: dispatch_signatures(8)[HEAD]})
