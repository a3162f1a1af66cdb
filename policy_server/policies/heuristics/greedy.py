"""The Greedy dispatch baseline of KaiS."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policy_server.cluster.snapshot import Float32Array
from policy_server.features.candidates import Candidates
from policy_server.policies.heuristics.base import HeuristicDispatch, is_cloud, tiered_score


@dataclass(frozen=True)
class Greedy(HeuristicDispatch):
    """The edge node with the lowest resource utilisation (Greedy of the KaiS paper, arXiv 2101.06582).

    The resource is CPU: memory is held by replicas, so dispatch does not move it. Utilisation counts what is
    running, queued and picked since the snapshot; measured use alone would stop at 1 and hide every queue. The
    cloud serves what no edge node can.
    """

    name: str = "greedy"

    def score(self, candidates: Candidates, prepared: None, random: np.random.Generator) -> Float32Array:
        """Edge before cloud, then by committed CPU, float32 [C]."""
        return tiered_score(candidates.committed, is_cloud(candidates))
