"""The picker's own gRPC server: port, services, health."""

from __future__ import annotations

import grpc

from policy_server.api.grpc_server import HEALTH, listen, server_options
from policy_server.api.health import Health
from policy_server.api.rpc import RpcServices
from policy_server.envoy.authorization_servicer import AuthorizationServicer
from policy_server.envoy.expiry import Expiry
from policy_server.envoy.ext_proc_servicer import ExternalProcessorServicer
from policy_server.envoy.picker import EndpointPicker
from policy_server.envoy.process_stream import ProcessSettings
from policy_server.envoy.request_mapping import RequestMapping
from policy_server.proto.envoy.service.auth.v3 import external_auth_pb2
from policy_server.proto.envoy.service.ext_proc.v3 import external_processor_pb2
from policy_server.settings import Settings
from policy_server.telemetry.metrics import ServerMetrics
from policy_server.telemetry.spans import ProblemSpans

AUTHORIZATION = external_auth_pb2.DESCRIPTOR.services_by_name["Authorization"]
EXTERNAL_PROCESSOR = external_processor_pb2.DESCRIPTOR.services_by_name["ExternalProcessor"]


class PickerServer:
    """Serves Envoy. Its life is a part of that of the whole server.

    Args:
        settings: resolved.
        picker: picks.
        metrics: counts calls.
        spans: of failed calls.

    Attributes:
        picker: as given.
        address: ``host:port`` it listens on.

    Raises:
        OSError: the address cannot be bound.
    """

    def __init__(
        self, settings: Settings, picker: EndpointPicker, metrics: ServerMetrics, spans: ProblemSpans
    ) -> None:
        self.picker = picker
        mapping = RequestMapping(settings.envoy_service, settings.envoy_access_point, settings.envoy_priority)
        process_settings = ProcessSettings(
            picker,
            mapping,
            clear_route_cache=settings.envoy_clear_route_cache,
            test_selection=settings.envoy_test_header,
        )
        self._expiry = Expiry()
        self._health = Health((EXTERNAL_PROCESSOR.full_name, AUTHORIZATION.full_name))
        self._server = grpc.aio.server(
            options=server_options(
                maximum_message_bytes=settings.max_message_bytes,
                maximum_connection_age_seconds=settings.max_connection_age_seconds,
            )
        )
        self.address = listen(
            self._server, settings.envoy_host, settings.envoy_port, settings_prefix="envoy-"
        )
        self._services = RpcServices(self._server, metrics, spans)
        processor = ExternalProcessorServicer(process_settings, self._services.streams)
        self._services.add(EXTERNAL_PROCESSOR, processor, as_bytes=True)
        self._services.add(AUTHORIZATION, AuthorizationServicer(picker, mapping, self._expiry))
        self._services.add(HEALTH, self._health.servicer)

    async def start(self) -> None:
        """Opens the port, alive and not ready."""
        await self._health.start()
        await self._server.start()

    async def set_ready(self, ready: bool) -> None:
        """Whether Envoy is to ask here."""
        await self._health.set_ready(ready)

    async def stop(self, grace_seconds: float) -> None:
        """Ends open streams with status OK, refuses new ones, and lets calls in flight finish."""
        self._services.streams.finish()
        await self._server.stop(grace_seconds)
        self._expiry.end_all()
