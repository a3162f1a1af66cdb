from __future__ import annotations

from policy_server.kubernetes.extender.pod_rules import PodRules
from policy_server.kubernetes.extender.start import pod_rules
from policy_server.settings import Settings


def test_rules_by_default() -> None:
    assert pod_rules(Settings()) == PodRules(
        service_labels=("policy-server.io/service", "app.kubernetes.io/name", "app"),
        own_namespace="policy-server",
        own_label=("app.kubernetes.io/name", "policy-server"),
    )


def test_rules_of_ones_own() -> None:
    settings = Settings(extender_service_labels=" a , b,", extender_own_namespace="", extender_own_label="")
    assert pod_rules(settings) == PodRules(("a", "b"), "", None)
    assert pod_rules(Settings(extender_own_label="k=v=w")).own_label == ("k", "v=w")
