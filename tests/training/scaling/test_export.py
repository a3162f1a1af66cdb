from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from policy_server.features.scaling import SCALING_SCHEMA
from policy_server.policies.scaling.onnx import onnx_scaling
from policy_server.runtime.bundle import BundleError, load_bundle
from policy_server.runtime.manifest import TrainingRecord
from training.export import ExportError
from training.scaling.config import Algorithm, ScalingTrainingConfig
from training.scaling.export import export_scaling, write_scaling_bundle
from training.scaling.learners import level_actions, nearest_level, new_learner, torch_scaling

FEATURES = len(SCALING_SCHEMA.container)
RECORD = TrainingRecord(
    command="policy-train scale",
    seed=1,
    data="none",
    git_commit="unknown",
    torch_version="0",
    steps=0,
    wall_seconds=0.0,
)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(3)


@pytest.mark.parametrize("algorithm", Algorithm)
def test_every_algorithm_becomes_a_bundle_that_acts_like_the_learner(
    algorithm: Algorithm, tmp_path: Path
) -> None:
    learner = new_learner(ScalingTrainingConfig(algorithm=algorithm.value))
    path = write_scaling_bundle(
        learner.policy_module(),
        tmp_path,
        name=algorithm.value,
        version="1.0.0",
        training=RECORD,
        evaluation={},
    )
    bundle = load_bundle(path)
    assert bundle.manifest.kind == "scaling"
    assert bundle.manifest.feature_schema_hash == SCALING_SCHEMA.hash
    policy = onnx_scaling(bundle, economy=0.7)
    assert (policy.name, policy.version, policy.economy) == (algorithm.value, "1.0.0", 0.7)
    features = np.random.default_rng(1).random((1000, FEATURES), np.float32)
    expected = torch_scaling(learner.policy_module()).run(features)
    np.testing.assert_allclose(policy.run(features), expected, atol=1e-5)
    for size in (1, 3):
        np.testing.assert_allclose(policy.run(features[:size]), expected[:size], atol=1e-5)


class RandomActor(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return torch.rand_like(features[:, :2])


class WildActor(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return features[:, :2] * 3.0


def test_an_export_that_disagrees_fails() -> None:
    with pytest.raises(ExportError, match="differ by"):
        export_scaling(RandomActor())


def test_an_actor_that_leaves_its_range_is_refused() -> None:
    with pytest.raises(ExportError, match="outside"):
        export_scaling(WildActor())


def test_a_graph_of_another_width_is_refused(tmp_path: Path) -> None:
    class NarrowActor(nn.Module):
        def forward(self, features: Tensor) -> Tensor:
            return features[:, :3]

    with pytest.raises(BundleError, match="action"):
        write_scaling_bundle(
            NarrowActor(), tmp_path, name="x", version="1.0.0", training=RECORD, evaluation={}
        )


def test_the_grid_of_discrete_actions() -> None:
    actions = level_actions()
    assert actions.shape == (27, 2)
    assert np.abs(actions).max() == 1.0
    assert len(np.unique(actions, axis=0)) == 27
    np.testing.assert_array_equal(nearest_level(actions), np.arange(27))
    random = np.random.default_rng(0).uniform(-1, 1, (200, 2)).astype(np.float32)
    distance = np.abs(random[:, None] - actions[None]).sum(axis=2)
    np.testing.assert_array_equal(nearest_level(random), distance.argmin(axis=1))
