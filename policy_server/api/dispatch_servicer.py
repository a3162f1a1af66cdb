"""``policy.v1.DispatchService`` over gRPC: messages in, messages out, the logic is below."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncIterator

import grpc
import numpy as np

from policy_server.api import figures
from policy_server.api.dispatch_logic import DispatchLogic
from policy_server.api.errors import Count, InvalidArgumentError
from policy_server.api.inline_candidates import snapshot_of_candidates
from policy_server.api.provenance import provenance_message
from policy_server.api.questions import BatchAnswer, BatchQuestion, DispatchAnswer, DispatchQuestion
from policy_server.api.rpc import CallContext, OpenStreams, code_of, details_of
from policy_server.cluster.state_store import StateStore
from policy_server.policies.dispatch import NO_CANDIDATE, DispatchView
from policy_server.proto.policy.v1.dispatch_service_pb2 import (
    Alternative,
    DispatchBatchRequest,
    DispatchBatchResponse,
    DispatchRequest,
    DispatchResponse,
    DispatchStreamRequest,
    DispatchStreamResponse,
    Outcome,
    ReportOutcomeRequest,
    ReportOutcomeResponse,
    StreamError,
)

DEFAULT_ALTERNATIVES = 2
_LOGGER = logging.getLogger(__name__)


class DispatchServicer:
    """Translates. See the proto file for what the methods do.

    Args:
        logic: decides.
        store: takes in outcomes.
        streams: that are open.
    """

    def __init__(self, logic: DispatchLogic, store: StateStore[DispatchView], streams: OpenStreams) -> None:
        self._logic = logic
        self._store = store
        self._streams = streams

    async def Dispatch(self, request: DispatchRequest, context: CallContext) -> DispatchResponse:  # noqa: N802
        """Decides for one request."""
        self._logic.enter()
        context.add_done_callback(self._leave)  # type: ignore[arg-type]  # its stub is no protocol
        remaining_seconds = context.time_remaining()
        return await self._dispatch(request, math.inf if remaining_seconds is None else remaining_seconds)

    async def DispatchBatch(  # noqa: N802
        self, request: DispatchBatchRequest, context: CallContext
    ) -> DispatchBatchResponse:
        """Decides for many requests at once."""
        self._logic.enter()
        context.add_done_callback(self._leave)  # type: ignore[arg-type]  # its stub is no protocol
        answer = self._logic.dispatch_batch(
            BatchQuestion(
                services=request.services,
                access_points=request.access_points,
                service=np.array(request.service, np.int64),
                access_point=np.array(request.access_point, np.int64),
                deadline_seconds=np.array(request.deadline_seconds, np.float64),
                payload_bytes=np.array(request.payload_bytes, np.float64),
                policy=request.policy,
                alternatives=request.max_alternatives,
                seed=request.seed if request.HasField("seed") else None,
            )
        )
        return _batch_response(answer)

    async def DispatchStream(  # noqa: N802
        self, requests: AsyncIterator[DispatchStreamRequest], context: CallContext
    ) -> None:
        """Decides for the requests of a stream, in their order; an error of one does not end the stream."""
        while (request := await context.read()) is not grpc.aio.EOF:
            answer = DispatchStreamResponse(correlation_id=request.correlation_id)
            try:
                self._logic.enter()
                try:
                    answer.response.CopyFrom(await self._dispatch(request.request, math.inf))
                finally:
                    self._logic.leave()
            except Exception as error:
                code = code_of(error)
                if code is grpc.StatusCode.INTERNAL:
                    _LOGGER.exception("a request of a stream failed")
                answer.error.CopyFrom(StreamError(code=code.value[0], message=details_of(error)))
            await self._streams.write(context, answer)

    async def ReportOutcome(  # noqa: N802
        self, request: ReportOutcomeRequest, context: CallContext
    ) -> ReportOutcomeResponse:
        """Takes in how requests ended, all or none of them."""
        limit = self._logic.limits.batch_requests
        if len(request.outcomes) > limit:
            raise InvalidArgumentError(
                "outcomes",
                Count(len(request.outcomes), "outcomes"),
                f"at most {limit} are accepted; send fewer",
            )
        for row, outcome in enumerate(request.outcomes):
            _check_outcome(row, outcome)
        accepted = sum(
            self._store.settle(
                outcome.endpoint,
                outcome.access_point,
                outcome.latency_seconds if outcome.HasField("latency_seconds") else None,
            )
            for outcome in request.outcomes
        )
        return ReportOutcomeResponse(accepted=accepted, unknown=len(request.outcomes) - accepted)

    def _leave(self, context: CallContext) -> None:
        self._logic.leave()

    async def _dispatch(self, request: DispatchRequest, remaining_seconds: float) -> DispatchResponse:
        question = DispatchQuestion(
            request.service,
            request.access_point,
            request.deadline_seconds,
            request.payload_bytes,
            request.policy,
            request.endpoint_subset.endpoints if request.HasField("endpoint_subset") else None,
            request.max_alternatives if request.HasField("max_alternatives") else DEFAULT_ALTERNATIVES,
            request.seed if request.HasField("seed") else None,
        )
        if not request.HasField("inline_candidates"):
            return _response(await self._logic.dispatch(question, remaining_seconds))
        snapshot = snapshot_of_candidates(
            request.inline_candidates,
            service=request.service,
            limit=self._logic.limits.inline_candidates,
            now_seconds=time.monotonic(),
        )
        nodes = [candidate.node for candidate in request.inline_candidates.candidates]
        return _response(self._logic.dispatch_inline(question, snapshot, nodes, remaining_seconds))


def _response(answer: DispatchAnswer) -> DispatchResponse:
    return DispatchResponse(
        endpoint=answer.endpoint,
        node=answer.node,
        score=answer.score,
        alternatives=[Alternative(endpoint=e, node=n, score=s) for e, n, s in answer.alternatives],
        provenance=provenance_message(answer.origin, answer.snapshot_version, answer.snapshot_age_seconds),
        candidate_count=answer.candidate_count,
    )


def _batch_response(answer: BatchAnswer) -> DispatchBatchResponse:
    decisions = answer.decisions
    chosen = np.column_stack((decisions.replica, decisions.alternatives))
    rows, indices = np.unique(chosen, return_inverse=True)
    offset = int(len(rows) > 0 and rows[0] == NO_CANDIDATE)
    indices = indices.reshape(chosen.shape) - offset
    listed = decisions.alternatives != NO_CANDIDATE
    return DispatchBatchResponse(
        endpoints=[answer.endpoints[row] for row in rows[offset:].tolist()],
        endpoint=indices[:, 0].tolist(),
        score=decisions.score.tolist(),
        alternative_count=listed.sum(axis=1).tolist(),
        alternative=indices[:, 1:][listed].tolist(),
        provenance=provenance_message(answer.origin, answer.snapshot_version, answer.snapshot_age_seconds),
    )


def _check_outcome(row: int, outcome: Outcome) -> None:
    if outcome.HasField("latency_seconds"):
        figures.LATENCY_SECONDS.check(f"outcomes[{row}].latency_seconds", outcome.latency_seconds)
