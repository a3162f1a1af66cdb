"""The scheduler configuration that ships, fit for a control plane of the tests."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.control_plane import ControlPlane

SHIPPED = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"


def configuration(
    plane: ControlPlane, url: str, *, names_only: bool = True, authority: Path | None = None
) -> str:
    """The shipped file with what differs here replaced, each exactly once.

    Args:
        plane: whose API server the scheduler is to use.
        url: of the extender.
        names_only: whether nodes come by name.
        authority: PEM file of who signed the extender's certificate; None: plain HTTP.
    """
    text = (SHIPPED / "kube-scheduler-config.yaml").read_text()
    replacements = {
        "kubescheduler.config.k8s.io/v1\n": "kubescheduler.config.k8s.io/v1beta1\n",
        "/etc/kubernetes/scheduler.conf": str(plane.kubeconfig),
        "leaderElect: true": "leaderElect: false",
        "http://policy-server.policy-server.svc:9003": url,
        "nodeCacheCapable: true\n": f"nodeCacheCapable: {json.dumps(names_only)}\n",
        # A busy machine is no reason to go on without the extender under test.
        "httpTimeout: 1s": "httpTimeout: 20s",
    }
    if authority is not None:
        replacements["enableHTTPS: false\n"] = f"enableHTTPS: true\n    tlsConfig: {{caFile: {authority}}}\n"
    for shipped, wanted in replacements.items():
        assert text.count(shipped) == 1, shipped
        text = text.replace(shipped, wanted)
    return text
