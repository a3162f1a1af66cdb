"""The shipped Envoy configurations, fitted to addresses of one run.

What is measured and tested is what operators are given: the files of ``deploy/envoy``, with addresses replaced. All
functions change the document in place and return nothing, but for :func:`shipped`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

import yaml

Document: TypeAlias = dict[str, Any]

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "envoy"
BACK_ENDS = "back_ends"
ENDPOINT_PICKER = "endpoint_picker"
EXT_PROC = "envoy.filters.http.ext_proc"
EXT_AUTHZ = "envoy.filters.http.ext_authz"
_EXTENSIONS = "type.googleapis.com/envoy.extensions"


class Shipped(StrEnum):
    """The configurations of ``deploy/envoy``, by file name."""

    FAIL_OPEN = "envoy.yaml"
    FAIL_CLOSED = "envoy-fail-closed.yaml"
    ORIGINAL_DESTINATION = "envoy-original-destination.yaml"
    EXT_AUTHZ = "envoy-ext-authz.yaml"


class Balancing(StrEnum):
    """Envoy's own ways to choose a back end, as their load-balancing policies are called."""

    ROUND_ROBIN = "round_robin"
    RANDOM = "random"
    LEAST_REQUEST = "least_request"


def shipped(name: Shipped) -> Document:
    """Reads a configuration.

    Raises:
        FileNotFoundError: this is not a checkout of the repository, which alone has the files.
    """
    path = FOLDER / name
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: Envoy is measured with the configurations of the repository; run from a checkout of it"
        )
    document: Document = yaml.safe_load(path.read_text(encoding="utf-8"))
    return document


def listen_on_loopback(document: Document) -> None:
    """Makes the listener and the admin interface take free ports of the loopback interface."""
    for holder in (document["admin"], *document["static_resources"]["listeners"]):
        holder["address"] = _address("127.0.0.1", 0)


def send_to(document: Document, back_ends: Iterable[str]) -> None:
    """Sets the back ends, each ``host:port``. Does nothing where Envoy is not told of them."""
    back_ends_cluster = cluster(document, BACK_ENDS)
    if "load_assignment" in back_ends_cluster:
        _set_endpoints(back_ends_cluster, back_ends)


def ask(document: Document, picker: str) -> None:
    """Sets the address of the endpoint picker, ``host:port``."""
    _set_endpoints(cluster(document, ENDPOINT_PICKER), [picker])


def balance_alone(document: Document, balancing: Balancing, **settings: Any) -> None:
    """Takes out the endpoint picker: Envoy balances by itself.

    Args:
        document: With the override-host policy.
        balancing: How.
        settings: Fields of that policy's configuration.
    """
    chain = http_filters(document)
    chain[:] = [entry for entry in chain if entry["name"] not in (EXT_PROC, EXT_AUTHZ)]
    clusters = document["static_resources"]["clusters"]
    clusters[:] = [entry for entry in clusters if entry["name"] != ENDPOINT_PICKER]
    # round_robin -> RoundRobin
    message = balancing.value.title().replace("_", "")
    typed = {"@type": f"{_EXTENSIONS}.load_balancing_policies.{balancing}.v3.{message}", **settings}
    policy = {"name": f"envoy.load_balancing_policies.{balancing}", "typed_config": typed}
    cluster(document, BACK_ENDS)["load_balancing_policy"] = {"policies": [{"typed_extension_config": policy}]}


def cluster(document: Document, name: str) -> Document:
    """The cluster of that name.

    Raises:
        KeyError: there is none.
    """
    for entry in document["static_resources"]["clusters"]:
        if entry["name"] == name:
            found: Document = entry
            return found
    raise KeyError(name)


def connection_manager(document: Document) -> Document:
    """Configuration of the HTTP connection manager."""
    (listener,) = document["static_resources"]["listeners"]
    found: Document = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return found


def http_filters(document: Document) -> list[Document]:
    """The HTTP filters, in the order they see a request."""
    found: list[Document] = connection_manager(document)["http_filters"]
    return found


def picker_filter(document: Document) -> Document:
    """Configuration of the filter that asks the endpoint picker."""
    (found,) = (entry for entry in http_filters(document) if entry["name"] in (EXT_PROC, EXT_AUTHZ))
    configuration: Document = found["typed_config"]
    return configuration


def answer_directly(ports: Iterable[int]) -> Document:
    """An Envoy that is the back ends: on each port it answers every request with 200 and no body, in C++."""
    return {
        "admin": {"address": _address("127.0.0.1", 0)},
        "static_resources": {"listeners": [_direct_listener(port) for port in ports]},
    }


def _direct_listener(port: int) -> Document:
    route = {"match": {"prefix": "/"}, "direct_response": {"status": 200}}
    manager = {
        "@type": f"{_EXTENSIONS}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "direct",
        "route_config": {"virtual_hosts": [{"name": "direct", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_EXTENSIONS}.filters.http.router.v3.Router"},
            }
        ],
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    return {
        "name": f"direct-{port}",
        "address": _address("127.0.0.1", port),
        "filter_chains": [{"filters": filters}],
    }


def _set_endpoints(target: Document, addresses: Iterable[str]) -> None:
    target["type"] = "STATIC"
    endpoints = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        endpoints.append({"endpoint": {"address": _address(host, int(port))}})
    target["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints}]


def _address(host: str, port: int) -> Document:
    return {"socket_address": {"address": host, "port_value": port}}
