"""The console command ``policy-bench``."""

from __future__ import annotations

import json
import signal
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from bench.console_support import errors_reported, progress
from bench.demo_command import demo_command
from bench.envoy.demo_command import demo_envoy_command
from bench.flavours import COMPARED_FLAVOURS, SERVER_FLAVOUR, Flavour, parse_flavour
from bench.orchestration_demo_command import orchestration_demo_command
from bench.scaling_demo_command import scaling_demo_command

if TYPE_CHECKING:
    from rich.console import RenderableType


class _FlavourType(click.ParamType[Flavour]):
    name = "flavour"

    def convert(
        self, value: str | Flavour, param: click.Parameter | None, ctx: click.Context | None
    ) -> Flavour:
        if isinstance(value, Flavour):
            return value
        try:
            return parse_flavour(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _checked_address(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        host, _, port = value.rpartition(":")
        if not host or not port.isdecimal():
            raise click.BadParameter(f"{value!r} is not HOST:PORT", context, option)
    return value


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Measure the policy server: latency and throughput, side by side with a bare echo server."""
    # As SIGINT: every server that was started is stopped on the way out.
    signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on standard output.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON report to this file."
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw latency by percentile (PNG, SVG, PDF).",
)
@click.option(
    "--address",
    metavar="HOST:PORT",
    callback=_checked_address,
    help="Measure a server that already runs, on the state it holds.",
)
@click.option(
    "--replace-state", is_flag=True, help="With --address: replace the server's state by the benchmark's."
)
@click.option(
    "--models",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of model bundles.  [default: those shipped with the package]",
)
@click.option("--policy", default="", help="Policy to ask for.  [default: the active one]")
@click.option(
    "--repetitions", type=click.IntRange(1), default=10, show_default=True, help="Of the closed loops."
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.05),
    default=0.5,
    show_default=True,
    help="Length of one closed loop.",
)
@click.option(
    "--rate",
    type=click.FloatRange(1),
    default=500.0,
    show_default=True,
    help="Requests per second of the open loop.",
)
@click.option(
    "--open-loop-seconds",
    type=click.FloatRange(0.1),
    default=1.5,
    show_default=True,
    help="Length of one of the three open loops.",
)
@click.argument("server_arguments", nargs=-1, type=click.UNPROCESSED)
def latency(
    as_json: bool,
    output: Path | None,
    plot: Path | None,
    address: str | None,
    replace_state: bool,
    models: Path | None,
    policy: str,
    repetitions: int,
    seconds: float,
    rate: float,
    open_loop_seconds: float,
    server_arguments: tuple[str, ...],
) -> None:
    """Compare Dispatch with a bare echo server of the same stack and message sizes.

    Starts `policy-server serve` (SERVER_ARGUMENTS after a -- are passed on to it) and an echo server, and measures
    both in turns: one caller, saturated, and at a fixed rate with latency from the scheduled time. Exits with 1
    when a run is void and its figures would mislead.
    """
    from functools import partial

    from bench.commands import policy_server_command
    from bench.in_process import measure_policy
    from bench.latency import LatencySettings
    from bench.latency_run import run_latency, running_server, started_server
    from bench.tables import latency_tables

    if replace_state and address is None:
        raise click.UsageError("--replace-state needs --address")
    if address is not None and (server_arguments or models is not None):
        raise click.UsageError("--models and arguments for the server make no sense with --address")
    settings = LatencySettings(
        repetitions=repetitions,
        seconds=seconds,
        open_loop_seconds=open_loop_seconds,
        open_loop_requests_per_second=rate,
    )
    with errors_reported():
        with progress(settings.steps + 1) as on_step:
            if address is None:
                command = partial(policy_server_command, models=models, arguments=server_arguments)
                with started_server(command, policy) as dispatch:
                    run = run_latency(dispatch, settings, on_step, partial(measure_policy, models=models))
            else:
                dispatch = running_server(address, policy, replace_state=replace_state)
                run = run_latency(dispatch, settings, on_step)
        document = json.dumps(run.report.document(), indent=2)
        if output is not None:
            output.write_text(document + "\n", encoding="utf-8")
        if plot is not None:
            from bench.plot import plot_latency

            plot_latency(run, plot)
    if as_json:
        click.echo(document)
    else:
        _print(latency_tables(run.report))


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on standard output.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON report to this file."
)
@click.option(
    "--containers",
    type=click.IntRange(1, 10_000),
    multiple=True,
    default=(1, 50, 1000),
    show_default=True,
    help="Containers per request; may be repeated.",
)
@click.option(
    "--models",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of model bundles.  [default: those shipped with the package]",
)
@click.option("--policy", default="", help="Scaling policy to ask for.  [default: the active one]")
@click.option("--repetitions", type=click.IntRange(1), default=5, show_default=True)
@click.option("--calls", type=click.IntRange(1), default=200, show_default=True, help="Of one repetition.")
@click.argument("server_arguments", nargs=-1, type=click.UNPROCESSED)
def scale(
    as_json: bool,
    output: Path | None,
    containers: tuple[int, ...],
    models: Path | None,
    policy: str,
    repetitions: int,
    calls: int,
    server_arguments: tuple[str, ...],
) -> None:
    """Compare Scale with a bare echo server of the same stack and message sizes.

    Starts `policy-server serve` (SERVER_ARGUMENTS after a -- are passed on to it) and an echo server, and measures
    both in turns, one caller at a time. Exits with 1 when a run is void and its figures would mislead.
    """
    from functools import partial

    from bench.commands import policy_server_command
    from bench.scaling_run import ScalingSettings, run_scaling
    from bench.tables import scaling_table

    settings = ScalingSettings(containers=containers, repetitions=repetitions, calls=calls)
    with errors_reported():
        with progress(settings.steps) as on_step:
            command = partial(policy_server_command, models=models, arguments=server_arguments)
            report = run_scaling(command, policy, settings, on_step, models)
        document = json.dumps(report.document(), indent=2)
        if output is not None:
            output.write_text(document + "\n", encoding="utf-8")
    if as_json:
        click.echo(document)
    else:
        _print(scaling_table(report))


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on standard output.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON report to this file."
)
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw cost by size (PNG, SVG, PDF)."
)
@click.option(
    "--models",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of model bundles.  [default: those shipped with the package]",
)
@click.option("--policy", default="", help="Policy to ask for.  [default: the active one]")
@click.option(
    "--nodes",
    "sizes",
    type=click.IntRange(1),
    multiple=True,
    help="Edge nodes of a system; may be repeated.  [default: 100, 1000, 10000]",
)
@click.option("--repetitions", type=click.IntRange(1), default=20, show_default=True)
@click.option(
    "--inline-repetitions",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Of calls that carry the state along.",
)
@click.argument("server_arguments", nargs=-1, type=click.UNPROCESSED)
def orchestrate(
    as_json: bool,
    output: Path | None,
    plot: Path | None,
    models: Path | None,
    policy: str,
    sizes: tuple[int, ...],
    repetitions: int,
    inline_repetitions: int,
    server_arguments: tuple[str, ...],
) -> None:
    """Measure Orchestrate on systems of several sizes.

    Starts `policy-server serve` for each size (SERVER_ARGUMENTS after a -- are passed on to it), reports the system,
    and asks after every further report. Exits with 1 when the fallback answers, whose figures would mislead.
    """
    from functools import partial

    from bench.commands import policy_server_command
    from bench.orchestration import (
        DEFAULT_SIZES,
        MAXIMUM_MESSAGE_BYTES,
        OrchestrationSettings,
        measure_orchestration,
    )
    from bench.tables import orchestration_table

    settings = OrchestrationSettings(sizes or DEFAULT_SIZES, repetitions, inline_repetitions)
    large = (
        "--max-message-bytes",
        str(MAXIMUM_MESSAGE_BYTES),
        "--orchestration-stale-after-seconds",
        "86400",
    )
    command = partial(policy_server_command, models=models, arguments=(*large, *server_arguments))
    with errors_reported():
        with progress(settings.steps) as on_step:
            report = measure_orchestration(command, policy, settings, on_step)
        document = json.dumps(report.document(), indent=2)
        if output is not None:
            output.write_text(document + "\n", encoding="utf-8")
        if plot is not None:
            from bench.orchestration_plot import plot_orchestration

            plot_orchestration(report, plot)
    if as_json:
        click.echo(document)
    else:
        _print(orchestration_table(report))


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON on standard output.")
@click.option(
    "--flavour",
    "flavours",
    type=_FlavourType(),
    multiple=True,
    help="aio, aio-uvloop or threads-N; may be repeated.  [default: a selection]",
)
@click.option(
    "--work",
    "works",
    type=click.FloatRange(0),
    multiple=True,
    default=(0.0, 60.0),
    show_default=True,
    help="CPU microseconds a handler works per request; may be repeated.",
)
@click.option("--repetitions", type=click.IntRange(1), default=5, show_default=True)
def flavours(
    as_json: bool, flavours: tuple[Flavour, ...], works: tuple[float, ...], repetitions: int
) -> None:
    """Compare the kinds of Python gRPC server: asyncio, asyncio on uvloop, thread pools."""
    from bench.flavour_comparison import compare_flavours, comparison_steps
    from bench.tables import flavour_table

    chosen = flavours or COMPARED_FLAVOURS
    with errors_reported(), progress(comparison_steps(chosen, works, repetitions)) as on_step:
        figures = compare_flavours(chosen, works, repetitions, on_step)
    if as_json:
        click.echo(json.dumps({"flavours": [asdict(row) for row in figures]}, indent=2))
    else:
        _print(flavour_table(figures))


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON on standard output.")
@click.option(
    "--nodes",
    type=click.IntRange(10, 100_000),
    multiple=True,
    default=(100, 1000, 5000),
    show_default=True,
    help="Size of the cluster; may be repeated.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0),
    default=5.0,
    show_default=True,
    help="Length of one run; at least 20 pods.",
)
@click.argument("server_arguments", nargs=-1, type=click.UNPROCESSED)
def extender(
    as_json: bool, nodes: tuple[int, ...], seconds: float, server_arguments: tuple[str, ...]
) -> None:
    """Measure the kube-scheduler extender: filter and prioritize of one pod, over HTTP.

    Starts `policy-server serve` (SERVER_ARGUMENTS after a -- are passed on to it) and asks it about one pod after
    another, with nodes by name and as objects of about 8 KB each.
    """
    from bench.extender import MODES, measure_extender
    from bench.tables import extender_table

    with errors_reported(), progress(len(nodes) * len(MODES)) as on_step:
        report = measure_extender(nodes, seconds, on_step, server_arguments)
    if as_json:
        click.echo(json.dumps(report.document(), indent=2))
    else:
        _print(extender_table(report))


@main.command()
@click.option("--port", type=click.IntRange(1, 65535), required=True, help="Loopback port to listen on.")
@click.option("--flavour", type=_FlavourType(), default=SERVER_FLAVOUR.name, show_default=True)
@click.option("--response-hex", metavar="HEX", help="Serialized DispatchResponse to answer with.")
@click.option(
    "--work-microseconds",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="CPU time to spend before each response.",
)
@click.option(
    "--scale-response",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with a serialized ScaleResponse to answer Scale with; for asynchronous flavours.",
)
def echo(
    port: int,
    flavour: Flavour,
    response_hex: str | None,
    work_microseconds: float,
    scale_response: Path | None,
) -> None:
    """Serve the bare echo server until SIGTERM, to measure it with other tools."""
    from google.protobuf.message import DecodeError

    from bench.echo import EXAMPLE_RESPONSE, response_builder, serve_echo, with_work
    from policy_server.proto.policy.v1.dispatch_service_pb2 import DispatchResponse
    from policy_server.proto.policy.v1.scaling_service_pb2 import ScaleResponse

    try:
        template = EXAMPLE_RESPONSE
        if response_hex is not None:
            template = DispatchResponse.FromString(bytes.fromhex(response_hex))
    except (ValueError, DecodeError) as error:
        raise click.BadParameter(
            f"not a serialized DispatchResponse: {error}", param_hint="--response-hex"
        ) from None
    scaled = None
    if scale_response is not None:
        if not flavour.asynchronous:
            raise click.UsageError("--scale-response needs an asynchronous flavour")
        try:
            scaled = ScaleResponse.FromString(scale_response.read_bytes())
        except DecodeError as error:
            raise click.BadParameter(
                f"not a serialized ScaleResponse: {error}", param_hint="--scale-response"
            ) from None
    try:
        build = with_work(response_builder(template), work_microseconds)
        serve_echo(flavour, f"127.0.0.1:{port}", build, scaled)
    except RuntimeError as error:
        # gRPC's way to tell that an address cannot be bound.
        raise click.ClickException(str(error)) from error


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on standard output.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON report to this file."
)
@click.option("--policy", help="Policy that picks.  [default: the server's]")
@click.option(
    "--repetitions", type=click.IntRange(1), default=8, show_default=True, help="Of each load on each side."
)
@click.option(
    "--seconds", type=click.FloatRange(0.05), default=0.5, show_default=True, help="Length of one run."
)
@click.argument("server_arguments", nargs=-1, type=click.UNPROCESSED)
def envoy(
    as_json: bool,
    output: Path | None,
    policy: str | None,
    repetitions: int,
    seconds: float,
    server_arguments: tuple[str, ...],
) -> None:
    """Measure what the endpoint picker adds to requests through a real Envoy.

    Envoy alone, Envoy with a picker that does nothing and Envoy with `policy-server serve` (SERVER_ARGUMENTS after a
    -- are passed on to it) get the same load in turns, from h2load; the picker is asked by ext_proc and by ext_authz.
    Exits with 1 when a run is void and its figures would mislead.
    """
    from bench.envoy.comparison import GatewaySettings
    from bench.envoy.run import run_gateways, steps
    from bench.envoy.tables import gateway_tables

    settings = GatewaySettings(repetitions=repetitions, seconds=seconds)
    with errors_reported():
        with progress(steps(settings)) as on_step:
            report = run_gateways(settings, on_step, policy, server_arguments)
        document = json.dumps(report.document(), indent=2)
        if output is not None:
            output.write_text(document + "\n", encoding="utf-8")
    if as_json:
        click.echo(document)
    else:
        _print(gateway_tables(report))


@main.command("do-nothing")
@click.option("--port", type=click.IntRange(1, 65535), required=True, help="Loopback port to listen on.")
@click.option(
    "--endpoint",
    "endpoints",
    multiple=True,
    required=True,
    metavar="IP:PORT",
    callback=lambda context, option, values: tuple(_checked_address(context, option, v) for v in values),
    help="Endpoint to name; may be repeated, best first.",
)
def do_nothing(port: int, endpoints: tuple[str, ...]) -> None:
    """Serve the endpoint picker that does nothing until SIGTERM, to measure it with other tools."""
    import uvloop

    from bench.envoy.do_nothing import serve_do_nothing

    try:
        uvloop.run(serve_do_nothing(f"127.0.0.1:{port}", endpoints))
    except RuntimeError as error:
        # gRPC's way to tell that an address cannot be bound.
        raise click.ClickException(str(error)) from error


def _print(tables: RenderableType) -> None:
    from rich.console import Console

    Console().print(tables)


main.add_command(demo_command)
main.add_command(demo_envoy_command)
main.add_command(orchestration_demo_command)
main.add_command(scaling_demo_command)

if __name__ == "__main__":
    main()
