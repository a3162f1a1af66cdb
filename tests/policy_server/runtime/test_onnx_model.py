import contextlib

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from policy_server.runtime.onnx_model import opset_version
from tests.support.models import head_model


@pytest.mark.parametrize("opset", [18, 19, 21, 300])
def test_agrees_with_the_onnx_library(opset: int) -> None:
    model = head_model(opset=opset)
    assert opset_version(model) == opset
    assert onnx.load_from_string(model).opset_import[0].version == opset


def test_other_domains_do_not_count() -> None:
    graph = helper.make_graph([], "g", [], [])
    imports = [helper.make_opsetid("com.example", 3), helper.make_opsetid("ai.onnx", 20)]
    assert opset_version(helper.make_model(graph, opset_imports=imports).SerializeToString()) == 20


def test_a_model_without_standard_operators_is_refused() -> None:
    graph = helper.make_graph([], "g", [], [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("com.example", 3)])
    with pytest.raises(ValueError, match="no standard operator set"):
        opset_version(model.SerializeToString())


@given(st.binary(max_size=200) | st.integers(0, 400).map(lambda end: head_model()[:end]))
def test_arbitrary_bytes_give_a_version_or_a_value_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert opset_version(data) >= 0
