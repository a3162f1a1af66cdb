"""From trained networks to a model bundle that the server loads.

Export fails when torch and ONNX Runtime disagree: both are run on systems of 1 to 500 candidates and nodes and on
graphs with repeated, absent and single-member segments, and must agree to 1e-5 and on the best candidate wherever
the margin exceeds 1e-4.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import nn

from policy_server.features.orchestration_schema import ORCHESTRATION_SCHEMA, OrchestrationSchema
from policy_server.features.schema import SCHEMA, FeatureSchema
from policy_server.runtime.bundle import write_bundle
from policy_server.runtime.goldens import Golden
from policy_server.runtime.graph_contract import (
    ENCODER,
    HEAD,
    dispatch_signatures,
    orchestration_signatures,
)
from policy_server.runtime.manifest import TrainingRecord
from policy_server.runtime.session import ModelSession
from policy_server.runtime.signature import Signature
from training.bundle_names import DISPATCH_BUNDLE, ORCHESTRATION_BUNDLE
from training.networks.dispatch import DispatchActor
from training.networks.orchestration import OrchestrationActor

OPSET = 18
TOLERANCE = 1e-5
MARGIN = 1e-4
SIZES = (1, 2, 3, 7, 64, 500)

Arrays = Mapping[str, NDArray[Any]]


class ExportError(RuntimeError):
    """The exported graph does not compute what the network computes. The message names graph, case and difference."""


@dataclass(frozen=True)
class Exported:
    """Serialised ONNX graphs by name, and example runs of each computed by torch."""

    models: dict[str, bytes]
    goldens: list[Golden]


def export_dispatch(actor: DispatchActor, seed: int = 0) -> Exported:
    """Exports encoder and head and verifies them.

    Args:
        actor: trained; left in evaluation mode.
        seed: of the verification cases.

    Raises:
        ExportError: torch and ONNX Runtime disagree.
    """
    actor.eval()
    context_width = actor.head.score.in_features
    return _export_graphs(
        dispatch_signatures(context_width),
        {
            ENCODER: (actor.encoder, list(encoder_cases(SCHEMA, seed))),
            HEAD: (actor.head, list(head_cases(SCHEMA, context_width, seed))),
        },
    )


def export_orchestration(actor: OrchestrationActor, seed: int = 0) -> Exported:
    """As :func:`export_dispatch`, for orchestration.

    Raises:
        ExportError: torch and ONNX Runtime disagree.
    """
    actor.eval()
    width = actor.head.context.in_features // 3
    schema = ORCHESTRATION_SCHEMA
    return _export_graphs(
        orchestration_signatures(width),
        {
            ENCODER: (actor.encoder, list(graph_cases(schema, seed))),
            HEAD: (actor.head, list(action_cases(schema, width, seed))),
        },
    )


def _export_graphs(
    signatures: Mapping[str, Signature], graphs: Mapping[str, tuple[nn.Module, list[dict[str, NDArray[Any]]]]]
) -> Exported:
    models: dict[str, bytes] = {}
    goldens: list[Golden] = []
    for name, (network, cases) in graphs.items():
        signature = signatures[name]
        outputs = tuple(spec.name for spec in signature.outputs)
        models[name] = to_onnx(network, cases[2], signature, name)
        session = ModelSession(models[name])
        for position, inputs in enumerate(cases):
            expected = run_torch(network, inputs, outputs)
            require_agreement(
                name, position, expected, dict(zip(outputs, session.run(dict(inputs)), strict=True))
            )
            if position in (0, 3):
                goldens.append(Golden(name, inputs, expected))
    return Exported(models, goldens)


def write_dispatch_bundle(
    actor: DispatchActor,
    root: Path,
    *,
    policy: str = DISPATCH_BUNDLE,
    version: str,
    sampling_temperature: float,
    training: TrainingRecord,
    evaluation: Mapping[str, Any],
) -> Path:
    """Exports an actor and writes ``root/policy/version``; the directory.

    Raises:
        ExportError: see :func:`export_dispatch`.
        BundleError: see :func:`policy_server.runtime.bundle.write_bundle`.
    """
    exported = export_dispatch(actor)
    return write_bundle(
        root,
        policy=policy,
        version=version,
        kind="dispatch",
        models=exported.models,
        goldens=exported.goldens,
        sampling_temperature=sampling_temperature,
        training=training,
        evaluation=evaluation,
    )


def write_orchestration_bundle(
    actor: OrchestrationActor,
    root: Path,
    *,
    version: str,
    sampling_temperature: float,
    training: TrainingRecord,
    evaluation: Mapping[str, Any],
    maximum_actions: int | None = None,
) -> Path:
    """Exports an actor and writes ``root/kais-orchestration/version``; the directory.

    Args:
        actor: to export.
        root: see :func:`policy_server.runtime.bundle.write_bundle`, as all that follow.
        version: new.
        sampling_temperature: 0 serves the best choice.
        training: where the actor comes from.
        evaluation: figures.
        maximum_actions: H that it was trained with.

    Raises:
        ExportError: see :func:`export_orchestration`.
        BundleError: see :func:`policy_server.runtime.bundle.write_bundle`.
    """
    exported = export_orchestration(actor)
    return write_bundle(
        root,
        policy=ORCHESTRATION_BUNDLE,
        version=version,
        kind="orchestration",
        models=exported.models,
        goldens=exported.goldens,
        sampling_temperature=sampling_temperature,
        training=training,
        evaluation=evaluation,
        maximum_actions=maximum_actions,
    )


def encoder_cases(schema: FeatureSchema, seed: int) -> Iterator[dict[str, NDArray[Any]]]:
    """Encoder inputs of every size: random graphs, access points without nodes, nodes without replicas, no links."""
    random = np.random.default_rng(seed)
    for nodes in SIZES:
        access_points, systems = max(2, nodes // 4), 2 if nodes > 2 else 1
        links = 0 if nodes == 1 else 3 * access_points
        replicas = 2 * nodes
        # Some access points and nodes are named often and some never.
        yield {
            "node_features": _positive(random, nodes, len(schema.node)),
            "node_access_point": random.integers(0, max(1, access_points - 1), nodes),
            "access_point_features": _positive(random, access_points, len(schema.access_point)),
            "access_point_system": np.sort(random.integers(0, systems, access_points)),
            "systems": np.zeros(systems, np.float32),
            "link_features": _positive(random, links, len(schema.link)),
            "link_source": random.integers(0, access_points, links),
            "link_target": random.integers(0, access_points, links),
            "replica_features": _positive(random, replicas, len(schema.replica)),
            "replica_node": random.integers(0, max(1, nodes - 1), replicas),
        }


def head_cases(schema: FeatureSchema, context_width: int, seed: int) -> Iterator[dict[str, NDArray[Any]]]:
    """Head inputs of every size: one query, queries with one candidate, queries with none."""
    random = np.random.default_rng(seed + 1)
    for candidates in SIZES:
        queries = 1 if candidates < 3 else candidates // 3 + 2
        yield {
            "replica_context": random.normal(0, 1, (candidates, context_width)).astype(np.float32),
            "origin_context": random.normal(0, 1, (queries, context_width)).astype(np.float32),
            "segment": np.sort(random.integers(0, queries, candidates)),
            "request_features": _positive(random, candidates, len(schema.request)),
        }


def graph_cases(schema: OrchestrationSchema, seed: int) -> Iterator[dict[str, NDArray[Any]]]:
    """Encoder inputs of every size: isolated access points, nodes without replicas, no links, one to many services."""
    random = np.random.default_rng(seed + 2)
    for nodes in SIZES:
        access_points, systems = max(2, nodes // 4), 2 if nodes > 2 else 1
        links = 0 if nodes == 1 else 3 * access_points
        replicas, services = 2 * nodes, min(nodes, 30)
        yield {
            "node_features": _positive(random, nodes, len(schema.node)),
            "node_access_point": random.integers(0, max(1, access_points - 1), nodes),
            "access_point_features": _positive(random, access_points, len(schema.access_point)),
            "access_point_system": np.sort(random.integers(0, systems, access_points)),
            "systems": np.zeros(systems, np.float32),
            "link_features": _positive(random, links, len(schema.link)),
            "link_source": random.integers(0, access_points, links),
            "link_target": random.integers(0, access_points, links),
            "replica_features": _positive(random, replicas, len(schema.replica)),
            "replica_node": random.integers(0, max(1, nodes - 1), replicas),
            "demand_features": _positive(random, access_points * services, len(schema.demand)),
            "demand_access_point": np.repeat(np.arange(access_points), services),
        }


def action_cases(schema: OrchestrationSchema, width: int, seed: int) -> Iterator[dict[str, NDArray[Any]]]:
    """Head inputs of every size: one node with one service, many nodes with many."""
    random = np.random.default_rng(seed + 3)
    for nodes in SIZES:
        services = min(nodes, 30)
        yield {
            "node_embedding": random.normal(0, 1, (nodes, width)).astype(np.float32),
            "access_point_summary": random.normal(0, 1, (nodes, width)).astype(np.float32),
            "system_summary": random.normal(0, 1, (nodes, width)).astype(np.float32),
            "pair_features": _positive(random, nodes * services, len(schema.demand) + len(schema.pair)),
            "pair_node": np.repeat(np.arange(nodes), services),
        }


def _positive(random: np.random.Generator, rows: int, width: int) -> NDArray[np.float32]:
    return random.exponential(1.0, (rows, width)).astype(np.float32)


def to_onnx(network: nn.Module, example: Arrays, signature: Signature, name: str) -> bytes:
    """The serialised ONNX graph of a network.

    Args:
        network: takes the signature's inputs as keyword arguments.
        example: inputs without a dimension of 0 or 1, which would be taken for constants.
        signature: sizes that it names by a word are dynamic.
        name: of the graph, for messages.

    Raises:
        ExportError: torch exports nothing.
    """
    dimensions = {
        spec.name: {
            axis: torch.export.Dim.DYNAMIC for axis, size in enumerate(spec.shape) if isinstance(size, str)
        }
        for spec in signature.inputs
    }
    with _quiet_exporter():
        program = torch.onnx.export(
            network,
            kwargs={key: torch.from_numpy(value) for key, value in example.items()},
            dynamo=True,
            opset_version=OPSET,
            input_names=list(example),
            output_names=[spec.name for spec in signature.outputs],
            dynamic_shapes=dimensions,
            verbose=False,
        )
        if program is None:
            raise ExportError(f"{name}: torch.onnx.export returned nothing")
        program.optimize()
    serialised: bytes = _anonymous(program.model_proto).SerializeToString()
    return serialised


def _anonymous(model: onnx.ModelProto) -> onnx.ModelProto:
    """Drops what the exporter notes of where it ran: stack traces with file paths, on every node and value."""
    del model.metadata_props[:]
    graphs: list[Any] = [model.graph, *model.functions]
    for graph in graphs:
        del graph.metadata_props[:]
        for entry in (*graph.node, *graph.value_info):
            del entry.metadata_props[:]
            entry.doc_string = ""
    ends: list[Any] = [*model.graph.input, *model.graph.output, *model.graph.initializer]
    for end in ends:
        del end.metadata_props[:]
    return model


@contextlib.contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silences what torch's exporter says of itself: a deprecation inside torch, packages it looks for, its guesses."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def run_torch(network: nn.Module, inputs: Arrays, outputs: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """What the network itself computes, by name of the output."""
    with torch.no_grad():
        results = network(**{key: torch.from_numpy(value) for key, value in inputs.items()})
    results = results if isinstance(results, tuple) else (results,)
    return {key: result.numpy() for key, result in zip(outputs, results, strict=True)}


def require_agreement(name: str, case: int, expected: Arrays, actual: Arrays) -> None:
    """Checks what ONNX Runtime computed against what torch computed.

    Raises:
        ExportError: they differ, or choose differently.
    """
    for key, reference in expected.items():
        difference = float(np.abs(reference - actual[key]).max(initial=0.0))
        scale = max(1.0, float(np.abs(reference).max(initial=0.0)))
        if not difference <= TOLERANCE * scale:
            raise ExportError(
                f"{name}, case {case}: {key} of torch and ONNX Runtime differ by {difference:.2e}, more than "
                f"{TOLERANCE:.0e} x {scale:.3g}; do not ship this graph"
            )
        if reference.ndim == 1 and len(reference) > 1:
            best, second = np.sort(reference)[::-1][:2]
            if best - second > MARGIN and int(reference.argmax()) != int(actual[key].argmax()):
                raise ExportError(f"{name}, case {case}: torch and ONNX Runtime choose different candidates")
