"""The server's own part of a Scale call, without gRPC: from bytes to bytes, in a loop on the calling thread."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import numpy as np

from bench.load.errors import LoadError
from policy_server.api.scaling_logic import ScalingLogic
from policy_server.api.scaling_messages import ScalingLimits, message_from_answer, question_from_message
from policy_server.policies.model_calls import GuardSettings
from policy_server.proto.policy.v1.scaling_service_pb2 import ScaleRequest
from policy_server.runtime.bundle import BundleError
from policy_server.runtime.scaling_registry import ScalingRegistry
from policy_server.settings import Settings
from policy_server.telemetry.metrics import ServerMetrics

_WARM_UP_CALLS = 20


def measure_scaling(message: bytes, calls: int, models: Path | None = None) -> float:
    """Median microseconds to parse, check, decide, make safe and serialise.

    Args:
        message: a serialized ScaleRequest.
        calls: counted, after some that are not.
        models: directory of model bundles; None: those shipped with the package.

    Raises:
        LoadError: the models cannot be loaded.
    """
    try:
        budget_seconds = Settings().model_budget_seconds
        registry = ScalingRegistry(models, settings=GuardSettings(budget_seconds=budget_seconds))
    except BundleError as error:
        raise LoadError(f"inside the process: {error}") from None
    logic = ScalingLogic(registry, ServerMetrics(), limits=ScalingLimits())
    return asyncio.run(_median_microseconds(logic, message, calls))


async def _median_microseconds(logic: ScalingLogic, message: bytes, calls: int) -> float:
    durations = []
    for _ in range(_WARM_UP_CALLS + calls):
        started = time.perf_counter_ns()
        question = question_from_message(ScaleRequest.FromString(message), logic.limits)
        message_from_answer(await logic.scale(question)).SerializeToString()
        durations.append(time.perf_counter_ns() - started)
        # Calls of one turn of the loop would be taken for concurrent ones.
        await asyncio.sleep(0)
    return round(float(np.median(durations[_WARM_UP_CALLS:])) / 1000, 1)
