"""Dispatch in turn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policy_server.cluster.snapshot import Float32Array
from policy_server.features.candidates import Candidates
from policy_server.policies.heuristics.base import HeuristicDispatch, candidate_counts
from policy_server.policies.heuristics.turns import picks_before, starting_points


@dataclass(frozen=True)
class RoundRobin(HeuristicDispatch):
    """Each dispatcher goes through the candidates of a service in turn, in the order of the state.

    The pointer is the number of picks made so far (kept by the ledger) modulo the number of candidates, so a new
    replica simply enters the cycle; choosing the least often picked would send it everything until it has caught
    up. Alternatives are the next in turn.
    """

    name: str = "round-robin"

    def score(self, candidates: Candidates, prepared: None, random: np.random.Generator) -> Float32Array:
        """Minus the number of turns until it is the candidate's, float32 [C]."""
        offsets, segment = candidates.offsets, candidates.segment
        counts = candidate_counts(candidates)
        pointer = picks_before(candidates) + (starting_points(candidates) * counts).astype(np.int64)
        position = np.arange(len(candidates)) - offsets[segment]
        turns = (position - pointer[segment]) % counts[segment]
        return -turns.astype(np.float32)


@dataclass(frozen=True)
class Native(RoundRobin):
    """What Kubernetes does by itself: kube-proxy (IPVS mode) hands requests to the ready endpoints in turn.

    Every node has its own kube-proxy, so every access point takes its own turns. The other half of the Native
    baseline of the KaiS paper, the horizontal pod autoscaler, decides on replicas and is no dispatch rule.
    """

    name: str = "native"
