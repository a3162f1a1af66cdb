"""``policy.v1.ScalingService`` over gRPC: messages in, messages out, the logic is below."""

from __future__ import annotations

import math

from policy_server.api.rpc import CallContext
from policy_server.api.scaling_logic import ScalingLogic
from policy_server.api.scaling_messages import message_from_answer, question_from_message
from policy_server.proto.policy.v1.scaling_service_pb2 import ScaleRequest, ScaleResponse


class ScalingServicer:
    """Translates. See the proto file for what the method does.

    Args:
        logic: decides.
    """

    def __init__(self, logic: ScalingLogic) -> None:
        self._logic = logic

    async def Scale(self, request: ScaleRequest, context: CallContext) -> ScaleResponse:  # noqa: N802
        """Recommends CPU and memory of containers."""
        self._logic.enter()
        context.add_done_callback(self._leave)  # type: ignore[arg-type]  # its stub is no protocol
        remaining_seconds = context.time_remaining()
        question = question_from_message(request, self._logic.limits)
        answer = await self._logic.scale(
            question, math.inf if remaining_seconds is None else remaining_seconds
        )
        return message_from_answer(answer)

    def _leave(self, context: CallContext) -> None:
        self._logic.leave()
