"""The command ``policy-server``: serve, and ask a server questions from the shell."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from policy_server.settings import (
    ENVIRONMENT_PREFIX,
    About,
    Settings,
    SettingsError,
    described_settings,
    read_settings_file,
)

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


@click.group(context_settings={"max_content_width": 110})
@click.version_option(package_name="policy-server")
def main() -> None:
    """Serves learned policies for edge-cloud systems, and asks a running server."""


def settings_options(command: CommandT) -> CommandT:
    """Adds an option per setting. Environment variables and the configuration file come in through click."""
    described = described_settings()
    for setting in reversed(fields(Settings)):
        kind, about = described[setting.name]
        default = None if setting.default is MISSING else setting.default
        command = _option(setting.name, kind, about, default)(command)
    return command


def _option(name: str, kind: Any, about: About, default: Any) -> Callable[[CommandT], CommandT]:
    flag = f"--{name.replace('_', '-')}"
    if name == "state_options":
        return click.option(
            "--state-option",
            "state_options",
            multiple=True,
            metavar="KEY=VALUE",
            envvar=f"{ENVIRONMENT_PREFIX}_STATE_OPTIONS",
            help="Option of the state source; may be repeated.",
        )
    if kind is bool:
        flag = f"{flag}/--no-{name.replace('_', '-')}"
    plain = next(part for part in get_args(kind) if part is not type(None)) if _is_union(kind) else kind
    return click.option(
        flag,
        name,
        type=_path(about) if plain is Path else plain,
        default=default,
        show_default=default is not None,
        show_envvar=True,
        help=about.description,
    )


def _path(about: About) -> click.Path:
    return click.Path(path_type=Path, file_okay=about.is_file, dir_okay=not about.is_file)


def _is_union(kind: Any) -> bool:
    return isinstance(kind, types.UnionType)


def _use_settings_file(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    try:
        content = read_settings_file(path)
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    options = content.get("state_options", {})
    content["state_options"] = [f"{key}={value}" for key, value in options.items()]
    context.default_map = content


@main.command(context_settings={"auto_envvar_prefix": ENVIRONMENT_PREFIX})
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_use_settings_file,
    is_eager=True,
    expose_value=False,
    show_envvar=True,
    help="TOML file of settings, named as here with underscores.",
)
@settings_options
def serve(state_options: Iterable[str], **values: Any) -> None:
    """Serve decisions over gRPC until SIGTERM or Ctrl-C.

    A setting is taken from its flag, else its environment variable, else the --config file, else its default. Prints
    `listening on HOST:PORT` when calls are accepted, and on standard error what was derived from the settings.

    \b
    Exit status: 0 stopped by a signal, in order; 1 could not start; 2 wrong usage.
    """
    try:
        settings = Settings(state_options=_pairs(state_options), **values)
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    from policy_server.serving import run_server

    run_server(settings)


@main.group()
def query() -> None:
    """Ask a running server."""


_address = click.option(
    "--address",
    default="127.0.0.1:50051",
    metavar="HOST:PORT",
    show_default=True,
    show_envvar=True,
    envvar=f"{ENVIRONMENT_PREFIX}_ADDRESS",
    help="Where the server listens.",
)
_timeout = click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the answer.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")


@query.command("dispatch")
@_address
@click.option("--service", required=True, help="Service asked for.")
@click.option("--access-point", required=True, help="Where the request entered.")
@click.option(
    "--deadline",
    "deadline_seconds",
    type=float,
    default=0.0,
    metavar="SECONDS",
    help="Time to wait for the response; by default the service's typical deadline.",
)
@click.option("--payload-bytes", type=float, default=0.0, help="Size of the request body.")
@click.option("--policy", default="", help="Policy to ask; by default the active one.")
@click.option(
    "--subset",
    "endpoints",
    multiple=True,
    metavar="ENDPOINT",
    help="Restricts the choice to this endpoint; may be repeated, or list several separated by commas.",
)
@click.option(
    "--alternatives", type=click.IntRange(min=0), default=2, show_default=True, help="How many to list."
)
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Makes ties repeatable.")
@_timeout
@_json
def query_dispatch(
    address: str,
    service: str,
    access_point: str,
    deadline_seconds: float,
    payload_bytes: float,
    policy: str,
    endpoints: Sequence[str],
    alternatives: int,
    seed: int | None,
    timeout_seconds: float,
    as_json: bool,
) -> None:
    """Ask which endpoint serves a request. The pick counts as one of the server's own.

    \b
    Exit status: 0 a decision was made; 1 the server refused, or none answers; 2 wrong usage.
    """
    from policy_server import query as asking
    from policy_server.proto.policy.v1.dispatch_service_pb2 import DispatchRequest, EndpointSubset

    listed = [endpoint.strip() for text in endpoints for endpoint in text.split(",") if endpoint.strip()]
    request = DispatchRequest(
        service=service,
        access_point=access_point,
        deadline_seconds=deadline_seconds,
        payload_bytes=payload_bytes,
        policy=policy,
        endpoint_subset=EndpointSubset(endpoints=listed) if endpoints else None,
        max_alternatives=alternatives,
        seed=seed,
    )
    response = asking.ask_dispatch(address, request, timeout_seconds)
    if as_json:
        click.echo(json.dumps(asking.as_json(response), indent=2))
    else:
        asking.print_decision(response)


@query.command("orchestrate")
@_address
@click.option("--policy", default="", help="Policy to ask; by default the active one.")
@click.option(
    "--max-actions", type=click.IntRange(1), help="Most actions; by default as many as the policy likes."
)
@click.option(
    "--protect",
    "protected_services",
    multiple=True,
    metavar="SERVICE",
    help="This service loses no replica; may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Only look: the server forgets the answer.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Makes ties and samples repeatable.")
@_timeout
@_json
def query_orchestrate(
    address: str,
    policy: str,
    max_actions: int | None,
    protected_services: Sequence[str],
    dry_run: bool,
    seed: int | None,
    timeout_seconds: float,
    as_json: bool,
) -> None:
    """Ask where to add and delete replicas. The actions count as taken for the rest of the frame.

    \b
    Exit status: 0 answered, also with no action; 1 the server refused, or none answers; 2 wrong usage.
    """
    from policy_server import query as asking
    from policy_server.proto.policy.v1.orchestration_service_pb2 import OrchestrateRequest

    request = OrchestrateRequest(
        policy=policy,
        max_actions=max_actions,
        protected_services=protected_services,
        dry_run=dry_run,
        seed=seed,
    )
    response = asking.ask_orchestration(address, request, timeout_seconds)
    if as_json:
        click.echo(json.dumps(asking.as_json(response), indent=2))
    else:
        asking.print_actions(response)


@query.command("scale")
@_address
@click.argument(
    "file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=str), required=False
)
@click.option("--example", is_flag=True, help="Print a commented example of FILE and ask nothing.")
@click.option("--policy", help="Policy to ask; by default that of FILE, else the active one.")
@click.option(
    "--economy",
    type=click.FloatRange(0, 1),
    help="0 spares latency most, 1 resources; by default that of FILE, else as the server is set.",
)
@_timeout
@_json
def query_scale(
    address: str,
    file: str | None,
    example: bool,
    policy: str | None,
    economy: float | None,
    timeout_seconds: float,
    as_json: bool,
) -> None:
    """Ask what CPU and memory containers should have. FILE holds their measurements in YAML or JSON; - reads stdin.

    \b
    Exit status: 0 answered; 1 the server refused, or none answers; 2 wrong usage, or FILE cannot be used.
    """
    from policy_server import query as asking
    from policy_server.client.scaling import (
        ScalingDocumentError,
        recommendations,
        scale_request_of_document,
    )
    from policy_server.client.scaling_documents import document_of, example_document, read_document

    if example:
        click.echo(example_document(), nl=False)
        return
    if file is None:
        raise click.UsageError("Missing argument 'FILE'; --example shows what it may hold.")
    try:
        with click.open_file(file, encoding="utf-8") as stream:
            request = scale_request_of_document(read_document(stream.read()))
    except (ScalingDocumentError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{file}: {error}") from None
    if policy is not None:
        request.policy = policy
    if economy is not None:
        request.economy = economy
    response = asking.ask_scale(address, request, timeout_seconds)
    if as_json:
        click.echo(json.dumps(document_of(recommendations(request, response)), indent=2))
    else:
        asking.print_recommendations(request, response)


@query.command("pick")
@click.option(
    "--address",
    default="127.0.0.1:9002",
    metavar="HOST:PORT",
    show_default=True,
    show_envvar=True,
    envvar=f"{ENVIRONMENT_PREFIX}_ENVOY_ADDRESS",
    help="Where the server listens for Envoy.",
)
@click.option("--authority", default="", help="Host that the request is for.")
@click.option("--path", default="/", show_default=True, help="Path of the request.")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header of the request; may be repeated."
)
@click.option(
    "--subset",
    "endpoints",
    multiple=True,
    metavar="ENDPOINT",
    help="Restricts the choice to this endpoint; may be repeated, or list several separated by commas.",
)
@_timeout
@_json
def query_pick(
    address: str,
    authority: str,
    path: str,
    headers: Sequence[str],
    endpoints: Sequence[str],
    timeout_seconds: float,
    as_json: bool,
) -> None:
    """Ask the endpoint picker about an HTTP request, as Envoy does. Prints the endpoints, best first.

    \b
    Exit status: 0 endpoints were named; 1 the request is refused, or none answers; 2 wrong usage.
    """
    from policy_server.envoy.query import ask_pick

    values = {":method": "GET", ":scheme": "http", ":authority": authority, ":path": path}
    for header in headers:
        name, equals, value = header.partition("=")
        if not (name and equals):
            raise click.UsageError(f"--header: {header!r}; give NAME=VALUE")
        values[name.lower()] = value
    answer = ask_pick(address, values, endpoints or None, timeout_seconds)
    if as_json:
        click.echo(json.dumps(asdict(answer), indent=2))
    else:
        for endpoint in answer.endpoints:
            click.echo(endpoint)
    if not answer.endpoints:
        click.echo(f"{answer.status or 'no answer'}: {answer.message}", err=True)
        raise SystemExit(1)


@query.command("state")
@_address
@_timeout
@_json
def query_state(address: str, timeout_seconds: float, as_json: bool) -> None:
    """Show the state the server decides on.

    \b
    Exit status: 0 shown; 1 the server holds none, or none answers; 2 wrong usage.
    """
    from policy_server import query as asking

    state = asking.ask_state(address, timeout_seconds)
    if as_json:
        click.echo(json.dumps(asking.as_json(state), indent=2))
    else:
        asking.print_state(state)


@main.command()
@click.option(
    "--models",
    type=click.Path(path_type=Path, file_okay=False),
    envvar=f"{ENVIRONMENT_PREFIX}_MODELS",
    show_envvar=True,
    help="Directory of model bundles; by default those shipped with the package.",
)
@_json
def policies(models: Path | None, as_json: bool) -> None:
    """List the policies a server would know: model bundles, each checked, and heuristics, with what they decide.

    \b
    Exit status: 0 listed; 1 a bundle is refused, or there is no such directory; 2 wrong usage.
    """
    from policy_server.policy_list import list_policies, print_policies

    listed = list_policies(models)
    if as_json:
        click.echo(json.dumps([asdict(entry) for entry in listed], indent=2))
    else:
        print_policies(listed)
    if any(entry.refused for entry in listed):
        raise SystemExit(1)


def _pairs(options: Iterable[str]) -> dict[str, str]:
    pairs = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not (key and equals):
            raise SettingsError(f"state_options: {option!r}; give KEY=VALUE")
        pairs[key] = value
    return pairs


if __name__ == "__main__":
    main()
