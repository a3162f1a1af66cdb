from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from policy_server.client.scaling import (
    ContainerRecommendation,
    ResourceRecommendation,
    ScalingDocumentError,
    cpu_quantity,
    memory_quantity,
    resize_patch,
    scale_request,
    scale_request_of_document,
)
from policy_server.client.scaling_documents import document_of, example_document, read_document
from policy_server.policies.scaling.resize import QosClass, qos_of_resources
from tests.support.scaling import MEBIBYTE, container, running_scaling


def test_rows_become_columns() -> None:
    request = scale_request(
        [
            container("a", node="edge", application="shop", qos_class="BestEffort", intervals=1),
            container("b", node="far", application="shop", qos_class="GUARANTEED", intervals=2),
        ],
        nodes=[
            {"name": "far", "cpu_millicores": 4000, "memory_bytes": math.inf},
            {"name": "edge", "cpu_millicores": 2000, "memory_bytes": 1e9},
        ],
        applications=[{"name": "shop", "latency_objective_seconds": 0.1}],
        policy="static",
        economy=0.25,
    )
    assert (request.policy, request.economy) == ("static", 0.25)
    assert list(request.containers.id) == ["a", "b"]
    assert list(request.containers.node) == [1, 0]
    assert list(request.containers.application) == [0, 0]
    assert list(request.containers.qos_class) == [3, 1]
    assert list(request.nodes.memory_bytes) == [math.inf, 1e9]
    assert request.history.intervals == 2
    usage = np.array(request.history.cpu_usage_millicores).reshape(2, 2)
    # The newest intervals are beside each other, whatever came before them.
    np.testing.assert_array_equal(usage, [[np.nan, 600], [600, 600]])
    assert not request.containers.smallest_cpu_millicores
    assert not request.history.restarts
    assert not request.HasField("last_resizes")


def test_what_only_some_rows_have_is_unknown_for_the_others() -> None:
    request = scale_request(
        [
            container("a", sample_age_seconds=3, last_resize={"status": "InProgress"}),
            container("b", history=[{"oom_kills": 2}, {}]),
        ]
    )
    np.testing.assert_array_equal(list(request.containers.sample_age_seconds), [3, np.nan])
    assert list(request.last_resizes.status) == [3, 0]
    assert list(request.history.oom_kills) == [0, 0, 0, 2, 0, 0]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"colour": "red"}, "containers[0].colour: unknown; known are id, node, application, "),
        ({"node": "edge"}, "containers[0].node: 'edge'; must be one of none"),
        ({"id": 3}, "containers[0].id: 3; must be a string"),
        ({"qos_class": "Best"}, "containers[0].qos_class: 'Best'; must be one of UNSPECIFIED, GUARANTEED, "),
        ({"sample_age_seconds": "old"}, "containers[0].sample_age_seconds: 'old'; must be a number"),
        ({"sample_age_seconds": True}, "containers[0].sample_age_seconds: True; must be a number"),
        ({"history": "none"}, "containers[0].history: 'none'; must be a list"),
        ({"history": [3]}, "containers[0].history[0]: 3; must be a mapping"),
        (
            {"history": [{}, {"cpu": 3}]},
            "containers[0].history[1].cpu: unknown; known are cpu_usage_millicores",
        ),
        (
            {"history": [{"oom_kills": 0.5}]},
            "containers[0].history[0].oom_kills: 0.5; must be a whole number",
        ),
        ({"last_resize": {"state": 1}}, "containers[0].last_resize.state: unknown; known are status, "),
        ({"last_resize": {"status": "Lost"}}, "containers[0].last_resize.status: 'Lost'; must be one of "),
    ],
)
def test_rows_that_cannot_be_used(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ScalingDocumentError) as refusal:
        scale_request([{**container(), **change}])
    assert complaint in str(refusal.value)


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        (
            [],
            "document: []; must be a mapping with the keys policy, economy, nodes, applications, containers",
        ),
        ({"container": []}, "container: unknown; known are policy"),
        ({"economy": "much"}, "economy: 'much'; must be a number"),
        ({"policy": 3}, "policy: 3; must be a string"),
        ({"nodes": [{"name": "a", "size": 3}]}, "nodes[0].size: unknown"),
    ],
)
def test_documents_that_cannot_be_used(document: Any, complaint: str) -> None:
    with pytest.raises(ScalingDocumentError) as refusal:
        scale_request_of_document(document)
    assert complaint in str(refusal.value)


def test_the_example_in_json_and_in_yaml_is_the_same_request() -> None:
    document = read_document(example_document())
    assert scale_request_of_document(document) == scale_request_of_document(
        yaml.safe_load(example_document())
    )


async def test_the_example_shows_a_resize_a_kill_and_a_pending_resize() -> None:
    request = scale_request_of_document(read_document(example_document()))
    request.policy = "threshold"
    async with running_scaling() as scaling:
        front_end, carts, catalogue = await scaling.ask(request)
    assert front_end.apply
    assert (carts.apply, carts.memory.reason) == (True, "OUT_OF_MEMORY")
    assert (catalogue.apply, catalogue.hold_reason) == (False, "RESIZE_DEFERRED")


@pytest.mark.parametrize(
    ("millicores", "quantity"), [(250, "250m"), (2000, "2"), (1500, "1500m"), (0, "0"), (999.9999999, "1")]
)
def test_cpu_quantities(millicores: float, quantity: str) -> None:
    assert cpu_quantity(millicores) == quantity


@pytest.mark.parametrize(
    ("size", "quantity"),
    [
        (512 * MEBIBYTE, "512Mi"),
        (2048 * MEBIBYTE, "2Gi"),
        (1000, "1000"),
        (1536, "1536"),
        (2048, "2Ki"),
        (0, "0"),
        (3 * 2**50, "3072Ti"),
    ],
)
def test_memory_quantities(size: float, quantity: str) -> None:
    assert memory_quantity(size) == quantity


def recommended(
    cpu: tuple[float | None, float | None], memory: tuple[float | None, float | None]
) -> ContainerRecommendation:
    def resource(request: float | None, limit: float | None) -> ResourceRecommendation:
        return ResourceRecommendation(1, 1, 1, math.nan, "RECOMMENDED", request, limit)

    return ContainerRecommendation("id", True, "", resource(*cpu), resource(*memory), "p", "1", "LEARNED", "")


def test_a_patch_names_the_fields_that_the_pod_has() -> None:
    patch = resize_patch(
        {
            "server": recommended((250, 500), (128 * MEBIBYTE, 256 * MEBIBYTE)),
            "sidecar": recommended((100, None), (None, 64 * MEBIBYTE)),
        }
    )
    assert patch == {
        "spec": {
            "containers": [
                {
                    "name": "server",
                    "resources": {
                        "requests": {"cpu": "250m", "memory": "128Mi"},
                        "limits": {"cpu": "500m", "memory": "256Mi"},
                    },
                },
                {
                    "name": "sidecar",
                    "resources": {"requests": {"cpu": "100m"}, "limits": {"memory": "64Mi"}},
                },
            ]
        }
    }


def test_json_has_null_for_what_there_is_none_of() -> None:
    (row,) = document_of([recommended((None, 500), (1, 2))])["containers"]
    assert row["cpu"]["request"] is None
    assert row["cpu"]["uncapped_target"] is None
    assert row["cpu"]["limit"] == 500


# The worked example: measurements in, patches out.

AMOUNTS = {"m": 1 / 1000, "": 1.0, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def amount(quantity: str) -> float:
    number = quantity.rstrip("mKiGMT")
    return float(number) * AMOUNTS[quantity.removeprefix(number)]


def merged(pod: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """The pod after a strategic merge patch of resources."""
    after = copy.deepcopy(pod)
    by_name = {entry["name"]: entry for entry in after["spec"]["containers"]}
    for entry in patch["spec"]["containers"]:
        for kind, values in entry["resources"].items():
            by_name[entry["name"]]["resources"].setdefault(kind, {}).update(values)
    return after


def resources_of(pod: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    def column(kind: str) -> np.ndarray:
        rows = [entry["resources"].get(kind, {}) for entry in pod["spec"]["containers"]]
        return np.array(
            [[amount(row[name]) if name in row else np.nan for name in ("cpu", "memory")] for row in rows]
        )

    return column("requests"), column("limits")


def qos_of_pod(pod: dict[str, Any]) -> QosClass:
    classes = {int(number) for number in qos_of_resources(*resources_of(pod))}
    return QosClass(classes.pop()) if len(classes) == 1 else QosClass.BURSTABLE


@given(st.data())
async def test_a_controller_loop_keeps_the_class_and_the_fields_of_every_pod(data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    pods = {f"pod-{number}": _random_pod(random) for number in range(4)}
    async with running_scaling() as scaling:
        answers = await scaling.scale(
            *(
                _measured(f"{name}/{entry['name']}", entry["resources"], qos_of_pod(pod), random)
                for name, pod in pods.items()
                for entry in pod["spec"]["containers"]
            )
        )
    for name, pod in pods.items():
        applied = {
            row.container.removeprefix(f"{name}/"): row
            for row in answers
            if row.apply and row.container.startswith(f"{name}/")
        }
        after = merged(pod, resize_patch(applied))
        assert qos_of_pod(after) == qos_of_pod(pod)
        for before_values, after_values in zip(resources_of(pod), resources_of(after), strict=True):
            np.testing.assert_array_equal(np.isnan(after_values), np.isnan(before_values))


def _random_pod(random: np.random.Generator) -> dict[str, Any]:
    def resources() -> dict[str, Any]:
        limits = {"cpu": f"{random.integers(100, 2000)}m", "memory": f"{random.integers(64, 2000)}Mi"}
        requests = {"cpu": f"{random.integers(1, 100)}m", "memory": f"{random.integers(1, 64)}Mi"}
        kind = random.integers(5)
        if kind == 0:
            return {}
        if kind == 1:
            return {"requests": limits, "limits": limits}
        if kind == 2:
            return {"requests": {"cpu": requests["cpu"]}, "limits": {"memory": limits["memory"]}}
        return {"requests": requests, "limits": limits}

    names = ["server", "sidecar"][: random.integers(1, 3)]
    return {"spec": {"containers": [{"name": name, "resources": resources()} for name in names]}}


def _measured(
    identity: str, resources: dict[str, Any], qos: QosClass, random: np.random.Generator
) -> dict[str, Any]:
    def specified(kind: str, name: str, unit: float) -> float | None:
        return amount(resources[kind][name]) * unit if name in resources.get(kind, {}) else None

    return container(
        identity,
        qos_class=qos.name,
        cpu_request_millicores=specified("requests", "cpu", 1000),
        cpu_limit_millicores=specified("limits", "cpu", 1000),
        memory_request_bytes=specified("requests", "memory", 1),
        memory_limit_bytes=specified("limits", "memory", 1),
        cpu_usage_millicores=float(random.uniform(10, 2000)),
        memory_usage_bytes=float(random.uniform(10, 2000)) * MEBIBYTE,
    )
