"""Dispatch to the own access point's nodes first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policy_server.cluster.snapshot import Float32Array
from policy_server.features.candidates import Candidates
from policy_server.policies.heuristics.base import (
    HeuristicDispatch,
    is_cloud,
    load_with_request,
    tiered_score,
)


@dataclass(frozen=True)
class LocalFirst(HeuristicDispatch):
    """Own access point's nodes while they can meet the deadline, then other edge nodes, then the cloud.

    Our rule, the usual practice of edge systems: keep requests near, spill when near is full. Inside a tier the
    least loaded wins (:func:`load_with_request`). When no candidate is estimated to meet the deadline, place no
    longer matters and the least loaded of all wins.
    """

    name: str = "local-first"

    def score(self, candidates: Candidates, prepared: None, random: np.random.Generator) -> Float32Array:
        """By tier, then by load, float32 [C]."""
        tier = np.where(candidates.local > 0, np.float32(0), np.float32(1) + is_cloud(candidates))
        tier[candidates.completion_seconds > candidates.deadline_seconds] = 3
        return tiered_score(load_with_request(candidates), tier)
