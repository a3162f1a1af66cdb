"""Several servers behind a balancer of connections, as a Kubernetes service is one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import grpc

from policy_server.proto.policy.v1.dispatch_service_pb2_grpc import DispatchServiceStub
from tests.support.serving import Serving, graded_endpoints, question, running_server

AGE_SECONDS = 0.4


class Balancer:
    """Gives each new connection to the next of its targets."""

    def __init__(self, targets: list[str]) -> None:
        self.targets = targets
        self.address = ""
        self._accepted = 0
        self._pumps: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield
        finally:
            server.close()
            for pump in self._pumps:
                pump.cancel()
            await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = self.targets[self._accepted % len(self.targets)]
        self._accepted += 1
        host, port = target.split(":")
        back_reader, back_writer = await asyncio.open_connection(host, int(port))
        for source, sink in ((reader, back_writer), (back_reader, writer)):
            pump = asyncio.create_task(self._pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        except ConnectionError:
            pass
        finally:
            sink.close()


def picks(serving: Serving) -> int:
    assert serving.server.store.held is not None
    return int(serving.server.store.held.ledger.replica_picks.sum())


async def test_long_lived_client_finds_new_replicas() -> None:
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(
                running_server(graded_endpoints(3), max_connection_age_seconds=AGE_SECONDS)
            )
            for _ in range(3)
        ]
        balancer = Balancer([servers[0].server.address])
        await stack.enter_async_context(balancer.running())
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(balancer.address))
        dispatching = DispatchServiceStub(channel)
        assert (await dispatching.Dispatch(question())).endpoint
        balancer.targets = [serving.server.address for serving in servers]
        before = [picks(serving) for serving in servers]
        loop = asyncio.get_running_loop()
        ends = loop.time() + 12 * AGE_SECONDS
        while loop.time() < ends:
            assert (await dispatching.Dispatch(question(), timeout=10)).endpoint
            await asyncio.sleep(0.005)
        served = [picks(serving) - then for serving, then in zip(servers, before, strict=True)]
    assert min(served) >= 0.2 * sum(served), served
