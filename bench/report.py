"""The figures of a latency comparison, and their JSON form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np

from bench.budgets import BUDGETED_CANDIDATES, DISPATCH_BUDGETS, Verdict, judge
from bench.client import fallback_reason
from bench.environment import Environment
from bench.latency import Comparison, LatencySettings, Mode, SideRuns
from bench.load.measurement import (
    Measurement,
    OpenLoopMeasurement,
    latency_histogram,
    percentile_microseconds,
)
from bench.sides import Run
from policy_server.proto.policy.v1.dispatch_service_pb2 import DispatchResponse


@dataclass(frozen=True)
class SideFigures:
    """Closed-loop figures of one server, medians over the repetitions.

    Attributes:
        p50_us: One caller, latency in microseconds.
        p99_us: One caller, latency in microseconds.
        rps: Saturated, requests per second.
    """

    p50_us: float
    p99_us: float
    rps: float


@dataclass(frozen=True)
class Ratio:
    """Dispatch over echo, medians over the ratios of the pairs of neighbouring runs.

    Attributes:
        p50: One caller.
        p99: One caller.
        throughput: Saturated.
        cpu: CPU time of the server per request, saturated; None where it is not known.
    """

    p50: float
    p99: float
    throughput: float
    cpu: float | None


@dataclass(frozen=True)
class CpuFigures:
    """CPU microseconds per request of the server and of the load generator, by mode; None where not known."""

    server: dict[str, float | None]
    client: dict[str, float]


@dataclass(frozen=True)
class OpenLoopFigures:
    """Open loop, all repetitions together, latency from the scheduled time.

    Attributes:
        rps: Achieved rate, the lowest of the repetitions.
        p50_us: Latency in microseconds.
        p90_us: Latency in microseconds.
        p99_us: Latency in microseconds.
        p999_us: Latency in microseconds.
        max_us: Latency in microseconds.
        lag_p99_us: How late the generator itself was, the worst of the repetitions.
        fallback_share: Share of responses in which the fallback policy answered.
    """

    rps: float
    p50_us: float
    p90_us: float
    p99_us: float
    p999_us: float
    max_us: float
    lag_p99_us: float
    fallback_share: float


@dataclass(frozen=True)
class OpenLoopComparison:
    """Open loops against both servers.

    Attributes:
        target_rps: Rate of the schedule.
        echo: The echo server.
        dispatch: The server under test.
        void_runs: Reasons of the runs that were void and were made again.
    """

    target_rps: float
    echo: OpenLoopFigures
    dispatch: OpenLoopFigures
    void_runs: list[str]


@dataclass(frozen=True)
class InProcessFigures:
    """One decision inside the process.

    Attributes:
        p50_us: Median time of a decision: masking, features, model, checks, pick.
        p99_us: 99th percentile of the same.
        answer_p50_us: Median time from names to names: looked up, decided, counted.
        reference_p50_us: Median time of the bare reference in the same run.
    """

    p50_us: float
    p99_us: float
    answer_p50_us: float
    reference_p50_us: float


@dataclass(frozen=True)
class BatchFigures:
    """Decisions in batches inside the process, on one core.

    Attributes:
        size: Requests per batch.
        candidates: Candidates per request.
        decisions_per_second: Median over the repetitions.
    """

    size: int
    candidates: int
    decisions_per_second: float


@dataclass(frozen=True)
class InProcessResult:
    """What is measured inside the process.

    Attributes:
        decisions: By number of candidates.
        batch: None where it was not measured.
    """

    decisions: dict[str, InProcessFigures]
    batch: BatchFigures | None


@dataclass(frozen=True)
class Method:
    """How the figures were made.

    Attributes:
        closed_loop_generator: Program that made the closed loops.
        open_loop_generator: Program that made the open loops.
        server_flavour: Kind of gRPC server.
        candidates: Candidates of each request.
        policy: Policy that answered, with its version.
        request_bytes: Size of the serialized request.
        response_bytes: Size of the serialized response, the same for both servers.
        warm_up: What was thrown away.
        settings: Lengths and repetitions.
        server_ready_seconds: From start to serving; None for a server that already ran.
        elapsed_seconds: Of the whole run.
    """

    closed_loop_generator: str
    open_loop_generator: str
    server_flavour: str
    candidates: int
    policy: str
    request_bytes: int
    response_bytes: int
    warm_up: str
    settings: LatencySettings
    server_ready_seconds: float | None
    elapsed_seconds: float


@dataclass(frozen=True)
class Report:
    """Everything a comparison shows. Field names are the keys of its JSON form."""

    echo: SideFigures
    dispatch: SideFigures
    ratio: Ratio
    in_process: dict[str, InProcessFigures]
    batch: BatchFigures | None
    open_loop: OpenLoopComparison
    one_core_rps: dict[str, float]
    cpu_us_per_request: dict[str, CpuFigures]
    budgets: dict[str, Verdict]
    method: Method
    environment: Environment
    repetitions: dict[str, list[SideFigures]]

    def document(self) -> dict[str, object]:
        """The report as plain values, ready for JSON."""
        return asdict(self)


def build_report(
    comparison: Comparison,
    method: Method,
    environment: Environment,
    in_process: InProcessResult,
) -> Report:
    """Draws all figures from the runs."""
    echo, dispatch = comparison.echo, comparison.dispatch
    ratio = ratio_of(dispatch, echo)
    measured = {
        "ratio": asdict(ratio) if method.candidates == BUDGETED_CANDIDATES else {},
        "in_process": {count: asdict(figures) for count, figures in in_process.decisions.items()},
        "batch": asdict(in_process.batch) if in_process.batch else {},
    }
    return Report(
        echo=side_figures(echo),
        dispatch=side_figures(dispatch),
        ratio=ratio,
        in_process=in_process.decisions,
        batch=in_process.batch,
        open_loop=OpenLoopComparison(
            target_rps=method.settings.open_loop_requests_per_second,
            echo=_open_loop_figures(echo),
            dispatch=_open_loop_figures(dispatch),
            void_runs=comparison.void_runs,
        ),
        one_core_rps={
            name: _rounded(median(m.requests_per_second for m in runs.measurements(Mode.ONE_CORE)))
            for name, runs in (("echo", echo), ("dispatch", dispatch))
            if runs.runs[Mode.ONE_CORE]
        },
        cpu_us_per_request={"echo": _cpu_figures(echo), "dispatch": _cpu_figures(dispatch)},
        budgets=judge(DISPATCH_BUDGETS, measured),
        method=method,
        environment=environment,
        repetitions={"echo": repetition_figures(echo), "dispatch": repetition_figures(dispatch)},
    )


def _rounded(value: float, digits: int = 1) -> float:
    return round(float(value), digits)


def _median_of(measurements: Sequence[Measurement], figure: Callable[[Measurement], float]) -> float:
    return _rounded(median(figure(measurement) for measurement in measurements))


def _p50(measurement: Measurement) -> float:
    return percentile_microseconds(measurement, 50)


def _p99(measurement: Measurement) -> float:
    return percentile_microseconds(measurement, 99)


def _rps(measurement: Measurement) -> float:
    return measurement.requests_per_second


def side_figures(runs: SideRuns) -> SideFigures:
    """Medians over the repetitions."""
    one_caller, saturated = runs.measurements(Mode.ONE_CALLER), runs.measurements(Mode.SATURATED)
    return SideFigures(
        p50_us=_median_of(one_caller, _p50),
        p99_us=_median_of(one_caller, _p99),
        rps=_median_of(saturated, _rps),
    )


def repetition_figures(runs: SideRuns) -> list[SideFigures]:
    """The figures of each repetition."""
    pairs = zip(runs.measurements(Mode.ONE_CALLER), runs.measurements(Mode.SATURATED), strict=True)
    return [SideFigures(_p50(one), _p99(one), _rounded(_rps(many))) for one, many in pairs]


def ratio_of(dispatch_runs: SideRuns, echo_runs: SideRuns) -> Ratio:
    """The first over the second, medians over the ratios of the pairs of neighbouring runs."""

    def of(mode: Mode, figure: Callable[[Run], float | None]) -> float | None:
        ratios = []
        for echo, dispatch in zip(echo_runs.runs[mode], dispatch_runs.runs[mode], strict=True):
            below, above = figure(echo), figure(dispatch)
            if not below or above is None:
                return None
            ratios.append(above / below)
        return _rounded(median(ratios), 3)

    p50 = of(Mode.ONE_CALLER, lambda run: _p50(run.measurement))
    p99 = of(Mode.ONE_CALLER, lambda run: _p99(run.measurement))
    throughput = of(Mode.SATURATED, lambda run: _rps(run.measurement))
    assert p50 is not None
    assert p99 is not None
    assert throughput is not None
    return Ratio(p50, p99, throughput, of(Mode.SATURATED, _server_cpu_per_request))


def _server_cpu_per_request(run: Run) -> float | None:
    if run.server_cpu_seconds is None:
        return None
    return run.server_cpu_seconds / run.measurement.requests * 1e6


def _cpu_figures(runs: SideRuns) -> CpuFigures:
    server: dict[str, float | None] = {}
    client: dict[str, float] = {}
    for mode, made in runs.runs.items():
        if not made:
            continue
        requests = sum(run.measurement.requests for run in made)
        spent = [run.server_cpu_seconds for run in made if run.server_cpu_seconds is not None]
        server[mode.value] = _rounded(sum(spent) / requests * 1e6) if len(spent) == len(made) else None
        client[mode.value] = _rounded(
            sum(run.measurement.client_cpu_seconds for run in made) / requests * 1e6
        )
    return CpuFigures(server, client)


def _open_loop_figures(runs: SideRuns) -> OpenLoopFigures:
    measurements = [m for m in runs.measurements(Mode.OPEN_LOOP) if isinstance(m, OpenLoopMeasurement)]
    histogram = latency_histogram(measurements)
    p50, p90, p99, p999, highest = (
        float(histogram.get_value_at_percentile(percentile)) for percentile in (50, 90, 99, 99.9, 100)
    )
    responses = [response for measurement in measurements for response in measurement.responses]
    fallbacks = sum(
        fallback_reason(DispatchResponse.FromString(response)) is not None for response in responses
    )
    return OpenLoopFigures(
        rps=_rounded(min(measurement.requests_per_second for measurement in measurements)),
        p50_us=p50,
        p90_us=p90,
        p99_us=p99,
        p999_us=p999,
        max_us=highest,
        lag_p99_us=_rounded(max(float(np.percentile(m.lag_microseconds, 99)) for m in measurements)),
        fallback_share=fallbacks / len(responses),
    )
