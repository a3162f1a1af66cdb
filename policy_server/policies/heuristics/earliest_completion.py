"""Dispatch to the earliest completion."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policy_server.cluster.snapshot import Float32Array
from policy_server.features.candidates import Candidates
from policy_server.policies.heuristics.base import HeuristicDispatch


@dataclass(frozen=True)
class EarliestCompletion(HeuristicDispatch):
    """The candidate that is estimated to answer first (list scheduling by minimum completion time).

    The estimate is ``completion`` of :class:`~policy_server.features.candidates.Candidates`: network, wait behind
    what the snapshot shows and behind own pending picks, execution, and the way back.
    """

    name: str = "earliest-completion"

    def score(self, candidates: Candidates, prepared: None, random: np.random.Generator) -> Float32Array:
        """Minus the estimated completion time, float32 [C]."""
        return -candidates.completion_seconds
