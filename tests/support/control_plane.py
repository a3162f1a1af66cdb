"""A real Kubernetes control plane on free loopback ports. There is no kubelet: nodes are objects."""

from __future__ import annotations

import json
import os
import secrets
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from bench.server_process import free_port

ValueT = TypeVar("ValueT")
ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
PROGRAMS = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager")
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
NAMESPACE = "/api/v1/namespaces/default"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
PATIENCE_SECONDS = 90.0


def missing_programs() -> str | None:
    """Why there is no control plane to test with; None if there is."""
    folder = os.environ.get(ASSETS_VARIABLE)
    if not folder:
        return f"{ASSETS_VARIABLE} does not name a folder with {', '.join(PROGRAMS)}"
    absent = [program for program in PROGRAMS if not os.access(Path(folder) / program, os.X_OK)]
    return f"{ASSETS_VARIABLE}={folder} lacks {', '.join(absent)}" if absent else None


_CONTAINER = {
    "name": "main",
    "image": "registry.example/service:1",
    "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
}
_POD_SPEC = {"containers": [_CONTAINER], "automountServiceAccountToken": False}


class ApiError(Exception):
    """The API server refused a request."""


class ControlPlane:
    """An API server and what it takes to talk to it. Made by :func:`control_plane`.

    Attributes:
        folder: for files of the test.
        kubeconfig: file with which other programs find the API server.
    """

    def __init__(self, folder: Path, port: int, token: str) -> None:
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self._url = f"https://127.0.0.1:{port}"
        self._token = token
        self._certificate = folder / "certs" / "apiserver.crt"
        self._context: ssl.SSLContext | None = None

    def write_kubeconfig(self) -> None:
        """Writes the file."""
        cluster = {"server": self._url, "certificate-authority": str(self._certificate)}
        # JSON is YAML.
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "test", "cluster": cluster}],
                    "users": [{"name": "admin", "user": {"token": self._token}}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
                    "current-context": "test",
                }
            )
        )

    def request(self, method: str, path: str, body: bytes | Any = None, content_type: str = JSON) -> Any:
        """The answer of the API server, decoded.

        Raises:
            ApiError: the API server refused.
            OSError: it cannot be reached.
        """
        if self._context is None:
            self._context = ssl.create_default_context(cafile=self._certificate)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content_type}
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30, context=self._context) as response:
                text = response.read()
        except urllib.error.HTTPError as error:
            with error:
                raise ApiError(f"{method} {path}: {error.status} {error.read().decode()}") from None
        return json.loads(text) if text.startswith(b"{") else text

    def add_node(self, name: str, *, cpu: str = "4", memory: str = "8Gi", **labels: str) -> None:
        """A node that is ready and empty."""
        self.request("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
        resources = {"cpu": cpu, "memory": memory, "pods": "110"}
        images = [
            {"names": [f"registry.example/{name}@sha256:{'0' * 64}"], "sizeBytes": 100_000_000},
            {"names": ["registry.example/service:1"], "sizeBytes": 100_000_000},
        ]
        status = {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "images": images,
        }
        self.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, MERGE_PATCH)

    def add_pod(self, name: str, **labels: str) -> None:
        """A pod that waits for a node."""
        self.request(
            "POST", f"{NAMESPACE}/pods", {"metadata": {"name": name, "labels": labels}, "spec": _POD_SPEC}
        )

    def add_deployment(self, name: str, replicas: int) -> None:
        """A Deployment whose pods have the label ``app`` of that name; needs :meth:`controllers`."""
        labels = {"app": name}
        spec = {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": _POD_SPEC},
        }
        self.request("POST", DEPLOYMENTS, {"metadata": {"name": name}, "spec": spec})

    def pods(self) -> list[str]:
        """Names of all pods."""
        return [pod["metadata"]["name"] for pod in self.request("GET", f"{NAMESPACE}/pods")["items"]]

    def node_of(self, pod: str) -> str:
        """Waits until the pod is bound and returns the node's name."""

        def bound() -> str | None:
            name: str | None = self.request("GET", f"{NAMESPACE}/pods/{pod}")["spec"].get("nodeName")
            return name

        return eventually(bound)

    def why_unschedulable(self, pod: str) -> str:
        """Waits until the scheduler says why the pod cannot be bound and returns its message."""

        def message() -> str | None:
            conditions = self.request("GET", f"{NAMESPACE}/pods/{pod}")["status"].get("conditions", [])
            return next((c["message"] for c in conditions if c["reason"] == "Unschedulable"), None)

        return eventually(message)

    def clear(self) -> None:
        """Deletes all pods and nodes."""
        self.request("DELETE", f"{NAMESPACE}/pods?gracePeriodSeconds=0")
        self.request("DELETE", "/api/v1/nodes")
        eventually(lambda: not self.pods())

    @contextmanager
    def controllers(self) -> Iterator[None]:
        """Makes pods of Deployments, as long as the context lasts; deletes the Deployments at its end."""
        arguments = [f"--kubeconfig={self.kubeconfig}", "--controllers=deployment,replicaset"]
        arguments += ["--leader-elect=false", "--port=0", f"--secure-port={free_port()}"]
        arguments += [f"--cert-dir={self.folder / secrets.token_hex(4)}", "--bind-address=127.0.0.1"]
        with running("kube-controller-manager", arguments, self.folder):
            yield
        for collection in (DEPLOYMENTS, DEPLOYMENTS.replace("deployments", "replicasets")):
            self.request("DELETE", f"{collection}?propagationPolicy=Background")

    @contextmanager
    def scheduler(self, configuration: str) -> Iterator[None]:
        """A kube-scheduler with that configuration (YAML), as long as the context lasts."""
        name = secrets.token_hex(4)
        file = self.folder / f"scheduler-{name}.yaml"
        status_address = f"127.0.0.1:{free_port()}"
        addresses = f"healthzBindAddress: {status_address}\nmetricsBindAddress: {status_address}\n"
        file.write_text(f"{configuration.rstrip()}\n{addresses}")
        arguments = [f"--config={file}", f"--secure-port={free_port()}"]
        arguments += [f"--cert-dir={self.folder / name}", "--bind-address=127.0.0.1"]
        with running("kube-scheduler", arguments, self.folder) as process:
            yield
            assert process.poll() is None, "kube-scheduler has ended"


@contextmanager
def control_plane(folder: Path) -> Iterator[ControlPlane]:
    """An API server with an empty etcd, as long as the context lasts."""
    client, peer, port = free_port(), free_port(), free_port()
    subprocess.run(
        ["openssl", "genrsa", "-out", "sa.key", "2048"], cwd=folder, check=True, capture_output=True
    )
    subprocess.run(
        ["openssl", "rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    token = secrets.token_hex(16)
    (folder / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
    store = f"http://127.0.0.1:{client}"
    plane = ControlPlane(folder, port, token)
    with ExitStack() as stack:
        stack.enter_context(
            running(
                "etcd",
                [
                    "--data-dir=etcd",
                    f"--listen-client-urls={store}",
                    f"--advertise-client-urls={store}",
                    f"--listen-peer-urls=http://127.0.0.1:{peer}",
                ],
                folder,
            )
        )
        stack.enter_context(
            running(
                "kube-apiserver",
                [
                    f"--etcd-servers={store}",
                    "--service-account-issuer=https://localhost",
                    "--service-account-signing-key-file=sa.key",
                    "--service-account-key-file=sa.pub",
                    "--cert-dir=certs",
                    f"--secure-port={port}",
                    "--bind-address=127.0.0.1",
                    "--token-auth-file=tokens.csv",
                    "--authorization-mode=RBAC",
                    "--service-cluster-ip-range=10.0.0.0/24",
                    # Both need the controller manager: it makes tokens, and takes the taint off nodes that are ready.
                    "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
                ],
                folder,
            )
        )
        eventually(lambda: plane.request("GET", "/readyz") == b"ok")
        eventually(lambda: plane.request("GET", NAMESPACE))
        plane.write_kubeconfig()
        yield plane


@contextmanager
def running(program: str, arguments: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program of the control plane, as long as the context lasts; its output goes to a file in ``folder``."""
    path = Path(os.environ[ASSETS_VARIABLE]) / program
    with (folder / f"{program}.log").open("ab") as log:
        process = subprocess.Popen([path, *arguments], cwd=folder, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def eventually(condition: Callable[[], ValueT | None], seconds: float = PATIENCE_SECONDS) -> ValueT:
    """What ``condition()`` returns as soon as that is true; not being answered yet counts as false.

    Raises:
        AssertionError: it does not become true in time.
    """
    deadline = time.monotonic() + seconds
    last: object = None
    while time.monotonic() < deadline:
        try:
            value = condition()
            if value:
                return value
            last = value
        except (ApiError, OSError) as error:
            last = error
        time.sleep(0.1)
    raise AssertionError(f"did not happen within {seconds:g} s; the last answer was {last!r}")
