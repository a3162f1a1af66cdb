"""The real server with its endpoint picker switched on."""

from __future__ import annotations

import urllib.request
from collections.abc import Sequence

from prometheus_client.parser import text_string_to_metric_families

from bench.commands import policy_server_command
from bench.server_process import ServerProcess, free_ports

_TIMEOUT_SECONDS = 10.0


def request_headers(service: str, access_point: str) -> list[str]:
    """Arguments by which h2load says what it asks for, as the server's default settings read it."""
    return ["-H", f"x-policy-service: {service}", "-H", f"x-policy-access-point: {access_point}"]


class PickerProcess(ServerProcess):
    """``policy-server serve --envoy`` as a context manager.

    Args:
        policy: The active policy; None: the server's default.
        arguments: Further arguments of the server.

    Attributes:
        picker_address: ``host:port`` Envoy asks; ``address`` is that of the native API.
    """

    def __init__(self, policy: str | None = None, arguments: Sequence[str] = ()) -> None:
        port, envoy_port, self._metrics_port = free_ports(3)
        self.picker_address = f"127.0.0.1:{envoy_port}"
        options = ["--envoy", "--envoy-port", str(envoy_port), "--metrics-port", str(self._metrics_port)]
        options += [] if policy is None else ["--policy", policy]
        super().__init__("policy-server", policy_server_command(port, arguments=[*options, *arguments]), port)

    def fallbacks(self) -> int:
        """Decisions so far that the fallback made in place of the policy asked for.

        Raises:
            OSError: the server does not tell.
        """
        url = f"http://127.0.0.1:{self._metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        return sum(
            int(sample.value)
            for family in families
            for sample in family.samples
            if sample.name == "policy_fallbacks_total"
        )
