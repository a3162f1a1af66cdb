"""A real OpenTelemetry collector interface: metrics and spans arrive; one that is away changes nothing."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from policy_server.policies.onnx_dispatch import OnnxDispatch
from policy_server.server import PolicyServer
from policy_server.settings import Settings
from policy_server.telemetry.export import TelemetryError
from tests.support.models import write_example_bundle
from tests.support.serving import STEADY, error_of, graded_endpoints, question, running_server

TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"


class Collector(MetricsServiceServicer, TraceServiceServicer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.traces: list[ExportTraceServiceRequest] = []
        self.Export = self._export  # type: ignore[method-assign, assignment]

    async def _export(self, request: Any, context: Any) -> Any:
        if isinstance(request, ExportMetricsServiceRequest):
            self.metrics.append(request)
            return ExportMetricsServiceResponse()
        self.traces.append(request)
        return ExportTraceServiceResponse()

    def spans(self) -> list[Any]:
        return [
            span
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def metric(self, name: str) -> Any:
        (metric,) = [
            metric
            for resource in self.metrics[-1].resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
        ]
        return metric


@pytest_asyncio.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    server = grpc.aio.server()
    collector = Collector()
    add_MetricsServiceServicer_to_server(collector, server)
    add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "200")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_on")
    yield collector
    await server.stop(None)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.02)


async def test_metrics_arrive(collector: Collector) -> None:
    async with running_server(graded_endpoints(3), flush_seconds=0.0) as serving:
        for _ in range(4):
            await serving.dispatch()
        received = len(collector.metrics)
        await until(lambda: len(collector.metrics) > received + 1)
        calls = collector.metric("rpc.server.call.duration")
        points = [
            point
            for point in calls.histogram.data_points
            if any(a.value.string_value == "policy.v1.DispatchService/Dispatch" for a in point.attributes)
        ]
    assert calls.unit == "s"
    (point,) = points
    assert point.count == sum(point.bucket_counts) == 4
    assert len(point.explicit_bounds) == len(point.bucket_counts) - 1
    resource = {
        a.key: a.value.string_value for a in collector.metrics[-1].resource_metrics[0].resource.attributes
    }
    assert resource["service.name"] == "policy-server"
    assert resource["service.instance.id"]


async def test_fallback_makes_a_span_of_the_callers_trace(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def score(*_: object) -> object:
        raise RuntimeError("broken")

    write_example_bundle(tmp_path)
    monkeypatch.setattr(OnnxDispatch, "score", score)
    async with running_server(graded_endpoints(3), models=tmp_path, flush_seconds=0.0) as serving:
        metadata = (("traceparent", TRACEPARENT),)
        answer = await serving.dispatching.Dispatch(question(), metadata=metadata)
        assert answer.provenance.policy == "earliest-completion"
        await serving.dispatch(policy="earliest-completion")
        await until(collector.spans)
    (span,) = collector.spans()
    assert span.name == "policy.fallback"
    assert span.trace_id.hex() == TRACE
    assert [event.name for event in span.events] == ["exception"]
    attributes = {a.key: a.value for a in span.attributes}
    assert attributes["policy.name"].string_value == "kais"
    assert attributes["policy.fallback.reason"].string_value == "model_error"


async def test_failed_call_makes_a_span_unless_the_caller_is_to_blame(collector: Collector) -> None:
    async with running_server(flush_seconds=0.0) as serving:
        await error_of(serving.dispatch(policy="earliest-completion", max_alternatives=17))
        await error_of(serving.dispatch())
        await until(collector.spans)
    (span,) = collector.spans()
    assert span.name == "policy.v1.DispatchService/Dispatch"
    attributes = {a.key: a.value.string_value for a in span.attributes}
    assert attributes["rpc.response.status_code"] == "UNAVAILABLE"


@pytest.fixture(params=["closed port", "black hole"])
def absent_collector(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        if request.param == "closed port":
            listener.close()
        yield
        # Left-behind exporters draw random numbers, which would disturb other tests.
        for thread in threading.enumerate():
            if thread.name.startswith(("telemetry", "Otel")):
                thread.join(30)


@pytest.mark.usefixtures("absent_collector")
async def test_absent_collector_changes_nothing() -> None:
    started = time.monotonic()
    async with running_server(graded_endpoints(3), flush_seconds=0.5, grace_seconds=0.0) as serving:
        assert time.monotonic() - started < 2.0
        for _ in range(20):
            assert (await serving.dispatch()).endpoint
        await error_of(serving.dispatch(endpoint_subset={}))
        await asyncio.sleep(0.5)
        stopping = time.monotonic()
    assert time.monotonic() - stopping < 0.5 + 2.0


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"OTEL_METRICS_EXPORTER": "carrier-pigeon"}, "OTEL_METRICS_EXPORTER: 'carrier-pigeon'"),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
            "OTEL_EXPORTER_OTLP_PROTOCOL: 'http/json'",
        ),
    ],
)
async def test_unsupported_wishes_are_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], complaint: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TelemetryError, match=complaint):
        await PolicyServer(Settings(**STEADY)).startup()


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
        },
    ],
)
async def test_nothing_is_started_unasked(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    async with running_server() as serving:
        assert serving.server.telemetry.tracer is None
        assert serving.server.telemetry.shutdown(0.0)
