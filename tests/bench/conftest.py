from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.commands import echo_command
from bench.load.target import Target
from bench.scenario import generate_request
from bench.server_process import ServerProcess, free_port
from bench.sides import DISPATCH_PATH


@pytest.fixture(scope="session")
def echo_server() -> Iterator[ServerProcess]:
    port = free_port()
    with ServerProcess("echo", echo_command(port, "aio-uvloop"), port) as process:
        yield process


@pytest.fixture(scope="session")
def echo_target(echo_server: ServerProcess) -> Target:
    host, _, port = echo_server.address.partition(":")
    return Target(host, int(port), DISPATCH_PATH, generate_request().SerializeToString())
