"""Random dispatch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policy_server.cluster.snapshot import Float32Array
from policy_server.features.candidates import Candidates
from policy_server.policies.heuristics.base import HeuristicDispatch


@dataclass(frozen=True)
class RandomDispatch(HeuristicDispatch):
    """Any candidate, each with the same probability: all score zero and the random tie-break chooses."""

    name: str = "random"

    def score(self, candidates: Candidates, prepared: None, random: np.random.Generator) -> Float32Array:
        """Zeros, float32 [C]."""
        return np.zeros(len(candidates), np.float32)
