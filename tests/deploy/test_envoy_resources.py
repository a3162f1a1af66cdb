"""The Kubernetes resources agree with the server that they start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from policy_server.api.health import LIVENESS, READINESS
from policy_server.cli import serve
from policy_server.settings import Settings

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "envoy" / "kubernetes"
RESOURCES: list[dict[str, Any]] = [
    document for path in sorted(FOLDER.glob("*.yaml")) for document in yaml.safe_load_all(path.read_text())
]


def resource(kind: str, name: str) -> dict[str, Any]:
    (found,) = (row for row in RESOURCES if row["kind"] == kind and row["metadata"]["name"] == name)
    return found


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    template: dict[str, Any] = resource("Deployment", "policy-server")["spec"]["template"]
    return template


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod["spec"]["containers"]
    return found


@pytest.fixture(scope="module")
def settings(container: dict[str, Any]) -> Settings:
    command, *arguments = container["args"]
    assert command == "serve"
    values = serve.make_context("serve", arguments).params
    assert not values.pop("state_options")
    return Settings(**values)


def test_the_server_understands_its_arguments(settings: Settings, container: dict[str, Any]) -> None:
    assert settings.envoy
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {
        "api": settings.port,
        "ext-proc": settings.envoy_port,
        "metrics": settings.metrics_port,
    }
    assert {settings.host, settings.envoy_host, settings.metrics_host} == {"0.0.0.0"}


def test_wrong_arguments_would_be_noticed() -> None:
    with pytest.raises(click.UsageError):
        serve.make_context("serve", ["--no-such-option"])


def test_probes_ask_for_names_that_the_server_answers(settings: Settings, container: dict[str, Any]) -> None:
    assert container["livenessProbe"]["grpc"] == {"port": settings.envoy_port, "service": LIVENESS}
    assert container["readinessProbe"]["grpc"] == {"port": settings.envoy_port, "service": READINESS}


def test_the_pod_is_not_killed_while_it_drains(settings: Settings, pod: dict[str, Any]) -> None:
    longest = settings.drain_seconds + settings.grace_seconds + settings.flush_seconds
    assert pod["spec"]["terminationGracePeriodSeconds"] > longest


def test_services_lead_to_the_pods(pod: dict[str, Any], container: dict[str, Any]) -> None:
    names = {port["name"] for port in container["ports"]}
    for name, port in (("policy-server", 9002), ("policy-server-state", 50051)):
        service = resource("Service", name)["spec"]
        assert service["selector"].items() <= pod["metadata"]["labels"].items()
        assert [entry["port"] for entry in service["ports"]] == [port]
        assert {entry["targetPort"] for entry in service["ports"]} <= names
    # Without a state no pod becomes ready, and without its address no reporter finds it.
    assert resource("Service", "policy-server-state")["spec"]["publishNotReadyAddresses"] is True


def test_what_happens_without_the_picker_is_said_in_so_many_words() -> None:
    picker = resource("InferencePool", "web")["spec"]["endpointPickerRef"]
    assert picker["failureMode"] == "FailOpen"
    assert (picker["name"], picker["port"]["number"]) == ("policy-server", 9002)
    (asking,) = resource("EnvoyExtensionPolicy", "endpoint-picker")["spec"]["extProc"]
    assert asking["failOpen"] is True
    assert asking["messageTimeout"] == "200ms"
    assert asking["backendRefs"] == [{"name": "policy-server", "port": 9002}]
