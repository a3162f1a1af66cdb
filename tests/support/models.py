"""Small real ONNX models and bundles for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from policy_server.features.scaling import ECONOMY_COLUMN
from policy_server.runtime.bundle import Bundle, write_bundle
from policy_server.runtime.goldens import Golden
from policy_server.runtime.graph_contract import (
    ENCODER,
    HEAD,
    dispatch_signatures,
    orchestration_signatures,
)
from policy_server.runtime.manifest import Manifest, ModelRecord, TrainingRecord
from policy_server.runtime.scaling_graph import ACTOR, scaling_signature
from policy_server.runtime.session import ModelSession
from policy_server.runtime.signature import Signature, TensorSpec

WIDTH = 8
OPSET = 18
TRAINING = TrainingRecord(
    command="policy-train dispatch --seed 1",
    seed=1,
    data="P1",
    git_commit="0" * 40,
    torch_version="2.13.0",
    steps=1000,
    wall_seconds=12.5,
)

_ELEMENT_TYPES = {
    "float16": TensorProto.FLOAT16,
    "float64": TensorProto.DOUBLE,
    "float32": TensorProto.FLOAT,
    "int64": TensorProto.INT64,
}


def serialised_model(
    signature: Signature,
    nodes: list[onnx.NodeProto],
    weights: Mapping[str, NDArray[Any]],
    opset: int = OPSET,
) -> bytes:
    """An ONNX model of the given signature."""

    def info(tensor: TensorSpec) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(tensor.name, _ELEMENT_TYPES[tensor.dtype], tensor.shape)

    graph = helper.make_graph(
        nodes,
        "model",
        [info(tensor) for tensor in signature.inputs],
        [info(tensor) for tensor in signature.outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    serialised: bytes = model.SerializeToString()
    return serialised


def encoder_model(
    seed: int = 0, *, opset: int = OPSET, extra: Mapping[str, NDArray[Any]] | None = None
) -> bytes:
    """An encoder in which every input reaches an output: nodes and links speak to access points, and back.

    Args:
        seed: of the weights.
        opset: operator set.
        extra: weights that nothing uses, to make the model larger.
    """
    signature = dispatch_signatures(WIDTH)[ENCODER]
    widths = {tensor.name: tensor.shape[-1] for tensor in signature.inputs}
    random = np.random.default_rng(seed)
    weights: dict[str, NDArray[Any]] = {"one": np.array([1], np.int64), "zero": np.zeros(1, np.float32)}
    for kind in ("node", "access_point", "link", "replica"):
        weights[f"{kind}_weight"] = random.normal(0, 0.3, (widths[f"{kind}_features"], WIDTH)).astype(
            np.float32
        )
    node = helper.make_node
    nodes = [
        node("MatMul", ["access_point_features", "access_point_weight"], ["ap_own"]),
        node("Gather", ["systems", "access_point_system"], ["ap_system"]),
        node("Unsqueeze", ["ap_system", "one"], ["ap_system_column"]),
        node("Add", ["ap_own", "ap_system_column"], ["ap_base"]),
        node("Mul", ["ap_base", "zero"], ["ap_zero"]),
        node("MatMul", ["node_features", "node_weight"], ["node_own"]),
        node("Unsqueeze", ["node_access_point", "one"], ["node_access_point_column"]),
        node("ScatterND", ["ap_zero", "node_access_point_column", "node_own"], ["ap_nodes"], reduction="add"),
        node("MatMul", ["link_features", "link_weight"], ["link_own"]),
        node("Gather", ["ap_base", "link_target"], ["link_far_end"]),
        node("Add", ["link_own", "link_far_end"], ["message"]),
        node("Unsqueeze", ["link_source", "one"], ["link_source_column"]),
        node("ScatterND", ["ap_zero", "link_source_column", "message"], ["ap_links"], reduction="add"),
        node("Add", ["ap_nodes", "ap_links"], ["ap_gathered"]),
        node("Tanh", ["ap_gathered"], ["ap_squashed"]),
        node("Add", ["ap_base", "ap_squashed"], ["access_point_context"]),
        node("Gather", ["access_point_context", "node_access_point"], ["node_ap"]),
        node("Add", ["node_own", "node_ap"], ["node_context"]),
        node("Gather", ["node_context", "replica_node"], ["replica_node_context"]),
        node("MatMul", ["replica_features", "replica_weight"], ["replica_own"]),
        node("Add", ["replica_own", "replica_node_context"], ["replica_context"]),
    ]
    return serialised_model(signature, nodes, weights | dict(extra or {}), opset)


def head_model(
    seed: int = 0, *, faults: Mapping[int, float] | float | None = None, opset: int = OPSET
) -> bytes:
    """A two-layer head.

    Args:
        seed: of the weights.
        faults: what comes out instead of the logits: of the candidates at these positions, or of all.
        opset: operator set.
    """
    signature = dispatch_signatures(WIDTH)[HEAD]
    random = np.random.default_rng(seed)
    request_width = signature.inputs[-1].shape[-1]
    weights: dict[str, NDArray[Any]] = {
        "request_weight": random.normal(0, 0.3, (request_width, WIDTH)).astype(np.float32),
        "score_weight": random.normal(0, 0.3, WIDTH).astype(np.float32),
    }
    node = helper.make_node
    nodes = [
        node("Gather", ["origin_context", "segment"], ["origin"]),
        node("MatMul", ["request_features", "request_weight"], ["request"]),
        node("Add", ["replica_context", "origin"], ["both"]),
        node("Add", ["both", "request"], ["sum"]),
        node("Tanh", ["sum"], ["hidden"]),
        node("MatMul", ["hidden", "score_weight"], ["score" if faults is None else "sound"]),
    ]
    if isinstance(faults, float):
        weights["fault"] = np.array([faults], np.float32)
        nodes.append(node("Add", ["sound", "fault"], ["score"]))
    elif faults is not None:
        weights["fault"] = np.array(list(faults.values()), np.float32)
        weights["position"] = np.array(list(faults), np.int64)
        nodes.append(node("ScatterElements", ["sound", "position", "fault"], ["score"]))
    return serialised_model(signature, nodes, weights, opset)


def orchestration_encoder_model(seed: int = 0, *, width: int = WIDTH) -> bytes:
    """An encoder in which every input reaches every output: rows speak to access points, and those along links."""
    signature = orchestration_signatures(width)[ENCODER]
    widths = {tensor.name: tensor.shape[-1] for tensor in signature.inputs}
    random = np.random.default_rng(seed)
    weights: dict[str, NDArray[Any]] = {
        "one": np.array([1], np.int64),
        "zero": np.zeros(1, np.float32),
        "node_score_weight": random.normal(0, 0.3, width).astype(np.float32),
    }
    node = helper.make_node
    nodes = []
    for kind in ("node", "access_point", "link", "replica", "demand"):
        weights[f"{kind}_weight"] = random.normal(0, 0.3, (widths[f"{kind}_features"], width)).astype(
            np.float32
        )
        nodes.append(node("MatMul", [f"{kind}_features", f"{kind}_weight"], [f"{kind}_sum"]))
        nodes.append(node("Tanh", [f"{kind}_sum"], [f"{kind}_own"]))

    def scattered(rows: str, index: str, like: str, name: str) -> list[onnx.NodeProto]:
        return [
            node("Mul", [like, "zero"], [f"{name}_zero"]),
            node("Unsqueeze", [index, "one"], [f"{name}_column"]),
            node("ScatterND", [f"{name}_zero", f"{name}_column", rows], [name], reduction="add"),
        ]

    nodes += [
        *scattered("replica_own", "replica_node", "node_own", "node_replicas"),
        node("Add", ["node_own", "node_replicas"], ["node_both"]),
        node("Tanh", ["node_both"], ["node_known"]),
        *scattered("node_known", "node_access_point", "access_point_own", "ap_nodes"),
        *scattered("demand_own", "demand_access_point", "access_point_own", "ap_demands"),
        node("Gather", ["access_point_own", "link_target"], ["link_far_end"]),
        node("Add", ["link_own", "link_far_end"], ["message"]),
        *scattered("message", "link_source", "access_point_own", "ap_links"),
        node("Sum", ["access_point_own", "ap_nodes", "ap_demands", "ap_links"], ["ap_all"]),
        node("Tanh", ["ap_all"], ["access_point_summary"]),
        node("Unsqueeze", ["systems", "one"], ["systems_column"]),
        node("Shape", ["access_point_own"], ["ap_shape"]),
        node("Gather", ["ap_shape", "one"], ["width"]),
        node("Shape", ["systems"], ["system_count"]),
        node("Concat", ["system_count", "width"], ["system_shape"], axis=0),
        node("Expand", ["systems_column", "system_shape"], ["system_base"]),
        *scattered("access_point_summary", "access_point_system", "system_base", "system_all"),
        node("Tanh", ["system_all"], ["system_summary"]),
        node("Gather", ["access_point_summary", "node_access_point"], ["node_ap"]),
        node("Gather", ["access_point_system", "node_access_point"], ["node_system"]),
        node("Gather", ["system_summary", "node_system"], ["node_system_summary"]),
        node("Sum", ["node_known", "node_ap", "node_system_summary"], ["node_embedding"]),
        node("MatMul", ["node_embedding", "node_score_weight"], ["node_score"]),
    ]
    return serialised_model(signature, nodes, weights)


def orchestration_head_model(
    seed: int = 0, *, width: int = WIDTH, fault: float | None = None, nothing: float = 0.0
) -> bytes:
    """A head that scores pairs one by one.

    Args:
        seed: of the weights.
        width: of the embeddings.
        fault: what is added to the scores of additions: NaN, say.
        nothing: what is added to the score of doing nothing.
    """
    signature = orchestration_signatures(width)[HEAD]
    pair_width = next(t.shape[-1] for t in signature.inputs if t.name == "pair_features")
    random = np.random.default_rng(seed)
    weights: dict[str, NDArray[Any]] = {
        "pair_weight": random.normal(0, 0.3, (pair_width, width)).astype(np.float32),
        "delete_weight": random.normal(0, 0.3, width).astype(np.float32),
        "add_weight": random.normal(0, 0.3, width).astype(np.float32),
        "nothing_weight": random.normal(0, 0.3, width).astype(np.float32),
        "fault": np.array([fault or 0.0], np.float32),
        "nothing_bias": np.array([nothing], np.float32),
    }
    node = helper.make_node
    nodes = [
        node("Sum", ["node_embedding", "access_point_summary", "system_summary"], ["where"]),
        node("Gather", ["where", "pair_node"], ["pair_where"]),
        node("MatMul", ["pair_features", "pair_weight"], ["pair_own"]),
        node("Add", ["pair_own", "pair_where"], ["pair_sum"]),
        node("Tanh", ["pair_sum"], ["hidden"]),
        node("MatMul", ["hidden", "delete_weight"], ["delete_score"]),
        node("MatMul", ["where", "nothing_weight"], ["nothing_own"]),
        node("Add", ["nothing_own", "nothing_bias"], ["nothing_score"]),
        node("MatMul", ["hidden", "add_weight"], ["add_sound"]),
        node("Add", ["add_sound", "fault"], ["add_score"]),
    ]
    return serialised_model(signature, nodes, weights)


def write_orchestration_bundle(
    root: Path,
    policy: str = "gpg",
    version: str = "1.0.0",
    *,
    seed: int = 0,
    width: int = WIDTH,
    **changes: Any,
) -> Path:
    """A sound bundle of kind ``orchestration`` that acts where it may, but for ``changes`` as above."""
    models = {
        ENCODER: orchestration_encoder_model(seed, width=width),
        HEAD: orchestration_head_model(seed, width=width, nothing=-100.0),
    }
    return write_example_bundle(
        root,
        policy,
        version,
        **{
            "kind": "orchestration",
            "models": models,
            "goldens": [golden_of(name, model, rows) for name, model in models.items() for rows in (1, 3)],
            **changes,
        },
    )


def loaded_orchestration_bundle(
    head: bytes | None = None, *, sampling_temperature: float = 0.0, seed: int = 0
) -> Bundle:
    """A bundle of orchestration models that no check has seen; it acts where it may, but for a ``head`` of its own."""
    models = {
        ENCODER: orchestration_encoder_model(seed),
        HEAD: head or orchestration_head_model(seed, nothing=-100.0),
    }
    bundle = loaded_bundle(models[ENCODER], models[HEAD], sampling_temperature=sampling_temperature)
    return replace(bundle, manifest=replace(bundle.manifest, policy="gpg", kind="orchestration"))


def example_inputs(signature: Signature, rows: int = 3, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Random inputs with ``rows`` rows of everything."""
    random = np.random.default_rng(seed)
    return {
        tensor.name: random.integers(rows, size=rows)
        if tensor.dtype == "int64"
        else random.uniform(0, 1, [n if isinstance(n, int) else rows for n in tensor.shape]).astype(
            np.float32
        )
        for tensor in signature.inputs
    }


def golden_of(name: str, model: bytes, rows: int = 3) -> Golden:
    """What the model makes of :func:`example_inputs`."""
    session = ModelSession(model)
    inputs = example_inputs(session.signature, rows)
    names = [tensor.name for tensor in session.signature.outputs]
    return Golden(name, inputs, dict(zip(names, session.run(inputs), strict=True)))


def write_example_bundle(
    root: Path, policy: str = "kais", version: str = "1.0.0", *, seed: int = 0, **changes: Any
) -> Path:
    """A sound bundle, but for ``changes`` to the arguments of ``write_bundle``."""
    models = {ENCODER: encoder_model(seed), HEAD: head_model(seed)}
    arguments: dict[str, Any] = {
        "kind": "dispatch",
        "models": models,
        "goldens": [golden_of(name, model, rows) for name, model in models.items() for rows in (1, 3)],
        "sampling_temperature": 0.0,
        "training": TRAINING,
        "evaluation": {"throughput_rate": {"mean": 0.9, "ci95": [0.88, 0.92]}},
    }
    return write_bundle(root, policy=policy, version=version, **(arguments | changes))


def loaded_bundle(
    encoder: bytes | None = None, head: bytes | None = None, *, sampling_temperature: float = 0.0
) -> Bundle:
    """A bundle of models that no check has seen, as if they had gone wrong after it."""
    models = {ENCODER: encoder or encoder_model(), HEAD: head or head_model()}
    sessions = {name: ModelSession(model) for name, model in models.items()}
    manifest = Manifest(
        policy="kais",
        version="1.0.0",
        kind="dispatch",
        feature_schema_hash="",
        sampling_temperature=sampling_temperature,
        models={name: ModelRecord(session.signature, OPSET) for name, session in sessions.items()},
        files={},
        training=TRAINING,
    )
    return Bundle(Path("unchecked"), manifest, sessions, "")


def actor_model(
    seed: int = 0, *, fault: float | None = None, faulty_where: float = -1.0, hidden: int = WIDTH
) -> bytes:
    """A two-layer actor of vertical scaling.

    Args:
        seed: of the weights.
        fault: what comes out instead of the action.
        faulty_where: of the containers whose economy is above this; by default of all.
        hidden: width of the hidden layer.
    """
    signature = scaling_signature()
    columns = int(signature.inputs[0].shape[-1])
    random = np.random.default_rng(seed)
    weights: dict[str, NDArray[Any]] = {
        "first": random.normal(0, 0.3, (columns, hidden)).astype(np.float32),
        "second": random.normal(0, 0.3, (hidden, 2)).astype(np.float32),
    }
    node = helper.make_node
    nodes = [
        node("MatMul", ["features", "first"], ["hidden"]),
        node("Tanh", ["hidden"], ["squashed"]),
        node("MatMul", ["squashed", "second"], ["raw"]),
        node("Tanh", ["raw"], ["action" if fault is None else "sound"]),
    ]
    if fault is not None:
        weights |= {
            "column": np.array([ECONOMY_COLUMN], np.int64),
            "edge": np.array([faulty_where], np.float32),
            "fault": np.array([fault], np.float32),
        }
        nodes += [
            node("Gather", ["features", "column"], ["economy"], axis=1),
            node("Greater", ["economy", "edge"], ["faulty"]),
            node("Where", ["faulty", "fault", "sound"], ["action"]),
        ]
    return serialised_model(signature, nodes, weights)


def write_scaling_bundle(
    root: Path, policy: str = "td3", version: str = "1.0.0", *, seed: int = 0, **changes: Any
) -> Path:
    """A sound bundle of kind ``scaling``, but for ``changes`` to the arguments of ``write_bundle``."""
    model = actor_model(seed)
    arguments: dict[str, Any] = {
        "kind": "scaling",
        "models": {ACTOR: model},
        "goldens": [golden_of(ACTOR, model, rows) for rows in (1, 3)],
        "sampling_temperature": 0.0,
        "training": TRAINING,
        "evaluation": {},
    }
    return write_bundle(root, policy=policy, version=version, **(arguments | changes))


def loaded_scaling_bundle(actor: bytes | None = None) -> Bundle:
    """A bundle of an actor that no check has seen, as if it had gone wrong after it."""
    session = ModelSession(actor or actor_model())
    manifest = Manifest(
        policy="td3",
        version="1.0.0",
        kind="scaling",
        feature_schema_hash="",
        sampling_temperature=0.0,
        models={ACTOR: ModelRecord(session.signature, OPSET)},
        files={},
        training=TRAINING,
    )
    return Bundle(Path("unchecked"), manifest, {ACTOR: session}, "")
