from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.cluster.snapshot import Float64Array, Snapshot
from policy_server.kubernetes.extender.logic import ExtenderLogic, Prioritization
from policy_server.kubernetes.extender.pod_rules import PodRules
from policy_server.kubernetes.quantity import QuantityError
from policy_server.policies.circuit_breaker import BreakerSettings
from policy_server.policies.decision_origin import FallbackReason
from policy_server.policies.placement import NearDemand, PlacementPolicy, PlacementQuery
from policy_server.policies.placement.guard import GuardedPlacement
from tests.support.systems import Endpoint, one_service_snapshot, snapshots

RULES = PodRules(
    ("policy-server.io/service", "app"), "policy-server", ("app.kubernetes.io/name", "policy-server")
)
NOW = 100.0
MEBIBYTE = 2**20


@dataclass
class Recording:
    """Scores as told, and remembers what it was asked."""

    answer: Callable[[PlacementQuery], Float64Array] = lambda query: query.nodes.astype(np.float64)
    name: str = "recording"
    version: str = "1"
    learned: bool = False
    queries: list[PlacementQuery] = field(default_factory=list)

    def score(self, snapshot: Snapshot, query: PlacementQuery) -> Float64Array:
        self.queries.append(query)
        return self.answer(query)


def logic(policy: PlacementPolicy, *, stale_after_seconds: float = 60.0) -> ExtenderLogic:
    guarded = GuardedPlacement(
        policy,
        budget_seconds=30.0,
        maximum_state_age_seconds=stale_after_seconds,
        breaker=BreakerSettings(fault_limit=10**9),
        clock=lambda: NOW,
    )
    return ExtenderLogic(guarded, RULES, clock=lambda: NOW)


def pod(
    service: str = "service", *, uid: str = "uid", memory: str = "100Mi", **metadata: Any
) -> dict[str, Any]:
    container = {"image": "r/service", "resources": {"requests": {"cpu": "100m", "memory": memory}}}
    labels = {"app": service, **metadata.pop("labels", {})}
    return {
        "metadata": {"name": "p", "uid": uid, "labels": labels, **metadata},
        "spec": {"containers": [container]},
    }


def names_of(snapshot: Snapshot) -> list[str]:
    return list(snapshot.topology.nodes.names)


def by_name(names: list[str], pod: dict[str, Any]) -> bytes:
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode()


def by_object(nodes: list[dict[str, Any]], pod: dict[str, Any]) -> bytes:
    return json.dumps({"Pod": pod, "Nodes": {"items": nodes}, "NodeNames": None}).encode()


def node(name: str, *, cpu: str = "1", memory: str = "4Gi", images: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "status": {
            "allocatable": {"cpu": cpu, "memory": memory},
            "images": [{"names": [image]} for image in images],
        },
    }


def scores(outcome: Prioritization) -> dict[str, int]:
    listed = json.loads(outcome.answer)
    scores = {entry["Host"]: entry["Score"] for entry in listed}
    assert len(scores) == len(listed)
    return scores


def with_memory_used(snapshot: Snapshot, *used_mebibytes: float) -> Snapshot:
    memory = np.array(used_mebibytes, np.float32) * MEBIBYTE
    return replace(snapshot, load=replace(snapshot.load, node_memory_used_bytes=memory))


# --- filter


@given(st.data(), snapshots())
def test_filter_takes_out_the_nodes_that_cannot_hold_the_pod(data: st.DataObject, snapshot: Snapshot) -> None:
    nodes, services = snapshot.topology.nodes, snapshot.topology.services
    service = data.draw(st.integers(0, len(services.names) - 1))
    memory = data.draw(st.integers(0, 6 * 2**30))
    listed = data.draw(st.permutations([*nodes.names, "stranger"]))
    snapshot = replace(snapshot, taken_at_seconds=NOW)
    request = pod(services.names[service], memory=str(memory))
    answer = json.loads(logic(Recording()).filter(by_name(listed, request), snapshot))
    needed = max(float(memory), float(services.memory_bytes[service]))
    fits = {
        name: needed + float(snapshot.load.node_memory_used_bytes[row]) <= float(nodes.memory_bytes[row])
        and max(100.0, float(services.cpu_millicores[service])) <= float(nodes.cpu_millicores[row])
        for row, name in enumerate(nodes.names)
    } | {"stranger": True}
    assert answer["NodeNames"] == [name for name in listed if fits[name]]
    assert answer["Nodes"] is None
    assert set(answer["FailedNodes"]) == {name for name in listed if not fits[name]}
    assert answer["FailedAndUnresolvableNodes"].items() <= answer["FailedNodes"].items()
    assert answer["Error"] == ""


def test_filter_tells_full_nodes_from_those_too_small() -> None:
    snapshot = with_memory_used(one_service_snapshot([Endpoint()] * 3), 0, 3500, 0)
    nodes = [node("node-0"), node("node-1"), node("node-2", cpu="200m")]
    answer = json.loads(logic(Recording()).filter(by_object(nodes, pod(memory="1Gi")), snapshot))
    assert answer["Nodes"]["items"] == [nodes[0]]
    assert answer["NodeNames"] is None
    small = {"node-2": "too small for a replica of service"}
    assert answer["FailedNodes"] == {"node-1": "too little free memory for a replica of service"} | small
    assert answer["FailedAndUnresolvableNodes"] == small


def test_what_an_object_says_of_a_node_counts() -> None:
    snapshot = one_service_snapshot([Endpoint()] * 2)
    nodes = [node("node-0", memory="64Mi"), node("node-1"), node("new", memory="64Mi"), node("roomy")]
    answer = json.loads(logic(Recording()).filter(by_object(nodes, pod()), snapshot))
    assert answer["Nodes"]["items"] == [nodes[1], nodes[3]]
    silent = {"metadata": {"name": "node-0"}}
    answer = json.loads(logic(Recording()).filter(by_object([silent], pod()), snapshot))
    assert answer["Nodes"]["items"] == [silent]


def test_cpu_in_use_keeps_no_node_out() -> None:
    snapshot = one_service_snapshot([Endpoint(running=4)])
    assert snapshot.load.node_cpu_used_millicores.tolist() == [1000]
    answer = json.loads(logic(Recording()).filter(by_name(["node-0"], pod()), snapshot))
    assert answer["NodeNames"] == ["node-0"]


# --- prioritize


@given(st.data(), snapshots())
def test_every_node_once_in_range_and_in_the_order_of_the_policy(
    data: st.DataObject, snapshot: Snapshot
) -> None:
    snapshot = replace(snapshot, taken_at_seconds=NOW)
    listed = data.draw(st.permutations([*names_of(snapshot), "stranger"]))
    given = data.draw(
        st.lists(st.floats(-1e6, 1e6), min_size=len(listed), max_size=len(listed)).map(np.array)
    )
    policy = Recording(lambda query: given[query.nodes])
    outcome = logic(policy).prioritize(by_name(listed, pod("service-0", memory="0")), snapshot)
    mapped = scores(outcome)
    assert list(mapped) == listed
    assert all(0 <= score <= 10 for score in mapped.values())
    rows = sorted(policy.queries[0].nodes.tolist(), key=lambda row: given[row]) if policy.queries else []
    ranked = [mapped[names_of(snapshot)[row]] for row in rows]
    assert ranked == sorted(ranked)


def test_nodes_the_state_does_not_hold_get_the_median() -> None:
    snapshot = one_service_snapshot([Endpoint()] * 3)
    body = by_name([*names_of(snapshot), "new", "newer"], pod())
    mapped = scores(logic(Recording()).prioritize(body, snapshot))
    assert mapped == {"node-0": 0, "node-1": 5, "node-2": 10, "new": 5, "newer": 5}


def test_nodes_without_room_get_nothing() -> None:
    snapshot = with_memory_used(one_service_snapshot([Endpoint()] * 3), 0, 0, 4096)
    policy = Recording()
    mapped = scores(logic(policy).prioritize(by_name(names_of(snapshot), pod()), snapshot))
    assert mapped == {"node-0": 0, "node-1": 10, "node-2": 0}
    assert policy.queries[0].nodes.tolist() == [0, 1]


def test_a_node_with_nothing_to_give_spoils_nothing() -> None:
    snapshot = one_service_snapshot([Endpoint()] * 3)
    services = replace(snapshot.topology.services, memory_bytes=np.zeros(1, np.float32))
    snapshot = replace(snapshot, topology=replace(snapshot.topology, services=services))
    nodes = [node("node-0", memory="0"), node("node-1"), node("node-2")]
    outcome = logic(Recording()).prioritize(by_object(nodes, pod(memory="0")), snapshot)
    assert scores(outcome) == {"node-0": 0, "node-1": 0, "node-2": 10}


def test_what_the_policy_is_told() -> None:
    snapshot = one_service_snapshot([Endpoint()] * 3)
    replicas = replace(snapshot.topology.replicas, node=np.array([2, 2, 2], np.int32))
    snapshot = replace(snapshot, topology=replace(snapshot.topology, replicas=replicas))
    policy = Recording()
    nodes = [node("node-1", cpu="1500m", memory="3Gi", images=("r/service:latest",)), node("node-0")]
    logic(policy).prioritize(by_object([*nodes, node("node-2")], pod(memory="1Gi")), snapshot)
    (query,) = policy.queries
    assert query.service == 0
    assert query.cpu_millicores == 250, "one request of the service holds more than the pod requests"
    assert query.memory_bytes == 2**30
    assert query.nodes.tolist() == [1, 0, 2]
    assert query.node_cpu_millicores.tolist() == [1500, 1000, 1000]
    assert query.node_memory_bytes.tolist() == [3 * 2**30, 4 * 2**30, 4 * 2**30]
    assert query.has_image.tolist() == [True, False, True], "listed, neither, hosts a replica"
    assert query.pending_replicas.tolist() == [0, 0, 0]


def test_pods_placed_one_after_another_do_not_follow_each_other() -> None:
    snapshot = one_service_snapshot([Endpoint()] * 4, arrival_rates_per_second=(1, 0))
    asked = logic(NearDemand())
    best = []
    for number in range(4):
        mapped = scores(asked.prioritize(by_name(names_of(snapshot), pod(uid=f"uid-{number}")), snapshot))
        best.append(mapped)
    assert set(best[0].values()) == {0}, "all alike"
    # The first may be on any node, so all are alike again; a pod that prefers one node is missed there by the next.
    preferring = Recording(lambda query: -query.pending_replicas[query.nodes] + 1e-3 * query.nodes)
    asked = logic(preferring)
    chosen = []
    for number in range(4):
        mapped = scores(asked.prioritize(by_name(names_of(snapshot), pod(uid=f"uid-{number}")), snapshot))
        chosen.append(max(mapped, key=mapped.__getitem__))
    assert chosen == ["node-3", "node-2", "node-1", "node-0"]


# --- who is not judged


UNTOUCHED = {
    "unknown service": pod("stranger"),
    "no service": {"metadata": {"name": "p"}},
    "own label": pod(labels={"app.kubernetes.io/name": "policy-server"}),
    "own namespace": pod(namespace="policy-server"),
    "other label first": pod(labels={"policy-server.io/service": "stranger"}),
}


@pytest.mark.parametrize("request_", UNTOUCHED.values(), ids=UNTOUCHED.keys())
def test_pods_that_pass_untouched(request_: dict[str, Any]) -> None:
    snapshot = with_memory_used(one_service_snapshot([Endpoint()] * 2), 4096, 0)
    policy = Recording()
    nodes = [node("node-0"), node("node-1", cpu="1m")]
    for body in (by_name(["node-0", "node-1"], request_), by_object(nodes, request_)):
        answer = json.loads(logic(policy).filter(body, snapshot))
        assert answer["FailedNodes"] == answer["FailedAndUnresolvableNodes"] == {}
        kept = answer["NodeNames"] or [item["metadata"]["name"] for item in answer["Nodes"]["items"]]
        assert kept == ["node-0", "node-1"]
        outcome = logic(policy).prioritize(body, snapshot)
        assert scores(outcome) == {"node-0": 0, "node-1": 0}
        assert not outcome.asked
    assert policy.queries == []


def test_first_label_names_the_service() -> None:
    snapshot = one_service_snapshot([Endpoint()] * 2)
    request = pod("stranger", labels={"policy-server.io/service": "service"})
    assert logic(Recording()).prioritize(by_name(["node-0"], request), snapshot).asked


def test_no_state_and_no_known_node() -> None:
    policy = Recording()
    body = by_name(["a", "b"], pod())
    for snapshot in (None, one_service_snapshot([Endpoint()])):
        assert json.loads(logic(policy).filter(body, snapshot))["NodeNames"] == ["a", "b"]
        outcome = logic(policy).prioritize(body, snapshot)
        assert scores(outcome) == {"a": 0, "b": 0}
        assert not outcome.asked
    assert policy.queries == []


def test_stale_state() -> None:
    snapshot = replace(
        with_memory_used(one_service_snapshot([Endpoint()] * 2), 4096, 0), taken_at_seconds=NOW - 61
    )
    policy = Recording()
    body = by_name(names_of(snapshot), pod())
    assert json.loads(logic(policy).filter(body, snapshot))["NodeNames"] == names_of(snapshot)
    outcome = logic(policy).prioritize(body, snapshot)
    assert scores(outcome) == {"node-0": 0, "node-1": 0}
    assert outcome.reason is FallbackReason.STALE_STATE
    assert policy.queries == []


# --- faults


def broken(query: PlacementQuery) -> Float64Array:
    raise ZeroDivisionError("no idea")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (broken, FallbackReason.MODEL_ERROR),
        (lambda query: np.zeros(1), FallbackReason.MODEL_ERROR),
        (lambda query: np.where(query.nodes == 1, np.nan, 1.0), FallbackReason.NON_FINITE_OUTPUT),
    ],
)
def test_a_policy_that_fails_leaves_all_nodes_alike(
    answer: Callable[[PlacementQuery], Float64Array], reason: FallbackReason
) -> None:
    snapshot = one_service_snapshot([Endpoint()] * 3)
    outcome = logic(Recording(answer)).prioritize(by_name([*names_of(snapshot), "new"], pod()), snapshot)
    assert set(scores(outcome).values()) == {0}
    assert outcome.asked
    assert outcome.reason is reason


def test_bad_amounts_are_refused() -> None:
    snapshot = one_service_snapshot([Endpoint()] * 2)
    with pytest.raises(QuantityError, match=r"Pod\.spec\.containers\[0\]\.resources\.requests\.memory: 'x'"):
        logic(Recording()).filter(by_name(["node-0"], pod(memory="x")), snapshot)
    nodes = [node("node-0"), node("node-1", cpu="-1")]
    with pytest.raises(QuantityError, match=r"Nodes\.items\[1\]\.status\.allocatable\.cpu: '-1' is negative"):
        logic(Recording()).prioritize(by_object(nodes, pod()), snapshot)
