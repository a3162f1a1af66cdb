"""Model bundles: a directory ``<policy>/<version>/`` that is complete, checksummed, and never changes.

======================  =====================================================================
``manifest.json``       :class:`~policy_server.runtime.manifest.Manifest`
``<model>.onnx``        the graphs, normalisation included
``goldens.npz``         example inputs and outputs, replayed at load
======================  =====================================================================

Nothing in a bundle is ever unpickled, and every byte is read once: what was hashed is what is run.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from policy_server.features.orchestration_schema import ORCHESTRATION_SCHEMA
from policy_server.features.scaling import SCALING_SCHEMA
from policy_server.features.schema import SCHEMA
from policy_server.runtime.goldens import Golden, GoldenError, pack_goldens, replay_goldens, unpack_goldens
from policy_server.runtime.graph_contract import require_dispatch_graphs, require_orchestration_graphs
from policy_server.runtime.manifest import (
    FileRecord,
    Manifest,
    ManifestError,
    ModelRecord,
    TrainingRecord,
)
from policy_server.runtime.onnx_model import opset_version
from policy_server.runtime.scaling_graph import require_scaling_graph
from policy_server.runtime.session import ModelError, ModelSession
from policy_server.runtime.signature import Signature, SignatureError
from policy_server.runtime.versions import SemanticVersion

MANIFEST_FILE = "manifest.json"
GOLDENS_FILE = "goldens.npz"
OLDEST_OPSET = 18
"""The first operator set with scatter reductions."""
MAXIMUM_FILE_BYTES = 256 * 2**20

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\.(?:onnx|npz)", re.ASCII)
_POLICY_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*", re.ASCII)
_MODEL_SUFFIX = ".onnx"
_CONFIG_MAP_PREFIX = ".."
"""Kubernetes keeps the real files of a mounted ConfigMap or Secret in entries that begin so."""


@dataclass(frozen=True)
class _Kind:
    """What the service needs to know of a kind of policy to run its graphs."""

    feature_schema_hash: str
    require_graphs: Callable[[Mapping[str, Signature]], None]


_KINDS = {
    "dispatch": _Kind(SCHEMA.hash, require_dispatch_graphs),
    "orchestration": _Kind(ORCHESTRATION_SCHEMA.hash, require_orchestration_graphs),
    "scaling": _Kind(SCALING_SCHEMA.hash, require_scaling_graph),
}
_DEFAULT_KIND = "dispatch"


class BundleError(Exception):
    """A bundle that is refused.

    Attributes:
        path: of the bundle, or of the file at fault.
        what: is wrong.
        remedy: what to do about it.
    """

    def __init__(self, path: Path, what: str, remedy: str) -> None:
        super().__init__(f"{path}: {what}; {remedy}")
        self.path = path
        self.what = what
        self.remedy = remedy


@dataclass(frozen=True)
class Bundle:
    """A bundle that passed every check, its models loaded and warm.

    Attributes:
        path: directory.
        manifest: what the bundle says of itself.
        sessions: models by name.
        digest: see :func:`manifest_digest`.
    """

    path: Path
    manifest: Manifest
    sessions: Mapping[str, ModelSession]
    digest: str


@dataclass(frozen=True)
class BundleLocation:
    """A directory that should hold a bundle. Only loading tells."""

    policy: str
    version: str
    path: Path

    def kind(self) -> str | None:
        """What the manifest says is decided; None where there is no manifest that can be read."""
        try:
            return _read_manifest(self.path)[1].kind
        except BundleError:
            return None

    def load(self) -> Bundle:
        """Loads the bundle, which must be the one its directories are named after.

        Raises:
            BundleError: as :func:`load_bundle`, or another policy or version is inside.
        """
        bundle = load_bundle(self.path)
        inside = f"{bundle.manifest.policy}/{bundle.manifest.version}"
        if inside != f"{self.policy}/{self.version}":
            raise BundleError(
                self.path, f"holds {inside}", "name the directories after what the manifest says"
            )
        return bundle


def shipped_bundles_root() -> Path:
    """Directory of the bundles that ship with the package."""
    return Path(str(resources.files("exported_models")))


def find_bundles(root: Path | None = None, *, kind: str | None = None) -> dict[str, list[BundleLocation]]:
    """Bundle directories by policy, latest version first.

    Directories that are not named like a version are listed last, so that loading reports them. Hidden directories
    are someone's work in progress and not listed.

    Args:
        root: holds ``<policy>/<version>/``; None: the bundles shipped with the package.
        kind: only bundles of this kind, by :func:`declared_kind`.

    Raises:
        BundleError: there is no such directory.
    """
    root = root or shipped_bundles_root()
    if not root.is_dir():
        raise BundleError(root, "no such directory", "name one that holds <policy>/<version>/")
    found: dict[str, list[BundleLocation]] = {}
    for directory in sorted(root.iterdir()):
        if directory.is_dir() and _POLICY_NAME.fullmatch(directory.name):
            versions = [p for p in directory.iterdir() if p.is_dir() and not p.name.startswith(".")]
            if kind is not None:
                versions = [path for path in versions if declared_kind(path) == kind]
            if versions:
                versions.sort(key=_precedence, reverse=True)
                found[directory.name] = [BundleLocation(directory.name, p.name, p) for p in versions]
    return found


def declared_kind(path: Path) -> str:
    """The kind that a bundle says it is of; ``dispatch`` where it says nothing that is known, for loading to report."""
    try:
        kind = json.loads(_read(path, MANIFEST_FILE))["kind"]
    except (BundleError, ValueError, KeyError, TypeError):
        return _DEFAULT_KIND
    return kind if isinstance(kind, str) and kind in _KINDS else _DEFAULT_KIND


def manifest_digest(path: Path) -> str:
    """Hexadecimal SHA-256 of a bundle's manifest, and through it of every file.

    Raises:
        BundleError: there is no manifest.
    """
    return _sha256(_read(path, MANIFEST_FILE))


def load_bundle(path: Path) -> Bundle:
    """Loads a bundle after checking everything about it: files, hashes, features, graphs, goldens.

    Raises:
        BundleError: anything is wrong; nothing stays loaded.
    """
    raw_manifest, manifest = _read_manifest(path)
    contents = _read_files(path, manifest)
    _check_features(path, manifest)
    sessions = {
        name: _load_model(path / f"{name}{_MODEL_SUFFIX}", contents[f"{name}{_MODEL_SUFFIX}"], record)
        for name, record in manifest.models.items()
    }
    try:
        _KINDS[manifest.kind].require_graphs({name: s.signature for name, s in sessions.items()})
    except SignatureError as error:
        raise BundleError(path, str(error), "export the models with the code of this version") from None
    try:
        replay_goldens(unpack_goldens(contents[GOLDENS_FILE]), sessions)
    except GoldenError as error:
        raise BundleError(path / GOLDENS_FILE, str(error), "export the models again") from error
    return Bundle(path, manifest, sessions, _sha256(raw_manifest))


def write_bundle(
    root: Path,
    *,
    policy: str,
    version: str,
    kind: str,
    models: Mapping[str, bytes],
    goldens: Sequence[Golden],
    sampling_temperature: float,
    training: TrainingRecord,
    evaluation: Mapping[str, Any],
    maximum_actions: int | None = None,
) -> Path:
    """Writes ``root/policy/version/`` in one step: readers see the whole bundle, checked, or none.

    Args:
        root: directory of all bundles; created if need be.
        policy: name.
        version: a new semantic version.
        kind: what is decided: ``dispatch``, ``orchestration`` or ``scaling``.
        models: serialised ONNX models by name.
        goldens: examples, at least one per model.
        sampling_temperature: see :class:`~policy_server.runtime.manifest.Manifest`.
        training: where the models come from.
        evaluation: figures; anything JSON can hold.
        maximum_actions: see :class:`~policy_server.runtime.manifest.Manifest`.

    Returns:
        The bundle's directory.

    Raises:
        BundleError: the version exists, or the bundle would be refused by :func:`load_bundle`.
    """
    target = root / policy / version
    _check_identity(target, policy, version)
    if target.exists():
        raise BundleError(target, "exists", "a version never changes; choose a higher one")
    if kind not in _KINDS:
        raise BundleError(target, f"kind {kind!r}", f"choose one of {sorted(_KINDS)}")
    contents = {f"{name}{_MODEL_SUFFIX}": model for name, model in models.items()}
    contents[GOLDENS_FILE] = pack_goldens(goldens)
    manifest = Manifest(
        policy=policy,
        version=version,
        kind=kind,
        feature_schema_hash=_KINDS[kind].feature_schema_hash,
        sampling_temperature=sampling_temperature,
        models={name: _describe_model(target, name, model) for name, model in models.items()},
        files={name: FileRecord(len(data), _sha256(data)) for name, data in contents.items()},
        training=training,
        evaluation=dict(evaluation),
        maximum_actions=maximum_actions,
    )
    try:
        contents[MANIFEST_FILE] = manifest.to_json().encode()
    except ValueError as error:
        raise BundleError(target, f"evaluation: {error}", "give finite figures") from None
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".partial-", dir=target.parent))
    try:
        draft.chmod(0o755)
        for name, data in contents.items():
            _write_durably(draft / name, data)
        load_bundle(draft)
        draft.rename(target)
        _sync_directory(target.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return target


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _precedence(path: Path) -> tuple[bool, SemanticVersion, str]:
    try:
        return True, SemanticVersion(path.name), path.name
    except ValueError:
        return False, SemanticVersion("0.0.0"), path.name


def _read_manifest(path: Path) -> tuple[bytes, Manifest]:
    if not path.is_dir():
        raise BundleError(path, "no such directory", "name a directory <policy>/<version>/")
    raw = _read(path, MANIFEST_FILE)
    try:
        manifest = Manifest.from_json(raw)
    except ManifestError as error:
        raise BundleError(path / MANIFEST_FILE, str(error), "write it with write_bundle") from None
    _check_identity(path / MANIFEST_FILE, manifest.policy, manifest.version)
    return raw, manifest


def _check_identity(path: Path, policy: str, version: str) -> None:
    if not _POLICY_NAME.fullmatch(policy):
        raise BundleError(path, f"policy {policy!r}", "use lower-case letters, digits and single hyphens")
    try:
        SemanticVersion(version)
    except ValueError:
        raise BundleError(path, f"version {version!r}", "use MAJOR.MINOR.PATCH, such as 1.0.0") from None


def _read_files(path: Path, manifest: Manifest) -> dict[str, bytes]:
    """The content of every listed file, once it is sure that exactly those are there, whole and unchanged."""
    required = {f"{name}{_MODEL_SUFFIX}" for name in manifest.models} | {GOLDENS_FILE}
    for name in sorted(required ^ set(manifest.files)):
        what = (
            "a model or goldens not listed" if name in required else "listed, but neither a model nor goldens"
        )
        raise BundleError(path / MANIFEST_FILE, f"files: {name!r} is {what}", "write it with write_bundle")
    for name in manifest.files:
        if not _FILE_NAME.fullmatch(name):
            raise BundleError(
                path / MANIFEST_FILE,
                f"files: {name!r} is not a plain file name",
                "use letters, digits, _ and -",
            )
    expected = {*manifest.files, MANIFEST_FILE}
    for entry in sorted(path.iterdir()):
        if entry.name not in expected and not entry.name.startswith(_CONFIG_MAP_PREFIX):
            raise BundleError(entry, "not listed in the manifest", "remove it")
    contents = {}
    for name, record in manifest.files.items():
        data = _read(path, name)
        if len(data) != record.size_bytes:
            raise BundleError(
                path / name,
                f"{len(data)} bytes instead of {record.size_bytes}",
                "copy the bundle again, whole",
            )
        if _sha256(data) != record.sha256:
            raise BundleError(
                path / name, "content differs from its SHA-256", "copy the bundle again, unchanged"
            )
        contents[name] = data
    return contents


def _read(path: Path, name: str) -> bytes:
    file = path / name
    try:
        if not file.resolve(strict=True).is_relative_to(path.resolve()):
            raise BundleError(file, "a link that leads out of the bundle", "put the file itself there")
        size = file.stat().st_size
        if size > MAXIMUM_FILE_BYTES:
            raise BundleError(file, f"{size} bytes", f"at most {MAXIMUM_FILE_BYTES} are read")
        return file.read_bytes()
    except OSError as error:
        raise BundleError(
            file, f"not readable: {error.strerror}", "wait until the bundle is complete, or copy it again"
        ) from None


def _check_features(path: Path, manifest: Manifest) -> None:
    kind = _KINDS.get(manifest.kind)
    if kind is None:
        raise BundleError(path, f"kind {manifest.kind!r}", f"this program serves {sorted(_KINDS)}")
    if manifest.feature_schema_hash != kind.feature_schema_hash:
        raise BundleError(
            path,
            f"made for features {manifest.feature_schema_hash[:12]}, this program computes "
            f"{kind.feature_schema_hash[:12]}",
            "train and export with the code of this version",
        )
    if not 0 <= manifest.sampling_temperature < float("inf"):
        raise BundleError(
            path,
            f"sampling_temperature {manifest.sampling_temperature}",
            "give a finite number, zero or more",
        )


def _load_model(file: Path, model: bytes, record: ModelRecord) -> ModelSession:
    try:
        opset = opset_version(model)
        session = ModelSession(model)
    except (ModelError, SignatureError, ValueError) as error:
        raise BundleError(file, str(error), "export the model again") from error
    if opset != record.opset or opset < OLDEST_OPSET:
        raise BundleError(
            file,
            f"operator set {opset}, manifest {record.opset}",
            f"export with one operator set, {OLDEST_OPSET} or later",
        )
    if session.signature != record.signature:
        raise BundleError(file, "signature differs from the manifest", "write the bundle with write_bundle")
    return session


def _describe_model(target: Path, name: str, model: bytes) -> ModelRecord:
    try:
        return ModelRecord(ModelSession(model).signature, opset_version(model))
    except (ModelError, SignatureError, ValueError) as error:
        raise BundleError(target / f"{name}{_MODEL_SUFFIX}", str(error), "export the model again") from error


def _write_durably(file: Path, data: bytes) -> None:
    with file.open("xb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
