from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from bench.environment import describe_environment
from bench.envoy.comparison import GatewayComparison, GatewaySettings
from bench.envoy.report import (
    AUTHZ_DO_NOTHING,
    AUTHZ_PICKER,
    DO_NOTHING,
    ENVOY,
    PICKER,
    GatewayMethod,
    GatewayReport,
    build_gateway_report,
)
from bench.envoy.sides import GatewayRun
from bench.envoy.tables import gateway_tables
from bench.latency import Mode, SideRuns
from bench.load.measurement import Measurement

METHOD = GatewayMethod(
    "h2load", "1.40.0", "aio-uvloop", 10, "kais 1.0.0", GatewaySettings(repetitions=2), 30.0
)
LATENCIES = {ENVOY: 200, DO_NOTHING: 1000, PICKER: 1500, AUTHZ_DO_NOTHING: 800, AUTHZ_PICKER: 1000}


def run(latency_microseconds: int, *, picker: bool) -> GatewayRun:
    """A hundred requests, one after the other, each of that latency."""
    latency = np.full(100, latency_microseconds, np.int64)
    sent = np.arange(100, dtype=np.int64) * latency_microseconds
    measurement = Measurement("h2load", sent, latency, {}, 0.01)
    return GatewayRun(measurement, 0.02 if picker else None, gateway_cpu_seconds=0.01)


def report(latencies: dict[str, int]) -> GatewayReport:
    sides = {}
    for name, latency in latencies.items():
        runs = SideRuns()
        for mode in (Mode.ONE_CALLER, Mode.SATURATED):
            runs.runs[mode] = [run(latency, picker=name != ENVOY) for _ in range(2)]
        sides[name] = runs
    return build_gateway_report(GatewayComparison(sides, ["void run"]), METHOD, describe_environment())


def test_the_document_has_the_promised_keys_and_ratios() -> None:
    document = json.loads(json.dumps(report(LATENCIES).document(), allow_nan=False))
    for side, latency in (("envoy", 200), ("do_nothing", 1000), ("picker", 1500)):
        assert document[side] == {
            "p50_us": pytest.approx(latency, rel=1e-3),
            "p99_us": pytest.approx(latency, rel=1e-3),
            "rps": pytest.approx(1e6 / latency, rel=1e-3),
        }
    assert document["ratio"] == {
        "p50": pytest.approx(1.5, rel=1e-2),
        "p99": pytest.approx(1.5, rel=1e-2),
        "throughput": pytest.approx(0.667, rel=1e-2),
        "cpu": 1.0,
    }
    assert document["ext_authz"]["ratio"]["p50"] == pytest.approx(1.25, rel=1e-2)
    assert {name: verdict["held"] for name, verdict in document["budgets"].items()} == {
        "ratio.p50": False,
        "ratio.throughput": False,
    }
    assert document["cpu_us_per_request"]["picker"] == {
        "envoy": {"one_caller": 100.0, "saturated": 100.0},
        "picker": {"one_caller": 200.0, "saturated": 200.0},
    }
    assert document["cpu_us_per_request"]["envoy"]["picker"] == {"one_caller": None, "saturated": None}


@pytest.mark.parametrize(
    ("by_call", "way"),
    [(500, "ext_authz"), (1000, "ext_proc"), (2000, "ext_proc")],
)
def test_the_recommendation_follows_the_figures(by_call: int, way: str) -> None:
    recommended = report({**LATENCIES, AUTHZ_PICKER: by_call}).recommendation
    assert recommended.way == way
    assert f"{by_call / 1500:.2f} times the requests" in recommended.because


def test_the_table_shows_figures_verdicts_and_advice() -> None:
    console = Console(width=100, file=io.StringIO())
    console.print(gateway_tables(report(LATENCIES)))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for part in ("kais 1.0.0", "1,500", "1.50", "missed", "Recommended: ext_proc", "made again: 1"):
        assert part in text, part
    held = replace(report(LATENCIES), void_runs=[])
    console.print(gateway_tables(held))
