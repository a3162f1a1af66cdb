"""Asks a running server, for the shell."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click
import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.console import Console, Group
from rich.table import Table

from policy_server.client.scaling import ContainerRecommendation, ResourceRecommendation, recommendations
from policy_server.proto.policy.v1.decision_pb2 import DecisionSource, FallbackReason, Provenance
from policy_server.proto.policy.v1.dispatch_service_pb2 import DispatchRequest, DispatchResponse
from policy_server.proto.policy.v1.dispatch_service_pb2_grpc import DispatchServiceStub
from policy_server.proto.policy.v1.orchestration_service_pb2 import (
    ActionKind,
    OrchestrateRequest,
    OrchestrateResponse,
)
from policy_server.proto.policy.v1.orchestration_service_pb2_grpc import OrchestrationServiceStub
from policy_server.proto.policy.v1.scaling_service_pb2 import ScaleRequest, ScaleResponse
from policy_server.proto.policy.v1.scaling_service_pb2_grpc import ScalingServiceStub
from policy_server.proto.policy.v1.state_service_pb2 import GetStateRequest, GetStateResponse
from policy_server.proto.policy.v1.state_service_pb2_grpc import StateServiceStub

MessageT = TypeVar("MessageT")

_PIPED_WIDTH = 120
_NO_CONNECTION = ("failed to connect to all addresses", "DNS resolution failed", "Connection refused")


def ask_dispatch(address: str, request: DispatchRequest, timeout_seconds: float) -> DispatchResponse:
    """The server's decision.

    Raises:
        click.ClickException: the server refuses, or none answers.
    """
    return ask(
        address, lambda channel: DispatchServiceStub(channel).Dispatch(request, timeout=timeout_seconds)
    )


def ask_orchestration(
    address: str, request: OrchestrateRequest, timeout_seconds: float
) -> OrchestrateResponse:
    """What the server would do to the state it holds.

    Raises:
        click.ClickException: the server refuses, or none answers.
    """
    return ask(
        address,
        lambda channel: OrchestrationServiceStub(channel).Orchestrate(request, timeout=timeout_seconds),
    )


def ask_scale(address: str, request: ScaleRequest, timeout_seconds: float) -> ScaleResponse:
    """The server's recommendations.

    Raises:
        click.ClickException: the server refuses, or none answers.
    """
    return ask(address, lambda channel: ScalingServiceStub(channel).Scale(request, timeout=timeout_seconds))


def ask_state(address: str, timeout_seconds: float) -> GetStateResponse:
    """The state the server holds.

    Raises:
        click.ClickException: the server refuses, or none answers.
    """
    return ask(
        address,
        lambda channel: StateServiceStub(channel).GetState(GetStateRequest(), timeout=timeout_seconds),
    )


def as_json(message: Message) -> dict[str, Any]:
    """The message with the field names of the proto files, defaults included."""
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def print_decision(response: DispatchResponse) -> None:
    """Prints a decision as a table."""
    choices = Table(title="decision", title_justify="left")
    for name in ("", "endpoint", "node", "score"):
        choices.add_column(name, overflow="fold")
    choices.add_row("choice", response.endpoint, response.node, f"{response.score:.6g}", style="bold")
    for place, other in enumerate(response.alternatives, start=1):
        choices.add_row(f"alternative {place}", other.endpoint, other.node, f"{other.score:.6g}")
    facts = Table.grid(padding=(0, 2))
    source = response.provenance
    facts.add_row("policy", f"{source.policy} {source.policy_version}")
    facts.add_row("source", _source(source))
    facts.add_row("candidates", str(response.candidate_count))
    facts.add_row("snapshot", _snapshot(source))
    _console().print(Group(choices, facts))


def print_actions(response: OrchestrateResponse) -> None:
    """Prints orchestration actions as a table."""
    table = Table(title="actions", title_justify="left")
    for name in (
        "",
        "action",
        "service",
        "node",
        "endpoint",
        "score",
        "node's CPU demand / CPU",
        "excess demand, millicores",
    ):
        table.add_column(name, overflow="fold")
    for place, action in enumerate(response.actions, start=1):
        effect = action.expected_effect
        table.add_row(
            str(place),
            ActionKind.Name(action.kind).removeprefix("ACTION_KIND_").lower(),
            action.service,
            action.node,
            action.endpoint,
            f"{action.score:.6g}",
            f"{effect.node_utilisation_before:.2f} -> {effect.node_utilisation_after:.2f}",
            f"{effect.excess_demand_change_millicores:+.0f}",
        )
    facts = Table.grid(padding=(0, 2))
    for place, action in enumerate(response.actions, start=1):
        facts.add_row(f"{place} is feasible", action.feasibility)
    source = response.provenance
    facts.add_row("policy", f"{source.policy} {source.policy_version}")
    facts.add_row("source", _source(source))
    facts.add_row("snapshot", _snapshot(source))
    _console().print(Group(table if response.actions else "no action: leave everything as it is", facts))


def print_recommendations(request: ScaleRequest, response: ScaleResponse) -> None:
    """Prints a row per container, and who decided."""
    table = Table(title="recommendations", title_justify="left")
    for name in ("container", "now", "CPU, millicores", "why", "memory, MiB", "why"):
        table.add_column(name, overflow="fold")
    for row in recommendations(request, response):
        table.add_row(
            row.container,
            _now(row),
            _amount(row.cpu, 1.0),
            row.cpu.reason.lower(),
            _amount(row.memory, 2.0**20),
            row.memory.reason.lower(),
            style="bold" if row.apply else None,
        )
    facts = Table.grid(padding=(0, 2))
    for origin in response.provenances:
        facts.add_row("policy", f"{origin.policy} {origin.policy_version}")
        facts.add_row("source", _source(origin))
    _console().print(Group(table, facts))


def _console() -> Console:
    """Standard output, wide enough for tables where it is no terminal and nobody says how wide it is."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=_PIPED_WIDTH)


def print_state(state: GetStateResponse) -> None:
    """Prints what the state consists of, and its busiest endpoints."""
    topology, load = state.topology, state.load
    facts = Table.grid(padding=(0, 2))
    facts.add_row("version", str(state.version))
    facts.add_row("age", f"{state.age_seconds:.3f} s")
    for label, rows in (
        ("access points", topology.access_points),
        ("nodes", topology.nodes),
        ("services", topology.services),
        ("replicas", topology.replicas),
        ("links", topology.links),
    ):
        facts.add_row(label, str(len(rows)))
    facts.add_row("own picks pending", f"{sum(state.pending_requests.values()):g}")
    table = Table(title="busiest endpoints")
    for name in ("endpoint", "service", "node", "queued", "running", "pending"):
        table.add_column(name, overflow="fold")
    placed = {replica.endpoint: replica for replica in topology.replicas}

    def outstanding(replica: Any) -> float:
        return float(replica.queued + replica.running + state.pending_requests.get(replica.endpoint, 0.0))

    for replica in sorted(load.replicas, key=outstanding, reverse=True)[:10]:
        where = placed[replica.endpoint]
        pending = state.pending_requests.get(replica.endpoint, 0.0)
        table.add_row(
            replica.endpoint,
            where.service,
            where.node,
            f"{replica.queued:g}",
            f"{replica.running:g}",
            f"{pending:g}",
        )
    _console().print(Group(facts, table))


def ask(address: str, call: Callable[[grpc.Channel], MessageT]) -> MessageT:
    """What a call to the server returns.

    Raises:
        click.ClickException: the server refuses, or none answers.
    """
    options = (("grpc.max_receive_message_length", -1), ("grpc.enable_retries", 0))
    with grpc.insecure_channel(address, options) as channel:
        try:
            return call(channel)
        except grpc.RpcError as error:
            raise click.ClickException(_explain(address, error)) from None


def _explain(address: str, error: Any) -> str:
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE and any(sign in details for sign in _NO_CONNECTION):
        return f"no server answers at {address}; start one with `policy-server serve`, or give its --address"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer from {address} in time; allow more with --timeout"
    return f"{code.name}: {details}"


def _now(row: ContainerRecommendation) -> str:
    return "resize" if row.apply else f"hold: {row.hold_reason.lower()}"


def _amount(resource: ResourceRecommendation, unit: float) -> str:
    """Target, and the bounds that it lies between."""
    if resource.target != resource.target:
        return "none"
    bounds = f"{resource.lower_bound / unit:.0f} to {resource.upper_bound / unit:.0f}"
    return f"{resource.target / unit:.0f} ({bounds})"


def _source(source: Provenance) -> str:
    name = DecisionSource.Name(source.source).removeprefix("DECISION_SOURCE_").lower()
    if source.source != DecisionSource.DECISION_SOURCE_FALLBACK:
        return name
    known = source.fallback_reason in FallbackReason.values()
    reason = FallbackReason.Name(source.fallback_reason) if known else str(source.fallback_reason)
    return f"{name}, because of {reason.removeprefix('FALLBACK_REASON_').lower()}"


def _snapshot(source: Provenance) -> str:
    if source.snapshot_version == 0:
        return "carried by the request"
    return f"version {source.snapshot_version}, {source.snapshot_age_seconds:.3f} s old"
