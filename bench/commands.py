"""Commands that start the servers under load."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from policy_server.proto.policy.v1.dispatch_service_pb2 import DispatchResponse


def echo_command(
    port: int, flavour: str, response: DispatchResponse | None = None, work_microseconds: float = 0.0
) -> list[str]:
    """The echo server of ``policy-bench echo``."""
    command = [sys.executable, "-m", "bench.cli", "echo", "--port", str(port), "--flavour", flavour]
    if response is not None:
        command += ["--response-hex", response.SerializeToString().hex()]
    if work_microseconds:
        command += ["--work-microseconds", str(work_microseconds)]
    return command


def do_nothing_command(port: int, endpoints: Sequence[str]) -> list[str]:
    """The endpoint picker of ``policy-bench do-nothing``."""
    command = [sys.executable, "-m", "bench.cli", "do-nothing", "--port", str(port)]
    return command + [part for endpoint in endpoints for part in ("--endpoint", endpoint)]


def scale_echo_command(port: int, flavour: str, response: Path) -> list[str]:
    """The same, answering Scale with the serialized ScaleResponse of a file."""
    return [*echo_command(port, flavour), "--scale-response", str(response)]


def policy_server_command(port: int, models: Path | None = None, arguments: Sequence[str] = ()) -> list[str]:
    """The real server of ``policy-server serve``.

    Its state is reported once per run, however long that takes, so it must not grow stale.
    """
    command = [sys.executable, "-m", "policy_server.cli", "serve", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--drain-seconds", "0", "--stale-after-seconds", "86400"]
    if models is not None:
        command += ["--models", str(models)]
    return [*command, *arguments]
