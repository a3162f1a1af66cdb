"""Where requests go: policy, subset, fallback list, refusals."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from bench.envoy import configuration
from bench.envoy.configuration import Document, Shipped
from policy_server.cluster.snapshot import ReplicaState
from tests.support.back_ends import BackEnd, closed_address, running_back_ends
from tests.support.envoy import Gateway, insert_filter, needs_envoy, running_envoy, snapshot_of
from tests.support.serving import Serving, running_server
from tests.support.systems import Endpoint

pytestmark = needs_envoy

OVERRIDE_HOST = (Shipped.FAIL_OPEN, Shipped.FAIL_CLOSED, Shipped.EXT_AUTHZ)
SUBSET_NAMESPACE, SUBSET_KEY = "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset"


@dataclass(frozen=True)
class System:
    """Three back ends, a picker that knows them, the first as the fastest, and an Envoy before them."""

    serving: Serving
    back_ends: list[BackEnd]
    gateway: Gateway

    @property
    def addresses(self) -> list[str]:
        return [back_end.address for back_end in self.back_ends]

    async def report(self, *endpoints: Endpoint) -> None:
        await self.serving.report(snapshot_of(self.addresses, endpoints))


@asynccontextmanager
async def running_system(
    shipped: Shipped = Shipped.FAIL_OPEN, edit: Any = lambda document: None, **settings: Any
) -> AsyncIterator[System]:
    async with running_back_ends(3) as back_ends:
        addresses = [back_end.address for back_end in back_ends]
        async with (
            running_server(snapshot_of(addresses), envoy=True, envoy_port=0, **settings) as serving,
            running_envoy(picker_address(serving), addresses, shipped, edit) as gateway,
        ):
            yield System(serving, back_ends, gateway)


def picker_address(serving: Serving) -> str:
    assert serving.server.picker is not None
    return serving.server.picker.address


@pytest.mark.parametrize("shipped", OVERRIDE_HOST)
async def test_requests_go_where_the_policy_says(shipped: Shipped) -> None:
    async with running_system(shipped) as system:
        first, second, _ = system.addresses
        assert {await system.gateway.served_by() for _ in range(4)} == {first}
        await system.report(Endpoint(speed=0.5), Endpoint(speed=1.0), Endpoint(speed=0.5))
        assert {await system.gateway.served_by() for _ in range(4)} == {second}


async def test_original_destination_goes_there_too() -> None:
    async with running_system(Shipped.ORIGINAL_DESTINATION, envoy_max_endpoints=1) as system:
        first, _, third = system.addresses
        assert await system.gateway.served_by() == first
        await system.report(Endpoint(speed=0.5), Endpoint(speed=0.5), Endpoint(speed=1.0))
        assert await system.gateway.served_by() == third


async def test_equal_back_ends_get_equal_shares() -> None:
    async with running_system() as system:
        await system.report(*[Endpoint(concurrency=100)] * 3)
        shares = Counter([await system.gateway.served_by() for _ in range(90)])
        assert len(shares) == 3
        assert min(shares.values()) >= 15


def hint_from_header(document: Document) -> None:
    """Makes a header the subset hint, as one string."""
    insert_filter(
        document,
        "header_to_metadata",
        "Config",
        request_rules=[
            {
                "header": "x-subset",
                "on_header_present": {"metadata_namespace": SUBSET_NAMESPACE, "key": SUBSET_KEY},
                "remove": True,
            }
        ],
    )


@pytest.mark.parametrize("shipped", OVERRIDE_HOST)
async def test_a_subset_hint_restricts_the_choice(shipped: Shipped) -> None:
    async with running_system(shipped, hint_from_header) as system:
        first, second, third = system.addresses
        assert await system.gateway.served_by(x_subset=third) == third
        assert await system.gateway.served_by(x_subset=f"{third}, {second}") == second
        assert await system.gateway.served_by() == first
        outside = await system.gateway.get(x_subset="10.9.9.9:8080")
        assert outside.status_code == 503
        assert sum(len(back_end.requests) for back_end in system.back_ends) == 3


@pytest.mark.parametrize(("rows", "status"), [((2, 1), 200), ((), 503)])
async def test_a_subset_hint_may_be_a_list(rows: Sequence[int], status: int) -> None:
    async with running_back_ends(3) as back_ends:
        addresses = [back_end.address for back_end in back_ends]

        def hint(document: Document) -> None:
            listed = {SUBSET_KEY: [addresses[row] for row in rows]}
            metadata = [{"metadata_namespace": SUBSET_NAMESPACE, "value": listed}]
            insert_filter(document, "set_metadata", "Config", metadata=metadata)

        async with (
            running_server(snapshot_of(addresses), envoy=True, envoy_port=0) as serving,
            running_envoy(picker_address(serving), addresses, edit=hint) as gateway,
        ):
            assert (await gateway.get()).status_code == status
            assert [len(back_end.requests) for back_end in back_ends] == [0, int(status == 200), 0]


@pytest.mark.parametrize("shipped", OVERRIDE_HOST)
async def test_the_next_endpoint_serves_when_the_first_refuses_connections(shipped: Shipped) -> None:
    async with running_back_ends(2) as back_ends:
        dead = closed_address()
        addresses = [dead, *(back_end.address for back_end in back_ends)]
        async with (
            running_server(snapshot_of(addresses), envoy=True, envoy_port=0) as serving,
            running_envoy(picker_address(serving), addresses, shipped) as gateway,
        ):
            response = await gateway.client.post("/", content=b"once")
            assert response.status_code == 200
            assert [len(back_end.requests) for back_end in back_ends] == [1, 0]
            listed = back_ends[0].requests[0]["x-gateway-destination-endpoint"]
            assert listed.split(",") == addresses
            if shipped is not Shipped.EXT_AUTHZ:
                # The picker learned who served: nothing is known of the one that refused.
                held = serving.server.store.held
                assert held is not None
                latency = held.snapshot.load.replica_latency_seconds
                assert [seconds == seconds for seconds in latency.tolist()] == [False, True, False]


@pytest.mark.parametrize("shipped", Shipped)
async def test_nothing_ready_is_503_and_no_back_end_is_asked(shipped: Shipped) -> None:
    async with running_system(shipped) as system:
        await system.report(*[Endpoint(state=ReplicaState.STARTING)] * 3)
        response = await system.gateway.get()
        assert response.status_code == 503
        assert system.addresses[0] not in response.text
        assert not any(back_end.requests for back_end in system.back_ends)


async def test_unknown_services_and_no_state_are_503() -> None:
    async with (
        running_back_ends(1) as (back_end,),
        running_server(None, envoy=True, envoy_port=0) as serving,
        running_envoy(picker_address(serving), [back_end.address]) as gateway,
    ):
        assert (await gateway.get()).status_code == 503
        await serving.report(snapshot_of([back_end.address]))
        assert (await gateway.get()).status_code == 200
        assert (await gateway.get(x_policy_service="unknown")).status_code == 503


@pytest.mark.parametrize("shipped", [Shipped.FAIL_OPEN, Shipped.FAIL_CLOSED])
async def test_a_shed_request_is_429_and_says_when_to_retry(shipped: Shipped) -> None:
    async with running_system(shipped, envoy_max_in_flight=1, retry_pushback_milliseconds=1500) as system:
        busy = system.back_ends[0]
        busy.gate.clear()
        held = asyncio.create_task(system.gateway.get())
        while not busy.waiting:
            await asyncio.sleep(0.01)
        shed = await system.gateway.get()
        assert shed.status_code == 429
        assert shed.headers["retry-after"] == "2"
        busy.gate.set()
        assert (await held).status_code == 200
        assert (await system.gateway.get()).status_code == 200


@pytest.mark.parametrize("shipped", OVERRIDE_HOST)
async def test_low_priorities_are_shed_when_the_back_ends_are_saturated(shipped: Shipped) -> None:
    async with running_system(shipped) as system:
        assert (await system.gateway.get(x_policy_priority="-1")).status_code == 200
        await system.report(*[Endpoint(running=4, queued=40)] * 3)
        assert (await system.gateway.get(x_policy_priority="-1")).status_code == 429
        assert (await system.gateway.get()).status_code == 200


@pytest.mark.parametrize("shipped", [Shipped.FAIL_OPEN, Shipped.EXT_AUTHZ])
async def test_clients_cannot_name_the_endpoint(shipped: Shipped) -> None:
    async with running_system(shipped) as system:
        first, _, third = system.addresses
        assert await system.gateway.served_by(x_gateway_destination_endpoint=third) == first


@pytest.mark.parametrize("shipped", [Shipped.FAIL_OPEN, Shipped.EXT_AUTHZ])
async def test_clients_cannot_name_the_endpoint_while_the_picker_is_gone(shipped: Shipped) -> None:
    async with running_back_ends(3) as back_ends:
        addresses = [back_end.address for back_end in back_ends]
        async with running_envoy(closed_address(), addresses, shipped) as gateway:
            served = [await gateway.served_by(x_gateway_destination_endpoint=addresses[2]) for _ in range(30)]
            assert len(set(served)) == 3
            assert all("x-gateway-destination-endpoint" not in row for row in back_ends[0].requests)


def test_fail_closed_differs_from_fail_open_in_what_it_is_about_alone() -> None:
    closed, opened = configuration.shipped(Shipped.FAIL_CLOSED), configuration.shipped(Shipped.FAIL_OPEN)
    assert configuration.picker_filter(closed).pop("status_on_error") == {"code": "ServiceUnavailable"}
    assert configuration.picker_filter(closed).pop("failure_mode_allow") is False
    assert configuration.picker_filter(opened).pop("failure_mode_allow") is True
    assert closed == opened
