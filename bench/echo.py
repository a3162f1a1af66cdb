"""A server that parses a DispatchRequest and answers with the same DispatchResponse, whatever it says.

Asynchronous flavours may answer a ScaleRequest likewise.

It has the stack, the options and the message sizes of the real server and none of its work, so that its latency is
the price of Python, gRPC and the machine alone.
"""

from __future__ import annotations

import asyncio
import gc
import math
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health, health_pb2_grpc

from bench.aio_server import serve_until_stopped
from bench.flavours import Flavour
from policy_server.api.grpc_server import server_options
from policy_server.proto.policy.v1.decision_pb2 import DecisionSource, Provenance
from policy_server.proto.policy.v1.dispatch_service_pb2 import (
    Alternative,
    DispatchRequest,
    DispatchResponse,
)
from policy_server.proto.policy.v1.dispatch_service_pb2_grpc import (
    DispatchServiceServicer,
    add_DispatchServiceServicer_to_server,
)
from policy_server.proto.policy.v1.scaling_service_pb2 import ScaleRequest, ScaleResponse
from policy_server.proto.policy.v1.scaling_service_pb2_grpc import (
    ScalingServiceServicer,
    add_ScalingServiceServicer_to_server,
)

EXAMPLE_RESPONSE = DispatchResponse(
    endpoint="10.0.1.2:8080",
    node="edge-1-node-2",
    score=0.5,
    alternatives=[
        Alternative(endpoint="10.0.3.4:8080", node="edge-3-node-4", score=0.25),
        Alternative(endpoint="10.0.5.6:8080", node="edge-5-node-6", score=0.125),
    ],
    provenance=Provenance(
        policy="kais",
        policy_version="1",
        source=DecisionSource.DECISION_SOURCE_LEARNED,
        snapshot_version=1,
        snapshot_age_seconds=0.1,
    ),
    candidate_count=10,
)

ResponseBuilder = Callable[[], DispatchResponse]


def response_builder(template: DispatchResponse) -> ResponseBuilder:
    """Returns a function that builds a message equal to ``template`` field by field, as a real server would."""
    endpoint, node, score = template.endpoint, template.node, template.score
    alternatives = [(a.endpoint, a.node, a.score) for a in template.alternatives]
    source = template.provenance
    policy, version = source.policy, source.policy_version
    kind, reason = source.source, source.fallback_reason
    snapshot_version, snapshot_age_seconds = source.snapshot_version, source.snapshot_age_seconds
    candidate_count = template.candidate_count

    def build() -> DispatchResponse:
        return DispatchResponse(
            endpoint=endpoint,
            node=node,
            score=score,
            alternatives=[Alternative(endpoint=e, node=n, score=s) for e, n, s in alternatives],
            provenance=Provenance(
                policy=policy,
                policy_version=version,
                source=kind,
                fallback_reason=reason,
                snapshot_version=snapshot_version,
                snapshot_age_seconds=snapshot_age_seconds,
            ),
            candidate_count=candidate_count,
        )

    return build


def with_work(build: ResponseBuilder, work_microseconds: float) -> ResponseBuilder:
    """Keeps the CPU and the interpreter lock busy for about that long before each response.

    The length of a round of work is measured once, here, on the idle process: clocks of CPU time are too coarse to
    end the work by, and wall time would count the time spent waiting for the CPU or the lock.
    """
    if work_microseconds <= 0:
        return build
    rounds = max(1, round(work_microseconds * 1000 / _round_nanoseconds()))

    def busy() -> DispatchResponse:
        for _ in range(rounds):
            _work()
        return build()

    return busy


def _work() -> int:
    return sum(range(50))


def _round_nanoseconds() -> float:
    rounds, fastest = 1000, math.inf
    for _ in range(20):
        started = time.perf_counter_ns()
        for _ in range(rounds):
            _work()
        fastest = min(fastest, (time.perf_counter_ns() - started) / rounds)
    return fastest


class _AsynchronousEcho(DispatchServiceServicer):
    def __init__(self, build: ResponseBuilder) -> None:
        self._build = build

    async def Dispatch(  # noqa: N802
        self, request: DispatchRequest, context: grpc.aio.ServicerContext[DispatchRequest, DispatchResponse]
    ) -> DispatchResponse:
        return self._build()


class _ScalingEcho(ScalingServiceServicer):
    def __init__(self, response: ScaleResponse) -> None:
        self._response = response

    async def Scale(  # noqa: N802
        self, request: ScaleRequest, context: grpc.aio.ServicerContext[ScaleRequest, ScaleResponse]
    ) -> ScaleResponse:
        return self._response


class _ThreadedEcho(DispatchServiceServicer):
    def __init__(self, build: ResponseBuilder) -> None:
        self._build = build

    def Dispatch(  # noqa: N802
        self, request: DispatchRequest, context: grpc.ServicerContext
    ) -> DispatchResponse:
        return self._build()


def serve_echo(
    flavour: Flavour, address: str, build: ResponseBuilder, scale_response: ScaleResponse | None = None
) -> None:
    """Serves until SIGTERM or SIGINT, with the options of the real server and, as there, a settled heap.

    Args:
        flavour: kind of server.
        address: ``host:port`` to listen on.
        build: makes the answers to Dispatch.
        scale_response: answers Scale; None: nothing does.

    Raises:
        RuntimeError: the address cannot be bound.
    """
    if not flavour.asynchronous:
        _serve_threaded(flavour.worker_threads, address, build)
        return

    def add_services(server: grpc.aio.Server) -> None:
        add_DispatchServiceServicer_to_server(_AsynchronousEcho(build), server)  # type: ignore[abstract]
        if scale_response is not None:
            add_ScalingServiceServicer_to_server(_ScalingEcho(scale_response), server)

    serving = serve_until_stopped(address, add_services)
    if flavour.uvloop:
        import uvloop

        uvloop.run(serving)
    else:
        asyncio.run(serving)


def _serve_threaded(worker_threads: int, address: str, build: ResponseBuilder) -> None:
    gc.collect()
    gc.freeze()
    server = grpc.server(ThreadPoolExecutor(worker_threads), options=server_options())
    add_DispatchServiceServicer_to_server(_ThreadedEcho(build), server)  # type: ignore[abstract]
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
    server.add_insecure_port(address)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server.start()
    stop.wait()
    server.stop(grace=None).wait()
