"""Which pods are whose."""

from __future__ import annotations

from dataclasses import dataclass

from policy_server.kubernetes.objects import Pod


@dataclass(frozen=True)
class PodRules:
    """Tells services and our own pods by namespace and labels.

    Attributes:
        service_labels: a pod is a replica of the service that the first of these labels it carries names.
        own_namespace: pods in it are ours; empty: none are.
        own_label: pods that carry this key and value are ours; None: none are.
    """

    service_labels: tuple[str, ...]
    own_namespace: str = ""
    own_label: tuple[str, str] | None = None

    def is_own(self, pod: Pod) -> bool:
        """Whether the pod is one of ours, which must be schedulable while we are not there to ask."""
        if self.own_namespace and pod.metadata.namespace == self.own_namespace:
            return True
        if self.own_label is None:
            return False
        key, value = self.own_label
        return (pod.metadata.labels or {}).get(key) == value

    def service_of(self, pod: Pod) -> str | None:
        """Name of the service the pod is a replica of; None for our own pods and for those without a label."""
        if self.is_own(pod):
            return None
        labels = pod.metadata.labels or {}
        return next((labels[label] for label in self.service_labels if label in labels), None)
