"""The real kube-scheduler asks the real server."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest

from policy_server.cluster.snapshot import Snapshot
from policy_server.proto.policy.v1.state_service_pb2_grpc import StateServiceStub
from tests.k8s.recorded_calls import MODES, RECORDINGS, record
from tests.k8s.scheduling import SHIPPED, configuration
from tests.support.certificates import issue_certificate
from tests.support.control_plane import ControlPlane, eventually
from tests.support.serving import ServerProcess, full_report, server_process
from tests.support.systems import Endpoint, one_service_snapshot

pytestmark = [pytest.mark.k8s, pytest.mark.slow, pytest.mark.timeout(300)]

ACCESS_POINTS = ("ap-0", "ap-0", "ap-1")
NODES = ("node-0", "node-1", "node-2")
GIBIBYTE = 2**30
both_modes = pytest.mark.parametrize("names_only", [True, False], ids=["names only", "full objects"])


def state(
    *, rates: tuple[float, float], memory_used_bytes: tuple[float, float, float] = (0, 0, 0)
) -> Snapshot:
    """Three nodes, two of them at ap-0, one at ap-1; requests arrive at these rates."""
    snapshot = one_service_snapshot(
        [Endpoint(access_point=access_point) for access_point in ACCESS_POINTS],
        arrival_rates_per_second=rates,
    )
    memory = np.array(memory_used_bytes, np.float32)
    return replace(snapshot, load=replace(snapshot.load, node_memory_used_bytes=memory))


def report(server: ServerProcess, snapshot: Snapshot) -> None:
    with grpc.insecure_channel(server.address) as channel:
        StateServiceStub(channel).ReportState(full_report(snapshot))


def url_of(server: ServerProcess) -> str:
    match = re.search(r"extender +(https?://\S+),", server.log)
    assert match, server.log
    return match[1]


@contextmanager
def extender(tmp_path: Path, *arguments: str) -> Iterator[ServerProcess]:
    options = ("--extender-port=0", "--extender-stale-after-seconds=1e6", "--drain-seconds=0", *arguments)
    with server_process(tmp_path / "server.log", *options) as server:
        yield server


def add_nodes(plane: ControlPlane) -> None:
    for name in NODES:
        plane.add_node(name)


@both_modes
def test_pods_go_where_the_policy_says(cluster: ControlPlane, tmp_path: Path, names_only: bool) -> None:
    add_nodes(cluster)
    with (
        extender(tmp_path) as server,
        cluster.scheduler(configuration(cluster, url_of(server), names_only=names_only)),
    ):
        # At the access point where the requests arrive, on the node with more room.
        report(server, state(rates=(0, 100)))
        cluster.add_pod("first", app="service")
        assert cluster.node_of("first") == "node-2"
        report(server, state(rates=(100, 0), memory_used_bytes=(3 * GIBIBYTE, 0, 0)))
        cluster.add_pod("second", app="service")
        assert cluster.node_of("second") == "node-1"
        report(server, state(rates=(100, 0), memory_used_bytes=(0, 3 * GIBIBYTE, 0)))
        cluster.add_pod("third", app="service")
        assert cluster.node_of("third") == "node-0"


@both_modes
def test_full_nodes_are_not_used(cluster: ControlPlane, tmp_path: Path, names_only: bool) -> None:
    add_nodes(cluster)
    full = 8 * GIBIBYTE
    with (
        extender(tmp_path) as server,
        cluster.scheduler(configuration(cluster, url_of(server), names_only=names_only)),
    ):
        report(server, state(rates=(0, 100), memory_used_bytes=(full, 0, full)))
        cluster.add_pod("fits", app="service")
        assert cluster.node_of("fits") == "node-1"
        report(server, state(rates=(0, 100), memory_used_bytes=(full, full, full)))
        cluster.add_pod("waits", app="service")
        assert "3 too little free memory for a replica of service" in cluster.why_unschedulable("waits")
        # Not ours to judge: a service the state does not hold, and our own pods.
        cluster.add_pod("stranger", app="stranger")
        assert cluster.node_of("stranger") in NODES
        cluster.add_pod("own", **{"app": "service", "app.kubernetes.io/name": "policy-server"})
        assert cluster.node_of("own") in NODES
        report(server, state(rates=(0, 100)))
        cluster.add_pod("again", app="service")
        assert cluster.node_of("again") == "node-2"


def test_pods_are_bound_without_the_extender(cluster: ControlPlane, tmp_path: Path) -> None:
    add_nodes(cluster)
    with extender(tmp_path) as server, cluster.scheduler(configuration(cluster, url_of(server))):
        report(server, state(rates=(0, 100)))
        cluster.add_pod("before", app="service")
        assert cluster.node_of("before") == "node-2"
        server.terminate()
        assert server.wait() == 0
        for name in ("service", "policy-server"):
            cluster.add_pod(name, app=name)
            assert cluster.node_of(name) in NODES


def test_pods_are_bound_while_the_extender_hangs(cluster: ControlPlane, tmp_path: Path) -> None:
    add_nodes(cluster)
    with extender(tmp_path) as server:
        impatient = configuration(cluster, url_of(server)).replace("httpTimeout: 20s", "httpTimeout: 1s")
        report(server, state(rates=(0, 100)))
        with cluster.scheduler(impatient):
            server.process.send_signal(signal.SIGSTOP)
            try:
                cluster.add_pod("meanwhile", app="service")
                assert cluster.node_of("meanwhile") in NODES
            finally:
                server.process.send_signal(signal.SIGCONT)


def test_the_pods_of_a_deployment_divide_as_requests_do(cluster: ControlPlane, tmp_path: Path) -> None:
    add_nodes(cluster)
    with (
        extender(tmp_path) as server,
        cluster.scheduler(configuration(cluster, url_of(server))),
        cluster.controllers(),
    ):
        # One replica on each node, and twice as many requests where two of the nodes are.
        report(server, state(rates=(200, 100)))
        cluster.add_deployment("service", 6)
        pods = eventually(lambda: pods if len(pods := cluster.pods()) == 6 else None)
        hosts = [cluster.node_of(pod) for pod in pods]
    # The state shows none of them, and still they do not follow each other.
    assert Counter(ACCESS_POINTS[NODES.index(host)] for host in hosts) == {"ap-0": 4, "ap-1": 2}


def post(url: str, body: bytes) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=30) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.status


def test_bad_calls_harm_neither_server_nor_scheduler(cluster: ControlPlane, tmp_path: Path) -> None:
    add_nodes(cluster)
    # Smaller than what the scheduler itself sends with node objects.
    with extender(tmp_path, "--extender-max-body-bytes=4096") as server:
        url = url_of(server)
        report(server, state(rates=(0, 100)))
        with cluster.scheduler(configuration(cluster, url, names_only=False)):
            cluster.add_pod("refused", app="service")
            assert cluster.node_of("refused") in NODES
        with cluster.scheduler(configuration(cluster, url)):
            assert post(f"{url}/filter", b"\x00garbage") == 400
            assert post(f"{url}/prioritize", b'{"Pod": 3}') == 400
            assert post(f"{url}/filter", bytes(2**20)) == 413
            cluster.add_pod("served", app="service")
            assert cluster.node_of("served") == "node-2"


def test_https(cluster: ControlPlane, tmp_path: Path) -> None:
    add_nodes(cluster)
    files = issue_certificate(tmp_path)
    options = (f"--extender-tls-certificate={files.chain}", f"--extender-tls-key={files.key}")
    with extender(tmp_path, *options) as server:
        url = url_of(server)
        assert url.startswith("https://")
        report(server, state(rates=(0, 100)))
        with cluster.scheduler(configuration(cluster, url, authority=files.authority)):
            cluster.add_pod("encrypted", app="service")
            assert cluster.node_of("encrypted") == "node-2"


def test_manifests_are_accepted(plane: ControlPlane) -> None:
    manifests = (SHIPPED / "policy-server.yaml").read_text().split("\n---\n")
    paths = {
        "Namespace": "/api/v1/namespaces",
        "ServiceAccount": "/api/v1/namespaces/policy-server/serviceaccounts",
        "Deployment": "/apis/apps/v1/namespaces/policy-server/deployments",
        "Service": "/api/v1/namespaces/policy-server/services",
    }
    created = []
    for manifest in manifests:
        match = re.search(r"^kind: (\w+)$", manifest, re.MULTILINE)
        assert match
        answer = plane.request("POST", paths[match[1]], manifest.encode(), "application/yaml")
        created.append(answer["kind"])
    assert created == list(paths)
    deployment = plane.request("GET", f"{paths['Deployment']}/policy-server")
    assert eventually(lambda: deployment["spec"]["template"]["spec"]["automountServiceAccountToken"] is False)


@pytest.mark.parametrize("mode", MODES)
def test_recorded_calls_are_what_the_scheduler_sends(cluster: ControlPlane, mode: str) -> None:
    bodies = record(cluster, names_only=MODES[mode])
    assert bodies["/filter"] == bodies["/prioritize"]
    recorded = (RECORDINGS / f"{mode}.json").read_bytes()
    assert keys(json.loads(bodies["/filter"])) == keys(json.loads(recorded))


def keys(value: object) -> object:
    """The keys of JSON at all levels, in order; of a list, those of its first item."""
    if isinstance(value, dict):
        return [(key, keys(item)) for key, item in value.items()]
    return [keys(item) for item in value[:1]] if isinstance(value, list) else type(value).__name__
