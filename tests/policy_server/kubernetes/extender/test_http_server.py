"""A real server, asked over HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import aiohttp
import numpy as np
import pytest

from policy_server.cluster.snapshot import Float64Array, Snapshot
from policy_server.kubernetes.extender import http_server
from policy_server.policies.heuristics import UnknownPolicyError
from policy_server.policies.placement import NearDemand, PlacementQuery
from policy_server.server import PolicyServer
from policy_server.settings import Settings
from tests.policy_server.kubernetes.extender.test_logic import by_name, pod
from tests.support.certificates import issue_certificate
from tests.support.serving import STEADY, Serving, running_server
from tests.support.systems import Endpoint, one_service_snapshot

RECORDINGS = Path(__file__).parents[1] / "testdata"
STATE = one_service_snapshot(
    [Endpoint(access_point="ap-0"), Endpoint(access_point="ap-1")], arrival_rates_per_second=(0, 10)
)
ALL_ALIKE = [{"Host": "node-0", "Score": 0}, {"Host": "node-1", "Score": 0}]


@asynccontextmanager
async def extender(
    snapshot: Snapshot | None = STATE, **settings: Any
) -> AsyncIterator[tuple[Serving, aiohttp.ClientSession]]:
    options = {"extender_port": 0, "extender_stale_after_seconds": 1e6, "extender_budget_seconds": 30.0}
    async with (
        running_server(snapshot, **(options | settings)) as serving,
        aiohttp.ClientSession(serving.server.extender_url) as client,
    ):
        yield serving, client


async def post(client: aiohttp.ClientSession, path: str, body: bytes) -> tuple[int, Any]:
    async with client.post(path, data=body) as response:
        assert response.content_type == "application/json"
        return response.status, await response.json()


@pytest.mark.parametrize("mode", ["names-only", "full-objects"])
async def test_recorded_calls_of_the_real_scheduler(mode: str) -> None:
    body = (RECORDINGS / f"{mode}.json").read_bytes()
    sent = json.loads(body)
    async with extender() as (_, client):
        status, answer = await post(client, "/filter", body)
        assert status == 200
        assert answer == {
            "Nodes": sent["Nodes"],
            "NodeNames": sent["NodeNames"],
            "FailedNodes": {},
            "FailedAndUnresolvableNodes": {},
            "Error": "",
        }
        status, answer = await post(client, "/prioritize", body)
        assert status == 200
        assert {entry["Host"]: entry["Score"] for entry in answer} == {"node-0": 0, "node-1": 10}


async def test_refusals() -> None:
    async with extender(extender_max_body_bytes=2000) as (_, client):
        assert await post(client, "/filter", b"{") == (400, {"Error": "body: Input data was truncated"})
        status, answer = await post(client, "/prioritize", by_name(["a", "a"], pod()))
        assert (status, answer["Error"]) == (400, "NodeNames[1]: 'a' appears twice; list every node once")
        status, answer = await post(client, "/filter", by_name(["node-0"], pod(memory="lots")))
        assert status == 400
        assert answer["Error"].startswith("Pod.spec.containers[0].resources.requests.memory: 'lots' is no")
        for size in (2001, 1_000_000):
            status, answer = await post(client, "/filter", b" " * size)
            assert status == 413
            assert answer["Error"].startswith("body: larger than 2000 bytes; set nodeCacheCapable: true")
        for method, path, status in (
            ("GET", "/filter", 405),
            ("PUT", "/prioritize", 405),
            ("POST", "/healthz", 405),
            ("POST", "/bind", 404),
            ("GET", "/", 404),
        ):
            async with client.request(method, path) as response:
                assert response.status == status, path
        assert (await post(client, "/filter", by_name(["node-0"], pod())))[0] == 200


async def begin_to_send(serving: Serving) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    url = urlsplit(serving.server.extender_url)
    reader, writer = await asyncio.open_connection(str(url.hostname), url.port)
    writer.write(b"POST /filter HTTP/1.1\r\nHost: extender\r\nContent-Length: 1000\r\n\r\n{")
    await writer.drain()
    return reader, writer


async def test_a_body_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_READ_SECONDS", 0.05)
    async with extender() as (serving, client):
        reader, writer = await begin_to_send(serving)
        assert await reader.readline() == b"HTTP/1.1 408 Request Timeout\r\n"
        writer.close()
        await writer.wait_closed()
        assert (await post(client, "/filter", by_name(["node-0"], pod())))[0] == 200


async def test_callers_that_go_away_are_no_failures(caplog: pytest.LogCaptureFixture) -> None:
    async with extender(metrics_port=0) as (serving, client):
        for _ in range(10):
            _, writer = await begin_to_send(serving)
            writer.close()
            await writer.wait_closed()
        assert (await post(client, "/filter", by_name(["node-0"], pod())))[0] == 200
        assert 'status_code="500"' not in scrape(serving)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_without_state_all_pass() -> None:
    async with extender(None) as (_, client):
        status, answer = await post(client, "/prioritize", by_name(["node-0", "node-1"], pod()))
        assert (status, answer) == (200, ALL_ALIKE)


async def test_a_policy_that_fails_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(policy: NearDemand, snapshot: Snapshot, query: PlacementQuery) -> Float64Array:
        raise ZeroDivisionError("no idea")

    body = by_name(["node-0", "node-1"], pod())
    caplog.set_level(logging.INFO)
    async with extender(metrics_port=0) as (serving, client):
        with monkeypatch.context() as patched:
            patched.setattr(NearDemand, "score", fail)
            for _ in range(3):
                assert await post(client, "/prioritize", body) == (200, ALL_ALIKE)
        status, answer = await post(client, "/prioritize", body)
        assert (status, answer[1]["Score"]) == (200, 10)
        text = scrape(serving)
    about_policy = [record.getMessage() for record in caplog.records if "near-demand" in record.getMessage()]
    assert about_policy == [
        "placement policy near-demand: model error; until that changes, all nodes are alike to the extender "
        "(ZeroDivisionError('no idea'))",
        "placement policy near-demand: sound again",
    ]
    assert 'policy_fallbacks_total{policy="near-demand",reason="model_error"} 3.0' in text
    assert re.search(
        r'policy_decisions_total\{policy="near-demand",source="heuristic",version="1"\} 1\.0', text
    )
    assert re.search(r'policy_decisions_total\{policy="all-nodes-alike",source="fallback".*\} 3\.0', text)


async def test_a_policy_that_hangs_is_waited_for_no_longer_than_its_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finish = threading.Event()

    def hang(policy: NearDemand, snapshot: Snapshot, query: PlacementQuery) -> Float64Array:
        finish.wait(60)
        return np.zeros(len(query))

    monkeypatch.setattr(NearDemand, "score", hang)
    try:
        async with extender(extender_budget_seconds=0.01) as (_, client):
            body = by_name(["node-0", "node-1"], pod())
            assert await post(client, "/prioritize", body) == (200, ALL_ALIKE)
    finally:
        finish.set()


def scrape(serving: Serving) -> str:
    port = serving.server.telemetry.prometheus_port
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        text: str = response.read().decode()
    return text


async def test_calls_are_counted() -> None:
    async with extender(metrics_port=0) as (serving, client):
        await post(client, "/filter", by_name(["node-0"], pod()))
        await post(client, "/filter", b"")
        async with client.request("PROPFIND", "/"):
            pass
        text = scrape(serving)
    counted = re.findall(r"^http_server_request_duration_seconds_count\{(.*)\} (\S+)$", text, re.MULTILINE)
    assert sorted(counted) == [
        (
            'http_request_method="POST",http_response_status_code="200",http_route="/filter",url_scheme="http"',
            "1.0",
        ),
        (
            'http_request_method="POST",http_response_status_code="400",http_route="/filter",url_scheme="http"',
            "1.0",
        ),
        (
            'http_request_method="_OTHER",http_response_status_code="404",http_route="",url_scheme="http"',
            "1.0",
        ),
    ]


async def get(client: aiohttp.ClientSession, path: str) -> int:
    async with client.get(path) as response:
        return response.status


async def test_health_and_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    proceed = threading.Event()
    asked = threading.Event()
    sound = NearDemand.score

    def slow(policy: NearDemand, snapshot: Snapshot, query: PlacementQuery) -> Float64Array:
        asked.set()
        proceed.wait(60)
        return sound(policy, snapshot, query)

    monkeypatch.setattr(NearDemand, "score", slow)
    server = PolicyServer(
        Settings(**{**STEADY, "drain_seconds": 0.5, "policy": "random", "extender_port": 0,
                    "extender_stale_after_seconds": 1e6, "extender_budget_seconds": 60.0})
    )  # fmt: skip
    await server.startup()
    try:
        server.store.replace(STATE.topology, STATE.load)
        async with aiohttp.ClientSession(server.extender_url) as client:
            assert await get(client, "/healthz") == 200
            assert await get(client, "/readyz") == 200
            body = by_name(["node-0", "node-1"], pod())
            open_call = asyncio.create_task(post(client, "/prioritize", body))
            await asyncio.to_thread(asked.wait, 30)
            stopping = asyncio.create_task(server.shutdown())
            await asyncio.sleep(0.05)
            assert await get(client, "/healthz") == 200
            assert await get(client, "/readyz") == 503
            await asyncio.sleep(0.6)
            assert not stopping.done(), "an open call is waited for"
            proceed.set()
            status, answer = await open_call
            assert (status, answer[1]["Score"]) == (200, 10)
            await stopping
            with pytest.raises(aiohttp.ClientConnectionError):
                await get(client, "/healthz")
    finally:
        proceed.set()


async def test_many_calls_at_the_same_time() -> None:
    async with extender() as (_, client):
        names = [f"node-{number}" for number in range(500)]
        answers = await asyncio.gather(
            *(post(client, "/prioritize", by_name(names[: 2 + n], pod(uid=str(n)))) for n in range(40))
        )
    for number, (status, answer) in enumerate(answers):
        assert status == 200
        assert [entry["Host"] for entry in answer] == names[: 2 + number]


async def test_https(tmp_path: Path) -> None:
    files = issue_certificate(tmp_path)
    async with extender(extender_tls_certificate=files.chain, extender_tls_key=files.key) as (serving, _):
        assert serving.server.extender_url is not None
        assert serving.server.extender_url.startswith("https://127.0.0.1:")
        trusted = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=files.authority))
        async with aiohttp.ClientSession(serving.server.extender_url, connector=trusted) as client:
            assert (await post(client, "/filter", by_name(["node-0"], pod())))[0] == 200


async def test_what_cannot_be_started_says_why(tmp_path: Path) -> None:
    files = issue_certificate(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = PolicyServer(Settings(**STEADY, extender_port=port))
        with pytest.raises(
            OSError, match=f"extender: cannot listen on 127.0.0.1:{port}: .*another extender_h"
        ):
            await server.startup()
    wrong = Settings(
        **STEADY, extender_port=0, extender_tls_certificate=files.key, extender_tls_key=files.chain
    )
    with pytest.raises(OSError, match=r"extender_tls_certificate, extender_tls_key: .*both PEM"):
        await PolicyServer(wrong).startup()
    absent = Settings(
        **STEADY, extender_port=0, extender_tls_certificate=tmp_path / "absent", extender_tls_key=files.key
    )
    with pytest.raises(OSError, match=r"absent, .*; No such file or directory; give"):
        await PolicyServer(absent).startup()
    with pytest.raises(UnknownPolicyError, match="placement policy: 'wishful' is unknown"):
        await PolicyServer(Settings(**STEADY, extender_port=0, extender_policy="wishful")).startup()


async def test_off_by_default() -> None:
    async with running_server() as serving:
        assert serving.server.extender_url is None
