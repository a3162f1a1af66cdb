"""The least a learned decision can cost: gather, a two-layer head in ONNX Runtime, argmax.

No masking, no features, no guard, no alternatives. Published budgets of a decision are to be read beside it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from policy_server.features.schema import SCHEMA
from policy_server.runtime.cpu_budget import session_options

_CONTEXT_WIDTH = 48
_HIDDEN_WIDTH = 48
_REPLICAS = 1000
_OPSET = 18
_IR_VERSION = 10


def reference_decision(candidates: int) -> Callable[[], int]:
    """Returns a function that makes one bare decision among so many candidates and returns its position."""
    random = np.random.default_rng(0)
    session = onnxruntime.InferenceSession(
        _model(random), session_options(), providers=["CPUExecutionProvider"]
    )
    feeds = {
        "replica": np.arange(candidates, dtype=np.int64) % _REPLICAS,
        "request_features": random.normal(size=(candidates, len(SCHEMA.request))).astype(np.float32),
    }

    def decide() -> int:
        return int(session.run(["score"], feeds)[0].argmax())

    return decide


def _model(random: np.random.Generator) -> bytes:
    request_width = len(SCHEMA.request)
    weights = {
        "context": (_REPLICAS, _CONTEXT_WIDTH),
        "hidden_weight": (_CONTEXT_WIDTH + request_width, _HIDDEN_WIDTH),
        "hidden_bias": (_HIDDEN_WIDTH,),
        "score_weight": (_HIDDEN_WIDTH,),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["context", "replica"], ["gathered"]),
            helper.make_node("Concat", ["gathered", "request_features"], ["inputs"], axis=1),
            helper.make_node("Gemm", ["inputs", "hidden_weight", "hidden_bias"], ["hidden"]),
            helper.make_node("Relu", ["hidden"], ["active"]),
            helper.make_node("MatMul", ["active", "score_weight"], ["score"]),
        ],
        "reference_head",
        [
            helper.make_tensor_value_info("replica", TensorProto.INT64, ["C"]),
            helper.make_tensor_value_info("request_features", TensorProto.FLOAT, ["C", request_width]),
        ],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["C"])],
        [
            numpy_helper.from_array(random.normal(0, 0.1, shape).astype(np.float32), name)
            for name, shape in weights.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
    serialized: bytes = model.SerializeToString()
    return serialized
