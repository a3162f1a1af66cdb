"""Dispatch by requests in flight and latency, as Prequal does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policy_server.cluster.snapshot import BoolArray, Float32Array
from policy_server.features.candidates import Candidates
from policy_server.policies.heuristics.base import HeuristicDispatch, candidate_counts, tiered_score


@dataclass(frozen=True)
class Prequal(HeuristicDispatch):
    """Cold candidates by latency, hot ones by requests in flight.

    Wydrowski, Kleinberg, Rumble and Archer, Load is Not What You Should Balance: Introducing Prequal (NSDI 2024,
    arXiv 2312.10172). A client holds a small pool of random replicas' probes. A replica is hot when its requests in
    flight exceed a quantile of what probes report. The hot-cold lexicographic rule takes the cold replica with the
    lowest latency; when all in the pool are hot, the one with the fewest requests in flight.

    How a snapshot stands in for probes (our choices):

    - It is a probe of every candidate, so the pool is a fresh random sample for each request, and the quantile is
      over all candidates.
    - Requests in flight are counted per slot, because candidates differ in size here, and include own pending picks
      (the paper too counts a client's own requests on top of a probe).
    - The latency is the mean of the replica's recent response time and the estimated completion time. The paper's
      servers report the latency at the present number in flight. A recent response time alone is that of another
      number in flight, and stays high where nothing is sent any more; the estimate is of now, own pending picks
      included, but knows nothing of a machine that is slower than declared. Where no response time is known, the
      estimate stands alone, so a new endpoint is neither shunned nor flooded.

    Attributes:
        pool_size: most probes held at once (paper: 16).
        hot_quantile: of requests in flight, above which a replica is hot (paper: 2**-0.25, about 0.84).
    """

    name: str = "prequal"
    pool_size: int = 16
    hot_quantile: float = 2**-0.25

    def score(self, candidates: Candidates, prepared: None, random: np.random.Generator) -> Float32Array:
        """Cold by latency, then hot by requests in flight per slot, then those outside the pool, float32 [C]."""
        in_flight = candidates.outstanding * candidates.inverse_concurrency
        hot = in_flight > self._hot_above(in_flight, candidates)
        tier = hot.astype(np.float32)
        if int(candidate_counts(candidates).max()) > self.pool_size:
            tier[self._outside_pool(candidates, random)] += 2
        return tiered_score(np.where(hot, in_flight, _latency_seconds(candidates)), tier)

    def _hot_above(self, in_flight: Float32Array, candidates: Candidates) -> Float32Array | np.float32:
        """The quantile of each candidate's query: [C], or one value for all."""
        if len(candidates.queries) == 1:
            rank = int(self.hot_quantile * (len(in_flight) - 1))
            threshold: np.float32 = np.partition(in_flight, rank)[rank]
            return threshold
        counts = candidate_counts(candidates)
        served = counts > 0
        ordered = in_flight[np.lexsort((in_flight, candidates.segment))]
        rank_in_query = (self.hot_quantile * (counts[served] - 1)).astype(np.int64)
        thresholds = np.zeros(len(counts), np.float32)
        thresholds[served] = ordered[candidates.offsets[:-1][served] + rank_in_query]
        return thresholds[candidates.segment]

    def _outside_pool(self, candidates: Candidates, random: np.random.Generator) -> BoolArray:
        """bool [C]: all but ``pool_size`` random candidates of each query."""
        lottery = random.random(len(candidates))
        order = np.lexsort((lottery, candidates.segment))
        place = np.arange(len(candidates)) - candidates.offsets[candidates.segment]
        outside = np.empty(len(candidates), bool)
        outside[order] = place >= self.pool_size
        return outside


def _latency_seconds(candidates: Candidates) -> Float32Array:
    measured = candidates.table.snapshot.load.replica_latency_seconds[candidates.replica]
    estimated = candidates.completion_seconds
    return np.where(np.isnan(measured), estimated, np.float32(0.5) * (measured + estimated))
