"""``policy.v1.StateService`` over gRPC."""

from __future__ import annotations

import math

from policy_server.api import figures
from policy_server.api.errors import InvalidArgumentError, NothingCanServeError
from policy_server.api.messages import (
    delta_load_from_message,
    full_load_from_message,
    load_to_message,
    sample_ages_from_message,
    topology_from_message,
    topology_to_message,
)
from policy_server.api.rpc import CallContext
from policy_server.cluster.state_store import StateStore
from policy_server.policies.dispatch import DispatchView
from policy_server.proto.policy.v1.state_service_pb2 import (
    FullState,
    GetStateRequest,
    GetStateResponse,
    LoadDelta,
    ReportStateRequest,
    ReportStateResponse,
)


class StateServicer:
    """Translates reports for the state store, and the held state for callers."""

    def __init__(self, store: StateStore[DispatchView]) -> None:
        self._store = store

    async def ReportState(  # noqa: N802
        self, request: ReportStateRequest, context: CallContext
    ) -> ReportStateResponse:
        """Replaces the state, or updates its load."""
        age_seconds = figures.SECONDS.check("age_seconds", request.age_seconds)
        match request.WhichOneof("report"):
            case "full":
                version = self._replace(request.full, request.version, age_seconds)
            case "delta":
                version = self._update(request.delta, request.version, age_seconds)
            case _:
                raise InvalidArgumentError("report", None, "send full or delta")
        return ReportStateResponse(version=version)

    async def GetState(self, request: GetStateRequest, context: CallContext) -> GetStateResponse:  # noqa: N802
        """Shows the state the server decides on."""
        held = self._store.held
        if held is None:
            raise NothingCanServeError("no state is held yet; report it with ReportState")
        snapshot = held.snapshot
        pending = held.ledger.replica_pending.sum(axis=0)
        endpoints = snapshot.topology.replicas.endpoints
        return GetStateResponse(
            version=snapshot.version,
            age_seconds=self._store.age_seconds(),
            topology=topology_to_message(snapshot.topology),
            load=load_to_message(snapshot),
            pending_requests={endpoints[row]: float(pending[row]) for row in pending.nonzero()[0].tolist()},
        )

    def _replace(self, report: FullState, version: int, age_seconds: float) -> int:
        topology = topology_from_message(report.topology, "full.topology")
        load = full_load_from_message(report.load, topology, "full.load")
        sample_age_seconds = sample_ages_from_message(
            report.load, topology, "full.load", age_seconds=age_seconds, unlisted=math.inf
        )
        return self._store.replace(
            topology,
            load,
            version=version,
            age_seconds=age_seconds,
            sample_age_seconds=sample_age_seconds,
        )

    def _update(self, report: LoadDelta, version: int, age_seconds: float) -> int:
        base = self._store.base(report.base_version)
        load = delta_load_from_message(report.load, base, "delta.load")
        sample_age_seconds = sample_ages_from_message(
            report.load, base.topology, "delta.load", age_seconds=age_seconds, unlisted=math.nan
        )
        return self._store.update(
            load,
            base_version=report.base_version,
            version=version,
            age_seconds=age_seconds,
            sample_age_seconds=sample_age_seconds,
        )
