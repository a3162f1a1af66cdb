"""Bad input over gRPC: the documented status, a message that names the field and the value, a server unharmed."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
import pytest_asyncio

from policy_server.cluster.snapshot import ReplicaState
from policy_server.proto.policy.v1.dispatch_service_pb2 import (
    Candidate,
    DispatchBatchRequest,
    EndpointSubset,
    InlineCandidates,
    Outcome,
    ReportOutcomeRequest,
    ServiceProfile,
)
from policy_server.proto.policy.v1.state_pb2 import (
    AccessPoint,
    AccessPointLoad,
    Link,
    LinkLoad,
    Load,
    Node,
    NodeLoad,
    Replica,
    ReplicaLoad,
    Service,
    ServiceRate,
)
from policy_server.proto.policy.v1.state_service_pb2 import LoadDelta, ReportStateRequest
from tests.support.serving import (
    Serving,
    equal_endpoints,
    error_of,
    full_report,
    graded_endpoints,
    running_server,
)
from tests.support.systems import Endpoint, one_service_snapshot

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_A_FIGURE = (math.nan, math.inf, -math.inf, -1.0, 1e300)
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def serving() -> AsyncIterator[Serving]:
    async with running_server(graded_endpoints(3)) as serving:
        yield serving
        # Whatever was sent, the server is unharmed and decides as before.
        assert (await serving.dispatch()).provenance.snapshot_version == 1


def inline(*candidates: Candidate, **profile: float) -> dict[str, Any]:
    listed = InlineCandidates(candidates=candidates)
    if profile:
        listed.service_profile.CopyFrom(ServiceProfile(**profile))
    return {"inline_candidates": listed}


async def assert_refused(call: Any, code: grpc.StatusCode, *fragments: str) -> None:
    error = await error_of(call)
    assert error.code() is code, error
    for fragment in fragments:
        assert fragment in error.details()


@pytest.mark.parametrize(
    ("fields", "code", "fragments"),
    [
        ({"service": "nobody"}, INVALID, ["service: 'nobody'", "version 1"]),
        ({"service": ""}, INVALID, ["service: ''"]),
        ({"access_point": "nowhere"}, INVALID, ["access_point: 'nowhere'"]),
        ({"policy": "wishful"}, grpc.StatusCode.NOT_FOUND, ["'wishful'", "earliest-completion"]),
        ({"max_alternatives": 17}, INVALID, ["max_alternatives: 17", "16"]),
        ({"service": "x" * 100_000}, INVALID, ["service: 'xxx", "..."]),
        ({"endpoint_subset": EndpointSubset()}, grpc.StatusCode.UNAVAILABLE, ["endpoint_subset"]),
        (
            {"endpoint_subset": EndpointSubset(endpoints=["10.9.9.9:80"])},
            grpc.StatusCode.UNAVAILABLE,
            ["0 host the service"],
        ),
        (inline(), grpc.StatusCode.UNAVAILABLE, ["inline_candidates.candidates: empty"]),
        (inline(Candidate()), INVALID, ["candidates[0].endpoint: ''"]),
        (inline(Candidate(endpoint="a"), Candidate(endpoint="a")), INVALID, ["candidates[1].endpoint: 'a'"]),
        (inline(Candidate(endpoint="a", concurrency=0)), INVALID, ["candidates[0].concurrency: 0"]),
        (inline(Candidate(endpoint="a", speed=0)), INVALID, ["candidates[0].speed: 0"]),
        (inline(Candidate(endpoint="a", cpu_millicores=0)), INVALID, ["candidates[0].cpu_millicores: 0"]),
        (
            inline(
                Candidate(endpoint="a", node="n", cpu_used_millicores=1),
                Candidate(endpoint="b", node="n", cpu_used_millicores=2),
            ),
            INVALID,
            ["candidates[1].cpu_used_millicores: 2", "row 0"],
        ),
        (
            inline(Candidate(endpoint="a", node="n"), Candidate(endpoint="b", node="n", cloud=True)),
            INVALID,
            ["candidates[1].cloud"],
        ),
    ],
)
async def test_dispatch(
    serving: Serving, fields: dict[str, Any], code: grpc.StatusCode, fragments: list[str]
) -> None:
    await assert_refused(serving.dispatch(**fields), code, *fragments)


@pytest.mark.parametrize("figure", NOT_A_FIGURE)
@pytest.mark.parametrize(
    ("path", "build"),
    [
        ("deadline_seconds", lambda x: {"deadline_seconds": x}),
        ("payload_bytes", lambda x: {"payload_bytes": x}),
        *(
            (
                f"inline_candidates.candidates[1].{field}",
                lambda x, field=field: inline(Candidate(endpoint="a"), Candidate(endpoint="b", **{field: x})),
            )
            for field in (
                "cpu_millicores",
                "cpu_used_millicores",
                "memory_bytes",
                "memory_used_bytes",
                "speed",
                "queued",
                "running",
                "latency_seconds",
                "network_delay_seconds",
                "bandwidth_bytes_per_second",
            )
        ),
        *(
            (
                f"inline_candidates.service_profile.{field}",
                lambda x, field=field: inline(Candidate(endpoint="a"), **{field: x}),
            )
            for field in ("cpu_millicores", "execution_seconds")
        ),
    ],
)
async def test_dispatch_figures(
    serving: Serving, path: str, build: Callable[[float], dict[str, Any]], figure: float
) -> None:
    await assert_refused(serving.dispatch(**build(figure)), INVALID, f"{path}: {figure}")


def batch(**fields: Any) -> DispatchBatchRequest:
    columns = {"services": ["service"], "access_points": ["ap-0"], "service": [0, 0], "access_point": [0, 0]}
    return DispatchBatchRequest(**(columns | fields))


@pytest.mark.parametrize(
    ("request_", "code", "fragment"),
    [
        (batch(services=["service", "nobody"]), INVALID, "services[1]: 'nobody'"),
        (batch(access_points=["nowhere"]), INVALID, "access_points[0]: 'nowhere'"),
        (batch(service=[0, 1]), INVALID, "service[1]: 1"),
        (batch(access_point=[0, 2**32 - 1]), INVALID, "access_point[1]: 4294967295"),
        (batch(access_point=[0]), INVALID, "access_point: 1 values"),
        (batch(deadline_seconds=[1, 1, 1]), INVALID, "deadline_seconds: 3 values"),
        (batch(payload_bytes=[1]), INVALID, "payload_bytes: 1 values"),
        (batch(max_alternatives=17), INVALID, "max_alternatives: 17"),
        (batch(policy="wishful"), grpc.StatusCode.NOT_FOUND, "'wishful'"),
        (batch(service=[0] * 4097, access_point=[0] * 4097), INVALID, "service: 4097 requests; at most 4096"),
        *((batch(deadline_seconds=[1, x]), INVALID, f"deadline_seconds[1]: {x}") for x in NOT_A_FIGURE[:4]),
        *((batch(payload_bytes=[1, x]), INVALID, f"payload_bytes[1]: {x}") for x in NOT_A_FIGURE[:4]),
    ],
)
async def test_batch(
    serving: Serving, request_: DispatchBatchRequest, code: grpc.StatusCode, fragment: str
) -> None:
    await assert_refused(serving.dispatching.DispatchBatch(request_), code, fragment)


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        (lambda t: t.nodes.add(name="node-0", access_point="ap-0"), "full.topology.nodes[3].name: 'node-0'"),
        (lambda t: t.nodes.add(access_point="ap-0"), "full.topology.nodes[3].name: ''"),
        (
            lambda t: t.nodes.append(Node(name="n", access_point="x", cpu_millicores=1, memory_bytes=1)),
            "full.topology.nodes[3].access_point: 'x'",
        ),
        (
            lambda t: t.replicas.append(Replica(endpoint="e", service="x", node="node-0")),
            "full.topology.replicas[3].service: 'x'",
        ),
        (
            lambda t: t.replicas.append(Replica(endpoint="e", service="service", node="x")),
            "full.topology.replicas[3].node: 'x'",
        ),
        (
            lambda t: t.replicas.append(
                Replica(endpoint="e", service="service", node="node-0", concurrency=0)
            ),
            "full.topology.replicas[3].concurrency: 0",
        ),
        (lambda t: t.access_points.add(name="ap-0"), "full.topology.access_points[3].name: 'ap-0'"),
        (lambda t: t.services.add(name="service"), "full.topology.services[1].name: 'service'"),
        (lambda t: t.services.add(name="s"), "full.topology.services[1].cpu_millicores: 0"),
        (
            lambda t: t.links.append(Link(source="ap-0", target="x", bandwidth_bytes_per_second=1)),
            "full.topology.links[6].target: 'x'",
        ),
        (
            lambda t: t.links.append(Link(source="ap-0", target="ap-0", bandwidth_bytes_per_second=1)),
            "full.topology.links[6].target: 'ap-0'; joins an access point to itself",
        ),
        (
            lambda t: t.links.append(Link(source="ap-0", target="ap-1", bandwidth_bytes_per_second=1)),
            "full.topology.links[6].target: 'ap-1'; the link is listed twice",
        ),
        (
            lambda t: setattr(t, "local_delay_seconds", math.nan),
            "full.topology.local_delay_seconds: nan",
        ),
        (lambda t: t.ClearField("access_points"), "full.topology.links[0].source: 'ap-0'"),
    ],
)
async def test_topology(serving: Serving, change: Callable[[Any], object], fragment: str) -> None:
    report = full_report(equal_endpoints(3))
    change(report.full.topology)
    await assert_refused(serving.state.ReportState(report), INVALID, fragment)


async def test_topology_too_large_for_its_tables(serving: Serving) -> None:
    report = full_report(equal_endpoints(3))
    report.full.topology.access_points.extend([AccessPoint(name=f"more-{row}") for row in range(4094)])
    fragment = "full.topology.access_points: 4097 access points; at most 4096"
    await assert_refused(serving.state.ReportState(report), INVALID, fragment)
    del report.full.topology.access_points[2048:]
    report.full.topology.services.extend([Service(name=f"more-{row}") for row in range(999)])
    fragment = "full.topology.services: 2048000 access points x services; at most 2000000"
    await assert_refused(serving.state.ReportState(report), INVALID, fragment)


@pytest.mark.parametrize("figure", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize(
    ("rows", "field"),
    [
        *(("nodes", field) for field in ("cpu_millicores", "memory_bytes", "speed")),
        *(
            ("services", field)
            for field in (
                "cpu_millicores",
                "execution_seconds",
                "memory_bytes",
                "image_bytes",
                "cold_start_seconds",
                "deadline_seconds",
            )
        ),
        *(("links", field) for field in ("delay_seconds", "bandwidth_bytes_per_second")),
    ],
)
async def test_topology_figures(serving: Serving, rows: str, field: str, figure: float) -> None:
    report = full_report(equal_endpoints(3))
    setattr(getattr(report.full.topology, rows)[0], field, figure)
    await assert_refused(
        serving.state.ReportState(report), INVALID, f"full.topology.{rows}[0].{field}: {figure}"
    )


BAD_LOADS = [
    (Load(nodes=[NodeLoad(name="x")]), "nodes[0].name: 'x'"),
    (Load(nodes=[NodeLoad(name="node-0"), NodeLoad(name="node-0")]), "nodes[1].name: 'node-0'"),
    (Load(replicas=[ReplicaLoad(endpoint="x")]), "replicas[0].endpoint: 'x'"),
    (Load(replicas=[ReplicaLoad(endpoint="10.0.0.0:8080", state=99)]), "replicas[0].state: 99"),  # type: ignore[arg-type]
    (Load(access_points=[AccessPointLoad(name="x")]), "access_points[0].name: 'x'"),
    (
        Load(access_points=[AccessPointLoad(name="ap-0", arrival_rates=[ServiceRate(service="x")])]),
        "access_points[0].arrival_rates[0].service: 'x'",
    ),
    (Load(links=[LinkLoad(source="ap-0", target="ap-0")]), "links[0].target: 'ap-0'"),
    (Load(links=[LinkLoad(source="x", target="ap-0")]), "links[0].source: 'x'"),
    (
        Load(links=[LinkLoad(source="ap-0", target="ap-1"), LinkLoad(source="ap-0", target="ap-1")]),
        "links[1].target: 'ap-1'; the link is listed twice",
    ),
    *(
        (load, f"{path}: {figure}")
        for figure in (math.nan, math.inf, -1.0)
        for load, path in (
            (
                Load(nodes=[NodeLoad(name="node-0", cpu_used_millicores=figure)]),
                "nodes[0].cpu_used_millicores",
            ),
            (Load(nodes=[NodeLoad(name="node-0", memory_used_bytes=figure)]), "nodes[0].memory_used_bytes"),
            (Load(replicas=[ReplicaLoad(endpoint="10.0.0.0:8080", queued=figure)]), "replicas[0].queued"),
            (Load(replicas=[ReplicaLoad(endpoint="10.0.0.0:8080", running=figure)]), "replicas[0].running"),
            (
                Load(replicas=[ReplicaLoad(endpoint="10.0.0.0:8080", latency_seconds=figure)]),
                "replicas[0].latency_seconds",
            ),
            (Load(access_points=[AccessPointLoad(name="ap-0", queued=figure)]), "access_points[0].queued"),
            (
                Load(
                    access_points=[
                        AccessPointLoad(
                            name="ap-0",
                            arrival_rates=[ServiceRate(service="service", requests_per_second=figure)],
                        )
                    ]
                ),
                "access_points[0].arrival_rates[0].requests_per_second",
            ),
            (
                Load(links=[LinkLoad(source="ap-0", target="ap-1", backlog_bytes=figure)]),
                "links[0].backlog_bytes",
            ),
        )
    ),
]


@pytest.mark.parametrize(("load", "fragment"), BAD_LOADS)
async def test_load_of_a_delta(serving: Serving, load: Load, fragment: str) -> None:
    report = ReportStateRequest(delta=LoadDelta(base_version=1, load=load))
    await assert_refused(serving.state.ReportState(report), INVALID, f"delta.load.{fragment}")


@pytest.mark.parametrize(("load", "fragment"), BAD_LOADS[::5])
async def test_load_of_a_full_report(serving: Serving, load: Load, fragment: str) -> None:
    report = full_report(equal_endpoints(3))
    report.full.load.CopyFrom(load)
    await assert_refused(serving.state.ReportState(report), INVALID, f"full.load.{fragment}")


@pytest.mark.parametrize("age", NOT_A_FIGURE)
async def test_age_of_a_report(serving: Serving, age: float) -> None:
    report = full_report(equal_endpoints(3), age_seconds=age)
    await assert_refused(serving.state.ReportState(report), INVALID, f"age_seconds: {age}")


async def test_report_without_content(serving: Serving) -> None:
    await assert_refused(serving.state.ReportState(ReportStateRequest()), INVALID, "report: not set")


@pytest.mark.parametrize("figure", NOT_A_FIGURE)
async def test_outcomes_are_taken_in_all_or_none(serving: Serving, figure: float) -> None:
    good = Outcome(endpoint="10.0.0.0:8080", access_point="ap-0", latency_seconds=9.0, success=True)
    bad = Outcome(endpoint="10.0.0.0:8080", access_point="ap-0", latency_seconds=figure)
    call = serving.dispatching.ReportOutcome(ReportOutcomeRequest(outcomes=[good, bad]))
    await assert_refused(call, INVALID, f"outcomes[1].latency_seconds: {figure}")
    assert serving.server.store.held is not None
    latency = serving.server.store.held.snapshot.load.replica_latency_seconds
    assert math.isnan(latency[0])


async def test_nobody_is_ready() -> None:
    starting = one_service_snapshot(
        [Endpoint(state=ReplicaState.STARTING), Endpoint(state=ReplicaState.DRAINING)]
    )
    async with running_server(starting) as serving:
        await assert_refused(
            serving.dispatch(), grpc.StatusCode.UNAVAILABLE, "2 host the service", "0 of them are ready"
        )


async def test_no_state_yet() -> None:
    async with running_server() as serving:
        for call in (serving.dispatch(), serving.dispatching.DispatchBatch(batch())):
            await assert_refused(call, grpc.StatusCode.UNAVAILABLE, "no state is held yet", "ReportState")


async def test_largest_number_of_inline_candidates_and_one_more() -> None:
    candidates = [
        Candidate(endpoint=f"10.0.{row // 256}.{row % 256}:80", queued=row) for row in range(10_001)
    ]
    async with running_server() as serving:
        answer = await serving.dispatch(**inline(*candidates[:-1]))
        assert (answer.endpoint, answer.candidate_count) == ("10.0.0.0:80", 10_000)
        await assert_refused(serving.dispatch(**inline(*candidates)), INVALID, "10001 candidates", "10000")


async def test_message_of_five_mebibytes(serving: Serving) -> None:
    call = serving.dispatch(service="x" * (5 * 2**20))
    await assert_refused(call, grpc.StatusCode.RESOURCE_EXHAUSTED)


async def test_message_of_five_mebibytes_where_it_is_allowed() -> None:
    async with running_server(graded_endpoints(2), max_message_bytes=6 * 2**20) as serving:
        await assert_refused(serving.dispatch(service="x" * (5 * 2**20)), INVALID, "service: 'xxx")


async def test_bytes_that_are_no_message(serving: Serving) -> None:
    for method in ("policy.v1.DispatchService/Dispatch", "policy.v1.StateService/ReportState"):
        call = serving.channel.unary_unary(f"/{method}")(b"\xff\xff\xff")
        await assert_refused(call, INVALID)


async def test_bytes_that_are_no_message_in_a_stream(serving: Serving) -> None:
    call = serving.channel.stream_stream("/policy.v1.DispatchService/DispatchStream")()
    await call.write(b"\xff\xff\xff")
    await assert_refused(call.read(), INVALID)


async def test_unknown_method(serving: Serving) -> None:
    call = serving.channel.unary_unary("/policy.v1.DispatchService/Guess")(b"")
    await assert_refused(call, grpc.StatusCode.UNIMPLEMENTED)
