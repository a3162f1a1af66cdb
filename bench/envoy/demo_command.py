"""``policy-bench demo-envoy``: the demonstration behind ``make demo-envoy``."""

from __future__ import annotations

import json
from dataclasses import asdict

import click


@click.command("demo-envoy")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON on standard output.")
@click.option(
    "--seconds",
    type=click.FloatRange(1),
    default=11.0,
    show_default=True,
    help="Time per contestant; the back ends' speeds change until second 10.",
)
@click.option(
    "--rate",
    "requests_per_second",
    type=click.FloatRange(1),
    default=220.0,
    show_default=True,
    help="Requests per second; the back ends can do 390, and 310 while one is slow.",
)
@click.option(
    "--report-seconds",
    type=click.FloatRange(0.01),
    default=0.1,
    show_default=True,
    help="Between two reports of the back ends' state.",
)
@click.option(
    "--way",
    type=click.Choice(["ext_proc", "ext_authz"]),
    default="ext_proc",
    show_default=True,
    help="How Envoy asks the picker.",
)
@click.option(
    "--policies",
    default="earliest-completion,kais,prequal",
    show_default=True,
    help="Comma-separated names of policies to serve.",
)
def demo_envoy_command(
    as_json: bool, seconds: float, requests_per_second: float, report_seconds: float, way: str, policies: str
) -> None:
    """Put the endpoint picker behind a real Envoy and compare it with Envoy's own balancing.

    Six HTTP back ends of unequal speed, two of which slow down for a while; each contestant gets the same requests
    at the same rate, whatever becomes of them.

    \b
    Exit status: 0 done; 1 something failed, or a run is void; 2 wrong usage.
    """
    from rich.console import Console

    from bench.console_support import errors_reported, progress
    from bench.envoy.demo import DemoPlan, run_demo
    from bench.envoy.demo_table import demo_table
    from bench.envoy.sides import Way

    plan = DemoPlan(seconds, requests_per_second, report_seconds, _names(policies), Way(way))
    with errors_reported(), progress(len(plan.contestants)) as on_step:
        results = run_demo(plan, on_step)
    if as_json:
        document = {
            "seconds": seconds,
            "requests_per_second": requests_per_second,
            "report_seconds": report_seconds,
            "way": way,
            "contestants": {name: asdict(figures) for name, figures in results.items()},
        }
        click.echo(json.dumps(document, indent=2))
    else:
        Console().print(demo_table(plan, results))


def _names(policies: str) -> tuple[str, ...]:
    """The policies to serve.

    Raises:
        click.BadParameter: there is none, or one is unknown.
    """
    from policy_server.policies.heuristics import HEURISTIC_DISPATCH_NAMES
    from policy_server.runtime.bundle import find_bundles

    known = (*find_bundles(), *HEURISTIC_DISPATCH_NAMES)
    names = tuple(name.strip() for name in policies.split(",") if name.strip())
    if not names:
        raise click.BadParameter("name at least one policy", param_hint="--policies")
    for name in names:
        if name not in known:
            raise click.BadParameter(
                f"{name!r} is unknown; choose from {', '.join(known)}", param_hint="--policies"
            )
    return names
