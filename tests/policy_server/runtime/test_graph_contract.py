from dataclasses import replace

import pytest

from policy_server.features.orchestration_schema import ORCHESTRATION_SCHEMA
from policy_server.features.schema import SCHEMA
from policy_server.runtime.graph_contract import (
    ENCODER,
    HEAD,
    dispatch_signatures,
    orchestration_signatures,
    require_dispatch_graphs,
    require_orchestration_graphs,
)
from policy_server.runtime.session import ModelSession
from policy_server.runtime.signature import SignatureError, TensorSpec
from tests.support.models import (
    encoder_model,
    head_model,
    orchestration_encoder_model,
    orchestration_head_model,
)


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


class TestOrchestration:
    def test_real_graphs_of_any_width_pass(self) -> None:
        require_orchestration_graphs(
            {
                ENCODER: ModelSession(orchestration_encoder_model(width=12)).signature,
                HEAD: ModelSession(orchestration_head_model(width=12)).signature,
            }
        )

    def test_a_pair_is_seen_with_its_demand(self) -> None:
        inputs = {tensor.name: tensor for tensor in orchestration_signatures(8)[HEAD].inputs}
        assert inputs["pair_features"].shape == (
            "P",
            len(ORCHESTRATION_SCHEMA.demand) + len(ORCHESTRATION_SCHEMA.pair),
        )

    def test_encoder_and_head_must_agree_on_the_embedding_width(self) -> None:
        graphs = {ENCODER: orchestration_signatures(8)[ENCODER], HEAD: orchestration_signatures(9)[HEAD]}
        with pytest.raises(
            SignatureError, match=r"head: input node_embedding: .*\[K, 9\], expected .*\[K, 8\]"
        ):
            require_orchestration_graphs(graphs)

    def test_graphs_of_another_kind_are_refused(self) -> None:
        with pytest.raises(SignatureError, match="encoder: inputs: "):
            require_orchestration_graphs(dispatch_signatures(8))
