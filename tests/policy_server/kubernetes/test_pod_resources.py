from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.kubernetes.objects import Pod
from policy_server.kubernetes.pod_resources import PodResources, pod_resources
from policy_server.kubernetes.quantity import QuantityError


def pod(**spec: Any) -> Pod:
    return msgspec.convert({"spec": spec}, Pod)


def container(cpu: Any = None, memory: Any = None, *, restarts: str | None = None) -> dict[str, Any]:
    requests = {name: amount for name, amount in (("cpu", cpu), ("memory", memory)) if amount is not None}
    return {"resources": {"requests": requests}, "restartPolicy": restarts}


def test_containers_add_up() -> None:
    both = pod(containers=[container("100m", "128Mi"), container("1.5", "1Gi")])
    assert pod_resources(both) == PodResources(1600.0, 1152 * 2**20)


def test_numbers_that_are_not_text() -> None:
    assert pod_resources(pod(containers=[container(2, 1e9)])) == PodResources(2000.0, 1e9)


def test_nothing_requested() -> None:
    for empty in (pod(), pod(containers=None), pod(containers=[{}]), pod(containers=[{"resources": {}}])):
        assert pod_resources(empty) == PodResources(0.0, 0.0)


def test_overhead_comes_on_top() -> None:
    given = pod(containers=[container("1", "1Gi")], overhead={"cpu": "250m", "memory": "64Mi"})
    assert pod_resources(given) == PodResources(1250.0, 1088 * 2**20)


def test_request_of_the_pod_stands_for_those_of_its_containers() -> None:
    given = pod(
        containers=[container("1", "1Gi")], resources={"requests": {"cpu": "3"}}, overhead={"cpu": "250m"}
    )
    assert pod_resources(given) == PodResources(3250.0, 2**30)


def peak_of_start(init: list[tuple[int, bool]], main: list[int]) -> int:
    """The most that is held at any time when init containers run one after another and sidecars stay."""
    staying, moments = 0, [0]
    for request, is_sidecar in init:
        moments.append(staying + request)
        staying += request if is_sidecar else 0
    return max(*moments, staying + sum(main))


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.booleans()), max_size=5),
    st.lists(st.integers(0, 1000), max_size=3),
)
def test_init_containers_and_sidecars(init: list[tuple[int, bool]], main: list[int]) -> None:
    given = pod(
        initContainers=[container(f"{cpu}m", restarts="Always" if always else None) for cpu, always in init],
        containers=[container(f"{cpu}m") for cpu in main],
    )
    assert pod_resources(given).cpu_millicores == pytest.approx(peak_of_start(init, main))


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ({"containers": [container(), container(cpu="many")]},
         r"Pod\.spec\.containers\[1\]\.resources\.requests\.cpu: 'many' is no quantity"),
        ({"initContainers": [container(memory="-1Gi")]},
         r"Pod\.spec\.initContainers\[0\]\.resources\.requests\.memory: '-1Gi' is negative; must be zero or more"),
        ({"overhead": {"cpu": "1x"}}, r"Pod\.spec\.overhead\.cpu: '1x' is no quantity"),
    ],
)  # fmt: skip
def test_bad_amounts_are_named(spec: dict[str, Any], complaint: str) -> None:
    with pytest.raises(QuantityError, match=complaint):
        pod_resources(pod(**spec))
