"""The figures of a comparison of gateways, and their JSON form."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from bench.budgets import ENVOY_BUDGETS, Verdict, judge
from bench.environment import Environment
from bench.envoy.comparison import MODES, GatewayComparison, GatewaySettings
from bench.envoy.sides import GatewayRun
from bench.latency import SideRuns
from bench.report import Ratio, SideFigures, ratio_of, repetition_figures, side_figures

ENVOY = "envoy"
DO_NOTHING = "do_nothing"
PICKER = "picker"
AUTHZ_DO_NOTHING = "ext_authz do_nothing"
AUTHZ_PICKER = "ext_authz picker"
_TOO_DEAR = 2.0


@dataclass(frozen=True)
class CallFigures:
    """The picker asked by ``Authorization/Check``, a unary call.

    Attributes:
        do_nothing: The picker that does nothing.
        picker: The real one.
        ratio: The second over the first.
    """

    do_nothing: SideFigures
    picker: SideFigures
    ratio: Ratio


@dataclass(frozen=True)
class Recommendation:
    """Which way to ask the picker.

    Attributes:
        way: ``ext_proc`` or ``ext_authz``.
        because: The figures it rests on.
    """

    way: str
    because: str


@dataclass(frozen=True)
class CpuOfSide:
    """CPU microseconds per request by mode, of Envoy and of the picker (None: there is none)."""

    envoy: dict[str, float]
    picker: dict[str, float | None]


@dataclass(frozen=True)
class GatewayMethod:
    """How the figures were made.

    Attributes:
        load_generator: Program that made the load.
        envoy_version: Version of the package that brought Envoy; None: it came from elsewhere.
        server_flavour: Kind of gRPC server of both pickers.
        candidates: Endpoints the picker chose from.
        policy: Policy that answered, with its version.
        settings: Lengths and repetitions.
        elapsed_seconds: Of the whole run.
    """

    load_generator: str
    envoy_version: str | None
    server_flavour: str
    candidates: int
    policy: str
    settings: GatewaySettings
    elapsed_seconds: float


@dataclass(frozen=True)
class GatewayReport:
    """Everything a comparison shows. Field names are the keys of its JSON form."""

    envoy: SideFigures
    do_nothing: SideFigures
    picker: SideFigures
    ratio: Ratio
    ext_authz: CallFigures
    recommendation: Recommendation
    cpu_us_per_request: dict[str, CpuOfSide]
    void_runs: list[str]
    budgets: dict[str, Verdict]
    method: GatewayMethod
    environment: Environment
    repetitions: dict[str, list[SideFigures]]

    def document(self) -> dict[str, object]:
        """The report as plain values, ready for JSON."""
        return asdict(self)


def build_gateway_report(
    comparison: GatewayComparison, method: GatewayMethod, environment: Environment
) -> GatewayReport:
    """Draws all figures from the runs."""
    sides = comparison.sides
    ratio = ratio_of(sides[PICKER], sides[DO_NOTHING])
    picker = side_figures(sides[PICKER])
    by_call = CallFigures(
        do_nothing=side_figures(sides[AUTHZ_DO_NOTHING]),
        picker=side_figures(sides[AUTHZ_PICKER]),
        ratio=ratio_of(sides[AUTHZ_PICKER], sides[AUTHZ_DO_NOTHING]),
    )
    return GatewayReport(
        envoy=side_figures(sides[ENVOY]),
        do_nothing=side_figures(sides[DO_NOTHING]),
        picker=picker,
        ratio=ratio,
        ext_authz=by_call,
        recommendation=_recommend(picker, by_call.picker),
        cpu_us_per_request={name: _cpu(runs) for name, runs in sides.items()},
        void_runs=comparison.void_runs,
        budgets=judge(ENVOY_BUDGETS, {"ratio": asdict(ratio)}),
        method=method,
        environment=environment,
        repetitions={name: repetition_figures(runs) for name, runs in sides.items()},
    )


def _recommend(by_stream: SideFigures, by_call: SideFigures) -> Recommendation:
    """The stream, which alone tells the picker of responses, unless it costs several times as much."""
    throughput, latency = by_call.rps / by_stream.rps, by_stream.p50_us / by_call.p50_us
    price = (
        f"a stream answers {by_stream.p50_us - by_call.p50_us:,.0f} us later than an ext_authz call (p50, one caller) "
        f"and carries {1 / throughput:.2f} times the requests"
    )
    if max(throughput, latency) < _TOO_DEAR:
        return Recommendation(
            "ext_proc",
            f"{price}; it alone tells the picker of responses, by which picks get better. Take ext_authz for requests "
            "so short that this is much",
        )
    return Recommendation("ext_authz", f"{price}; too dear for knowing of responses")


def _cpu(runs: SideRuns) -> CpuOfSide:
    envoy: dict[str, float] = {}
    picker: dict[str, float | None] = {}
    for mode in MODES:
        made = [run for run in runs.runs[mode] if isinstance(run, GatewayRun)]
        requests = sum(run.measurement.requests for run in made)
        spent = [run.server_cpu_seconds for run in made if run.server_cpu_seconds is not None]
        envoy[mode.value] = round(sum(run.gateway_cpu_seconds for run in made) / requests * 1e6, 1)
        picker[mode.value] = round(sum(spent) / requests * 1e6, 1) if len(spent) == len(made) else None
    return CpuOfSide(envoy, picker)
