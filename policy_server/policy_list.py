"""The policies a server would know, for the shell."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from policy_server.policies.heuristics import HEURISTIC_DISPATCH_NAMES, heuristic_dispatch
from policy_server.policies.orchestration.rules import HEURISTIC_ORCHESTRATION_NAMES
from policy_server.policies.scaling import RULE_SCALING_NAMES
from policy_server.runtime.bundle import BundleError, declared_kind, find_bundles


@dataclass(frozen=True)
class ListedPolicy:
    """One policy.

    Attributes:
        name: to ask for.
        version: of the bundle; empty for a heuristic.
        kind: ``model`` or ``heuristic``.
        decides: ``dispatch``, ``orchestration`` or ``scaling``.
        path: of the bundle; empty for a heuristic.
        refused: why the policy would not be loaded; empty if it would.
    """

    name: str
    version: str
    kind: str
    decides: str
    path: str = ""
    refused: str = ""


def list_policies(models: Path | None) -> list[ListedPolicy]:
    """Every bundle, latest version first, then every heuristic.

    Raises:
        click.ClickException: there is no directory of models.
    """
    try:
        found = find_bundles(models)
    except BundleError as error:
        raise click.ClickException(str(error)) from None
    listed = []
    for locations in found.values():
        for location in locations:
            refused = ""
            try:
                location.load()
            except BundleError as error:
                refused = str(error)
            listed.append(
                ListedPolicy(
                    location.policy,
                    location.version,
                    "model",
                    declared_kind(location.path),
                    str(location.path),
                    refused,
                )
            )
    for name in HEURISTIC_DISPATCH_NAMES:
        refused = ""
        try:
            heuristic_dispatch(name)
        except ImportError as error:
            refused = str(error)
        listed.append(ListedPolicy(name, "", "heuristic", "dispatch", refused=refused))
    listed.extend(
        ListedPolicy(name, "", "heuristic", "orchestration") for name in HEURISTIC_ORCHESTRATION_NAMES
    )
    listed.extend(ListedPolicy(name, "", "heuristic", "scaling") for name in RULE_SCALING_NAMES)
    return listed


def print_policies(listed: list[ListedPolicy]) -> None:
    """Prints policies as a table."""
    table = Table("policy", "version", "decides", "kind", "state")
    for entry in listed:
        state = f"refused: {entry.refused}" if entry.refused else "ready"
        table.add_row(entry.name, entry.version, entry.decides, entry.kind, state)
    Console().print(table)
