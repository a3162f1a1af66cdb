"""What passes through Envoy and the picker unchanged: bodies, protocols, many requests at a time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import httpx
import pytest

from bench.envoy import configuration
from bench.envoy.configuration import Document
from tests.support.back_ends import (
    BODY_DIGEST,
    PROTOCOL,
    BackEnd,
    digest,
    running_back_ends,
    running_grpc_back_end,
)
from tests.support.envoy import LONG_SECONDS, REQUEST, Gateway, needs_envoy, running_envoy, snapshot_of
from tests.support.serving import Serving, running_server

pytestmark = needs_envoy

MEBIBYTE = 2**20
BODY_SIZES = (0, 1, 62_000, 62_001, 65_536, MEBIBYTE + 1, 10_000_000)
BODY_MODES = ("NONE", "BUFFERED", "BUFFERED_PARTIAL", "STREAMED", "FULL_DUPLEX_STREAMED")
LARGEST_BUFFER_BYTES = 16 * MEBIBYTE
STREAMS = 1000


@asynccontextmanager
async def running_gateway(addresses: list[str], mode: str = "NONE") -> AsyncIterator[tuple[Serving, Gateway]]:
    """A picker and an Envoy that sends it bodies in that mode."""

    def send_bodies(document: Document) -> None:
        processing = configuration.picker_filter(document)["processing_mode"]
        processing["request_body_mode"] = processing["response_body_mode"] = mode
        if mode == "FULL_DUPLEX_STREAMED":
            processing["request_trailer_mode"] = processing["response_trailer_mode"] = "SEND"
        if mode.startswith("BUFFERED"):
            (listener,) = document["static_resources"]["listeners"]
            listener["per_connection_buffer_limit_bytes"] = LARGEST_BUFFER_BYTES
            for name in (configuration.BACK_ENDS, configuration.ENDPOINT_PICKER):
                cluster = configuration.cluster(document, name)
                cluster["per_connection_buffer_limit_bytes"] = LARGEST_BUFFER_BYTES

    settings = {"envoy": True, "envoy_port": 0, "max_message_bytes": LARGEST_BUFFER_BYTES}
    async with running_server(snapshot_of(addresses), **settings) as serving:
        assert serving.server.picker is not None
        async with running_envoy(serving.server.picker.address, addresses, edit=send_bodies) as gateway:
            yield serving, gateway


async def everything_has_ended(serving: Serving) -> None:
    """Waits until no request counts as in flight, in the picker and in the ledger."""
    picker, held = serving.server.picker, serving.server.store.held
    assert picker is not None
    assert held is not None
    async with asyncio.timeout(LONG_SECONDS):
        while picker.picker.in_flight or held.ledger.pending:
            await asyncio.sleep(0.01)
    assert not held.ledger.pending_values.any()


@pytest.mark.parametrize("mode", BODY_MODES)
async def test_bodies_arrive_unchanged_both_ways(mode: str) -> None:
    async with running_back_ends(1) as (back_end,), running_gateway([back_end.address], mode) as running:
        serving, gateway = running
        for size in BODY_SIZES:
            body = random.Random(size).randbytes(size)
            for client in (gateway.client, gateway.client2):
                response = await client.post("/", content=body)
                assert response.status_code == 200, (size, response.text[:200])
                assert response.headers[BODY_DIGEST] == digest(body), size
                assert response.content == body, size
        assert unanswered(gateway) == 0
        await everything_has_ended(serving)


async def test_a_body_of_unknown_length_arrives_unchanged() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for position in range(40):
            yield bytes([position]) * 5000
            await asyncio.sleep(0)

    expected = b"".join([chunk async for chunk in chunks()])
    async with running_back_ends(1) as (back_end,):
        for mode in ("STREAMED", "FULL_DUPLEX_STREAMED"):
            async with running_gateway([back_end.address], mode) as (_, gateway):
                for client in (gateway.client, gateway.client2):
                    response = await client.post("/", content=chunks())
                    assert response.content == expected


async def test_requests_go_on_in_the_protocol_they_came_in() -> None:
    async with running_back_ends(1) as (back_end,), running_gateway([back_end.address]) as (serving, gateway):
        assert (await gateway.client.get("/")).headers[PROTOCOL] == "1.1"
        assert (await gateway.client2.get("/")).headers[PROTOCOL] == "2"
        await everything_has_ended(serving)


@pytest.mark.parametrize("mode", ["NONE", "STREAMED", "FULL_DUPLEX_STREAMED"])
async def test_grpc_calls_and_streams_pass(mode: str) -> None:
    async with (
        running_grpc_back_end() as address,
        running_gateway([address], mode) as (serving, gateway),
        grpc.aio.insecure_channel(gateway.envoy.address) as channel,
    ):
        metadata = tuple(REQUEST.items())
        unary = channel.unary_unary("/test.Echo/Unary")
        assert await unary(b"hello", metadata=metadata, timeout=LONG_SECONDS) == b"hello"
        stream = channel.stream_stream("/test.Echo/Stream")(metadata=metadata, timeout=LONG_SECONDS)
        # Ping-pong: each answer must come while the request is still open.
        for message in (b"", b"a", b"b" * 200_000):
            await stream.write(message)
            assert await stream.read() == message
        await stream.done_writing()
        assert await stream.read() == grpc.aio.EOF
        assert await stream.code() == grpc.StatusCode.OK
        assert unanswered(gateway) == 0
        await everything_has_ended(serving)


async def test_refusals_reach_grpc_clients_as_statuses_to_retry() -> None:
    async with (
        running_grpc_back_end() as address,
        running_gateway([address]) as (_, gateway),
        grpc.aio.insecure_channel(gateway.envoy.address) as channel,
    ):
        unary = channel.unary_unary("/test.Echo/Unary")
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await unary(b"", metadata=(("x-policy-service", "unknown"),), timeout=LONG_SECONDS)
        assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_thousand_requests_at_a_time_and_none_afterwards() -> None:
    async with (
        running_back_ends(4) as back_ends,
        running_gateway([back_end.address for back_end in back_ends]) as (serving, gateway),
        AsyncExitStack() as stack,
    ):
        for back_end in back_ends:
            back_end.gate.clear()
        # A client of HTTP/2 has no more than a hundred requests at a time in flight.
        clients = [await stack.enter_async_context(gateway.new_client2()) for _ in range(STREAMS // 100)]
        requests = [asyncio.create_task(client.get("/")) for client in clients for _ in range(100)]
        await all_wait(back_ends, STREAMS)
        assert serving.server.picker is not None
        assert serving.server.picker.picker.in_flight == STREAMS
        assert gateway.envoy.stat("cluster.endpoint_picker.upstream_rq_active") == STREAMS
        for back_end in back_ends:
            back_end.gate.set()
        assert {response.status_code for response in await asyncio.gather(*requests)} == {200}
        assert all(len(back_end.requests) > 0 for back_end in back_ends)
        assert unanswered(gateway) == 0
        await everything_has_ended(serving)


async def test_requests_that_clients_give_up_do_not_stay_in_flight() -> None:
    async with running_back_ends(2) as back_ends:
        addresses = [back_end.address for back_end in back_ends]
        async with running_gateway(addresses) as (serving, gateway):
            for back_end in back_ends:
                back_end.gate.clear()
            async with gateway.new_client2() as leaving:
                requests = [
                    asyncio.create_task(client.get("/"))
                    for client in (gateway.client, leaving)
                    for _ in range(20)
                ]
                await all_wait(back_ends, len(requests))
                for request in requests:
                    request.cancel()
                await asyncio.gather(*requests, return_exceptions=True)
            await everything_has_ended(serving)


async def test_back_ends_that_break_off_do_not_leave_requests_in_flight() -> None:
    async with running_back_ends(2) as back_ends:
        addresses = [back_end.address for back_end in back_ends]
        async with running_gateway(addresses) as (serving, gateway):
            for back_end in back_ends:
                back_end.breaks_off = True
            answers = await asyncio.gather(
                *(gateway.client.post("/", content=b"all of this") for _ in range(10)), return_exceptions=True
            )
            assert all(map(is_failure, answers)), answers
            await everything_has_ended(serving)


async def test_grpc_streams_that_clients_cancel_do_not_stay_in_flight() -> None:
    async with (
        running_grpc_back_end() as address,
        running_gateway([address]) as (serving, gateway),
        grpc.aio.insecure_channel(gateway.envoy.address) as channel,
    ):
        streams = [
            channel.stream_stream("/test.Echo/Stream")(metadata=tuple(REQUEST.items())) for _ in range(10)
        ]
        for stream in streams:
            await stream.write(b"a")
            assert await stream.read() == b"a"
        assert serving.server.picker is not None
        assert serving.server.picker.picker.in_flight == len(streams)
        for stream in streams:
            stream.cancel()
        await everything_has_ended(serving)


async def test_endpoints_that_come_and_go_do_not_leave_requests_in_flight() -> None:
    async with running_back_ends(3) as back_ends:
        addresses = [back_end.address for back_end in back_ends]
        async with running_gateway(addresses) as (serving, gateway):
            for back_end in back_ends:
                back_end.gate.clear()
            requests = []
            # Reports drop each endpoint in turn, and bring it back, while it has requests.
            for row in (0, 1, 2, 0):
                await serving.report(snapshot_of([*addresses[:row], *addresses[row + 1 :]]))
                requests += [asyncio.create_task(gateway.get()) for _ in range(8)]
                await all_wait(back_ends, len(requests))
            await serving.report(snapshot_of(addresses))
            for back_end in back_ends:
                back_end.gate.set()
            assert {answer.status_code for answer in await asyncio.gather(*requests)} == {200}
            await everything_has_ended(serving)
            assert await gateway.served_by() == addresses[0]


def is_failure(answer: httpx.Response | BaseException) -> bool:
    """Whether a client was told that its answer is not whole."""
    if isinstance(answer, httpx.Response):
        return answer.status_code >= 500
    return isinstance(answer, httpx.RemoteProtocolError)


async def all_wait(back_ends: list[BackEnd], count: int) -> None:
    async with asyncio.timeout(LONG_SECONDS):
        while sum(back_end.waiting for back_end in back_ends) < count:
            await asyncio.sleep(0.01)


def unanswered(gateway: Gateway) -> int:
    """Requests that went on because the picker did not answer."""
    return gateway.envoy.stat("http.ingress.ext_proc.failure_mode_allowed")
