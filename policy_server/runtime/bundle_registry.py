"""Policies of one kind by name, with hot reload of the learned ones."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from policy_server.policies.heuristics import UnknownPolicyError
from policy_server.runtime.bundle import Bundle, BundleError, BundleLocation, find_bundles, manifest_digest

_LOGGER = logging.getLogger(__name__)


class _Guarded(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def policy(self) -> Any: ...


GuardedT = TypeVar("GuardedT", bound=_Guarded)


@dataclass(frozen=True)
class ReloadReport:
    """What a reload did. Whatever was refused stays out, and what served before serves on.

    Attributes:
        loaded: bundles that serve from now on.
        kept: bundles that serve on.
        missing: names of learned policies of which no version could be loaded.
        failures: why bundles were refused.
    """

    loaded: tuple[Bundle, ...]
    kept: tuple[Bundle, ...]
    missing: tuple[str, ...]
    failures: tuple[BundleError, ...]


@dataclass(frozen=True)
class _State(Generic[GuardedT]):
    """Replaced as a whole, so that readers need no lock."""

    policies: Mapping[str, GuardedT] = field(default_factory=dict)
    bundles: Mapping[str, Bundle] = field(default_factory=dict)
    active: str = ""


class BundleRegistry(ABC, Generic[GuardedT]):
    """Names to guarded policies: all rules, and the latest loadable version of every learned policy of one kind.

    Reading takes no lock and sees one state or the next, never a mixture. Whoever got a policy may go on using it; a
    replaced version is freed with its last user. Rules are made when first asked for.
    """

    def __init__(self, root: Path | None, *, kind: str, rules: Sequence[str], active: str) -> None:
        """Loads the latest version of every bundle; :attr:`last_reload` says which were refused.

        Args:
            root: holds ``<policy>/<version>/``; None: the bundles shipped with the package.
            kind: of the bundles.
            rules: names of the policies that need no bundle.
            active: name of the policy for requests that name none.

        Raises:
            BundleError: there is no ``root``.
            UnknownPolicyError: of ``active``.
        """
        find_bundles(root, kind=kind)
        self._root = root
        self._kind = kind
        self._rules = tuple(rules)
        self._writer = threading.Lock()
        self._state: _State[GuardedT] = _State()
        self._last_reload = self.reload()
        self.set_active(active)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that can be asked for, learned policies first."""
        learned = [name for name, policy in self._state.policies.items() if policy.policy.learned]
        return (*learned, *self._rules)

    @property
    def active(self) -> str:
        """Name of the policy for requests that name none."""
        return self._state.active

    @property
    def bundles(self) -> Mapping[str, Bundle]:
        """Loaded bundles by policy name."""
        return self._state.bundles

    @property
    def last_reload(self) -> ReloadReport:
        """Outcome of the latest :meth:`reload`, at first of the one at start."""
        return self._last_reload

    def get(self, name: str | None = None) -> GuardedT:
        """The policy of that name; without a name, or with an empty one, the active policy.

        Raises:
            UnknownPolicyError: there is none; the message lists those there are.
        """
        state = self._state
        wanted = name or state.active
        return state.policies.get(wanted) or self._add_rule(wanted)

    def set_active(self, name: str) -> None:
        """Makes a policy the one for requests that name none.

        Raises:
            UnknownPolicyError: there is none of that name.
        """
        self.get(name)
        with self._writer:
            self._state = replace(self._state, active=name)

    def reload(self) -> ReloadReport:
        """Looks for bundles again and serves the latest version of each policy that passes every check.

        A new version is loaded before the old one is let go. A policy none of whose bundles loads keeps the version
        it has.
        """
        loaded, kept, missing, failures = [], [], [], []
        with self._writer:
            try:
                found = find_bundles(self._root, kind=self._kind)
            except BundleError as error:
                found = {}
                failures.append(error)
            for name in dict.fromkeys((*found, *self._state.bundles)):
                locations = found.get(name, [])
                if name in self._rules:
                    failures.append(
                        BundleError(locations[0].path.parent, "named like a heuristic", "choose another name")
                    )
                    continue
                current = self._state.bundles.get(name)
                bundle, refused = _latest(locations, current)
                failures.extend(refused)
                if bundle is None:
                    missing.append(name)
                    self._put(self._missing(name))
                elif bundle is current:
                    kept.append(bundle)
                else:
                    loaded.append(bundle)
                    self._put(self._learned(bundle), bundle)
            for failure in failures:
                _LOGGER.error("bundle refused: %s", failure)
            self._last_reload = ReloadReport(tuple(loaded), tuple(kept), tuple(missing), tuple(failures))
            return self._last_reload

    @abstractmethod
    def _learned(self, bundle: Bundle) -> GuardedT:
        """Serves a bundle."""

    @abstractmethod
    def _missing(self, name: str) -> GuardedT:
        """Stands for a learned policy of which no version could be loaded."""

    @abstractmethod
    def _rule(self, name: str) -> GuardedT:
        """Makes a rule; raises ImportError where it needs what is not installed."""

    def _add_rule(self, name: str) -> GuardedT:
        if name not in self._rules:
            known = ", ".join(self.names)
            raise UnknownPolicyError(f"policy: {name!r} is unknown; choose one of {known}")
        try:
            rule = self._rule(name)
        except ImportError as error:
            raise UnknownPolicyError(str(error)) from error
        with self._writer:
            if name not in self._state.policies:
                self._put(rule)
        return self._state.policies[name]

    def _put(self, policy: GuardedT, bundle: Bundle | None = None) -> None:
        state = self._state
        bundles = state.bundles if bundle is None else {**state.bundles, policy.name: bundle}
        self._state = replace(state, policies={**state.policies, policy.name: policy}, bundles=bundles)


def _latest(
    locations: Sequence[BundleLocation], current: Bundle | None
) -> tuple[Bundle | None, list[BundleError]]:
    """The latest version that can be served, and why later ones cannot."""
    refused: list[BundleError] = []
    for location in locations:
        try:
            if current is None or location.version != current.manifest.version:
                return location.load(), refused
            if manifest_digest(location.path) != current.digest:
                raise BundleError(
                    location.path, "changed since it was loaded", "publish a change under a higher version"
                )
            return current, refused
        except BundleError as error:
            refused.append(error)
    if not locations and current is not None:
        refused.append(BundleError(current.path, "gone", "restore it, or restart without it"))
    return current, refused
