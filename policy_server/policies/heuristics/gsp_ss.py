"""The GSP-SS baseline of KaiS: dispatch by a schedule made in advance for known request rates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policy_server.cluster.snapshot import Float32Array
from policy_server.features.candidates import Candidates
from policy_server.features.load_table import LoadTable
from policy_server.policies.heuristics.base import HeuristicDispatch
from policy_server.policies.heuristics.shadow_schedule import ShadowSchedule, shadow_schedule
from policy_server.policies.heuristics.turns import GOLDEN_RATIO, picks_before, starting_points


@dataclass(frozen=True)
class GspSs(HeuristicDispatch):
    """Dispatch half of Greedy Service Placement with Shadow request Scheduling.

    Farhadi, Mehmeti, He, La Porta, Khamfroush, Wang and Chan, Service Placement and Request Scheduling for
    Data-Intensive Applications in Edge Clouds (INFOCOM 2019). Request rates are given in advance, here
    :attr:`~policy_server.cluster.snapshot.Load.arrival_rate_per_second`. For each snapshot they are scheduled, as
    fractions, over the replicas that are there, edge before cloud and within the capacities
    (:func:`~policy_server.policies.heuristics.shadow_schedule.shadow_schedule`); the placement of replicas is the
    orchestration half.

    Each dispatcher follows its fractions by a low-discrepancy sequence: its n-th pick for a service goes to the
    replica in whose share of [0, 1) the fractional part of n times the golden ratio falls (Kronecker sequence). So
    any run of picks is close to the present fractions, whatever the fractions were before; deficits against all
    picks ever made would first make up for the past whenever a new snapshot changes the schedule.
    """

    name: str = "gsp-ss"

    def prepare(self, table: LoadTable) -> ShadowSchedule:
        """The schedule for the rates of the snapshot."""
        return shadow_schedule(table)

    def score(
        self, candidates: Candidates, prepared: ShadowSchedule, random: np.random.Generator
    ) -> Float32Array:
        """The replica whose turn it is, then by fraction, float32 [C]."""
        offsets, segment = candidates.offsets, candidates.segment
        row = prepared.access_point_rank[candidates.queries.access_point][segment]
        fraction = prepared.fraction[row, candidates.replica]
        upper = np.cumsum(fraction, dtype=np.float64)
        bounds = np.concatenate(([0.0], upper))
        begin, end = bounds[offsets[:-1]], bounds[offsets[1:]]
        turn = (picks_before(candidates) * GOLDEN_RATIO + starting_points(candidates)) % 1.0
        target = (begin + turn * (end - begin))[segment]
        in_turn = (bounds[:-1] <= target) & (target < upper)
        score: Float32Array = fraction + in_turn
        return score
