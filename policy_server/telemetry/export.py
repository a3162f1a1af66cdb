"""Gives the server's metrics and spans to Prometheus and to an OpenTelemetry collector.

Prometheus scrapes a port of its own. The collector is configured by the standard variables of the OpenTelemetry SDK
alone; without an endpoint there, nothing is started. Exporters run on their own threads, and no failure of theirs
reaches a caller: a collector that is away costs lost telemetry, nothing else.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from policy_server.telemetry.metrics import DurationSeries, ServerGauges, ServerMetrics

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.sdk.metrics.export import Metric, MetricReader, MetricsData
    from opentelemetry.sdk.resources import Resource

SCOPE = "policy_server"
SCHEMA_URL = "https://opentelemetry.io/schemas/1.38.0"
DEFAULT_SAMPLING_RATIO = 0.1
_ONLY_PROTOCOL = "grpc"


class TelemetryError(Exception):
    """Telemetry that cannot be started. The message names the setting, its value and the remedy."""


class Telemetry:
    """What was started. Created by :func:`start_telemetry`.

    Attributes:
        tracer: makes spans; None without a collector for them.
        prometheus_port: that metrics are served on, None where they are not.
    """

    def __init__(self) -> None:
        self.tracer: trace.Tracer | None = None
        self.prometheus_port: int | None = None
        self._stops: list[Callable[[], object]] = []

    def on_stop(self, stop: Callable[[], object]) -> None:
        """Has ``stop`` called at shutdown, after what was added later."""
        self._stops.append(stop)

    def shutdown(self, limit_seconds: float) -> bool:
        """Flushes and stops everything; False if that was not done in time and was left behind."""
        if not self._stops:
            return True
        # Exporters wait for a collector that is away longer than anyone should wait for them.
        worker = threading.Thread(target=self._stop_all, name="telemetry shutdown", daemon=True)
        worker.start()
        worker.join(limit_seconds)
        return not worker.is_alive()

    def _stop_all(self) -> None:
        while self._stops:
            self._stops.pop()()


def start_telemetry(
    metrics: ServerMetrics,
    gauges: ServerGauges,
    *,
    prometheus_host: str = "127.0.0.1",
    prometheus_port: int | None = None,
) -> Telemetry:
    """Starts the exporters that are asked for.

    Args:
        metrics: of the server.
        gauges: of the server.
        prometheus_host: address the metrics are served on.
        prometheus_port: 0 picks a free one; None serves none.

    Raises:
        TelemetryError: the port is taken, or a standard variable asks for what is not supported.
    """
    telemetry = Telemetry()
    readers: list[MetricReader] = []
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if prometheus_port is not None:
        readers.append(_serve_prometheus(telemetry, metrics, prometheus_host, prometheus_port))
    try:
        if not disabled and _collector_wanted("METRICS"):
            readers.append(_collector_reader(metrics))
        if readers:
            _register(telemetry, metrics, gauges, readers)
        if not disabled and _collector_wanted("TRACES"):
            _start_tracing(telemetry)
    except ImportError as error:
        raise TelemetryError(
            f"the collector's exporter cannot be imported: {error}; reinstall opentelemetry-proto, "
            "of which other packages bring outdated copies, or unset OTEL_EXPORTER_OTLP_ENDPOINT"
        ) from error
    return telemetry


def _collector_wanted(signal: str) -> bool:
    exporter = os.environ.get(f"OTEL_{signal}_EXPORTER", "")
    endpoint = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get(
        f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"
    )
    if exporter not in ("", "none", "otlp"):
        raise TelemetryError(
            f"OTEL_{signal}_EXPORTER: {exporter!r}; set it to otlp or none (Prometheus has a setting of its own)"
        )
    wanted = exporter == "otlp" or (exporter == "" and bool(endpoint))
    protocol = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL") or os.environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", _ONLY_PROTOCOL
    )
    if wanted and protocol != _ONLY_PROTOCOL:
        raise TelemetryError(f"OTEL_EXPORTER_OTLP_PROTOCOL: {protocol!r}; only {_ONLY_PROTOCOL} is supported")
    return wanted


def _register(
    telemetry: Telemetry, metrics: ServerMetrics, gauges: ServerGauges, readers: list[MetricReader]
) -> None:
    from opentelemetry.metrics import Observation
    from opentelemetry.sdk.metrics import MeterProvider

    provider = MeterProvider(readers, resource=_resource(), shutdown_on_exit=False)
    telemetry.on_stop(provider.shutdown)
    meter = provider.get_meter(SCOPE, version("policy-server"), SCHEMA_URL)
    metrics.register(meter, gauges)
    versions = {"version": version("policy-server"), "onnxruntime": version("onnxruntime")}
    meter.create_observable_gauge(
        "policy.build_info", [lambda _: [Observation(1, versions)]], description="Versions in use; always 1."
    )


def _serve_prometheus(telemetry: Telemetry, metrics: ServerMetrics, host: str, port: int) -> MetricReader:
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from prometheus_client import CollectorRegistry, start_http_server

    class Reader(PrometheusMetricReader):
        def _receive_metrics(self, metrics_data: MetricsData, *args: Any, **kwargs: Any) -> None:
            super()._receive_metrics(_with_durations(metrics_data, metrics, started_at), *args, **kwargs)

    started_at = time.time_ns()
    registry = CollectorRegistry()
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise TelemetryError(
            f"prometheus port: {host}:{port}; {error.strerror or error}; choose a free one"
        ) from error
    telemetry.prometheus_port = server.server_port
    telemetry.on_stop(server.server_close)
    telemetry.on_stop(server.shutdown)
    return Reader(scope_info_enabled=False, registry=registry)


def _collector_reader(metrics: ServerMetrics) -> MetricReader:
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    class Reader(PeriodicExportingMetricReader):
        def _receive_metrics(self, metrics_data: MetricsData, *args: Any, **kwargs: Any) -> None:
            super()._receive_metrics(_with_durations(metrics_data, metrics, started_at), *args, **kwargs)

    started_at = time.time_ns()
    return Reader(OTLPMetricExporter())


def _start_tracing(telemetry: Telemetry) -> None:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio, Sampler

    chosen = "OTEL_TRACES_SAMPLER" in os.environ
    sampler: Sampler | None = None if chosen else ParentBasedTraceIdRatio(DEFAULT_SAMPLING_RATIO)
    provider = TracerProvider(sampler, _resource(), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    telemetry.on_stop(provider.shutdown)
    telemetry.tracer = provider.get_tracer(SCOPE, version("policy-server"), schema_url=SCHEMA_URL)


def _resource() -> Resource:
    from opentelemetry.sdk.resources import Resource

    given = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    defaults = {"service.version": version("policy-server")}
    if "service.name=" not in given and "OTEL_SERVICE_NAME" not in os.environ:
        defaults["service.name"] = "policy-server"
    if "service.instance.id=" not in given:
        defaults["service.instance.id"] = _INSTANCE
    return Resource.create(defaults)


_INSTANCE = str(uuid.uuid4())


def _with_durations(data: MetricsData, metrics: ServerMetrics, started_at: int) -> MetricsData:
    """Adds the histograms that the server keeps itself to what the SDK collected."""
    now = time.time_ns()
    added = tuple(_metric(series, started_at, now) for series in _recorded(metrics))
    return replace(
        data,
        resource_metrics=[
            replace(
                resource,
                scope_metrics=[
                    replace(scope, metrics=[*scope.metrics, *added]) if scope.scope.name == SCOPE else scope
                    for scope in resource.scope_metrics
                ],
            )
            for resource in data.resource_metrics
        ],
    )


def _recorded(metrics: ServerMetrics) -> Iterator[DurationSeries]:
    return (series for series in metrics.durations() if series.points)


def _metric(series: DurationSeries, started_at: int, now: int) -> Metric:
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Histogram,
        HistogramDataPoint,
        Metric,
    )

    points = []
    for attributes, durations in series.points:
        counts = list(durations.counts)
        points.append(
            HistogramDataPoint(
                attributes=dict(attributes),
                start_time_unix_nano=started_at,
                time_unix_nano=now,
                count=sum(counts),
                sum=durations.sum_seconds,
                bucket_counts=counts,
                explicit_bounds=durations.bounds_seconds,
                min=durations.smallest_seconds,
                max=durations.largest_seconds,
            )
        )
    return Metric(series.name, series.description, "s", Histogram(points, AggregationTemporality.CUMULATIVE))
