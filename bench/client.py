"""A real gRPC client: puts the state in place and checks what the server answers."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import grpc

from bench.load.errors import LoadError
from policy_server.proto.policy.v1.decision_pb2 import DecisionSource, FallbackReason
from policy_server.proto.policy.v1.dispatch_service_pb2 import DispatchRequest, DispatchResponse
from policy_server.proto.policy.v1.dispatch_service_pb2_grpc import DispatchServiceStub
from policy_server.proto.policy.v1.state_pb2 import Topology
from policy_server.proto.policy.v1.state_service_pb2 import FullState, GetStateRequest, ReportStateRequest
from policy_server.proto.policy.v1.state_service_pb2_grpc import StateServiceStub

_TIMEOUT_SECONDS = 10.0


class Client:
    """Calls of a server, as a context manager.

    Args:
        address: ``host:port``.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = grpc.insecure_channel(address)
        self._dispatch = DispatchServiceStub(self._channel)
        self._state = StateServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the channel."""
        self._channel.close()

    def dispatch(self, request: DispatchRequest) -> DispatchResponse:
        """Asks for one decision.

        Raises:
            LoadError: the server refuses, or names no endpoint.
        """
        try:
            response = self._dispatch.Dispatch(request, timeout=_TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            raise LoadError(self._refusal("Dispatch", error)) from None
        if not response.endpoint:
            raise LoadError(f"{self._address}: Dispatch answered without an endpoint: {response}")
        return response

    def report_state(self, state: FullState) -> None:
        """Replaces the server-held state.

        Raises:
            LoadError: the server refuses.
        """
        self.report(ReportStateRequest(full=state))

    def report(self, request: ReportStateRequest) -> int:
        """Reports a full state or a delta; returns the version the server holds then.

        Raises:
            LoadError: the server refuses.
        """
        try:
            return int(self._state.ReportState(request, timeout=_TIMEOUT_SECONDS).version)
        except grpc.RpcError as error:
            raise LoadError(self._refusal("ReportState", error)) from None

    def topology(self) -> Topology:
        """Returns the topology the server holds.

        Raises:
            LoadError: the server refuses.
        """
        try:
            return self._state.GetState(GetStateRequest(), timeout=_TIMEOUT_SECONDS).topology
        except grpc.RpcError as error:
            raise LoadError(self._refusal("GetState", error)) from None

    def _refusal(self, method: str, error: grpc.RpcError) -> str:
        if isinstance(error, grpc.Call):
            return f"{self._address}: {method} failed: {error.code().name}: {error.details()}"
        return f"{self._address}: {method} failed: {error}"


def fallback_reason(response: DispatchResponse) -> str | None:
    """Name of the reason why the fallback answered; None where it did not."""
    provenance = response.provenance
    if provenance.source != DecisionSource.DECISION_SOURCE_FALLBACK:
        return None
    return FallbackReason.Name(provenance.fallback_reason).removeprefix("FALLBACK_REASON_")


def request_for(topology: Topology) -> DispatchRequest:
    """A request that a server with this state can answer: the first replicated service at the first access point.

    Raises:
        LoadError: the state has no replica or no access point.
    """
    access_point = next((row.name for row in topology.access_points if not row.cloud), None)
    service = next((replica.service for replica in topology.replicas), None)
    if access_point is None or service is None:
        raise LoadError("the server holds no state to decide on: report one, or let --replace-state do so")
    return DispatchRequest(service=service, access_point=access_point)
