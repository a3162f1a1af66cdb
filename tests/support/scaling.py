"""Short forms for tests of scaling through the API."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from policy_server.client.scaling import ContainerRecommendation, recommendations, scale_request
from policy_server.proto.policy.v1.scaling_service_pb2 import ScaleRequest
from policy_server.proto.policy.v1.scaling_service_pb2_grpc import ScalingServiceStub
from tests.support.serving import Serving, running_server

MEBIBYTE = 2**20
ORDINARY: Mapping[str, float] = {
    "cpu_usage_millicores": 600,
    "throttled_fraction": 0.0,
    "memory_usage_bytes": 205 * MEBIBYTE,
    "latency_seconds": 0.02,
    "requests_per_second": 50,
}
"""What the threshold rule leaves at one core and 256 MiB."""
SPECIFIED: Mapping[str, Any] = {
    "qos_class": "Burstable",
    "cpu_request_millicores": 500,
    "cpu_limit_millicores": 1000,
    "memory_request_bytes": 128 * MEBIBYTE,
    "memory_limit_bytes": 256 * MEBIBYTE,
}


def container(
    identity: str = "shop/front-end/server", *, intervals: int = 3, history: Any = None, **fields: Any
) -> dict[str, Any]:
    """A container of one core and 256 MiB, measured the same in every interval.

    Args:
        identity: its id.
        intervals: how often it was measured.
        history: the intervals instead.
        fields: of the interval where that has them, else of the container; None leaves a field out.
    """
    measured = {name: fields.pop(name, value) for name, value in ORDINARY.items()}
    row = {"id": identity, "history": [measured] * intervals if history is None else history}
    return {**row, **SPECIFIED, **fields}


class Scaling:
    """A server of this process, asked to scale."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self.stub = ScalingServiceStub(serving.channel)

    async def ask(self, request: ScaleRequest) -> list[ContainerRecommendation]:
        """The rows of the answer."""
        return recommendations(request, await self.stub.Scale(request))  # type: ignore[misc]

    async def scale(self, *containers: Mapping[str, Any], **arguments: Any) -> list[ContainerRecommendation]:
        """The recommendations for containers, by the threshold rule but for ``arguments``."""
        return await self.ask(scale_request(containers, **{"policy": "threshold", **arguments}))

    async def one(self, **fields: Any) -> ContainerRecommendation:
        """The recommendation for an ordinary container, but for ``fields``."""
        (row,) = await self.scale(container(**fields))
        return row


@asynccontextmanager
async def running_scaling(**settings: Any) -> AsyncIterator[Scaling]:
    """A server with the shipped models, or those that ``settings`` name."""
    async with running_server(**settings) as serving:
        yield Scaling(serving)


def assert_same(first: Sequence[ContainerRecommendation], second: Sequence[ContainerRecommendation]) -> None:
    """The same decisions, up to the last digits of single precision."""
    assert [row.container for row in first] == [row.container for row in second]
    for one, other in zip(first, second, strict=True):
        assert (one.apply, one.hold_reason, one.source) == (other.apply, other.hold_reason, other.source)
        for resource in ("cpu", "memory"):
            here, there = getattr(one, resource), getattr(other, resource)
            assert here.reason == there.reason
            np.testing.assert_allclose(here.target, there.target, rtol=1e-3)
            np.testing.assert_allclose(here.uncapped_target, there.uncapped_target, rtol=1e-5)


def assert_sound(row: ContainerRecommendation) -> None:
    """What holds of every recommendation."""
    for resource in (row.cpu, row.memory):
        if not math.isnan(resource.target):
            assert resource.lower_bound <= resource.target <= resource.upper_bound
        assert resource.reason
    assert row.apply == (row.hold_reason == "")
