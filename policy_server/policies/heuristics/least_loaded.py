"""Dispatch to the least loaded: of all candidates, or of two random ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policy_server.cluster.snapshot import Float32Array
from policy_server.features.candidates import Candidates
from policy_server.policies.heuristics.base import (
    HeuristicDispatch,
    candidate_counts,
    load_with_request,
    tiered_score,
)


@dataclass(frozen=True)
class LeastLoaded(HeuristicDispatch):
    """The least loaded of all candidates, wherever it is.

    Envoy's and NGINX's rules of this family count outstanding requests. Ours counts them per slot and also looks at
    the CPU of the node, which other services use too; see :func:`load_with_request`.
    """

    name: str = "least-loaded"

    def score(self, candidates: Candidates, prepared: None, random: np.random.Generator) -> Float32Array:
        """Minus the load with the request, float32 [C]."""
        return -load_with_request(candidates)


@dataclass(frozen=True)
class PowerOfTwo(HeuristicDispatch):
    """The less loaded of two distinct random candidates.

    Mitzenmacher, The Power of Two Choices in Randomized Load Balancing (IEEE TPDS 2001). The load is that of
    :class:`LeastLoaded`. Candidates outside the pair serve as alternatives only.
    """

    name: str = "power-of-two"

    def score(self, candidates: Candidates, prepared: None, random: np.random.Generator) -> Float32Array:
        """The pair by load, then the rest by load, float32 [C]."""
        counts = candidate_counts(candidates)
        uniform = random.random((2, len(counts)))
        first = (uniform[0] * counts).astype(np.int64)
        # The second of a pair is drawn from the others; a lone candidate is its own partner.
        second = (uniform[1] * np.maximum(counts - 1, 1)).astype(np.int64)
        second += (second >= first) & (counts > 1)
        served = counts > 0
        start = candidates.offsets[:-1][served]
        outside = np.ones(len(candidates), bool)
        outside[start + first[served]] = False
        outside[start + second[served]] = False
        return tiered_score(load_with_request(candidates), outside)
