"""Export: torch and ONNX Runtime compute the same, on every size, or there is no bundle (field report U27)."""

from __future__ import annotations

import copy
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from policy_server.cluster.ledger import Ledger
from policy_server.features.schema import SCHEMA
from policy_server.policies.dispatch import DispatchView
from policy_server.policies.onnx_dispatch import OnnxDispatch
from policy_server.runtime.bundle import BundleError, load_bundle
from policy_server.runtime.manifest import TrainingRecord
from tests.support.systems import example_queries, example_snapshot, example_topology
from training import export
from training.networks.dispatch import DispatchActor, DispatchNetworkSizes
from training.networks.policies import TorchDispatch

RECORD = TrainingRecord("policy-train dispatch --run RUN", 0, "none", "unknown", "2", 1, 1.0)


@pytest.fixture(scope="module")
def actor() -> DispatchActor:
    torch.manual_seed(3)
    return DispatchActor(SCHEMA, DispatchNetworkSizes(8, 16))


@pytest.fixture(scope="module")
def bundle_path(actor: DispatchActor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export.write_dispatch_bundle(
        actor,
        tmp_path_factory.mktemp("models"),
        version="1.2.3",
        sampling_temperature=0.0,
        training=RECORD,
        evaluation={"P1": {"seeds": 2}},
    )


def test_the_cases_cover_the_hard_segments() -> None:
    heads = list(export.head_cases(SCHEMA, 4, 0))
    assert [len(case["segment"]) for case in heads] == [1, 2, 3, 7, 64, 500]
    counts = [np.bincount(case["segment"], minlength=len(case["origin_context"])) for case in heads]
    assert any((count == 0).any() for count in counts)
    assert any((count == 1).any() for count in counts)
    assert any((count > 1).any() for count in counts)
    encoders = list(export.encoder_cases(SCHEMA, 0))
    assert [len(case["node_features"]) for case in encoders] == [1, 2, 3, 7, 64, 500]
    assert len(encoders[0]["link_source"]) == 0


@pytest.mark.parametrize("nodes", [1, 2, 3, 7, 64, 500])
def test_the_bundle_scores_as_the_networks(actor: DispatchActor, bundle_path: Path, nodes: int) -> None:
    topology = example_topology(
        nodes=nodes, access_points=max(1, nodes // 8), replicas_per_service=min(nodes, 6)
    )
    snapshot = example_snapshot(topology)
    view = DispatchView(snapshot)
    queries = example_queries(topology, 16)
    candidates = view.candidates(queries, Ledger(topology), snapshot.taken_at_seconds + 0.1)
    served, trained = OnnxDispatch(load_bundle(bundle_path)), TorchDispatch(actor)
    random = np.random.default_rng(0)
    expected = trained.score(candidates, trained.prepare(view.table), random)
    actual = served.score(candidates, served.prepare(view.table), random)
    np.testing.assert_allclose(actual, expected, atol=1e-5 * max(1.0, float(np.abs(expected).max())))


def test_dimensions_are_symbolic_and_the_manifest_says_where_it_comes_from(bundle_path: Path) -> None:
    bundle = load_bundle(bundle_path)
    assert bundle.manifest.version == "1.2.3"
    assert bundle.manifest.training == RECORD
    assert bundle.manifest.evaluation == {"P1": {"seeds": 2}}
    assert bundle.manifest.feature_schema_hash == SCHEMA.hash
    for name in ("encoder", "head"):
        model = onnx.load(bundle_path / f"{name}.onnx")
        assert model.opset_import[0].version >= 18
        for value in (*model.graph.input, *model.graph.output):
            assert value.type.tensor_type.shape.dim[0].dim_param, value.name


def test_a_version_never_changes(actor: DispatchActor, bundle_path: Path) -> None:
    with pytest.raises(BundleError, match="a version never changes; choose a higher one"):
        export.write_dispatch_bundle(
            actor,
            bundle_path.parent.parent,
            version="1.2.3",
            sampling_temperature=0.0,
            training=RECORD,
            evaluation={},
        )


def test_a_graph_that_computes_something_else_is_refused(
    actor: DispatchActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    faithful = export.run_torch

    def slightly_off(*arguments: object) -> dict[str, Any]:
        outputs = faithful(*arguments)  # type: ignore[arg-type]
        return {name: values + np.float32(1e-3) for name, values in outputs.items()}

    monkeypatch.setattr(export, "run_torch", slightly_off)
    with pytest.raises(export.ExportError, match=r"encoder, case 0: .* differ by .* do not ship this graph"):
        export.export_dispatch(actor)


def test_a_graph_of_other_weights_is_refused(actor: DispatchActor, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is exported is a copy that has gone on learning."""
    faithful = export.to_onnx

    def of_other_weights(network: torch.nn.Module, *arguments: Any) -> bytes:
        network = copy.deepcopy(network)
        with torch.no_grad():
            next(network.parameters()).add_(0.05)
        return faithful(network, *arguments)

    monkeypatch.setattr(export, "to_onnx", of_other_weights)
    with pytest.raises(export.ExportError, match="do not ship this graph"):
        export.export_dispatch(actor)


def test_comparison_sees_non_finite_outputs_and_other_choices() -> None:
    scores = np.array([900.0, 1.0, 900.001], np.float32)
    export.require_agreement("head", 0, {"logits": scores}, {"logits": scores.copy()})
    swapped = np.array([900.002, 1.0, 900.001], np.float32)
    with pytest.raises(export.ExportError, match=r"head, case 4: .* choose different candidates"):
        export.require_agreement("head", 4, {"logits": scores}, {"logits": swapped})
    with pytest.raises(export.ExportError, match="differ by nan"):
        export.require_agreement("head", 0, {"logits": scores}, {"logits": np.full(3, np.nan, np.float32)})


def test_export_is_quiet(actor: DispatchActor, capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.getLogger("torch.onnx").level, list(warnings.filters)
    export.export_dispatch(actor)
    printed = capsys.readouterr()
    assert printed == ("", "")
    assert (logging.getLogger("torch.onnx").level, list(warnings.filters)) == before
