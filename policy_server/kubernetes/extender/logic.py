"""Answers to ``filter`` and ``prioritize``, from text to text. Knows nothing of HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from policy_server.cluster.snapshot import BoolArray, Float64Array, Snapshot
from policy_server.kubernetes.extender.facts import PlacementFacts, image_names, placement_facts
from policy_server.kubernetes.extender.pending_placements import PendingPlacements
from policy_server.kubernetes.extender.pod_rules import PodRules
from policy_server.kubernetes.extender.priorities import NEUTRAL_SCORE, priorities
from policy_server.kubernetes.extender.wire import CandidateNodes, decode_arguments
from policy_server.kubernetes.objects import Pod
from policy_server.policies.decision_origin import FallbackReason
from policy_server.policies.placement.guard import GuardedPlacement
from policy_server.policies.placement.policy import PlacementQuery


class Prioritization(NamedTuple):
    """The answer to ``prioritize`` and how it came about.

    Attributes:
        answer: JSON text.
        asked: whether there was anything to decide.
        seconds: time of the policy.
        reason: why all nodes are alike though there was; UNSPECIFIED where the policy decided.
        error: of the policy, if any.
    """

    answer: bytes
    asked: bool = False
    seconds: float = 0.0
    reason: FallbackReason = FallbackReason.UNSPECIFIED
    error: Exception | None = None


class ExtenderLogic:
    """Decides for one scheduler or several. For one thread.

    Whoever is not to be judged passes untouched: our own pods, pods of services the state does not hold, and every
    pod while there is no state or a stale one. Such calls ask no policy.
    """

    def __init__(
        self, placement: GuardedPlacement, rules: PodRules, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._placement = placement
        self._rules = rules
        self._clock = clock
        self._pending = PendingPlacements()

    def filter(self, body: bytes, snapshot: Snapshot | None) -> bytes:
        """Takes out the nodes on which the pod's service cannot fit, as far as we know.

        Args:
            body: ``ExtenderArgs``.
            snapshot: to judge by.

        Returns:
            ``ExtenderFilterResult``.

        Raises:
            WireError: the body cannot be understood.
            QuantityError: an amount in it cannot.
        """
        arguments = decode_arguments(body)
        candidates = CandidateNodes(arguments)
        service = self._service(arguments.pod, snapshot)
        if snapshot is None or service is None or self._placement.is_stale(snapshot):
            return candidates.filtered(None, {}, {})
        facts = placement_facts(arguments.pod, candidates, snapshot, service)
        failed = facts.too_small | facts.full
        if not failed.any():
            return candidates.filtered(None, {}, {})
        # The same words for every node: the scheduler counts nodes by reason when it reports.
        name = snapshot.topology.services.names[service]
        too_small = dict.fromkeys(_names(candidates, facts.too_small), f"too small for a replica of {name}")
        reasons = dict.fromkeys(_names(candidates, failed), f"too little free memory for a replica of {name}")
        return candidates.filtered(np.flatnonzero(~failed).tolist(), reasons | too_small, too_small)

    def prioritize(self, body: bytes, snapshot: Snapshot | None) -> Prioritization:
        """Scores the nodes: as the policy does, the median for nodes the state does not hold.

        Args:
            body: ``ExtenderArgs``.
            snapshot: to judge by.

        Returns:
            With a ``HostPriorityList`` as answer.

        Raises:
            WireError: the body cannot be understood.
            QuantityError: an amount in it cannot.
        """
        arguments = decode_arguments(body)
        candidates = CandidateNodes(arguments)
        pod = arguments.pod
        scores = np.full(len(candidates), NEUTRAL_SCORE, np.int64)
        service = self._service(pod, snapshot)
        if snapshot is None or service is None:
            return Prioritization(candidates.prioritized(scores.tolist()))
        facts = placement_facts(pod, candidates, snapshot, service)
        judged = facts.known & ~facts.too_small & ~facts.full
        if not judged.any():
            return Prioritization(candidates.prioritized(scores.tolist()))
        query = self._query(pod, facts, judged, candidates, snapshot)
        started = self._clock()
        outcome = self._placement.score(snapshot, query)
        seconds = self._clock() - started
        if outcome.scores is not None:
            self._remember(pod, snapshot, query, outcome.scores)
            of_judged = priorities(outcome.scores)
            scores[judged] = of_judged
            scores[~facts.known] = int(np.median(of_judged))
        answer = candidates.prioritized(scores.tolist())
        return Prioritization(answer, True, seconds, outcome.reason, outcome.error)

    def _service(self, pod: Pod, snapshot: Snapshot | None) -> int | None:
        name = self._rules.service_of(pod)
        return None if name is None or snapshot is None else snapshot.topology.service_index.get(name)

    def _query(
        self,
        pod: Pod,
        facts: PlacementFacts,
        judged: BoolArray,
        candidates: CandidateNodes,
        snapshot: Snapshot,
    ) -> PlacementQuery:
        replicas = snapshot.topology.replicas
        hosts = np.unique(replicas.node[replicas.service == facts.service])
        has_image = candidates.have_images(image_names(pod)) | np.isin(facts.row, hosts)
        pending = self._pending.replicas(
            snapshot.topology, facts.service, self._clock(), without=pod.metadata.uid
        )
        return facts.query(judged, has_image, pending)

    def _remember(self, pod: Pod, snapshot: Snapshot, query: PlacementQuery, scores: Float64Array) -> None:
        best = query.nodes[scores == scores.max()].astype(np.int64)
        self._pending.place(pod.metadata.uid, snapshot.topology, query.service, best, self._clock())


def _names(candidates: CandidateNodes, positions: BoolArray) -> list[str]:
    return [candidates.names[position] for position in np.flatnonzero(positions).tolist()]
