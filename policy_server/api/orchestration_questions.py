"""Questions and answers of the orchestration logic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from policy_server.cluster.snapshot import Snapshot, Topology
from policy_server.policies.guard import DecisionOrigin
from policy_server.policies.orchestration.effects import ExpectedEffect
from policy_server.policies.orchestration.plan import PlannedAction


@dataclass(frozen=True, slots=True)
class OrchestrationQuestion:
    """What to do to one system, in the caller's words.

    Attributes:
        read_state: reads the state the caller brought along; None: decide on the held one.
        cluster: name under which answers about a state brought along are remembered; empty: they are not.
        policy: to ask; empty: the active one.
        maximum_actions: most actions to return; None: as many as the policy sees fit.
        protected_services: names of services that lose no replica.
        dry_run: whether the answer is not to be remembered.
        seed: makes tie-breaking and sampling repeatable.
    """

    read_state: Callable[[], Snapshot] | None = None
    cluster: str = ""
    policy: str = ""
    maximum_actions: int | None = None
    protected_services: Sequence[str] = ()
    dry_run: bool = False
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class AnsweredAction:
    """One action of an answer.

    Attributes:
        planned: the action.
        effect: what is expected of it.
        feasibility: why it is feasible after those before it.
    """

    planned: PlannedAction
    effect: ExpectedEffect
    feasibility: str


@dataclass(frozen=True, slots=True)
class OrchestrationAnswer:
    """What to do to one system.

    Attributes:
        actions: feasible together, in this order.
        topology: that the rows of the actions are of.
        origin: who decided.
        snapshot_version: of the state the decision is based on; 0 for one brought along.
        snapshot_age_seconds: of that state.
    """

    actions: Sequence[AnsweredAction]
    topology: Topology
    origin: DecisionOrigin
    snapshot_version: int
    snapshot_age_seconds: float
