"""Every scaling policy that can be asked for by name, with hot reload of the learned ones."""

from __future__ import annotations

from pathlib import Path

from policy_server.policies.model_calls import DEFAULT_SETTINGS, GuardObserver, GuardSettings
from policy_server.policies.scaling import RULE_SCALING_NAMES, ScalingPolicy, rule_scaling
from policy_server.policies.scaling.guard import DEFAULT_FALLBACK, GuardedScaling, MissingScaling
from policy_server.policies.scaling.onnx import onnx_scaling
from policy_server.runtime.bundle import Bundle
from policy_server.runtime.bundle_registry import BundleRegistry

PREFERRED_MODEL = "td3"
"""The learned baselines beside it are there to be compared with."""


class ScalingRegistry(BundleRegistry[GuardedScaling]):
    """Names to guarded scaling policies: all rules, and every learned policy of kind ``scaling``."""

    def __init__(
        self,
        root: Path | None = None,
        *,
        active: str | None = None,
        fallback: str = DEFAULT_FALLBACK.name,
        settings: GuardSettings = DEFAULT_SETTINGS,
        observer: GuardObserver | None = None,
    ) -> None:
        """Loads the latest version of every bundle; :attr:`last_reload` says which were refused.

        Args:
            root: holds ``<policy>/<version>/``; None: the bundles shipped with the package.
            active: name of the policy for requests that name none; None: ``PREFERRED_MODEL``, else the first model
                that could be loaded, else the fallback.
            fallback: name of the rule that answers when a policy cannot.
            settings: of every guard.
            observer: of every guard.

        Raises:
            BundleError: there is no ``root``.
            UnknownPolicyError: of ``active``, or ``fallback`` is not a rule.
        """
        self._fallback = rule_scaling(fallback)
        self._settings = settings
        self._observer = observer
        super().__init__(root, kind="scaling", rules=RULE_SCALING_NAMES, active=active or fallback)
        if active is None and self.bundles:
            self.set_active(PREFERRED_MODEL if PREFERRED_MODEL in self.bundles else next(iter(self.bundles)))

    def _learned(self, bundle: Bundle) -> GuardedScaling:
        return self._guarded(onnx_scaling(bundle))

    def _missing(self, name: str) -> GuardedScaling:
        return self._guarded(MissingScaling(name))

    def _rule(self, name: str) -> GuardedScaling:
        return self._guarded(rule_scaling(name))

    def _guarded(self, policy: ScalingPolicy) -> GuardedScaling:
        return GuardedScaling(
            policy, fallback=self._fallback, settings=self._settings, observer=self._observer
        )
