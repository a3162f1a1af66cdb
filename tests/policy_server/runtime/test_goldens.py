import io
import pickle
from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

from policy_server.runtime.goldens import (
    TOLERANCE,
    Golden,
    GoldenError,
    pack_goldens,
    replay_goldens,
    unpack_goldens,
)
from policy_server.runtime.session import ModelSession
from policy_server.runtime.signature import Signature, TensorSpec
from tests.support.models import golden_of, head_model, serialised_model

GOLDEN = golden_of("head", head_model())
SESSIONS = {"head": ModelSession(head_model())}


def with_score(score: np.ndarray) -> Golden:
    return replace(GOLDEN, outputs={"score": score})


def test_packing_keeps_everything() -> None:
    goldens = [GOLDEN, golden_of("head", head_model(), rows=1)]
    unpacked = unpack_goldens(pack_goldens(goldens))
    assert [golden.model for golden in unpacked] == ["head", "head"]
    for before, after in zip(goldens, unpacked, strict=True):
        for old, new in ((before.inputs, after.inputs), (before.outputs, after.outputs)):
            assert list(old) == list(new)
            for name, array in old.items():
                np.testing.assert_array_equal(array, new[name])
                assert array.dtype == new[name].dtype


def test_sound_models_pass() -> None:
    replay_goldens([GOLDEN], SESSIONS)


@pytest.mark.parametrize(
    ("magnitude", "allowed"), [(0.5, TOLERANCE), (1.0, TOLERANCE), (400.0, 400 * TOLERANCE)]
)
def test_tolerance_is_relative_to_outputs_beyond_one(magnitude: float, allowed: float) -> None:
    vector = ("float64", ("N",))
    signature = Signature((TensorSpec("x", *vector),), (TensorSpec("y", *vector),))
    identity = ModelSession(serialised_model(signature, [helper.make_node("Identity", ["x"], ["y"])], {}))
    x = np.array([0.0, -magnitude])

    def replay(difference: float) -> None:
        replay_goldens(
            [Golden("identity", {"x": x}, {"y": x + np.array([difference, 0.0])})], {"identity": identity}
        )

    replay(0.9 * allowed)
    with pytest.raises(GoldenError, match=f"identity: output y: differs by .*, allowed {allowed:.2g}"):
        replay(1.1 * allowed)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_outputs_are_refused_even_where_both_agree(value: float) -> None:
    model = head_model(faults={0: value})
    with pytest.raises(GoldenError, match="head: output score: NaN or an infinity"):
        replay_goldens([golden_of("head", model)], {"head": ModelSession(model)})


@pytest.mark.parametrize(
    ("golden", "message"),
    [
        (with_score(np.zeros(2, np.float32)), r"shape \(3,\) instead of \(2,\)"),
        (replace(GOLDEN, outputs={}), r"head: outputs \[\], the model has \['score'\]"),
        (
            replace(GOLDEN, inputs={k: v for k, v in GOLDEN.inputs.items() if k != "segment"}),
            "head: input segment: missing",
        ),
        (replace(GOLDEN, inputs=GOLDEN.inputs | {"segment": np.array([0, 0, 9])}), "head: .*out of"),
        (replace(GOLDEN, model="tail"), "no golden for model 'head'"),
    ],
)
def test_what_cannot_be_reproduced_is_named(golden: Golden, message: str) -> None:
    with pytest.raises(GoldenError, match=message):
        replay_goldens([golden], SESSIONS)


def test_every_model_needs_its_golden_and_every_golden_its_model() -> None:
    with pytest.raises(GoldenError, match="no golden for model 'head'"):
        replay_goldens([], SESSIONS)
    with pytest.raises(GoldenError, match="unknown model 'tail'"):
        replay_goldens([GOLDEN, replace(GOLDEN, model="tail")], SESSIONS)


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return pytest.fail, ("unpickled",)


def test_pickles_are_never_opened() -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **{"0/head/input/segment": np.array([Bomb()], object)})
    for packed in (buffer.getvalue(), pickle.dumps(Bomb())):
        with pytest.raises(GoldenError, match="not readable"):
            unpack_goldens(packed)


@pytest.mark.parametrize("packed", [b"", b"PK\x03\x04", pack_goldens([GOLDEN])[:-30]])
def test_broken_archives_are_refused(packed: bytes) -> None:
    with pytest.raises(GoldenError, match="not readable"):
        unpack_goldens(packed)


@pytest.mark.parametrize("key", ["score", "0/head/middle/score", "0/head/input/score/more"])
def test_foreign_keys_are_refused(key: str) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **{key: np.zeros(1)})
    with pytest.raises(GoldenError, match="not readable"):
        unpack_goldens(buffer.getvalue())


def test_a_bare_array_is_refused() -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(1))
    with pytest.raises(GoldenError, match="not readable"):
        unpack_goldens(buffer.getvalue())
