"""Containers to decide for and the decisions on them, in forms that can be joined and taken apart.

Containers of several callers are one batch: every step of a decision is an operation on whole columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np

from policy_server.cluster.containers import Fleet, MeasurementHistory
from policy_server.cluster.snapshot import Float64Array, Int64Array
from policy_server.policies.decision_origin import DecisionOrigin
from policy_server.policies.scaling.resize import LastResizes, PodResources, ResizePlan
from policy_server.policies.scaling.safety import Constraints, ResourceDecision, ScalingDecisions

Columns = TypeVar("Columns", Constraints, PodResources, LastResizes, ResizePlan, ResourceDecision)


@dataclass(frozen=True, slots=True, eq=False)
class ScalingTask:
    """C containers to decide for.

    Attributes:
        fleet: where they run.
        history: what was measured.
        constraints: of single containers.
        pods: what their pods hold.
        last: how their last resizes went.
        economy: float64 [C], 0 (latency counts most) to 1 (resources count most).
    """

    fleet: Fleet
    history: MeasurementHistory
    constraints: Constraints
    pods: PodResources
    last: LastResizes
    economy: Float64Array

    def __len__(self) -> int:
        return len(self.fleet)


@dataclass(frozen=True, slots=True, eq=False)
class ScalingOutcome:
    """Decisions for C containers.

    Attributes:
        decisions: targets and bounds; see :class:`~policy_server.policies.scaling.safety.ScalingDecisions`.
        plan: what to write.
        origins: who decided.
        origin: int64 [C], row in ``origins``.
    """

    decisions: ScalingDecisions
    plan: ResizePlan
    origins: tuple[DecisionOrigin, ...]
    origin: Int64Array

    def rows(self, start: int, stop: int) -> ScalingOutcome:
        """The outcome of some of the containers, with the origins that occur among them."""
        part = slice(start, stop)
        used, origin = np.unique(self.origin[part], return_inverse=True)
        return ScalingOutcome(
            ScalingDecisions(_part(self.decisions.cpu_cores, part), _part(self.decisions.memory_bytes, part)),
            _part(self.plan, part),
            tuple(self.origins[row] for row in used.tolist()),
            origin.astype(np.int64),
        )


def join_tasks(tasks: Sequence[ScalingTask]) -> ScalingTask:
    """All containers of the tasks, in order. Nodes and applications of different tasks stay apart.

    Shorter histories are filled up with intervals in which nothing was measured, which no policy takes notice of.
    """
    if len(tasks) == 1:
        return tasks[0]
    return ScalingTask(
        Fleet.joined([task.fleet for task in tasks]),
        MeasurementHistory.joined([task.history for task in tasks]),
        _joined([task.constraints for task in tasks]),
        _joined([task.pods for task in tasks]),
        _joined([task.last for task in tasks]),
        np.concatenate([task.economy for task in tasks]),
    )


def _joined(parts: Sequence[Columns]) -> Columns:
    return type(parts[0])(
        *(np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(parts[0]))
    )


def _part(whole: Columns, rows: slice) -> Columns:
    return type(whole)(*(getattr(whole, column.name)[rows] for column in fields(whole)))
