"""``policy.v1.OrchestrationService`` over gRPC: messages in, messages out, the logic is below."""

from __future__ import annotations

import math
import time

from policy_server.api import figures
from policy_server.api.messages import full_load_from_message, topology_from_message
from policy_server.api.orchestration_logic import OrchestrationLogic, too_many_nodes
from policy_server.api.orchestration_questions import (
    AnsweredAction,
    OrchestrationAnswer,
    OrchestrationQuestion,
)
from policy_server.api.provenance import provenance_message
from policy_server.api.rpc import CallContext
from policy_server.cluster.actions import AddReplica
from policy_server.cluster.snapshot import Snapshot, Topology
from policy_server.proto.policy.v1 import orchestration_service_pb2
from policy_server.proto.policy.v1.orchestration_service_pb2 import (
    ExpectedEffect,
    OrchestrateRequest,
    OrchestrateResponse,
    OrchestrationAction,
)
from policy_server.proto.policy.v1.state_service_pb2 import FullState


class OrchestrationServicer:
    """Translates. See the proto file for what the method does."""

    def __init__(self, logic: OrchestrationLogic) -> None:
        self._logic = logic

    async def Orchestrate(  # noqa: N802
        self, request: OrchestrateRequest, context: CallContext
    ) -> OrchestrateResponse:
        """Decides on one system."""
        age_seconds = figures.SECONDS.check("age_seconds", request.age_seconds)
        read_state = None
        if request.HasField("inline_state"):
            state, limit, now_seconds = request.inline_state, self._logic.limits.nodes, time.monotonic()
            # Read where the decision is made: a large state takes long.
            read_state = lambda: snapshot_of_state(  # noqa: E731
                state, limit=limit, taken_at_seconds=now_seconds - age_seconds
            )
        question = OrchestrationQuestion(
            read_state=read_state,
            cluster=request.cluster,
            policy=request.policy,
            maximum_actions=request.max_actions if request.HasField("max_actions") else None,
            protected_services=request.protected_services,
            dry_run=request.dry_run,
            seed=request.seed if request.HasField("seed") else None,
        )
        remaining_seconds = context.time_remaining()
        answer = await self._logic.orchestrate(
            question, math.inf if remaining_seconds is None else remaining_seconds
        )
        return _response(answer)


def snapshot_of_state(state: FullState, *, limit: int, taken_at_seconds: float) -> Snapshot:
    """The snapshot a request carries.

    Args:
        state: of the request.
        limit: on nodes.
        taken_at_seconds: when the load was true.

    Raises:
        InvalidArgumentError: naming the field, its value and the remedy.
        SnapshotError: topology and load contradict each other.
    """
    if len(state.topology.nodes) > limit:
        raise too_many_nodes("inline_state.topology.nodes", len(state.topology.nodes), limit)
    topology = topology_from_message(state.topology, "inline_state.topology")
    load = full_load_from_message(state.load, topology, "inline_state.load")
    return Snapshot(topology, load, taken_at_seconds=taken_at_seconds)


def _response(answer: OrchestrationAnswer) -> OrchestrateResponse:
    return OrchestrateResponse(
        actions=[_action(action, answer.topology) for action in answer.actions],
        provenance=provenance_message(answer.origin, answer.snapshot_version, answer.snapshot_age_seconds),
    )


def _action(action: AnsweredAction, topology: Topology) -> OrchestrationAction:
    planned, effect = action.planned, action.effect
    if isinstance(planned.action, AddReplica):
        kind, endpoint = orchestration_service_pb2.ACTION_KIND_ADD, ""
    else:
        kind = orchestration_service_pb2.ACTION_KIND_DELETE
        if planned.drain_first:
            kind = orchestration_service_pb2.ACTION_KIND_DRAIN
        endpoint = topology.replicas.endpoints[planned.action.replica]
    return OrchestrationAction(
        kind=kind,
        node=topology.nodes.names[planned.node],
        service=topology.services.names[planned.service],
        endpoint=endpoint,
        score=planned.score,
        expected_effect=ExpectedEffect(
            node_memory_bytes=planned.node_memory_bytes,
            node_utilisation_before=effect.utilisation_before,
            node_utilisation_after=effect.utilisation_after,
            excess_demand_change_millicores=effect.excess_demand_change_millicores,
            replicas=planned.replicas,
            pulled_bytes=effect.pulled_bytes,
        ),
        feasibility=action.feasibility,
    )
