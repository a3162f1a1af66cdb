"""What callers see when the picker, or its model, is not what it should be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from bench.envoy import configuration
from bench.envoy.configuration import Document, Shipped
from bench.envoy.picker import PickerProcess
from policy_server.policies.onnx_dispatch import OnnxDispatch
from policy_server.proto.policy.v1.decision_pb2 import DecisionSource
from policy_server.proto.policy.v1.state_service_pb2_grpc import StateServiceStub
from tests.support.back_ends import BackEnd, running_back_ends
from tests.support.envoy import Gateway, needs_envoy, running_envoy, snapshot_of
from tests.support.models import write_example_bundle
from tests.support.serving import full_report, running_server

pytestmark = needs_envoy

FAIL_OPEN = (Shipped.FAIL_OPEN, Shipped.EXT_AUTHZ)
SLOW_SECONDS = 5.0


@asynccontextmanager
async def running_picker_process(back_ends: list[BackEnd], *arguments: str) -> AsyncIterator[PickerProcess]:
    """The server as a process, which holds a state of the back ends."""
    with PickerProcess("earliest-completion", arguments) as picker:
        async with grpc.aio.insecure_channel(picker.address) as channel:
            addresses = [back_end.address for back_end in back_ends]
            await StateServiceStub(channel).ReportState(full_report(snapshot_of(addresses)))
        yield picker


@pytest.mark.parametrize("shipped", Shipped)
async def test_a_killed_picker_lets_requests_pass_or_not_as_configured(shipped: Shipped) -> None:
    async with (
        running_back_ends(2) as back_ends,
        running_picker_process(back_ends, "--envoy-max-endpoints=1") as picker,
        running_envoy(picker.picker_address, [b.address for b in back_ends], shipped) as gateway,
    ):
        assert {await gateway.served_by() for _ in range(4)} == {back_ends[0].address}
        picker.kill()
        answers = [await gateway.get() for _ in range(20)]
        if shipped in FAIL_OPEN:
            assert {answer.status_code for answer in answers} == {200}
            assert back_ends[1].requests, "Envoy balances by itself"
        else:
            assert {answer.status_code for answer in answers} == {503}
            assert len(back_ends[0].requests) == 4
            assert not back_ends[1].requests


@pytest.mark.parametrize("shipped", [Shipped.FAIL_OPEN, Shipped.FAIL_CLOSED])
async def test_a_picker_that_comes_back_is_asked_again(shipped: Shipped) -> None:
    async with running_back_ends(2) as back_ends:
        addresses = [back_end.address for back_end in back_ends]
        settings: dict[str, Any] = {"envoy": True, "envoy_port": 0}
        async with running_server(snapshot_of(addresses), **settings) as serving:
            assert serving.server.picker is not None
            address = serving.server.picker.address
            settings["envoy_port"] = int(address.rpartition(":")[2])
            async with running_envoy(address, addresses, shipped) as gateway:
                assert await gateway.served_by() == addresses[0]
                await serving.server.shutdown(drain=False)
                away = await gateway.get()
                assert away.status_code == (200 if shipped is Shipped.FAIL_OPEN else 503)
                async with running_server(snapshot_of(addresses), **settings):
                    await answered_by_the_picker(gateway)
                    assert {await gateway.served_by() for _ in range(6)} == {addresses[0]}


async def answered_by_the_picker(gateway: Gateway) -> None:
    """Waits until a request is answered by it: Envoy has to connect again first."""
    name = "http.ingress.ext_proc.failure_mode_allowed"
    async with asyncio.timeout(30):
        while True:
            before = gateway.envoy.stat(name)
            if (await gateway.get()).status_code == 200 and gateway.envoy.stat(name) == before:
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("shipped", [Shipped.FAIL_OPEN, Shipped.FAIL_CLOSED])
async def test_a_picker_that_hangs_costs_the_message_timeout(shipped: Shipped) -> None:
    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    def be_impatient(document: Document) -> None:
        configuration.picker_filter(document)["message_timeout"] = "0.2s"

    hanging = await asyncio.start_server(never_answer, "127.0.0.1", 0)
    host, port = hanging.sockets[0].getsockname()
    async with (
        hanging,
        running_back_ends(1) as (back_end,),
        running_envoy(f"{host}:{port}", [back_end.address], shipped, be_impatient) as gateway,
    ):
        answer = await gateway.get()
        assert answer.status_code == (200 if shipped is Shipped.FAIL_OPEN else 504)


async def test_requests_in_flight_survive_the_picker_s_shutdown() -> None:
    async with running_back_ends(1) as (back_end,):
        settings: dict[str, Any] = {"envoy": True, "envoy_port": 0}
        async with running_server(snapshot_of([back_end.address]), **settings) as serving:
            assert serving.server.picker is not None
            picker = serving.server.picker.address
            async with running_envoy(picker, [back_end.address], Shipped.FAIL_CLOSED) as gateway:
                back_end.gate.clear()
                requests = [asyncio.create_task(gateway.get()) for _ in range(10)]
                while back_end.waiting < len(requests):
                    await asyncio.sleep(0.01)
                await serving.server.shutdown(drain=False)
                back_end.gate.set()
                assert {answer.status_code for answer in await asyncio.gather(*requests)} == {200}


class SlowModel:
    """Replaces the model's answers by a long wait, once told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.slow = False
        sound = OnnxDispatch.score

        def score(policy: OnnxDispatch, *arguments: Any) -> Any:
            if self.slow:
                self.calls += 1
                time.sleep(SLOW_SECONDS)
            return sound(policy, *arguments)

        monkeypatch.setattr(OnnxDispatch, "score", score)


@pytest.mark.parametrize("shipped", FAIL_OPEN)
async def test_the_fallback_answers_for_a_slow_model_within_the_budget(
    shipped: Shipped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = SlowModel(monkeypatch)
    write_example_bundle(tmp_path)
    async with running_back_ends(2) as back_ends:
        addresses = [back_end.address for back_end in back_ends]
        settings: dict[str, Any] = {"models": tmp_path, "model_budget_seconds": 0.02}
        async with running_server(snapshot_of(addresses), envoy=True, envoy_port=0, **settings) as serving:
            assert serving.server.picker is not None
            async with running_envoy(serving.server.picker.address, addresses, shipped) as gateway:
                model.slow = True
                began = time.monotonic()
                # The fallback is the earliest completion: at the faster back end.
                assert {await gateway.served_by() for _ in range(3)} == {addresses[0]}
                # One call to the model alone would have taken longer.
                assert time.monotonic() - began < SLOW_SECONDS
                assert model.calls == 1
                assert (await serving.dispatch()).provenance.source == DecisionSource.DECISION_SOURCE_FALLBACK
