"""Short forms for tests of dispatch policies."""

from __future__ import annotations

import numpy as np

from policy_server.cluster.ledger import Ledger
from policy_server.cluster.queries import DispatchQueries, single_query
from policy_server.cluster.snapshot import Float32Array, Snapshot
from policy_server.policies.dispatch import DispatchPolicy, DispatchView, decide

NOW_SECONDS = 100.0
LONG_SECONDS = 1e4


def scores_of(
    policy: DispatchPolicy,
    snapshot: Snapshot,
    queries: DispatchQueries | None = None,
    ledger: Ledger | None = None,
    seed: int = 0,
) -> Float32Array:
    """The scores of the candidates; by default of one request for service 0 at access point 0 without haste."""
    view = DispatchView(snapshot)
    candidates = view.candidates(
        single_query(0, 0, LONG_SECONDS) if queries is None else queries,
        Ledger(snapshot.topology) if ledger is None else ledger,
        NOW_SECONDS,
    )
    return policy.score(candidates, view.prepared(policy), np.random.default_rng(seed))


def ranking(policy: DispatchPolicy, snapshot: Snapshot, deadline_seconds: float = LONG_SECONDS) -> list[int]:
    """Replica rows, best first, for one request for service 0 at access point 0."""
    count = len(snapshot.topology.replicas.endpoints)
    decisions = decide(
        policy,
        DispatchView(snapshot),
        single_query(0, 0, deadline_seconds),
        Ledger(snapshot.topology),
        NOW_SECONDS,
        np.random.default_rng(0),
        alternatives=count - 1,
    )
    return [int(decisions.replica[0]), *decisions.alternatives[0].tolist()]


def picks_one_by_one(
    policy: DispatchPolicy, snapshot: Snapshot, count: int, ledger: Ledger | None = None, seed: int = 0
) -> list[int]:
    """Replica rows of that many picks within one snapshot, for requests for service 0 at access point 0."""
    view = DispatchView(snapshot)
    ledger = Ledger(snapshot.topology) if ledger is None else ledger
    random = np.random.default_rng(seed)
    query = single_query(0, 0, LONG_SECONDS)
    return [int(decide(policy, view, query, ledger, NOW_SECONDS, random).replica[0]) for _ in range(count)]


def repeated_query(count: int, *, access_point: int = 0, dispatcher: int | None = None) -> DispatchQueries:
    """That many requests for service 0 in one batch, without haste."""
    return DispatchQueries(
        service=np.zeros(count, np.int32),
        access_point=np.full(count, access_point, np.int32),
        deadline_seconds=np.full(count, LONG_SECONDS, np.float32),
        payload_bytes=np.zeros(count, np.float32),
        dispatcher=None if dispatcher is None else np.full(count, dispatcher, np.int32),
    )
