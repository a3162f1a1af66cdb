"""Dispatch rules that need no training. Each is a score over the same candidates that models see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policy_server.cluster.snapshot import Float32Array
from policy_server.features.candidates import Candidates
from policy_server.features.load_table import LoadTable


@dataclass(frozen=True)
class HeuristicDispatch:
    """Common part of the rules: no model, nothing to prepare, the best score wins."""

    name: str = ""
    version: str = "1"
    learned: bool = False
    sampling_temperature: float = 0.0
    shares_picks: bool = False

    def prepare(self, table: LoadTable) -> None:
        """Nothing to prepare."""


@dataclass(frozen=True)
class RandomDispatch(HeuristicDispatch):
    """Every candidate is as good as any other; the tie-break chooses."""

    name: str = "random"

    def score(self, candidates: Candidates, prepared: None, random: np.random.Generator) -> Float32Array:
        """Zeros, float32 [C]."""
        return np.zeros(len(candidates), np.float32)


@dataclass(frozen=True)
class EarliestCompletion(HeuristicDispatch):
    """The candidate that is estimated to answer first."""

    name: str = "earliest-completion"

    def score(self, candidates: Candidates, prepared: None, random: np.random.Generator) -> Float32Array:
        """Minus the estimated completion time, float32 [C]."""
        return -candidates.completion_seconds
