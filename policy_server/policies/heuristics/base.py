"""What the dispatch rules have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from policy_server.cluster.snapshot import BoolArray, Float32Array, Int64Array
from policy_server.features.candidates import Candidates
from policy_server.features.load_table import LoadTable


@dataclass(frozen=True)
class HeuristicDispatch(ABC):
    """A :class:`~policy_server.policies.dispatch.DispatchPolicy` without a model.

    Unless a rule says otherwise: nothing to prepare, the best score wins, each dispatcher knows only its own picks.
    """

    name: str = ""
    version: str = "1"
    learned: bool = False
    sampling_temperature: float = 0.0
    shares_picks: bool = False

    def prepare(self, table: LoadTable) -> Any:
        """Nothing to prepare."""
        return None

    @abstractmethod
    def score(self, candidates: Candidates, prepared: Any, random: np.random.Generator) -> Float32Array:
        """float32 [C], finite: see :meth:`policy_server.policies.dispatch.DispatchPolicy.score`."""


def load_with_request(candidates: Candidates) -> Float32Array:
    """float32 [C]: how loaded each candidate would be with the request, as a share of its scarcer resource.

    The larger of the node's committed CPU and the replica's occupied slots, queued requests and own pending picks
    included; above 1 requests wait. Each part alone is blind: outstanding requests per slot do not see the other
    replicas of the node, which compete for the same CPU, and CPU does not see a replica whose slots are all taken.
    """
    cpu = candidates.committed + candidates.cpu_fraction
    slots = (candidates.outstanding + np.float32(1)) * candidates.inverse_concurrency
    load: Float32Array = np.maximum(cpu, slots)
    return load


def candidate_counts(candidates: Candidates) -> Int64Array:
    """int64 [Q]: candidates of each query."""
    counts: Int64Array = candidates.offsets[1:] - candidates.offsets[:-1]
    return counts


def is_cloud(candidates: Candidates) -> BoolArray:
    """bool [C]: whether the candidate runs in the cloud."""
    cloud: BoolArray = candidates.table.static.node_is_cloud[candidates.node]
    return cloud


def tiered_score(cost: Float32Array, tier: Float32Array | BoolArray) -> Float32Array:
    """float32 [C]: lower tiers before higher ones, the lower cost first inside a tier.

    ``-(tier + cost / (1 + cost))``: a cost, however large, stays within its tier, and a candidate's score depends on
    no other candidate.

    Args:
        cost: [C], finite, zero or more.
        tier: [C], small whole numbers, zero or more.
    """
    score = cost / (cost + np.float32(1))
    score += tier
    score *= np.float32(-1)
    return score
