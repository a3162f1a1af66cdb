import json
import math
from dataclasses import replace
from typing import Any

import pytest

from policy_server.runtime.graph_contract import ENCODER, HEAD, dispatch_signatures
from policy_server.runtime.manifest import FileRecord, Manifest, ManifestError, ModelRecord
from tests.support.models import TRAINING

MANIFEST = Manifest(
    policy="kais",
    version="1.0.0",
    kind="dispatch",
    feature_schema_hash="0" * 64,
    sampling_temperature=0.5,
    models={name: ModelRecord(signature, 18) for name, signature in dispatch_signatures(8).items()},
    files={"head.onnx": FileRecord(10, "ab")},
    training=TRAINING,
    evaluation={"P1": {"mean": 0.9, "ci95": [0.8, None], "note": "ü", "best": True}},
)


def document() -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(MANIFEST.to_json())
    return parsed


def test_round_trip() -> None:
    assert Manifest.from_json(MANIFEST.to_json()) == MANIFEST
    orchestration = replace(MANIFEST, kind="orchestration", maximum_actions=8)
    assert Manifest.from_json(orchestration.to_json()) == orchestration


def test_what_only_some_bundles_have_is_left_out_of_others() -> None:
    assert "maximum_actions" not in document()


def test_signatures_are_readable() -> None:
    encoder, head = (document()["models"][name]["signature"] for name in (ENCODER, HEAD))
    assert encoder["inputs"][0] == {"name": "node_features", "dtype": "float32", "shape": ["N", 10]}
    assert head["outputs"] == [{"name": "score", "dtype": "float32", "shape": ["C"]}]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("policy",), 3, "policy: 3; must be str"),
        (("sampling_temperature",), "warm", "sampling_temperature: 'warm'; must be float"),
        (("sampling_temperature",), True, "sampling_temperature: True"),
        (("training", "seed"), 1.5, r"training\.seed: 1\.5; must be int"),
        (("training",), None, "training: None; must be an object"),
        (("models",), [], r"models: \[\]; must be an object"),
        (("models", "head", "opset"), "18", r"models\.head\.opset: '18'; must be int"),
        (
            ("models", "head", "signature", "inputs"),
            {},
            r"models\.head\.signature\.inputs: {}; must be a list",
        ),
        (("models", "head", "signature", "outputs", 0, "shape", 0), None, r"outputs\[0\]\.shape\[0\]: None"),
        (
            ("files", "head.onnx", "colour"),
            1,
            r"files\.head\.onnx\.colour: unknown; known are size_bytes, sha256",
        ),
        (("format_version",), 2, "format_version: 2; this program reads 1"),
        (("shape",), 1, "shape: unknown"),
        (
            ("maximum_actions",),
            8,
            "maximum_actions: 8; must be one or more, and is only for kind orchestration",
        ),
        (("maximum_actions",), "8", "maximum_actions: '8'; must be int"),
    ],
)
def test_unfit_keys_are_named(path: tuple[str | int, ...], value: Any, message: str) -> None:
    changed = document()
    parent: Any = changed
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    with pytest.raises(ManifestError, match=message):
        Manifest.from_json(json.dumps(changed))


@pytest.mark.parametrize(
    "key", ["policy", "version", "kind", "models", "files", "training", "format_version"]
)
def test_missing_keys_are_named(key: str) -> None:
    changed = document()
    del changed[key]
    with pytest.raises(ManifestError, match=key):
        Manifest.from_json(json.dumps(changed))


def test_integers_pass_for_floats() -> None:
    changed = document()
    changed["sampling_temperature"] = 1
    temperature = Manifest.from_json(json.dumps(changed)).sampling_temperature
    assert (temperature, type(temperature)) == (1.0, float)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", b"\xff\xfe\x00", '{"policy": NaN}'])
def test_what_is_no_json_object_is_refused(text: str | bytes) -> None:
    with pytest.raises(ManifestError, match="not"):
        Manifest.from_json(text)


def test_nan_is_not_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        replace(MANIFEST, evaluation={"mean": math.nan}).to_json()
