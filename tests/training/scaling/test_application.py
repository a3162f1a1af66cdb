from __future__ import annotations

import copy
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.scaling.small import small_application
from training.scaling.application import (
    NO_PARENT,
    ApplicationError,
    CallGraph,
    parse_application,
    read_application,
)
from training.scaling.sock_shop import sock_shop


def document() -> dict[str, Any]:
    described: dict[str, Any] = json.loads(json.dumps(asdict(small_application())))
    return described


@pytest.mark.parametrize("application", [small_application(), sock_shop()], ids=lambda a: a.name)
def test_an_application_survives_its_json(application: Any, tmp_path: Path) -> None:
    path = tmp_path / "application.json"
    path.write_text(json.dumps(asdict(application)))
    assert read_application(path) == application


def test_what_may_be_left_out() -> None:
    short = document()
    for key in ("network", "work_deviation"):
        del short[key]
    del short["services"][0]["cache_requests"], short["services"][0]["restart_seconds"]
    del short["operations"][1]["call"]["then"], short["operations"][1]["call"]["background"]
    assert parse_application(short) == small_application()


def change(path: str, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(document())
    *parents, last = path.split("/")
    at: Any = changed
    for key in parents:
        at = at[int(key)] if isinstance(at, list) else at[key]
    if value is ...:
        del at[last]
    else:
        at[int(last) if isinstance(at, list) else last] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("name", ..., "name: is missing"),
        ("name", "", "name: ''; must be a text"),
        ("nodes", [], "nodes: is empty"),
        ("nodes", {}, "nodes: {}; must be a list"),
        ("nodes/0", 3, r"nodes\[0\]: 3; must be an object"),
        ("nodes/0/cpu_cores", "2", r"nodes\[0\].cpu_cores: '2'; must be a finite number"),
        ("nodes/0/cpu_cores", True, r"nodes\[0\].cpu_cores: True; must be a finite number"),
        ("nodes/0/cpu_cores", float("nan"), "must be a finite number"),
        ("nodes/0/memory_mebibytes", -1, "must be a finite number, zero or more"),
        ("services/0/speed", 2, r"services\[0\].speed: is unknown; known are name, node"),
        ("services/0/node", "other", "services.web.node: 'other'; name one of"),
        ("services/1/name", "web", "services: 'web' occurs twice"),
        ("operations/0/call/service", "cart", "operations.read: calls 'cart'; name one of"),
        (
            "operations/0/call/cpu_milliseconds",
            0,
            "cpu_milliseconds: 0.0; must be a finite number above zero",
        ),
        ("operations/0/share", 0, "share: 0.0; must be a finite number above zero"),
        ("operations/0/call/then", [3], r"then\[0\]: 3; must be a list"),
        ("operations/0/call/then/0/0/background", "yes", "background: 'yes'; must be true or false"),
        ("client_timeout_seconds", 0.01, "client_timeout_seconds: 0.01; must not be below"),
        ("network", {"client_seconds": "fast"}, "network.client_seconds: 'fast'"),
    ],
)
def test_every_complaint_names_the_key(path: str, value: Any, complaint: str) -> None:
    with pytest.raises(ApplicationError, match=complaint):
        parse_application(change(path, value))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ApplicationError, match="cannot be read"):
        read_application(tmp_path / "missing.json")
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(ApplicationError, match="is not JSON"):
        read_application(broken)


def test_the_call_graph_is_depth_first() -> None:
    graph = CallGraph.of(sock_shop())
    names = sock_shop().service_names
    for operation, (first, last) in enumerate(
        zip(graph.operation_start, graph.operation_start[1:], strict=False)
    ):
        assert graph.call_parent[first] == NO_PARENT
        assert names[graph.call_service[first]] == "front-end"
        for call in range(first + 1, last):
            parent = graph.call_parent[call]
            assert first <= parent < call, operation
            assert graph.call_depth[call] == graph.call_depth[parent] + 1
    assert graph.operation_cumulative[-1] == 1.0
    checkout = [names[service] for service in graph.call_service[graph.operation_start[-2] :]]
    assert checkout == [
        "front-end", "session-db", "orders", "user", "user-db", "carts", "carts-db", "payment", "shipping",
        "rabbitmq", "queue-master", "orders-db",
    ]  # fmt: skip


def test_delays_follow_the_placement() -> None:
    application = sock_shop()
    graph, network, names = CallGraph.of(application), application.network, application.service_names
    delay = {
        (names[graph.call_service[graph.call_parent[call]]], names[graph.call_service[call]]): seconds
        for call, seconds in enumerate(graph.call_delay_seconds)
        if graph.call_parent[call] != NO_PARENT
    }
    assert delay["front-end", "catalogue"] == network.node_seconds
    assert delay["front-end", "carts"] == network.site_seconds
    assert delay["front-end", "orders"] == network.cloud_seconds
    assert delay["orders", "user"] == network.cloud_seconds
    assert graph.call_delay_seconds[0] == network.client_seconds


def test_the_mean_work_of_a_request() -> None:
    graph = CallGraph.of(small_application())
    np.testing.assert_allclose(
        graph.mean_cpu_seconds_per_request, [0.75 * 0.004 + 0.25 * 0.002, 0.75 * 0.003]
    )
