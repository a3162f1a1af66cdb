import threading

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from policy_server.runtime.graph_contract import HEAD, dispatch_signatures
from policy_server.runtime.session import ModelError, ModelSession
from policy_server.runtime.signature import Signature, SignatureError, TensorSpec
from tests.support.models import WIDTH, example_inputs, head_model, serialised_model


@pytest.fixture
def head() -> ModelSession:
    return ModelSession(head_model())


def test_signature_is_read_from_the_model(head: ModelSession) -> None:
    assert head.signature == dispatch_signatures(WIDTH)[HEAD]


def test_same_results_as_the_public_call(head: ModelSession) -> None:
    feeds = example_inputs(head.signature, rows=7)
    session = onnxruntime.InferenceSession(head_model(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(head.run(feeds)[0], session.run(["score"], feeds)[0])


def test_no_rows_give_an_empty_result(head: ModelSession) -> None:
    feeds = example_inputs(head.signature)
    empty = {name: array[:0] for name, array in feeds.items()}
    assert head.run(empty | {"origin_context": feeds["origin_context"]})[0].shape == (0,)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("request_features", np.zeros((3, 12)), "request_features: float64; give float32"),
        ("request_features", np.zeros((3, 11), np.float32), "request_features: shape"),
        ("request_features", np.zeros(3, np.float32), "request_features: shape"),
        ("segment", np.zeros(2, np.int64), "segment: shape"),
        ("colour", np.zeros(3, np.float32), "colour: unknown"),
    ],
)
def test_input_faults_name_the_input(head: ModelSession, name: str, array: np.ndarray, message: str) -> None:
    with pytest.raises(SignatureError, match=message):
        head.run(example_inputs(head.signature) | {name: array})


def test_other_failures_of_a_run_are_model_errors(head: ModelSession) -> None:
    feeds = example_inputs(head.signature)
    with pytest.raises(ModelError, match="out of"):
        head.run(feeds | {"segment": np.array([0, 1, 99])})


@pytest.mark.parametrize("model", [b"", b"not a model", head_model()[:-100]])
def test_what_is_no_model_is_refused(model: bytes) -> None:
    with pytest.raises(ModelError, match="not loadable"):
        ModelSession(model)


def test_unsupported_element_types_are_refused() -> None:
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=10)]
    signature = Signature((TensorSpec("x", "float32", ("N",)),), (TensorSpec("y", "float16", ("N",)),))
    with pytest.raises(SignatureError, match=r"y: tensor\(float16\)"):
        ModelSession(serialised_model(signature, nodes, {}))


def test_one_session_serves_several_threads(head: ModelSession) -> None:
    cases = [example_inputs(head.signature, rows, seed=rows) for rows in range(1, 9)]
    expected = [head.run(feeds)[0] for feeds in cases]
    right: list[bool] = []

    def work(case: int) -> None:
        right.extend(np.array_equal(head.run(cases[case])[0], expected[case]) for _ in range(200))

    threads = [threading.Thread(target=work, args=(case,)) for case in range(len(cases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(right) == 200 * len(cases)
    assert all(right)
