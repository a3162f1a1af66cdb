from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.kubernetes.extender.wire import CandidateNodes, WireError, decode_arguments

json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**60), 2**60), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
names = st.lists(st.text("abc-.0", min_size=1, max_size=8), unique=True, max_size=6)


def candidates(arguments: Any) -> CandidateNodes:
    return CandidateNodes(decode_arguments(json.dumps({"Pod": {}, **arguments}).encode()))


@given(st.data(), names)
def test_node_objects_come_back_as_the_text_they_came_as(data: st.DataObject, listed: list[str]) -> None:
    texts = []
    for name in listed:
        extra = data.draw(st.dictionaries(st.text(max_size=5).map("x{}".format), json_values, max_size=3))
        node = {"apiVersion": "v1", "metadata": {"name": name, "annotations": {"a": name}}, **extra}
        indent = data.draw(st.sampled_from([None, 1]))
        texts.append(json.dumps(node, ensure_ascii=data.draw(st.booleans()), indent=indent))
    body = f'{{"Pod": {{}}, "Nodes": {{"metadata": {{"continue": "x"}}, "items": [{",".join(texts)}]}}}}'
    nodes = CandidateNodes(decode_arguments(body.encode()))
    kept = [position for position in range(len(listed)) if data.draw(st.booleans())]
    for positions, wanted in ((kept, [texts[position] for position in kept]), (None, texts)):
        answer = nodes.filtered(positions, {}, {}).decode()
        assert f'"items":[{",".join(wanted)}]' in answer
        decoded = json.loads(answer)
        assert decoded["Nodes"]["metadata"] == {"continue": "x"}
        assert decoded["NodeNames"] is None


@given(st.data(), names)
def test_names_come_back_as_names(data: st.DataObject, listed: list[str]) -> None:
    nodes = candidates({"NodeNames": listed, "Nodes": None})
    kept = [position for position in range(len(listed)) if data.draw(st.booleans())]
    reasons = {name: "why" for position, name in enumerate(listed) if position not in kept}
    assert json.loads(nodes.filtered(kept, reasons, {})) == {
        "Nodes": None,
        "NodeNames": [listed[position] for position in kept],
        "FailedNodes": reasons,
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }
    assert json.loads(nodes.filtered(None, {}, {}))["NodeNames"] == listed


def test_keys_are_those_of_the_go_types() -> None:
    nodes = candidates({"NodeNames": ["a", "b"]})
    assert nodes.filtered([1], {"a": "full"}, {"a": "full"}) == (
        b'{"Nodes":null,"NodeNames":["b"],"FailedNodes":{"a":"full"},'
        b'"FailedAndUnresolvableNodes":{"a":"full"},"Error":""}'
    )
    assert nodes.prioritized([0, 10]) == b'[{"Host":"a","Score":0},{"Host":"b","Score":10}]'


def test_no_nodes_at_all() -> None:
    for arguments in ({"NodeNames": []}, {"Nodes": {"items": []}}, {"Nodes": {"items": None}}):
        nodes = candidates(arguments)
        assert nodes.names == []
        assert nodes.prioritized([]) == b"[]"


def with_images(*images: list[str]) -> dict[str, Any]:
    listed = [{"names": names, "sizeBytes": 1} for names in images]
    return {"metadata": {"name": f"node-{len(images)}"}, "status": {"images": listed}}


def test_images() -> None:
    items: list[Any] = [
        with_images(["r/a@sha256:0", "r/a:1"], ["r/b:1"]),
        with_images(["r/a:1"]),
        with_images(["r/a:1"], ["r/b:10"], ["r/c:1"]),
        {"metadata": {"name": "text", "annotations": {"note": "r/a:1 r/b:1"}}, "status": {"images": None}},
        {"metadata": {"name": "none"}},
    ]
    nodes = candidates({"Nodes": {"items": items}})
    assert nodes.have_images(("r/a:1", "r/b:1")).tolist() == [True, False, False, False, False]
    assert nodes.have_images(("r/a:1",)).tolist() == [True, True, True, False, False]
    assert not nodes.have_images(()).any()
    assert candidates({"NodeNames": ["a"]}).have_images(("r/a:1",)).tolist() == [False]


POD = '"Pod": {"metadata": {"name": "p"}}'


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("", "body: Input data was truncated"),
        ("{", "body: Input data was truncated"),
        ("nonsense", "body: JSON is malformed"),
        ("[]", "body: expected `object`, got `array`"),
        ("{}", "body: object missing required field `Pod`"),
        ('{"Pod": null, "NodeNames": []}', "Pod: expected `object`, got `null`"),
        ('{"Pod": {"metadata": {"labels": {"app": 1}}}}', r"Pod\.metadata\.labels\[\.\.\.\]: expected `str`"),
        (f"{{{POD}}}", "Nodes, NodeNames: both absent; send one of them"),
        (f'{{{POD}, "Nodes": null, "NodeNames": null}}', "Nodes, NodeNames: both absent"),
        (f'{{{POD}, "Nodes": {{"items": []}}, "NodeNames": []}}', "Nodes, NodeNames: both given; send one"),
        (f'{{{POD}, "NodeNames": "a"}}', "NodeNames: expected `array | null`, got `str`"),
        (f'{{{POD}, "NodeNames": ["a", 3]}}', r"NodeNames\[1\]: expected `str`, got `int`"),
        (f'{{{POD}, "NodeNames": ["a", ""]}}', r"NodeNames\[1\]: empty; name the node"),
        (f'{{{POD}, "NodeNames": ["a", "b", "a"]}}', r"NodeNames\[2\]: 'a' appears twice"),
        (f'{{{POD}, "Nodes": {{"items": [1]}}}}', r"Nodes\.items\[0\]: expected `object`, got `int`"),
        (f'{{{POD}, "Nodes": {{"items": [{{"metadata": {{}}}}]}}}}',
         r"Nodes\.items\[0\]\.metadata: object missing required field `name`"),
        (f'{{{POD}, "Nodes": {{"items": [{{"metadata": {{"name": ""}}}}]}}}}',
         r"Nodes\.items\[0\]\.metadata\.name: empty; name the node"),
        (f'{{{POD}, "NodeNames": {"[" * 100_000}', "body: JSON is nested too deeply|NodeNames"),
        (f'{{{POD}, "x": {"[" * 100_000}', "body: JSON is nested too deeply"),
    ],
)  # fmt: skip
def test_what_cannot_be_understood_is_named(body: str, complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        CandidateNodes(decode_arguments(body.encode()))


def test_text_that_is_not_utf8() -> None:
    with pytest.raises(WireError, match=r"UTF-8"):
        decode_arguments(b'{"Pod": {}, "NodeNames": ["\xff"]}')


@given(st.binary(max_size=100))
def test_any_bytes_are_refused_in_order(noise: bytes) -> None:
    for body in (noise, b'{"Pod": {}, "NodeNames": ["' + noise + b'"]}', b'{"Pod": {}, "Nodes": ' + noise):
        try:
            nodes = CandidateNodes(decode_arguments(body))
        except WireError:
            continue
        json.loads(nodes.prioritized([0] * len(nodes)))
