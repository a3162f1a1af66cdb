"""Runs a server as a process: event loop, log, exit status."""

from __future__ import annotations

import asyncio
import logging
import sys
from types import ModuleType

import click

from policy_server.cluster.state_source import StateSourceError
from policy_server.policies.heuristics import UnknownPolicyError
from policy_server.runtime.bundle import BundleError
from policy_server.server import PolicyServer
from policy_server.settings import Settings
from policy_server.startup_report import startup_report
from policy_server.telemetry.export import TelemetryError

try:
    import uvloop
except ImportError:  # not made for Windows
    uvloop: ModuleType | None = None  # type: ignore[no-redef]


def run_server(settings: Settings) -> None:
    """Serves until a signal; returns when the server stopped in order.

    Raises:
        click.ClickException: it could not start; the message says why and what to do.
    """
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        run = asyncio.run if uvloop is None else uvloop.run
        run(_serve(settings))
    except (OSError, BundleError, UnknownPolicyError, StateSourceError, TelemetryError) as error:
        raise click.ClickException(str(error)) from error


async def _serve(settings: Settings) -> None:
    await PolicyServer(settings).serve(_announce)


def _announce(server: PolicyServer) -> None:
    click.echo(startup_report(server), err=True)
    click.echo(f"listening on {server.address}")
    sys.stdout.flush()
