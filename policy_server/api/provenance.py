"""Where a decision comes from, as a message."""

from __future__ import annotations

from policy_server.policies.guard import DecisionOrigin
from policy_server.proto.policy.v1.decision_pb2 import Provenance


def provenance_message(
    origin: DecisionOrigin, snapshot_version: int, snapshot_age_seconds: float
) -> Provenance:
    """The message of an origin and of the state the decision is based on."""
    return Provenance(
        policy=origin.policy,
        policy_version=origin.version,
        source=origin.source,  # type: ignore[arg-type]
        fallback_reason=origin.reason,  # type: ignore[arg-type]
        snapshot_version=snapshot_version,
        snapshot_age_seconds=snapshot_age_seconds,
    )
