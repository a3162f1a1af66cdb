"""What Scale refuses, and in which words: the field, its value and the remedy."""

from __future__ import annotations

import math
from collections.abc import Callable

import grpc

from policy_server.client.scaling import scale_request
from policy_server.proto.policy.v1.scaling_service_pb2 import ScaleRequest
from tests.support.scaling import container, running_scaling
from tests.support.serving import error_of


def change(request: ScaleRequest, field: str, place: int, value: float) -> None:
    message = request
    *path, name = field.split(".")
    for part in path:
        message = getattr(message, part)
    column = getattr(message, name)
    if not column:
        column.extend([value] * len(request.containers.id))
    column[place] = value


NUMBER = "must be a finite number from"
CASES: list[tuple[Callable[[ScaleRequest], object], str]] = [
    (
        lambda r: change(r, "history.cpu_usage_millicores", 4, -1.0),
        f"history.cpu_usage_millicores[4]: -1.0; {NUMBER} 0 to 1e+09, or NaN where not known",
    ),
    (
        lambda r: change(r, "history.memory_usage_bytes", 0, math.inf),
        f"history.memory_usage_bytes[0]: inf; {NUMBER} 0 to 1e+18, or NaN where not known",
    ),
    (
        lambda r: change(r, "history.throttled_fraction", 0, 1.5),
        f"history.throttled_fraction[0]: 1.5; {NUMBER} 0 to 1, or NaN where not known",
    ),
    (
        lambda r: change(r, "containers.cpu_limit_millicores", 1, 0.0),
        f"containers.cpu_limit_millicores[1]: 0.0; {NUMBER} 0.001 to 1e+09, or NaN where not known",
    ),
    (
        lambda r: change(r, "containers.sample_age_seconds", 1, -2.0),
        f"containers.sample_age_seconds[0]: -2.0; {NUMBER} 0 to 1e+09, or NaN where not known",
    ),
    (
        lambda r: change(r, "nodes.cpu_millicores", 0, math.nan),
        f"nodes.cpu_millicores[0]: nan; {NUMBER} 0.001 to 1e+09, or infinity where not known",
    ),
    (
        lambda r: change(r, "nodes.memory_bytes", 0, 0.0),
        f"nodes.memory_bytes[0]: 0.0; {NUMBER} 1 to 1e+18, or infinity where not known",
    ),
    (
        lambda r: change(r, "applications.latency_objective_seconds", 0, math.nan),
        f"applications.latency_objective_seconds[0]: nan; {NUMBER} 1e-06 to 1e+06",
    ),
    (
        lambda r: change(r, "containers.node", 1, 7),
        "containers.node[1]: 7; must be an index into nodes.name, which has 1 names",
    ),
    (
        lambda r: change(r, "containers.application", 0, 1),
        "containers.application[0]: 1; must be an index into applications.name, which has 1 names",
    ),
    (
        lambda r: r.containers.ClearField("node"),
        "containers.node: not set; give one per container, an index into nodes.name",
    ),
    (
        lambda r: r.nodes.ClearField("cpu_millicores"),
        "nodes.cpu_millicores: not set; give one per name",
    ),
    (
        lambda r: r.nodes.ClearField("name"),
        "nodes.cpu_millicores: 1 values; send 0, one per name, or none",
    ),
    (
        lambda r: change(r, "containers.id", 1, "a"),  # type: ignore[arg-type]
        "containers.id[1]: 'a'; appears at 0 already; names must be unique",
    ),
    (
        lambda r: change(r, "containers.id", 1, ""),  # type: ignore[arg-type]
        "containers.id[1]: ''; must not be empty",
    ),
    (
        lambda r: r.nodes.name.append(r.nodes.name[0]),
        "nodes.name[1]: 'edge'; appears at 0 already; names must be unique",
    ),
    (
        lambda r: r.containers.qos_class.pop(),
        "containers.qos_class: 1 values; send 2, one per container, or none",
    ),
    (
        lambda r: change(r, "containers.qos_class", 1, 9),
        "containers.qos_class[1]: 9; must be from 0 to 3",
    ),
    (
        lambda r: change(r, "containers.qos_class", 1, 1),
        "containers.qos_class[1]: 'GUARANTEED'; the container's requests and limits are those of a BURSTABLE pod; "
        "send what its pod specifies",
    ),
    (
        lambda r: r.history.latency_seconds.append(0.0),
        "history.latency_seconds: 7 values; send 6, one per container and interval of 3, or none",
    ),
    (
        lambda r: setattr(r.history, "intervals", 2),
        "history.cpu_usage_millicores: 6 values; send 4, one per container and interval of 2, or none",
    ),
    (
        lambda r: setattr(r.history, "intervals", 257),
        "history.intervals: 257; at most 256 are accepted; send the newest",
    ),
    (
        lambda r: r.history.oom_kills.extend([0, 0, 0, 0, 1, 0]),
        "history.memory_limit_bytes: not set; give one per container and interval, so that it is known which "
        "limit was too small when oom_kills counted",
    ),
    (
        lambda r: r.last_resizes.status.extend([0, 4]),
        "last_resizes.failures: not set; give one per container, for status[1] is ERROR",
    ),
    (
        lambda r: r.last_resizes.status.extend([0, 5]),
        "last_resizes.status[1]: 5; must be from 0 to 4",
    ),
    (
        lambda r: (
            change(r, "containers.largest_cpu_millicores", 0, 400.0),
            change(r, "containers.smallest_cpu_millicores", 0, 500.0),
        ),
        "containers.smallest_cpu_millicores[0]: 500.0; must not be above containers.largest_cpu_millicores[0]",
    ),
    (
        lambda r: change(r, "containers.largest_memory_bytes", 0, 1000.0),
        f"containers.largest_memory_bytes[0]: 1000.0; {NUMBER} 1.04858e+06 to 1e+18, or NaN where not known",
    ),
    (lambda r: setattr(r, "economy", 1.5), f"economy: 1.5; {NUMBER} 0 to 1"),
    (lambda r: setattr(r, "economy", math.nan), f"economy: nan; {NUMBER} 0 to 1"),
]


def sound_request() -> ScaleRequest:
    return scale_request(
        [container("a", node="edge", application="shop"), container("b", node="edge", application="shop")],
        nodes=[{"name": "edge", "cpu_millicores": 4000, "memory_bytes": 8e9}],
        applications=[{"name": "shop", "latency_objective_seconds": 0.2}],
    )


async def test_bad_fields_are_named_with_value_and_remedy() -> None:
    async with running_scaling() as scaling:
        await scaling.ask(sound_request())
        for spoil, details in CASES:
            request = sound_request()
            spoil(request)
            error = await error_of(scaling.stub.Scale(request))
            assert (error.code(), error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, details)
        await scaling.ask(sound_request())


async def test_more_containers_than_are_accepted() -> None:
    async with running_scaling(max_scaling_containers=2) as scaling:
        assert len(await scaling.scale(container("a"), container("b"))) == 2
        error = await error_of(scaling.scale(container("a"), container("b"), container("c")))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == "containers.id: 3 containers; at most 2 are accepted; send fewer"


async def test_bytes_that_are_no_message() -> None:
    async with running_scaling() as scaling:
        call = scaling.serving.channel.unary_unary("/policy.v1.ScalingService/Scale")
        error = await error_of(call(b"\xff\xff\xff"))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
