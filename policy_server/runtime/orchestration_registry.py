"""Every orchestration policy that can be asked for by name, with hot reload of the learned ones."""

from __future__ import annotations

from pathlib import Path

from policy_server.policies.model_calls import GuardObserver
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
from policy_server.runtime.bundle import Bundle
from policy_server.runtime.bundle_registry import BundleRegistry


class OrchestrationRegistry(BundleRegistry[GuardedOrchestration]):
    """Names to guarded orchestration policies: all rules, and every learned policy of kind ``orchestration``."""

    def __init__(
        self,
        root: Path | None = None,
        *,
        active: str,
        fallback: str = "greedy",
        settings: OrchestrationGuardSettings = DEFAULT_ORCHESTRATION_SETTINGS,
        observer: GuardObserver | None = None,
    ) -> None:
        """Loads the latest version of every bundle; :attr:`last_reload` says which were refused.

        Args:
            root: holds ``<policy>/<version>/``; None: the bundles shipped with the package.
            active: name of the policy for requests that name none.
            fallback: name of the rule that answers when a policy cannot.
            settings: of every guard.
            observer: of every guard.

        Raises:
            BundleError: there is no ``root``.
            UnknownPolicyError: of ``active``, or ``fallback`` is not a rule.
        """
        self._fallback = heuristic_orchestration(fallback)
        self._settings = settings
        self._observer = observer
        super().__init__(root, kind="orchestration", rules=HEURISTIC_ORCHESTRATION_NAMES, active=active)

    def _learned(self, bundle: Bundle) -> GuardedOrchestration:
        return self._guarded(OnnxOrchestration(bundle))

    def _missing(self, name: str) -> GuardedOrchestration:
        return self._guarded(MissingOrchestration(name))

    def _rule(self, name: str) -> GuardedOrchestration:
        return self._guarded(heuristic_orchestration(name))

    def _guarded(self, policy: OrchestrationPolicy) -> GuardedOrchestration:
        return GuardedOrchestration(
            policy, fallback=self._fallback, settings=self._settings, observer=self._observer
        )
