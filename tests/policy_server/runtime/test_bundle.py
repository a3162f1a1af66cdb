import hashlib
import io
import json
import math
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policy_server.features.schema import SCHEMA
from policy_server.runtime import bundle as bundle_module
from policy_server.runtime.bundle import (
    BundleError,
    find_bundles,
    load_bundle,
    manifest_digest,
    shipped_bundles_root,
)
from policy_server.runtime.goldens import pack_goldens
from policy_server.runtime.graph_contract import ENCODER, HEAD
from policy_server.runtime.session import ModelSession
from tests.support.models import (
    OPSET,
    TRAINING,
    encoder_model,
    example_inputs,
    golden_of,
    head_model,
    write_example_bundle,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_example_bundle(tmp_path)


def edit_manifest(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    edit(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


def replace_file(path: Path, name: str, data: bytes) -> None:
    """Replaces a file along with its record, as someone would who makes a bundle by hand."""
    (path / name).write_bytes(data)

    def record(manifest: dict[str, Any]) -> None:
        manifest["files"][name] = {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    edit_manifest(path, record)


def assert_refused(path: Path, what: str) -> BundleError:
    with pytest.raises(BundleError, match=what) as refusal:
        load_bundle(path)
    error = refusal.value
    assert str(error) == f"{error.path}: {error.what}; {error.remedy}"
    assert error.path.is_relative_to(path)
    assert error.remedy
    return error


def test_round_trip(path: Path) -> None:
    assert sorted(p.name for p in path.iterdir()) == [
        "encoder.onnx",
        "goldens.npz",
        "head.onnx",
        "manifest.json",
    ]
    bundle = load_bundle(path)
    manifest = bundle.manifest
    assert (manifest.policy, manifest.version, manifest.kind) == ("kais", "1.0.0", "dispatch")
    assert manifest.feature_schema_hash == SCHEMA.hash
    assert manifest.training == TRAINING
    assert {record.opset for record in manifest.models.values()} == {OPSET}
    assert set(bundle.sessions) == {ENCODER, HEAD}
    feeds = example_inputs(bundle.sessions[HEAD].signature)
    np.testing.assert_array_equal(
        bundle.sessions[HEAD].run(feeds)[0], ModelSession(head_model()).run(feeds)[0]
    )
    assert (
        bundle.digest
        == manifest_digest(path)
        == hashlib.sha256((path / "manifest.json").read_bytes()).hexdigest()
    )


@pytest.mark.parametrize("name", ["manifest.json", "encoder.onnx", "head.onnx", "goldens.npz"])
def test_missing_files_are_refused(path: Path, name: str) -> None:
    (path / name).unlink()
    assert assert_refused(path, "not readable").path == path / name


@pytest.mark.parametrize("name", ["manifest.json", "encoder.onnx", "head.onnx", "goldens.npz"])
def test_truncated_files_are_refused(path: Path, name: str) -> None:
    data = (path / name).read_bytes()
    (path / name).write_bytes(data[: len(data) // 2])
    assert assert_refused(path, "bytes instead of|not JSON").path == path / name


@pytest.mark.parametrize("name", ["encoder.onnx", "head.onnx", "goldens.npz"])
def test_changed_bytes_are_refused(path: Path, name: str) -> None:
    data = bytearray((path / name).read_bytes())
    data[len(data) // 2] ^= 1
    (path / name).write_bytes(data)
    assert assert_refused(path, "SHA-256").path == path / name


@pytest.mark.parametrize("name", ["weights.bin", ".hidden", "head.onnx.bak"])
def test_extra_files_are_refused(path: Path, name: str) -> None:
    (path / name).write_bytes(b"x")
    assert assert_refused(path, "not listed").path == path / name


def test_a_directory_in_place_of_a_file_is_refused(path: Path) -> None:
    (path / "head.onnx").unlink()
    (path / "head.onnx").mkdir()
    assert_refused(path, "not readable")


@pytest.mark.parametrize(
    "name", ["../head.onnx", "/etc/hostname", "sub/head.onnx", "..", "head\x00.onnx", ""]
)
def test_names_that_lead_out_of_the_bundle_are_refused(path: Path, name: str) -> None:
    def rename(manifest: dict[str, Any]) -> None:
        manifest["files"][name] = manifest["files"].pop("head.onnx")

    edit_manifest(path, rename)
    assert_refused(path, "files: ")


@pytest.mark.parametrize("name", ["../head", "sub/head", "/head"])
def test_model_names_that_lead_out_of_the_bundle_are_refused(path: Path, name: str) -> None:
    def rename(manifest: dict[str, Any]) -> None:
        manifest["files"][f"{name}.onnx"] = manifest["files"].pop("head.onnx")
        manifest["models"][name] = manifest["models"].pop("head")

    edit_manifest(path, rename)
    assert_refused(path, "not a plain file name")


def test_links_that_lead_out_of_the_bundle_are_refused(path: Path, tmp_path: Path) -> None:
    (path / "head.onnx").rename(tmp_path / "head.onnx")
    (path / "head.onnx").symlink_to(tmp_path / "head.onnx")
    assert_refused(path, "link that leads out")


def test_a_mounted_config_map_is_read(path: Path) -> None:
    """Kubernetes flips the link ``..data`` to a new directory; every file is a link through it."""
    real = path / "..2026_01_01"
    real.mkdir()
    names = [p.name for p in path.iterdir() if p.is_file()]
    for name in names:
        (path / name).rename(real / name)
        (path / name).symlink_to(Path("..data") / name)
    (path / "..data").symlink_to(real.name)
    assert load_bundle(path).manifest.version == "1.0.0"


def test_huge_files_are_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_module, "MAXIMUM_FILE_BYTES", 100)
    assert_refused(path, "bytes; at most 100 are read")


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("feature_schema_hash", "0" * 64, "made for features 000000000000, this program computes"),
        ("kind", "weather", "kind 'weather'"),
        ("policy", "../kais", "policy '../kais'"),
        ("version", "latest", "version 'latest'"),
        ("sampling_temperature", -1.0, "sampling_temperature -1"),
        ("format_version", 99, "format_version: 99"),
        ("colour", "red", "colour: unknown"),
    ],
)
def test_unfit_manifests_are_refused(path: Path, key: str, value: object, what: str) -> None:
    edit_manifest(path, lambda manifest: manifest.update({key: value}))
    assert_refused(path, what)


def test_signatures_must_be_those_of_the_manifest(path: Path) -> None:
    def rename(manifest: dict[str, Any]) -> None:
        manifest["models"]["head"]["signature"]["outputs"][0]["name"] = "logit"

    edit_manifest(path, rename)
    assert_refused(path, "signature differs")


def test_operator_set_must_be_that_of_the_manifest(path: Path) -> None:
    edit_manifest(path, lambda manifest: manifest["models"]["head"].update(opset=OPSET + 1))
    assert_refused(path, "operator set 18, manifest 19")


def test_what_is_no_model_is_refused(path: Path) -> None:
    replace_file(path, "head.onnx", b"garbage")
    assert assert_refused(path, "not a serialised ModelProto").path == path / "head.onnx"


def test_other_weights_than_the_goldens_are_refused(path: Path) -> None:
    replace_file(path, "head.onnx", head_model(seed=9))
    assert assert_refused(path, "output score: differs").path == path / "goldens.npz"


def test_models_that_warm_up_to_nan_are_refused(path: Path) -> None:
    replace_file(path, "head.onnx", head_model(faults=math.nan))
    assert_refused(path, "output score: NaN")


def test_goldens_with_nan_are_refused(path: Path) -> None:
    model = head_model(faults={0: math.nan})
    replace_file(path, "head.onnx", model)
    replace_file(
        path, "goldens.npz", pack_goldens([golden_of(ENCODER, encoder_model()), golden_of(HEAD, model)])
    )
    assert_refused(path, "output score: NaN")


def test_pickled_goldens_are_refused(path: Path) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **{"0/head/input/segment": np.array([{}], object)})
    replace_file(path, "goldens.npz", buffer.getvalue())
    assert_refused(path, "not readable")


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert_refused(tmp_path / "none", "no such directory")


class TestWriting:
    def test_leaves_nothing_but_the_bundle(self, path: Path) -> None:
        assert [p.name for p in path.parent.iterdir()] == ["1.0.0"]

    def test_versions_never_change(self, path: Path) -> None:
        before = manifest_digest(path)
        with pytest.raises(BundleError, match="exists"):
            write_example_bundle(path.parent.parent, seed=1)
        assert manifest_digest(path) == before

    @pytest.mark.parametrize(
        ("changes", "what"),
        [
            ({"goldens": []}, "no golden for model 'encoder'"),
            ({"models": {ENCODER: encoder_model()}}, "models: "),
            ({"models": {ENCODER: encoder_model(), HEAD: b"x"}}, "head.onnx"),
            ({"models": {ENCODER: encoder_model(), HEAD: head_model(seed=5)}}, "output score: differs"),
            ({"models": {ENCODER: encoder_model(opset=17), HEAD: head_model(opset=17)}}, "operator set 17"),
            ({"evaluation": {"mean": math.nan}}, "evaluation: "),
            ({"kind": "weather"}, "kind 'weather'"),
            ({"sampling_temperature": math.inf}, "JSON"),
            ({"policy": "../kais"}, "policy '../kais'"),
            ({"version": "../1.0.0"}, "version '../1.0.0'"),
        ],
    )
    def test_what_would_be_refused_is_not_written(
        self, tmp_path: Path, changes: dict[str, Any], what: str
    ) -> None:
        root = tmp_path / "root"
        with pytest.raises(BundleError, match=what):
            write_example_bundle(root, **changes)
        assert [p for p in tmp_path.rglob("*") if p.is_file()] == []
        assert not (root / "kais" / "1.0.0").exists()

    def test_readers_see_all_or_nothing(self, tmp_path: Path) -> None:
        """Whatever a reader finds while a writer is at work loads."""
        done = threading.Event()
        seen: set[str] = set()

        def read() -> None:
            while not done.is_set():
                for location in find_bundles(tmp_path).get("kais", []):
                    seen.add(location.load().manifest.version)

        write_example_bundle(tmp_path, version="1.0.0")
        failures: list[BaseException] = []

        def reader() -> None:
            try:
                read()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=reader)
        thread.start()
        for patch in range(1, 8):
            write_example_bundle(tmp_path, version=f"1.0.{patch}")
        done.set()
        thread.join()
        assert not failures
        assert seen

    def test_the_last_step_is_one_rename_of_the_whole(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rename, renamed = Path.rename, []

        def spy(source: Path, target: Path) -> Path:
            renamed.append((sorted(p.name for p in source.iterdir()), target.exists()))
            return rename(source, target)

        monkeypatch.setattr(Path, "rename", spy)
        write_example_bundle(tmp_path)
        assert renamed == [(["encoder.onnx", "goldens.npz", "head.onnx", "manifest.json"], False)]

    def test_is_readable_by_others(self, path: Path) -> None:
        assert path.stat().st_mode & 0o777 == 0o755


class TestFinding:
    def test_latest_version_first(self, tmp_path: Path) -> None:
        for version in ("1.9.0", "1.10.0", "1.10.0-rc.1", "0.1.0"):
            (tmp_path / "kais" / version).mkdir(parents=True)
        versions = [location.version for location in find_bundles(tmp_path)["kais"]]
        assert versions == ["1.10.0", "1.10.0-rc.1", "1.9.0", "0.1.0"]

    def test_names_that_are_no_version_come_last_and_are_reported_by_loading(self, path: Path) -> None:
        shutil.copytree(path, path.parent / "latest")
        locations = find_bundles(path.parent.parent)["kais"]
        assert [location.version for location in locations] == ["1.0.0", "latest"]
        with pytest.raises(BundleError, match=r"holds kais/1\.0\.0"):
            locations[1].load()

    def test_a_bundle_under_another_name_is_refused(self, path: Path) -> None:
        shutil.copytree(path, path.parent.parent / "other" / "1.0.0")
        with pytest.raises(BundleError, match=r"holds kais/1\.0\.0"):
            find_bundles(path.parent.parent)["other"][0].load()

    def test_half_written_bundles_are_hidden_or_refused(self, path: Path) -> None:
        (path.parent / ".partial-x").mkdir()
        (path.parent / "1.1.0").mkdir()
        shutil.copy(path / "head.onnx", path.parent / "1.1.0")
        locations = find_bundles(path.parent.parent)["kais"]
        assert [location.version for location in locations] == ["1.1.0", "1.0.0"]
        with pytest.raises(BundleError, match="not readable"):
            locations[0].load()

    def test_what_is_no_policy_is_passed_over(self, tmp_path: Path) -> None:
        (tmp_path / "__pycache__" / "1.0.0").mkdir(parents=True)
        (tmp_path / "empty").mkdir()
        (tmp_path / "__init__.py").write_text("")
        assert find_bundles(tmp_path) == {}

    def test_no_such_root(self, tmp_path: Path) -> None:
        with pytest.raises(BundleError, match="no such directory"):
            find_bundles(tmp_path / "none")

    def test_shipped_bundles_are_sound(self) -> None:
        root = shipped_bundles_root()
        assert (root / "__init__.py").is_file()
        for locations in find_bundles().values():
            for location in locations:
                location.load()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_files_are_refused(path: Path) -> None:
    (path / "head.onnx").chmod(0)
    assert_refused(path, "Permission denied")
