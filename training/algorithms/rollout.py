"""What a stretch of simulated time leaves behind for learning: decisions, their candidates, their outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy_server.cluster.snapshot import BoolArray, Float32Array, Float64Array, Int64Array
from policy_server.features.candidates import Candidates
from policy_server.features.schema import SCHEMA
from policy_server.policies.dispatch import DispatchPolicy, DispatchView
from training.environments.dispatch import DispatchEnvironment, Round
from training.networks.policies import TorchDispatch
from training.simulator.metrics import SlotOutcome
from training.simulator.simulator import SlotRequests
from training.simulator.state import RequestStatus


@dataclass(frozen=True)
class SlotDecisions:
    """The decisions of one slot, all systems together. D decisions over C candidates.

    Attributes:
        view: of the snapshot decided on.
        features: float32 [C, request].
        replica: int64 [C].
        node: int64 [C].
        segment: int64 [C], decision of each candidate, ascending.
        forwarded: float32 [C], bytes that the choice of each candidate sends over a link, relative to the mean payload
            of the slot's requests.
        access_point: int64 [D].
        chosen: int64 [D], position on the candidate axis.
        log_probability: float32 [D], of the choice under the behaviour policy; 0 for heuristics.
        system: int64 [D].
        index: int64 [D], position of the request in its system's sequence.
        met: bool [D], whether the request was answered within its deadline.
    """

    view: DispatchView
    features: Float32Array
    replica: Int64Array
    node: Int64Array
    segment: Int64Array
    forwarded: Float32Array
    access_point: Int64Array
    chosen: Int64Array
    log_probability: Float32Array
    system: Int64Array
    index: Int64Array
    met: BoolArray

    def __len__(self) -> int:
        return len(self.chosen)


@dataclass(frozen=True)
class Rollout:
    """Consecutive slots of an environment.

    Attributes:
        slots: T slots of decisions to learn from.
        outcomes: what each of the T slots resolved, for slot-level rewards.
        views: T + 1 views at slot starts, for the critic.
        node_failures: float64 [T + tail, N], failed requests by the slot they were dispatched in and their node.
        node_requests: float64 [T + tail, N], all requests likewise.
    """

    slots: list[SlotDecisions]
    outcomes: list[SlotOutcome]
    views: list[DispatchView]
    node_failures: Float64Array
    node_requests: Float64Array


def collect(
    environment: DispatchEnvironment,
    policy: DispatchPolicy,
    slots: int,
    tail_slots: int,
) -> Rollout:
    """Runs ``slots`` slots to learn from and ``tail_slots`` more, in which their requests come to an end.

    Requests whose outcome is still unknown after the tail count as failed; choose a tail longer than the longest
    deadline.
    """
    recorders: list[_SlotRecorder] = []
    outcomes: list[SlotOutcome] = []
    for _ in range(slots + tail_slots):
        recorder = _SlotRecorder(environment.simulator.arrivals(), policy)
        outcomes.append(environment.step(policy, recorder))
        recorder.view = environment.view
        recorders.append(recorder)
    met = _met_requests(environment.simulator.systems, recorders, outcomes)
    decisions = [recorder.finish(met) for recorder in recorders]
    nodes = max(len(slot.view.snapshot.topology.nodes.names) for slot in decisions)
    failures = np.zeros((len(decisions), nodes))
    requests = np.zeros((len(decisions), nodes))
    for row, slot in enumerate(decisions):
        destination = slot.node[slot.chosen]
        failures[row] = np.bincount(destination, weights=~slot.met, minlength=nodes)
        requests[row] = np.bincount(destination, minlength=nodes)
    return Rollout(
        slots=decisions[:slots],
        outcomes=outcomes[:slots],
        views=[slot.view for slot in decisions[: slots + 1]],
        node_failures=failures,
        node_requests=requests,
    )


class _SlotRecorder:
    """Collects the rounds of one slot."""

    view: DispatchView

    def __init__(self, arrivals: SlotRequests, policy: DispatchPolicy) -> None:
        self._arrivals = arrivals
        self._policy = policy
        self._mean_payload_bytes = float(arrivals.payload_bytes.mean()) if len(arrivals) else 1.0
        self._rounds: list[tuple[Round, Float32Array]] = []

    @property
    def latest_index(self) -> int:
        """Largest position in its system's sequence of a request that arrived in the slot; 0 if none did."""
        return int(self._arrivals.index.max(initial=0))

    def __call__(self, made: Round) -> None:
        log_probability = np.zeros(len(made.position), np.float32)
        if isinstance(self._policy, TorchDispatch) and len(made.candidates):
            log_probability = _log_probability(self._policy.latest_scores, made.candidates, made.position)
        self._rounds.append((made, log_probability))

    def finish(self, met: BoolArray) -> SlotDecisions:
        """The slot's decisions with their outcomes; requests without any candidate are left out."""
        rows: dict[str, list[NDArray[Any]]] = {name: [] for name in _COLUMNS}
        candidate_base, decision_base = 0, 0
        for made, log_probability in self._rounds:
            candidates = made.candidates
            decided = made.position >= 0
            count = int(decided.sum())
            rows["features"].append(candidates.features)
            rows["replica"].append(candidates.replica)
            rows["node"].append(candidates.node)
            rows["segment"].append((np.cumsum(decided) - 1)[candidates.segment] + decision_base)
            rows["forwarded"].append(self._forwarded(candidates))
            rows["access_point"].append(candidates.queries.access_point[decided].astype(np.int64))
            rows["chosen"].append(made.position[decided] + candidate_base)
            rows["log_probability"].append(log_probability[decided])
            rows["request"].append(made.request[decided])
            candidate_base += len(candidates)
            decision_base += count
        joined = {
            name: np.concatenate(parts) if parts else _COLUMNS[name].copy() for name, parts in rows.items()
        }
        request = joined.pop("request")
        system = self._arrivals.system[request].astype(np.int64)
        index = self._arrivals.index[request].astype(np.int64)
        return SlotDecisions(view=self.view, system=system, index=index, met=met[system, index], **joined)

    def _forwarded(self, candidates: Candidates) -> Float32Array:
        payload = candidates.queries.payload_bytes[candidates.segment] / self._mean_payload_bytes
        remote = candidates.features[:, _IS_LOCAL] == 0
        return np.where(remote, payload, 0.0).astype(np.float32)


_IS_LOCAL = SCHEMA.request.index("is_local")
_COLUMNS: dict[str, NDArray[Any]] = {
    "features": np.zeros((0, len(SCHEMA.request)), np.float32),
    "replica": np.zeros(0, np.int64),
    "node": np.zeros(0, np.int64),
    "segment": np.zeros(0, np.int64),
    "forwarded": np.zeros(0, np.float32),
    "access_point": np.zeros(0, np.int64),
    "chosen": np.zeros(0, np.int64),
    "log_probability": np.zeros(0, np.float32),
    "request": np.zeros(0, np.int64),
}


def _met_requests(systems: int, recorders: list[_SlotRecorder], outcomes: list[SlotOutcome]) -> BoolArray:
    """bool [systems, requests so far]: whether each request was answered within its deadline."""
    system = np.concatenate([outcome.resolved_system for outcome in outcomes])
    index = np.concatenate([outcome.resolved_index for outcome in outcomes])
    status = np.concatenate([outcome.resolved_status for outcome in outcomes])
    latest = max((recorder.latest_index for recorder in recorders), default=0)
    met = np.zeros((systems, max(int(index.max(initial=0)), latest) + 1), bool)
    met[system, index] = status == RequestStatus.MET
    return met


def _log_probability(scores: Float32Array, candidates: Candidates, position: Int64Array) -> Float32Array:
    """float32 [Q]: log softmax of each choice among its query's candidates; 0 where there is none."""
    counts = np.diff(candidates.offsets)
    served = counts > 0
    starts = candidates.offsets[:-1][served]
    largest = np.zeros(len(counts), np.float32)
    largest[served] = np.maximum.reduceat(scores, starts)
    total = np.ones(len(counts), np.float32)
    total[served] = np.add.reduceat(np.exp(scores - largest[candidates.segment]), starts)
    log_probability: Float32Array = scores[position] - largest - np.log(total)
    return np.where(served, log_probability, np.float32(0)).astype(np.float32)
