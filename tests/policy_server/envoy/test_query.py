"""``policy-server query pick`` against a real picker."""

from __future__ import annotations

import asyncio
import json

from click.testing import CliRunner, Result

from policy_server.cli import main
from tests.support.ext_proc import DataPlane, data_plane
from tests.support.serving import graded_endpoints


async def ask(plane: DataPlane, *arguments: str) -> Result:
    picker = plane.serving.server.picker
    assert picker is not None
    command = ["query", "pick", f"--address={picker.address}", *arguments]
    return await asyncio.to_thread(CliRunner().invoke, main, command)


async def test_endpoints_best_first() -> None:
    async with data_plane(graded_endpoints(3), envoy_service="header:x-service,authority") as plane:
        shown = await ask(plane, "--authority=service")
        assert (shown.exit_code, shown.stdout.split()) == (0, [f"10.0.0.{row}:8080" for row in range(3)])
        by_header = await ask(
            plane, "--header=X-Service=service", "--subset=10.0.0.2:8080,10.0.0.1:8080", "--json"
        )
        assert json.loads(by_header.stdout) == {
            "endpoints": ["10.0.0.1:8080", "10.0.0.2:8080"],
            "status": None,
            "message": "",
        }


async def test_refusals_are_failures() -> None:
    async with data_plane(graded_endpoints(3)) as plane:
        shown = await ask(plane, "--authority=stranger")
        assert (shown.exit_code, shown.stdout) == (1, "")
        assert shown.stderr.startswith("503: service: 'stranger'")
        as_json = await ask(plane, "--authority=stranger", "--json")
        assert (as_json.exit_code, json.loads(as_json.stdout)["status"]) == (1, 503)


async def test_wrong_usage() -> None:
    async with data_plane(graded_endpoints(3)) as plane:
        shown = await ask(plane, "--header=nothing")
        assert shown.exit_code == 2
        assert "--header: 'nothing'; give NAME=VALUE" in shown.stderr


def test_where_nobody_listens() -> None:
    shown = CliRunner().invoke(main, ["query", "pick", "--address=127.0.0.1:1"])
    assert shown.exit_code == 1
    assert "no server answers at 127.0.0.1:1" in shown.stderr
