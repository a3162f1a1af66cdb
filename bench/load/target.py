"""What load is sent to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A unary gRPC method with the one request to send to it.

    Attributes:
        host: IPv4 address or name of the server.
        port: TCP port of the server.
        path: ``/package.Service/Method``.
        message: The serialized request.
    """

    host: str
    port: int
    path: str
    message: bytes

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"{self.host}:{self.port}"
