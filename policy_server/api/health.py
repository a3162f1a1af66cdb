"""``grpc.health.v1.Health``: who may be sent traffic, and who is alive.

Liveness depends on nothing but the process: a probe that fails while the server drains would have it killed in the
middle. Every other name is set one by one, never by the servicer's ``enter_graceful_shutdown``, which would take
liveness along.
"""

from __future__ import annotations

from collections.abc import Sequence

from grpc_health.v1 import health, health_pb2

LIVENESS = "liveness"
READINESS = "readiness"
WHOLE_SERVER = ""


class Health:
    """What the health service answers.

    Args:
        services: names of the services that are served.

    Attributes:
        servicer: of the health service.
        ready: whether the services are to be used.
    """

    def __init__(self, services: Sequence[str]) -> None:
        self.servicer = health.aio.HealthServicer()
        self.ready = False
        self._names = (WHOLE_SERVER, READINESS, *services)

    async def start(self) -> None:
        """Alive and not ready; to be called before the port opens, because the servicer starts out serving."""
        await self.servicer.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await self.set_ready(False)

    async def set_ready(self, ready: bool) -> None:
        """Whether the services are to be used."""
        self.ready = ready
        serving = health_pb2.HealthCheckResponse.SERVING
        status = serving if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self._names:
            await self.servicer.set(name, status)
