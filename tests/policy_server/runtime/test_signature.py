import numpy as np
import pytest

from policy_server.runtime.signature import Signature, SignatureError, TensorSpec

SIGNATURE = Signature(
    inputs=(
        TensorSpec("features", "float32", ("C", 3)),
        TensorSpec("segment", "int64", ("C",)),
        TensorSpec("origin", "float32", ("Q", 2)),
    ),
    outputs=(TensorSpec("score", "float32", ("C",)),),
)


def feeds() -> dict[str, np.ndarray]:
    return {
        "features": np.zeros((4, 3), np.float32),
        "segment": np.zeros(4, np.int64),
        "origin": np.zeros((1, 2), np.float32),
    }


def test_fitting_inputs_pass_whatever_the_varying_lengths() -> None:
    SIGNATURE.check_inputs(feeds())
    SIGNATURE.check_inputs(
        {
            "features": np.zeros((0, 3), np.float32),
            "segment": np.zeros(0, np.int64),
            "origin": feeds()["origin"],
        }
    )


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("features", np.zeros((4, 3)), "input features: float64; give float32"),
        ("features", np.zeros((4, 2), np.float32), r"input features: shape \(4, 2\); give \['C', 3\]"),
        ("features", np.zeros(4, np.float32), r"input features: shape \(4,\)"),
        ("segment", np.zeros(5, np.int64), r"input segment: shape \(5,\); C is 4 in input features"),
        ("colour", np.zeros(1), "input colour: unknown"),
    ],
)
def test_unfit_inputs_are_named(name: str, array: np.ndarray, message: str) -> None:
    with pytest.raises(SignatureError, match=message):
        SIGNATURE.check_inputs(feeds() | {name: array})


@pytest.mark.parametrize("name", ["features", "segment", "origin"])
def test_missing_inputs_are_named(name: str) -> None:
    incomplete = feeds()
    del incomplete[name]
    with pytest.raises(SignatureError, match=f"input {name}: missing"):
        SIGNATURE.check_inputs(incomplete)


def with_first_input(tensor: TensorSpec) -> Signature:
    return Signature((tensor, *SIGNATURE.inputs[1:]), SIGNATURE.outputs)


def test_names_of_varying_lengths_do_not_matter() -> None:
    with_first_input(TensorSpec("features", "float32", ("rows", 3))).require(SIGNATURE)


@pytest.mark.parametrize(
    "tensor",
    [
        TensorSpec("feature", "float32", ("C", 3)),
        TensorSpec("features", "float64", ("C", 3)),
        TensorSpec("features", "float32", ("C",)),
        TensorSpec("features", "float32", ("C", 4)),
        TensorSpec("features", "float32", ("C", "width")),
        pytest.param(TensorSpec("features", "float32", (4, 3)), id="frozen length"),
    ],
)
def test_other_signatures_are_refused(tensor: TensorSpec) -> None:
    with pytest.raises(SignatureError, match="feature"):
        with_first_input(tensor).require(SIGNATURE)


def test_other_outputs_are_refused() -> None:
    with pytest.raises(SignatureError, match="outputs"):
        Signature(SIGNATURE.inputs, ()).require(SIGNATURE)
