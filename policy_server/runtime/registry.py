"""Every policy of a kind that can be asked for by name, with hot reload of the learned ones."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from policy_server.policies.dispatch import DispatchPolicy
from policy_server.policies.guard import (
    DEFAULT_SETTINGS,
    GuardedDispatch,
    GuardObserver,
    GuardSettings,
    MissingModel,
)
from policy_server.policies.heuristics import (
    HEURISTIC_DISPATCH_NAMES,
    UnknownPolicyError,
    heuristic_dispatch,
)
from policy_server.policies.onnx_dispatch import OnnxDispatch
from policy_server.policies.orchestration.guard import (
    DEFAULT_ORCHESTRATION_SETTINGS,
    GuardedOrchestration,
    MissingOrchestration,
    OrchestrationGuardSettings,
)
from policy_server.policies.orchestration.onnx import OnnxOrchestration
from policy_server.policies.orchestration.policy import OrchestrationPolicy
from policy_server.policies.orchestration.rules import (
    HEURISTIC_ORCHESTRATION_NAMES,
    heuristic_orchestration,
)
from policy_server.runtime.bundle import (
    BUNDLE_KINDS,
    Bundle,
    BundleError,
    BundleLocation,
    find_bundles,
    manifest_digest,
)

__all__ = ["OrchestrationRegistry", "PolicyRegistry", "ReloadReport", "UnknownPolicyError"]

_LOGGER = logging.getLogger(__name__)


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


class _Guarded(Protocol):
    """What the registry needs to know of a guarded policy."""

    @property
    def name(self) -> str: ...

    @property
    def policy(self) -> Any: ...


GuardedT = TypeVar("GuardedT", bound=_Guarded)


@dataclass(frozen=True)
class PolicyFamily(Generic[GuardedT]):
    """The policies of one kind.

    Attributes:
        kind: of the bundles.
        heuristic_names: that ``heuristic`` knows.
        heuristic: makes a rule by name.
        learned: makes a policy of a bundle.
        missing: stands for a learned policy of that name of which no version could be loaded.
        guard: guards any of them.
        reports_unknown_kinds: whether bundles that no family serves are refused here.
    """

    kind: str
    heuristic_names: tuple[str, ...]
    heuristic: Callable[[str], Any]
    learned: Callable[[Bundle], Any]
    missing: Callable[[str], Any]
    guard: Callable[[Any], GuardedT]
    reports_unknown_kinds: bool = False

    def takes(self, location: BundleLocation) -> bool:
        """Whether a bundle is this family's business."""
        kind = location.kind()
        return kind == self.kind or (self.reports_unknown_kinds and kind not in BUNDLE_KINDS)


@dataclass(frozen=True)
class _State(Generic[GuardedT]):
    """Replaced as a whole, so that readers need no lock."""

    policies: Mapping[str, GuardedT]
    bundles: Mapping[str, Bundle]
    active: str


class FamilyRegistry(Generic[GuardedT]):
    """Names to guarded policies: all heuristics, and the latest loadable version of every learned policy.

    Reading takes no lock and sees one state or the next, never a mixture. Whoever got a policy may go on using it; a
    replaced version is freed with its last user. Heuristics are made when first asked for.
    """

    def __init__(self, root: Path | None, family: PolicyFamily[GuardedT], active: str) -> None:
        """Loads the latest version of every bundle; :attr:`last_reload` says which were refused.

        Args:
            root: holds ``<policy>/<version>/``; None: the bundles shipped with the package.
            family: which policies to know.
            active: name of the policy for requests that name none.

        Raises:
            BundleError: there is no ``root``.
            UnknownPolicyError: of ``active``.
        """
        find_bundles(root)
        self._root = root
        self._family = family
        self._writer = threading.Lock()
        self._state: _State[GuardedT] = _State({}, {}, active)
        self._last_reload = self.reload()
        self.set_active(active)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that can be asked for, learned policies first."""
        learned = [name for name, policy in self._state.policies.items() if policy.policy.learned]
        return (*learned, *self._family.heuristic_names)

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
        return state.policies.get(wanted) or self._add_heuristic(wanted)

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
                found = find_bundles(self._root)
            except BundleError as error:
                found = {}
                failures.append(error)
            for name in dict.fromkeys((*found, *self._state.bundles)):
                locations = [location for location in found.get(name, []) if self._family.takes(location)]
                if not locations and name not in self._state.bundles:
                    continue
                if name in self._family.heuristic_names:
                    failures.append(
                        BundleError(locations[0].path.parent, "named like a heuristic", "choose another name")
                    )
                    continue
                current = self._state.bundles.get(name)
                bundle, refused = _latest(locations, current)
                failures.extend(refused)
                if bundle is None:
                    missing.append(name)
                    self._put(self._family.guard(self._family.missing(name)))
                elif bundle is current:
                    kept.append(bundle)
                else:
                    loaded.append(bundle)
                    self._put(self._family.guard(self._family.learned(bundle)), bundle)
            for failure in failures:
                _LOGGER.error("bundle refused: %s", failure)
            self._last_reload = ReloadReport(tuple(loaded), tuple(kept), tuple(missing), tuple(failures))
            return self._last_reload

    def _add_heuristic(self, name: str) -> GuardedT:
        if name not in self._family.heuristic_names:
            known = ", ".join(self.names)
            raise UnknownPolicyError(f"policy: {name!r} is unknown; choose one of {known}")
        try:
            heuristic = self._family.heuristic(name)
        except ImportError as error:
            raise UnknownPolicyError(str(error)) from error
        with self._writer:
            if name not in self._state.policies:
                self._put(self._family.guard(heuristic))
        return self._state.policies[name]

    def _put(self, policy: GuardedT, bundle: Bundle | None = None) -> None:
        state = self._state
        bundles = state.bundles if bundle is None else {**state.bundles, policy.name: bundle}
        self._state = replace(state, policies={**state.policies, policy.name: policy}, bundles=bundles)


class PolicyRegistry(FamilyRegistry[GuardedDispatch]):
    """The dispatch policies."""

    def __init__(
        self,
        root: Path | None = None,
        *,
        active: str,
        fallback: str = "earliest-completion",
        settings: GuardSettings = DEFAULT_SETTINGS,
        observer: GuardObserver | None = None,
    ) -> None:
        """Loads the latest version of every dispatch bundle.

        Args:
            root: holds ``<policy>/<version>/``; None: the bundles shipped with the package.
            active: name of the policy for requests that name none.
            fallback: name of the heuristic that answers when a policy cannot.
            settings: of every guard.
            observer: of every guard.

        Raises:
            BundleError: there is no ``root``.
            UnknownPolicyError: of ``active``, or ``fallback`` is not a heuristic.
        """
        stand_in = heuristic_dispatch(fallback)

        def guard(policy: DispatchPolicy) -> GuardedDispatch:
            return GuardedDispatch(policy, fallback=stand_in, settings=settings, observer=observer)

        family = PolicyFamily(
            kind="dispatch",
            heuristic_names=HEURISTIC_DISPATCH_NAMES,
            heuristic=heuristic_dispatch,
            learned=OnnxDispatch,
            missing=MissingModel,
            guard=guard,
            reports_unknown_kinds=True,
        )
        super().__init__(root, family, active)


class OrchestrationRegistry(FamilyRegistry[GuardedOrchestration]):
    """The orchestration policies."""

    def __init__(
        self,
        root: Path | None = None,
        *,
        active: str,
        fallback: str = "greedy",
        settings: OrchestrationGuardSettings = DEFAULT_ORCHESTRATION_SETTINGS,
        observer: GuardObserver | None = None,
    ) -> None:
        """Loads the latest version of every orchestration bundle; arguments as of :class:`PolicyRegistry`."""
        stand_in = heuristic_orchestration(fallback)

        def guard(policy: OrchestrationPolicy) -> GuardedOrchestration:
            return GuardedOrchestration(policy, fallback=stand_in, settings=settings, observer=observer)

        family = PolicyFamily(
            kind="orchestration",
            heuristic_names=HEURISTIC_ORCHESTRATION_NAMES,
            heuristic=heuristic_orchestration,
            learned=OnnxOrchestration,
            missing=MissingOrchestration,
            guard=guard,
        )
        super().__init__(root, family, active)


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
