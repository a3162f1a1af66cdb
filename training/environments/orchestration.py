"""Orchestration on simulated systems, frame by frame, with any dispatch inside.

A frame is 100 slots of 0.25 s (KaiS). At its beginning a policy sees the state of all systems as one disjoint union
and adds and deletes replicas; then requests are dispatched slot by slot.

**Reward.** The paper's is exp(-queued work), which is zero in floating point as soon as some tens of requests wait
(the authors' demo adds up queue lengths). Here it is

    r = -(failed / resolved) - cost_weight x (forwarded + pulled bytes) / (arrived payload bytes)

of the frame and the system: minus the share of the requests resolved in the frame that were not answered within
their deadline, and a price for moving bytes. It lies in about [-1, 0], falls with queued work as the paper's does, for
what waits too long fails, and is never flat. Both terms are kept apart by service.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from policy_server.cluster.actions import OrchestrationAction
from policy_server.cluster.snapshot import Float64Array, Int64Array
from policy_server.features.graph import OrchestrationGraph
from policy_server.policies.dispatch import DispatchPolicy
from policy_server.policies.orchestration.memory import FrameMemory
from policy_server.policies.orchestration.plan import OrchestrationOptions, OrchestrationQuery
from policy_server.policies.orchestration.policy import OrchestrationPolicy
from training.environments.dispatch import DispatchEnvironment
from training.simulator.metrics import SlotOutcome
from training.simulator.simulator import VectorSimulator
from training.simulator.state import RequestStatus

DEFAULT_COST_WEIGHT = 0.1


class SlotStepper(Protocol):
    """Dispatches the requests of a simulator's current slot and simulates it."""

    def step(self) -> SlotOutcome: ...  # noqa: D102


class PolicyDispatch:
    """Dispatch by a policy object.

    Args:
        environment: of the simulator.
        policy: decides.
    """

    def __init__(self, environment: DispatchEnvironment, policy: DispatchPolicy) -> None:
        self.environment = environment
        self.policy = policy

    def step(self) -> SlotOutcome:
        """Decides all requests of the current slot and simulates it."""
        return self.environment.step(self.policy)


@dataclass(frozen=True, eq=False)
class FrameOutcome:
    """One frame of S systems.

    Attributes:
        arrived: int64 [S].
        met: int64 [S], requests resolved in the frame in time.
        failed: int64 [S], requests resolved in the frame in any other way.
        forwarded_bytes: float64 [S].
        pulled_bytes: float64 [S].
        refused: actions that the simulator did not carry out.
        failure_reward: float64 [S, W], minus the failed requests of each service over all resolved in the system.
        cost_reward: float64 [S, W], minus the price of the bytes moved for each service.
    """

    arrived: Int64Array
    met: Int64Array
    failed: Int64Array
    forwarded_bytes: Float64Array
    pulled_bytes: Float64Array
    refused: int
    failure_reward: Float64Array
    cost_reward: Float64Array

    @property
    def service_reward(self) -> Float64Array:
        """float64 [S, W], what each service adds to the reward."""
        return self.failure_reward + self.cost_reward

    @property
    def reward(self) -> Float64Array:
        """float64 [S], see the module's formula."""
        total: Float64Array = self.service_reward.sum(axis=1)
        return total


class OrchestrationEnvironment:
    """Frames of a simulator.

    Args:
        simulator: the systems.
        dispatch: decides and simulates the slots of that simulator.
        cost_weight: price of bytes moved; see the module's formula.
        options: what orchestration may do.
    """

    def __init__(
        self,
        simulator: VectorSimulator,
        dispatch: SlotStepper,
        *,
        cost_weight: float = DEFAULT_COST_WEIGHT,
        options: OrchestrationOptions = OrchestrationOptions(),  # noqa: B008 - frozen
    ) -> None:
        self.simulator = simulator
        self._dispatch = dispatch
        self._cost_weight = cost_weight
        self._options = options
        self._memory = FrameMemory(simulator.config.slots_per_frame * simulator.config.slot_seconds)
        self._graph: OrchestrationGraph | None = None

    def query(self, *, rates_to_come: bool = False) -> OrchestrationQuery:
        """The state of all systems now, to decide on.

        Args:
            rates_to_come: shows the arrival rates of the coming frame in place of those observed, for rules that are
                given them.
        """
        simulator = self.simulator
        snapshot = simulator.snapshot()
        if rates_to_come:
            rates = simulator.coming_rates(self._memory.frame_seconds)
            snapshot = replace(snapshot, load=replace(snapshot.load, arrival_rate_per_second=rates))
        self._graph = OrchestrationGraph.of(snapshot, self._graph)
        return OrchestrationQuery(self._graph, self._options, self._memory)

    def step(
        self,
        actions: Sequence[OrchestrationAction],
        *,
        slots: int | None = None,
        observer: OrchestrationPolicy | None = None,
    ) -> FrameOutcome:
        """Carries out actions decided on the present state and simulates to the next decision.

        Args:
            actions: in order; rows of the present topology.
            slots: until the next decision; a frame by default.
            observer: sees the state at each slot between two decisions, as the policies of that kind need.
        """
        simulator = self.simulator
        forwarded, pulled = simulator.moved_bytes()
        results = simulator.apply(actions, simulator.topology)
        shape = (simulator.systems, len(simulator.topology.services.names))
        arrived = np.zeros(simulator.systems, np.int64)
        met, failed = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        payload = np.zeros(simulator.systems)
        for slot in range(simulator.config.slots_per_frame if slots is None else slots):
            if observer is not None and slot:
                observer.observe(simulator.snapshot(), self._memory)
            requests = simulator.arrivals()
            payload += np.bincount(requests.system, requests.payload_bytes, simulator.systems)
            outcome = self._dispatch.step()
            arrived += outcome.arrived
            service = simulator.services_of(outcome.resolved_system, outcome.resolved_index)
            group = outcome.resolved_system.astype(np.int64) * shape[1] + service
            in_time = outcome.resolved_status == RequestStatus.MET
            met += np.bincount(group[in_time], minlength=met.size).reshape(shape)
            failed += np.bincount(group[~in_time], minlength=met.size).reshape(shape)
        forwarded_now, pulled_now = simulator.moved_bytes()
        moved = (forwarded_now - forwarded) + (pulled_now - pulled)
        resolved = np.maximum((met + failed).sum(axis=1), 1)
        return FrameOutcome(
            arrived=arrived,
            met=met.sum(axis=1),
            failed=failed.sum(axis=1),
            forwarded_bytes=(forwarded_now - forwarded).sum(axis=1),
            pulled_bytes=(pulled_now - pulled).sum(axis=1),
            refused=sum(not result.accepted for result in results),
            failure_reward=-failed / resolved[:, None],
            cost_reward=-self._cost_weight * moved / np.maximum(payload, 1.0)[:, None],
        )


def decided(
    policy: OrchestrationPolicy, query: OrchestrationQuery, random: np.random.Generator
) -> list[OrchestrationAction]:
    """What a policy wants done."""
    plan = policy.decide([query], random)[0].plan
    return [planned.action for planned in plan.actions]
