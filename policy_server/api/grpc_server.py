"""The gRPC server: its options, and which services it offers."""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from policy_server.api.dispatch_logic import DispatchLogic
from policy_server.api.dispatch_servicer import DispatchServicer
from policy_server.api.health import Health
from policy_server.api.orchestration_logic import OrchestrationLogic
from policy_server.api.orchestration_servicer import OrchestrationServicer
from policy_server.api.rpc import RpcServices
from policy_server.api.scaling_logic import ScalingLogic
from policy_server.api.scaling_servicer import ScalingServicer
from policy_server.api.state_servicer import StateServicer
from policy_server.cluster.state_store import StateStore
from policy_server.policies.dispatch import DispatchView
from policy_server.proto.policy.v1 import (
    dispatch_service_pb2,
    orchestration_service_pb2,
    scaling_service_pb2,
    state_service_pb2,
)

ChannelOptions = tuple[tuple[str, Any], ...]

DEFAULT_MESSAGE_BYTES = 4 * 2**20
_SHORTEST_PING_INTERVAL_MILLISECONDS = 5_000
_MOST_CALLS_NOT_ACCEPTED_YET = 16_384
_REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"

DISPATCH = dispatch_service_pb2.DESCRIPTOR.services_by_name["DispatchService"]
ORCHESTRATION = orchestration_service_pb2.DESCRIPTOR.services_by_name["OrchestrationService"]
SCALING = scaling_service_pb2.DESCRIPTOR.services_by_name["ScalingService"]
STATE = state_service_pb2.DESCRIPTOR.services_by_name["StateService"]
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]
REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]

SERVICE_NAMES = (DISPATCH.full_name, ORCHESTRATION.full_name, SCALING.full_name, STATE.full_name)
"""Whose health follows readiness."""


def server_options(
    *, maximum_message_bytes: int = DEFAULT_MESSAGE_BYTES, maximum_connection_age_seconds: float = 0.0
) -> ChannelOptions:
    """Channel options of the server.

    Args:
        maximum_message_bytes: larger requests are refused with RESOURCE_EXHAUSTED.
        maximum_connection_age_seconds: after which a connection is replaced in good order, so that long-lived
            clients find new replicas; 0: never.
    """
    options: list[tuple[str, Any]] = [
        # A second server on the same port is a mistake to report, not a peer to share the port with.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", maximum_message_bytes),
        # Common clients ping every 10 s, also without calls; gRPC's default of 5 minutes throws them out.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _SHORTEST_PING_INTERVAL_MILLISECONDS),
        # Beyond 1 000 calls that wait to be accepted gRPC cancels some at random; a burst is no reason to.
        ("grpc.server.max_pending_requests", _MOST_CALLS_NOT_ACCEPTED_YET),
        ("grpc.server.max_pending_requests_hard_limit", _MOST_CALLS_NOT_ACCEPTED_YET),
    ]
    if maximum_connection_age_seconds:
        options.append(("grpc.max_connection_age_ms", round(maximum_connection_age_seconds * 1000)))
    return tuple(options)


def add_services(
    services: RpcServices,
    logic: DispatchLogic,
    orchestration: OrchestrationLogic,
    scaling: ScalingLogic,
    store: StateStore[DispatchView],
    health: Health,
    *,
    with_reflection: bool,
) -> None:
    """Adds everything the server offers."""
    services.add(DISPATCH, DispatchServicer(logic, store, services.streams))
    services.add(ORCHESTRATION, OrchestrationServicer(orchestration))
    services.add(STATE, StateServicer(store))
    services.add(SCALING, ScalingServicer(scaling))
    services.add(HEALTH, health.servicer)
    if with_reflection:
        names = (*SERVICE_NAMES, HEALTH.full_name, REFLECTION.full_name)
        servicer = reflection.aio.ReflectionServicer(names)
        services.add(REFLECTION, servicer)
        # Version 1 is version 1 alpha under another name.
        services.add(REFLECTION, servicer, name=_REFLECTION_V1)


def listen(server: grpc.aio.Server, host: str, port: int, *, settings_prefix: str = "") -> str:
    """Binds the server to an address and returns it as ``host:port``. gRPC chooses the port where it is 0.

    Args:
        server: to be bound.
        host: to listen on.
        port: to listen on.
        settings_prefix: of the two settings, for the error message.

    Raises:
        OSError: the address cannot be bound; the message names it and the remedy.
    """
    host = f"[{host}]" if ":" in host else host
    try:
        return f"{host}:{server.add_insecure_port(f'{host}:{port}')}"
    except RuntimeError:
        raise OSError(
            f"cannot listen on {host}:{port}: it is in use or not an address of this machine; "
            f"stop the other server or choose another --{settings_prefix}host or --{settings_prefix}port"
        ) from None
