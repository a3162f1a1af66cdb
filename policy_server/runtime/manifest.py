"""What a model bundle says of itself, as ``manifest.json``."""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from policy_server.runtime.signature import Signature

FORMAT_VERSION = 1


class ManifestError(ValueError):
    """A manifest that cannot be read. The message names the key, the value and what is expected."""


@dataclass(frozen=True)
class FileRecord:
    """A file of the bundle: its length and the hexadecimal SHA-256 of its content."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class ModelRecord:
    """A graph of the bundle, in the file ``NAME.onnx``."""

    signature: Signature
    opset: int


@dataclass(frozen=True)
class TrainingRecord:
    """Where the models come from.

    Attributes:
        command: the command line that trains them again.
        seed: of all random numbers.
        data: workloads and traces they were trained on.
        git_commit: of the training code.
        torch_version: that trained and exported them.
        steps: environment steps.
        wall_seconds: duration of the training.
    """

    command: str
    seed: int
    data: str
    git_commit: str
    torch_version: str
    steps: int
    wall_seconds: float


@dataclass(frozen=True)
class Manifest:
    """What a bundle says of itself.

    Attributes:
        policy: name of the policy, as callers ask for it.
        version: semantic version; the content of a version never changes.
        kind: what is decided: ``dispatch``, ``orchestration`` or ``scaling``.
        feature_schema_hash: of the features the models were trained on.
        sampling_temperature: 0 picks the best score; above 0 picks by softmax(score / temperature).
        models: graphs by name.
        files: every file of the bundle but the manifest, by name.
        training: where the models come from.
        evaluation: figures, of any form.
        maximum_actions: of orchestration: actions per frame and system where the caller sets no number, those that the
            models were trained with; None: the default of the server.
        format_version: of this manifest.
    """

    policy: str
    version: str
    kind: str
    feature_schema_hash: str
    sampling_temperature: float
    models: dict[str, ModelRecord]
    files: dict[str, FileRecord]
    training: TrainingRecord
    evaluation: dict[str, Any] = field(default_factory=dict)
    maximum_actions: int | None = None
    format_version: int = FORMAT_VERSION

    def to_json(self) -> str:
        """Indented JSON with every key that says something.

        Raises:
            ValueError: NaN or an infinity among the figures.
        """
        document = asdict(self)
        if self.maximum_actions is None:
            del document["maximum_actions"]
        return json.dumps(document, indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Manifest:
        """Reads what :meth:`to_json` wrote.

        Raises:
            ManifestError: not JSON, another format version, or a missing, unknown or mistyped key.
        """
        try:
            document = json.loads(text, parse_constant=_refuse_constant)
        except ValueError as error:
            raise ManifestError(f"not JSON: {error}") from None
        if not isinstance(document, dict):
            raise ManifestError(f"not a JSON object but {type(document).__name__}")
        version = document.get("format_version")
        if version != FORMAT_VERSION:
            raise ManifestError(f"format_version: {version!r}; this program reads {FORMAT_VERSION}")
        manifest: Manifest = _decode(cls, document, "")
        most = manifest.maximum_actions
        if most is not None and (manifest.kind != "orchestration" or most < 1):
            raise ManifestError(
                f"maximum_actions: {most!r}; must be one or more, and is only for kind orchestration"
            )
        return manifest


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


def _decode(expected: Any, value: Any, key: str) -> Any:
    """A JSON value as the type a dataclass field asks for."""
    if expected is Any:
        return value
    if is_dataclass(expected):
        return _decode_dataclass(expected, value, key)
    container = get_origin(expected)
    if container is UnionType:
        return _decode_scalar(get_args(expected), value, key)
    if container is dict:
        _, element = get_args(expected)
        return {name: _decode(element, v, f"{key}.{name}") for name, v in _require(dict, value, key).items()}
    if container is tuple:
        element = get_args(expected)[0]
        return tuple(_decode(element, v, f"{key}[{i}]") for i, v in enumerate(_require(list, value, key)))
    if expected is float:
        return float(_decode_scalar((float, int), value, key))
    return _decode_scalar((expected,), value, key)


def _decode_dataclass(expected: Any, value: Any, key: str) -> Any:
    document = _require(dict, value, key)
    prefix = f"{key}." if key else ""
    known = {f.name: f for f in fields(expected)}
    for name in document:
        if name not in known:
            raise ManifestError(f"{prefix}{name}: unknown; known are {', '.join(known)}")
    for name, f in known.items():
        if name not in document and f.default is MISSING and f.default_factory is MISSING:
            raise ManifestError(f"{prefix}{name}: missing")
    hints = get_type_hints(expected)
    return expected(**{name: _decode(hints[name], v, f"{prefix}{name}") for name, v in document.items()})


def _decode_scalar(expected: tuple[type, ...], value: Any, key: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, expected):
        raise ManifestError(f"{key}: {value!r}; must be {' or '.join(t.__name__ for t in expected)}")
    return value


def _require(expected: type, value: Any, key: str) -> Any:
    if not isinstance(value, expected):
        raise ManifestError(f"{key}: {value!r}; must be {'an object' if expected is dict else 'a list'}")
    return value
