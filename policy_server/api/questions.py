"""Questions and answers of the dispatch logic: what transports translate their messages to and from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from policy_server.cluster.snapshot import Float64Array, Int64Array
from policy_server.policies.dispatch import DispatchDecisions
from policy_server.policies.guard import DecisionOrigin


@dataclass(slots=True)
class DispatchQuestion:
    """One request to dispatch, in the caller's words.

    Attributes:
        service: asked for.
        access_point: where the request entered.
        deadline_seconds: the caller waits for the response; 0: the service's typical deadline.
        payload_bytes: that forwarding moves.
        policy: to ask; empty: the active one.
        subset: endpoints the choice is restricted to, or None.
        alternatives: how many endpoints to list after the choice.
        seed: makes tie-breaking and sampling repeatable.
        malformed: whether some of it could not be read and is a default; then the fallback decides.
    """

    service: str
    access_point: str
    deadline_seconds: float = 0.0
    payload_bytes: float = 0.0
    policy: str = ""
    subset: Sequence[str] | None = None
    alternatives: int = 0
    seed: int | None = None
    malformed: bool = False


@dataclass(slots=True)
class DispatchAnswer:
    """The decision on one request.

    Attributes:
        endpoint: chosen.
        node: it runs on.
        score: of the choice.
        alternatives: endpoint, node and score of what to try next, best first.
        origin: who decided.
        snapshot_version: of the state the decision is based on; 0 for inline candidates.
        snapshot_age_seconds: of that state.
        candidate_count: the policy chose from.
    """

    endpoint: str
    node: str
    score: float
    alternatives: list[tuple[str, str, float]]
    origin: DecisionOrigin
    snapshot_version: int
    snapshot_age_seconds: float
    candidate_count: int


@dataclass(frozen=True, slots=True)
class BatchQuestion:
    """Q requests in columns.

    Attributes:
        services: vocabulary.
        access_points: vocabulary.
        service: int64 [Q], index into services.
        access_point: int64 [Q], index into access_points.
        deadline_seconds: float64 [Q] or empty; 0: the service's typical deadline.
        payload_bytes: float64 [Q] or empty.
        policy: to ask; empty: the active one.
        alternatives: how many endpoints to list per request after the choice.
        seed: makes tie-breaking and sampling repeatable.
    """

    services: Sequence[str]
    access_points: Sequence[str]
    service: Int64Array
    access_point: Int64Array
    deadline_seconds: Float64Array
    payload_bytes: Float64Array
    policy: str = ""
    alternatives: int = 0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """The decisions on a batch.

    Attributes:
        decisions: by replica row.
        endpoints: of the replica rows.
        origin: who decided; the fallback if it decided any of them.
        snapshot_version: of the state the decisions are based on.
        snapshot_age_seconds: of that state.
    """

    decisions: DispatchDecisions
    endpoints: Sequence[str]
    origin: DecisionOrigin
    snapshot_version: int
    snapshot_age_seconds: float
