from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from policy_server.policies.heuristics import UnknownPolicyError
from policy_server.policies.scaling import RULE_SCALING_NAMES
from policy_server.policies.scaling.guard import MissingScaling
from policy_server.runtime.bundle import BundleError, declared_kind, find_bundles
from policy_server.runtime.registry import PolicyRegistry
from policy_server.runtime.scaling_registry import ScalingRegistry
from tests.policy_server.policies.scaling_fleets import task_of
from tests.support.models import write_example_bundle, write_scaling_bundle


def test_rules_and_the_latest_version_of_every_bundle(tmp_path: Path) -> None:
    write_scaling_bundle(tmp_path, version="1.0.0")
    write_scaling_bundle(tmp_path, version="1.1.0", seed=1)
    registry = ScalingRegistry(tmp_path)
    assert registry.names == ("td3", *RULE_SCALING_NAMES)
    assert registry.active == "td3"
    assert registry.get().version == "1.1.0"
    outcome = registry.get().decide(task_of(2))
    assert np.isfinite(outcome.decisions.cpu_cores.target).all()
    assert registry.get("static") is registry.get("static")


@pytest.mark.parametrize(
    ("models", "active"), [(["ddpg", "td3"], "td3"), (["ddpg", "dqn"], "ddpg"), (["zebra"], "zebra")]
)
def test_the_model_that_is_active_by_default(tmp_path: Path, models: list[str], active: str) -> None:
    for name in models:
        write_scaling_bundle(tmp_path, name)
    assert ScalingRegistry(tmp_path).active == active


@pytest.mark.parametrize(("active", "expected"), [(None, "percentile"), ("static", "static")])
def test_without_bundles_the_fallback_is_active(tmp_path: Path, active: str | None, expected: str) -> None:
    assert ScalingRegistry(tmp_path, active=active, fallback="percentile").get().name == expected


@pytest.mark.parametrize("changes", [{"active": "greedy"}, {"fallback": "td3"}])
def test_names_of_nobody_are_refused(tmp_path: Path, changes: dict[str, str]) -> None:
    with pytest.raises(UnknownPolicyError, match="choose one of"):
        ScalingRegistry(tmp_path, **changes)


def test_no_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no such directory"):
        ScalingRegistry(tmp_path / "absent")


def test_kinds_keep_apart(tmp_path: Path) -> None:
    write_example_bundle(tmp_path)
    write_scaling_bundle(tmp_path)
    dispatch = PolicyRegistry(tmp_path, active="greedy")
    scaling = ScalingRegistry(tmp_path)
    assert (list(dispatch.bundles), list(scaling.bundles)) == (["kais"], ["td3"])
    assert not dispatch.last_reload.failures
    assert not scaling.last_reload.failures


def test_a_new_version_is_served_after_a_reload_and_a_lost_one_serves_on(tmp_path: Path) -> None:
    write_scaling_bundle(tmp_path, version="1.0.0")
    registry = ScalingRegistry(tmp_path)
    write_scaling_bundle(tmp_path, version="2.0.0", seed=2)
    assert [bundle.manifest.version for bundle in registry.reload().loaded] == ["2.0.0"]
    assert registry.get("td3").version == "2.0.0"
    shutil.rmtree(tmp_path / "td3")
    (failure,) = registry.reload().failures
    assert failure.what == "gone"
    assert registry.get("td3").version == "2.0.0"


def test_of_a_damaged_bundle_the_registry_of_its_kind_tells(tmp_path: Path) -> None:
    bundle = write_scaling_bundle(tmp_path)
    (bundle / "actor.onnx").write_bytes(b"garbage")
    scaling = ScalingRegistry(tmp_path, active="td3")
    assert isinstance(scaling.get().policy, MissingScaling)
    assert scaling.last_reload.missing == ("td3",)
    assert not PolicyRegistry(tmp_path, active="greedy").last_reload.failures


@pytest.mark.parametrize("manifest", ["", "{}", '{"kind": "weather"}', "[]", '{"kind": ["scaling"]}'])
def test_of_a_bundle_of_no_kind_dispatch_tells(tmp_path: Path, manifest: str) -> None:
    bundle = write_scaling_bundle(tmp_path)
    (bundle / "manifest.json").write_text(manifest)
    assert declared_kind(bundle) == "dispatch"
    assert not ScalingRegistry(tmp_path).last_reload.failures
    assert PolicyRegistry(tmp_path, active="greedy").last_reload.failures


def test_bundles_are_found_by_kind(tmp_path: Path) -> None:
    write_example_bundle(tmp_path)
    write_scaling_bundle(tmp_path)
    assert list(find_bundles(tmp_path)) == ["kais", "td3"]
    assert list(find_bundles(tmp_path, kind="scaling")) == ["td3"]
    assert list(find_bundles(tmp_path, kind="dispatch")) == ["kais"]
