"""The real Envoy between clients of a test and its back ends, configured as shipped."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest

from bench.envoy import configuration
from bench.envoy.configuration import Document, Shipped
from bench.envoy.process import INSTALL_HINT, EnvoyProcess, envoy_program
from policy_server.cluster.snapshot import Snapshot
from tests.support.back_ends import SERVED_BY
from tests.support.systems import Endpoint, one_service_snapshot

needs_envoy = pytest.mark.skipif(envoy_program() is None, reason=INSTALL_HINT)
LONG_SECONDS = 60.0
REQUEST = {"x-policy-service": "service", "x-policy-access-point": "ap-0"}
"""Headers by which the picker knows service and access point of :func:`snapshot_of`."""


@dataclass(frozen=True)
class Gateway:
    """An Envoy and clients of it.

    Attributes:
        envoy: its process.
        client: speaks HTTP/1.1.
        client2: speaks HTTP/2.
    """

    envoy: EnvoyProcess
    client: httpx.AsyncClient
    client2: httpx.AsyncClient

    def new_client2(self) -> httpx.AsyncClient:
        """One more client that speaks HTTP/2, over a connection of its own."""
        return httpx.AsyncClient(**client_settings(self.envoy.address), http1=False, http2=True)

    async def get(self, **headers: str) -> httpx.Response:
        """Asks for the service; underscores in names of headers stand for hyphens."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.get("/", headers=named)

    async def served_by(self, **headers: str) -> str:
        """Address of the back end that answers."""
        response = await self.get(**headers)
        assert response.status_code == 200, (response.status_code, response.text)
        return response.headers[SERVED_BY]


@asynccontextmanager
async def running_envoy(
    picker: str,
    back_ends: Sequence[str],
    shipped: Shipped = Shipped.FAIL_OPEN,
    edit: Callable[[Document], None] = lambda document: None,
) -> AsyncIterator[Gateway]:
    """An Envoy with a configuration that ships, patient, because a busy machine is no fault of a picker.

    Args:
        picker: address it asks.
        back_ends: addresses it may send to.
        shipped: which configuration.
        edit: changes it further.
    """
    document = configuration.shipped(shipped)
    configuration.listen_on_loopback(document)
    configuration.send_to(document, back_ends)
    configuration.ask(document, picker)
    be_patient(document)
    edit(document)
    with EnvoyProcess("envoy", document) as envoy:
        async with (
            httpx.AsyncClient(**client_settings(envoy.address)) as client,
            httpx.AsyncClient(**client_settings(envoy.address), http1=False, http2=True) as client2,
        ):
            yield Gateway(envoy, client, client2)


def client_settings(address: str) -> dict[str, Any]:
    """Of an HTTP client of an Envoy."""
    return {
        "base_url": f"http://{address}",
        "headers": REQUEST,
        "timeout": LONG_SECONDS,
        "trust_env": False,
        "limits": httpx.Limits(max_connections=None),
    }


def be_patient(document: Document) -> None:
    """Lifts the limits of time."""
    asking = configuration.picker_filter(document)
    if "message_timeout" in asking:
        asking["message_timeout"] = f"{LONG_SECONDS:g}s"
    else:
        asking["grpc_service"]["timeout"] = f"{LONG_SECONDS:g}s"
    for cluster in document["static_resources"]["clusters"]:
        cluster["connect_timeout"] = f"{LONG_SECONDS:g}s"


def insert_filter(document: Document, name: str, message: str, **settings: Any) -> None:
    """Puts an HTTP filter before all others.

    Args:
        document: of Envoy.
        name: of the filter, without ``envoy.filters.http.``.
        message: name of its configuration's message.
        settings: fields of it.
    """
    typed = {"@type": f"type.googleapis.com/envoy.extensions.filters.http.{name}.v3.{message}", **settings}
    configuration.http_filters(document).insert(
        0, {"name": f"envoy.filters.http.{name}", "typed_config": typed}
    )


def snapshot_of(addresses: Sequence[str], endpoints: Sequence[Endpoint] | None = None) -> Snapshot:
    """One service at these addresses; by default the first is the fastest."""
    graded = [Endpoint(speed=1.0 - 0.1 * row, concurrency=100) for row in range(len(addresses))]
    snapshot = one_service_snapshot(endpoints or graded)
    topology = snapshot.topology
    replicas = replace(topology.replicas, endpoints=tuple(addresses))
    return replace(snapshot, topology=replace(topology, replicas=replicas))
