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


class TestBoundRun:
    def test_follows_its_arrays(self, head: ModelSession) -> None:
        inputs = example_inputs(head.signature, rows=5)
        bound = head.bind(inputs, {"score": np.empty(5, np.float32)})
        for seed in range(3):
            features = example_inputs(head.signature, rows=5, seed=seed)["request_features"]
            inputs["request_features"][:] = features
            bound.run()
            expected = head.run(inputs | {"request_features": features})[0]
            np.testing.assert_array_equal(bound.outputs["score"], expected)

    def test_keeps_its_arrays_alive(self, head: ModelSession) -> None:
        expected = head.run(example_inputs(head.signature, rows=50))[0]
        bound = head.bind(example_inputs(head.signature, rows=50), {"score": np.empty(50, np.float32)})
        for _ in range(20):
            np.zeros((50, WIDTH), np.float32)
            bound.run()
            np.testing.assert_array_equal(bound.outputs["score"], expected)

    def test_unfit_inputs_are_refused(self, head: ModelSession) -> None:
        inputs = example_inputs(head.signature)
        output = {"score": np.empty(3, np.float32)}
        with pytest.raises(SignatureError, match="segment: shape"):
            head.bind(inputs | {"segment": np.zeros(2, np.int64)}, output)
        with pytest.raises(ValueError, match="request_features: not contiguous"):
            head.bind(inputs | {"request_features": np.zeros((12, 3), np.float32).T}, output)

    def test_an_output_of_the_wrong_size_fails_the_run(self, head: ModelSession) -> None:
        with pytest.raises(ModelError, match="shape"):
            head.bind(example_inputs(head.signature), {"score": np.empty(4, np.float32)}).run()
