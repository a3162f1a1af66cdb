"""Dispatch: the contract of a policy and the pipeline that every policy runs through.

*mask* (which candidates are allowed: :class:`~policy_server.features.candidates.Candidates`) -> *score* (the
policy) -> *pick* (:func:`pick`) -> *guard* (:mod:`policy_server.policies.guard`). Masking, the finiteness check
and picking are code on plain arrays, never operators of a model graph, because runtimes disagree on NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from policy_server.cluster.ledger import Ledger
from policy_server.cluster.queries import DispatchQueries, DispatchQuery
from policy_server.cluster.snapshot import Float32Array, Int64Array, Snapshot
from policy_server.features.candidates import Candidates, CandidateSets
from policy_server.features.load_table import LoadTable, TopologyTable

NO_CANDIDATE = -1
_LIST_UP_TO = 32
_SORT_ALL_UP_TO = 64


@runtime_checkable
class DispatchPolicy(Protocol):
    """Scores candidates. A pure function: whatever it remembers between calls is a cache or lives in the ledger.

    Attributes:
        name: what callers ask for, in lower case with hyphens.
        version: of the model or of the rule.
        learned: whether a model is behind it.
        sampling_temperature: 0 picks the best score; above 0 picks by softmax(score / temperature).
        shares_picks: whether all dispatchers of a system decide as one (a central scheduler), or each knows only
            its own picks (the paper's decentralised access points).
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def version(self) -> str: ...  # noqa: D102

    @property
    def learned(self) -> bool: ...  # noqa: D102

    @property
    def sampling_temperature(self) -> float: ...  # noqa: D102

    @property
    def shares_picks(self) -> bool: ...  # noqa: D102

    def prepare(self, table: LoadTable) -> Any:
        """Computes, once per snapshot, what :meth:`score` needs of it (for a model: the encoder's output)."""
        ...

    def score(self, candidates: Candidates, prepared: Any, random: np.random.Generator) -> Float32Array:
        """float32 [C], one score per candidate; larger is better; comparable only within one query.

        Args:
            candidates: C candidates of Q queries; possibly none for some queries, never none at all.
            prepared: what :meth:`prepare` returned for the snapshot of the candidates.
            random: the only source of randomness.
        """
        ...


@dataclass(frozen=True)
class DispatchDecisions:
    """Decisions for Q queries, with up to K alternatives each.

    Attributes:
        replica: int64 [Q], chosen replica row, ``NO_CANDIDATE`` where none is allowed.
        score: float32 [Q], its score; 0 where there is none.
        alternatives: int64 [Q, K], replica rows, best first, padded with ``NO_CANDIDATE``.
        alternative_scores: float32 [Q, K].
        candidate_counts: int64 [Q].
    """

    replica: Int64Array
    score: Float32Array
    alternatives: Int64Array
    alternative_scores: Float32Array
    candidate_counts: Int64Array

    def __len__(self) -> int:
        return len(self.replica)

    def row(self, query: int) -> DispatchDecision:
        """The decision for one query, without padding."""
        alternatives = [row for row in self.alternatives[query].tolist() if row != NO_CANDIDATE]
        return DispatchDecision(
            self.replica.item(query),
            self.score.item(query),
            alternatives,
            self.alternative_scores[query, : len(alternatives)].tolist(),
            self.candidate_counts.item(query),
        )


class DispatchDecision(NamedTuple):
    """The decision for one query, in plain numbers.

    Attributes:
        replica: chosen replica row, ``NO_CANDIDATE`` where none is allowed.
        score: its score; 0 where there is none.
        alternatives: replica rows, best first.
        alternative_scores: as many.
        candidate_count: how many the policy chose from.
    """

    replica: int
    score: float
    alternatives: list[int]
    alternative_scores: list[float]
    candidate_count: int

    def as_batch(self, alternatives: int) -> DispatchDecisions:
        """The decision as a batch of one, padded to that many alternatives."""
        missing = alternatives - len(self.alternatives)
        return DispatchDecisions(
            replica=np.array([self.replica], np.int64),
            score=np.array([self.score], np.float32),
            alternatives=np.array([[*self.alternatives, *[NO_CANDIDATE] * missing]], np.int64),
            alternative_scores=np.array([[*self.alternative_scores, *[0.0] * missing]], np.float32),
            candidate_counts=np.array([self.candidate_count], np.int64),
        )


NO_DECISION = DispatchDecision(NO_CANDIDATE, 0.0, [], [], 0)
"""For a query without candidates."""


class DispatchView:
    """A snapshot prepared for decisions: its tables, its candidate sets and each policy's encoded form.

    One view per snapshot; views of snapshots with the same topology share what depends on the topology alone.

    Args:
        snapshot: to decide on.
        previous: view of an earlier snapshot.
        maximum_sample_age_seconds: replicas whose own figures are older are chosen from only where none has fresher
            ones. Where all figures are of one age, none is preferred.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        previous: DispatchView | None = None,
        *,
        maximum_sample_age_seconds: float = math.inf,
    ) -> None:
        self.snapshot = snapshot
        if previous is not None and previous.snapshot.topology is snapshot.topology:
            self.static: TopologyTable = previous.static
            self.sets: CandidateSets = previous.sets
        else:
            self.static = TopologyTable(snapshot.topology)
            self.sets = CandidateSets(self.static)
        self.table = LoadTable(snapshot, self.static, maximum_sample_age_seconds)
        self._prepared: dict[tuple[str, str], Any] = {}

    def prepared(self, policy: DispatchPolicy) -> Any:
        """What the policy's :meth:`DispatchPolicy.prepare` returned for this snapshot; computed on first use."""
        key = policy.name, policy.version
        if key not in self._prepared:
            self._prepared[key] = policy.prepare(self.table)
        return self._prepared[key]

    def candidates(
        self, queries: DispatchQueries | DispatchQuery, ledger: Ledger, now_seconds: float
    ) -> Candidates:
        """Masks: the allowed candidates of each query and what is known of them."""
        return Candidates(self.table, self.sets, ledger, queries, now_seconds)


def pick(
    scores: Float32Array,
    candidates: Candidates,
    random: np.random.Generator,
    *,
    sampling_temperature: float = 0.0,
    alternatives: int = 0,
) -> tuple[DispatchDecisions, Int64Array]:
    """Chooses for every query the candidate with the largest score; ties are broken uniformly at random.

    Sampling from softmax(score / temperature) is the same choice after adding Gumbel noise to score / temperature.

    Args:
        scores: float32 [C], finite.
        candidates: the C candidates.
        random: breaks ties and samples.
        sampling_temperature: see :class:`DispatchPolicy`.
        alternatives: K, how many further candidates to list.

    Returns:
        The decisions, and int64 [Q] the position of each choice on the candidate axis (-1: none).
    """
    if candidates.query is not None:
        decision, position = pick_one(
            scores,
            candidates,
            random,
            sampling_temperature=sampling_temperature,
            alternatives=alternatives,
        )
        return decision.as_batch(alternatives), np.array([position], np.int64)
    keys = _keys(scores, random, sampling_temperature)
    return _pick_many(keys, scores, candidates, random, alternatives)


def pick_one(
    scores: Float32Array,
    candidates: Candidates,
    random: np.random.Generator,
    *,
    sampling_temperature: float = 0.0,
    alternatives: int = 0,
) -> tuple[DispatchDecision, int]:
    """As :func:`pick`, for the candidates of a single query, of which there is at least one."""
    keys = _keys(scores, random, sampling_temperature)
    count = len(keys)
    wanted = min(alternatives + 1, count)
    if count <= _LIST_UP_TO:
        order = _best_first_of_few(keys, wanted, random)
    else:
        order = _best_first(keys, wanted, random).tolist()
    replica_of, score_of = candidates.replica.item, scores.item
    first = order[0]
    decision = DispatchDecision(
        replica_of(first),
        score_of(first),
        [replica_of(position) for position in order[1:]],
        [score_of(position) for position in order[1:]],
        count,
    )
    return decision, first


def _keys(scores: Float32Array, random: np.random.Generator, sampling_temperature: float) -> Float32Array:
    if sampling_temperature > 0:
        noise = random.gumbel(size=len(scores)).astype(np.float32)
        return scores / np.float32(sampling_temperature) + noise
    return scores


def _best_first_of_few(keys: Float32Array, wanted: int, random: np.random.Generator) -> list[int]:
    """As :func:`_best_first`; for few keys plain Python is faster than one numpy call after another."""
    values: list[float] = keys.tolist()
    order = sorted(range(len(values)), key=values.__getitem__, reverse=True)
    before = None
    for position in order[: wanted + 1]:
        value = values[position]
        if value == before:
            tied: list[int] = _best_first(keys, wanted, random).tolist()
            return tied
        before = value
    return order[:wanted]


def _best_first(keys: Float32Array, wanted: int, random: np.random.Generator) -> Int64Array:
    """Positions of the ``wanted`` largest keys, best first, equal keys in random order."""
    if wanted == 1:
        best = keys.argmax()
        tied = np.flatnonzero(keys == keys[best])
        if len(tied) == 1:
            return tied
        return tied[random.integers(len(tied), size=1)]
    order: Int64Array
    if len(keys) > _SORT_ALL_UP_TO and wanted < len(keys):
        # One more than wanted, so that a tie across the border is seen.
        largest = np.argpartition(keys, len(keys) - wanted - 1)[len(keys) - wanted - 1 :]
        order = largest[np.argsort(-keys[largest])]
    else:
        order = np.argsort(-keys)
    top = keys[order[: wanted + 1]].tolist()
    if len(set(top)) < len(top):
        contenders = random.permutation(np.flatnonzero(keys >= top[wanted - 1]))
        order = contenders[np.argsort(-keys[contenders], kind="stable")]
    return order[:wanted]


def _pick_many(
    keys: Float32Array,
    scores: Float32Array,
    candidates: Candidates,
    random: np.random.Generator,
    alternatives: int,
) -> tuple[DispatchDecisions, Int64Array]:
    offsets, segment = candidates.offsets, candidates.segment
    queries = len(candidates.queries)
    counts = offsets[1:] - offsets[:-1]
    served = np.flatnonzero(counts)
    starts = offsets[:-1][served]
    rank = np.searchsorted(served, segment) if len(served) < queries else segment
    remaining = keys.copy() if alternatives else keys
    chosen = np.full((queries, alternatives + 1), -1, np.int64)
    left = counts[served]
    for place in range(alternatives + 1):
        if place:
            left = left - 1
            if not (left > 0).any():
                break
        best = np.maximum.reduceat(remaining, starts)
        tied = np.flatnonzero(remaining == best[rank])
        positions = tied
        if len(tied) > len(served):
            # The first of the tied after a random shuffle of equals: a random number per tied candidate decides.
            winners = tied[np.lexsort((random.random(len(tied)), rank[tied]))]
            positions = winners[np.searchsorted(rank[winners], np.arange(len(served)))]
        valid = left > 0
        chosen[served[valid], place] = positions[valid]
        if alternatives:
            remaining[positions] = -np.inf
    has = chosen >= 0
    replica = np.where(has, candidates.replica[chosen], NO_CANDIDATE)
    listed = np.where(has, scores[chosen], np.float32(0)).astype(np.float32)
    decisions = DispatchDecisions(
        replica=replica[:, 0],
        score=listed[:, 0],
        alternatives=replica[:, 1:],
        alternative_scores=listed[:, 1:],
        candidate_counts=counts,
    )
    return decisions, chosen[:, 0]


def no_decisions(candidates: Candidates, alternatives: int) -> tuple[DispatchDecisions, Int64Array]:
    """What :func:`pick` returns when no query has any candidate."""
    queries = len(candidates.queries)
    decisions = DispatchDecisions(
        replica=np.full(queries, NO_CANDIDATE, np.int64),
        score=np.zeros(queries, np.float32),
        alternatives=np.full((queries, alternatives), NO_CANDIDATE, np.int64),
        alternative_scores=np.zeros((queries, alternatives), np.float32),
        candidate_counts=np.zeros(queries, np.int64),
    )
    return decisions, np.full(queries, -1, np.int64)


def decide(
    policy: DispatchPolicy,
    view: DispatchView,
    queries: DispatchQueries,
    ledger: Ledger,
    now_seconds: float,
    random: np.random.Generator,
    *,
    alternatives: int = 0,
    record: bool = True,
) -> DispatchDecisions:
    """Mask, score, pick and count the picks, without a guard. What simulations and tests use.

    Args:
        policy: scores the candidates.
        view: of the snapshot to decide on.
        queries: the Q queries.
        ledger: own picks; bound to the snapshot's topology.
        now_seconds: on the clock of the snapshot.
        random: the only source of randomness.
        alternatives: K.
        record: whether the picks count in the ledger.
    """
    candidates = view.candidates(queries, ledger, now_seconds)
    if not len(candidates):
        return no_decisions(candidates, alternatives)[0]
    scores = policy.score(candidates, view.prepared(policy), random)
    decisions, positions = pick(
        scores,
        candidates,
        random,
        sampling_temperature=policy.sampling_temperature,
        alternatives=alternatives,
    )
    if record:
        record_picks(candidates, positions, ledger, now_seconds)
    return decisions


def record_picks(candidates: Candidates, positions: Int64Array, ledger: Ledger, now_seconds: float) -> None:
    """Counts the choices at ``positions`` of the candidate axis (-1: none) in the ledger."""
    if candidates.query is not None:
        if positions[0] >= 0:
            record_pick(candidates, positions.item(0), ledger, now_seconds)
        return
    queries = candidates.queries
    made = positions >= 0
    positions = positions[made]
    ledger.record(
        np.zeros(len(positions), np.int32) if queries.dispatcher is None else queries.dispatcher[made],
        candidates.replica[positions],
        candidates.link[positions],
        queries.payload_bytes[made],
        now_seconds + candidates.network_seconds[positions].astype(np.float64),
    )


def record_pick(candidates: Candidates, position: int, ledger: Ledger, now_seconds: float) -> None:
    """Counts the choice at ``position``, of the candidates of a single query, in the ledger."""
    query = candidates.query
    assert query is not None
    ledger.record_one(
        query.dispatcher or 0,
        candidates.replica.item(position),
        candidates.link.item(position),
        query.payload_bytes,
        now_seconds + candidates.network_seconds.item(position),
    )
