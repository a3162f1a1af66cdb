"""Every dispatch policy that can be asked for by name, with hot reload of the learned ones."""

from __future__ import annotations

from pathlib import Path

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
from policy_server.runtime.bundle import Bundle
from policy_server.runtime.bundle_registry import BundleRegistry, ReloadReport

__all__ = ["PolicyRegistry", "ReloadReport", "UnknownPolicyError"]


class PolicyRegistry(BundleRegistry[GuardedDispatch]):
    """Names to guarded dispatch policies: all heuristics, and every learned policy of kind ``dispatch``."""

    def __init__(
        self,
        root: Path | None = None,
        *,
        active: str,
        fallback: str = "earliest-completion",
        settings: GuardSettings = DEFAULT_SETTINGS,
        observer: GuardObserver | None = None,
    ) -> None:
        """Loads the latest version of every bundle; :attr:`last_reload` says which were refused.

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
        self._fallback = heuristic_dispatch(fallback)
        self._settings = settings
        self._observer = observer
        super().__init__(root, kind="dispatch", rules=HEURISTIC_DISPATCH_NAMES, active=active)

    def _learned(self, bundle: Bundle) -> GuardedDispatch:
        return self._guarded(OnnxDispatch(bundle))

    def _missing(self, name: str) -> GuardedDispatch:
        return self._guarded(MissingModel(name))

    def _rule(self, name: str) -> GuardedDispatch:
        return self._guarded(heuristic_dispatch(name))

    def _guarded(self, policy: DispatchPolicy) -> GuardedDispatch:
        return GuardedDispatch(
            policy, fallback=self._fallback, settings=self._settings, observer=self._observer
        )
