"""Dispatch inside long simulations, compiled: the same rules and networks as the policy objects, many times faster.

Orchestration is learned and judged over frames of tens of thousands of requests each, whose dispatch by policy objects
takes most of the time. Here every request is decided in one compiled loop from the same figures
(:class:`~policy_server.features.candidates.Candidates`), with every access point knowing its own picks alone. It
differs in one point that hardly matters: a pick is made at its request's arrival instead of its round's mean. The tests
hold it against the policy objects.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from policy_server.cluster.snapshot import (
    NO_LINK,
    BoolArray,
    Float32Array,
    Float64Array,
    Int32Array,
    Int64Array,
    Topology,
)
from policy_server.features.load_table import LoadTable, TopologyTable
from policy_server.features.schema import SCHEMA
from policy_server.policies.dispatch import DispatchPolicy
from policy_server.policies.heuristics import EarliestCompletion, Greedy, GspSs, RoundRobin
from policy_server.policies.heuristics.shadow_schedule import ShadowSchedule
from policy_server.policies.heuristics.turns import GOLDEN_RATIO
from policy_server.policies.onnx_dispatch import OnnxDispatch
from policy_server.runtime.graph_contract import HEAD
from training.environments.dispatch import DispatchEnvironment
from training.environments.orchestration import PolicyDispatch, SlotStepper
from training.networks.dispatch import NORMALISED_BOUND, DispatchHead, DispatchNetworkSizes
from training.networks.policies import TorchDispatch
from training.restore import restore
from training.simulator.compilation import compiled
from training.simulator.metrics import SlotOutcome
from training.simulator.simulator import REJECT, VectorSimulator


class _Rule(IntEnum):
    EARLIEST_COMPLETION = 0
    GREEDY = 1
    IN_TURN = 2
    SCHEDULED = 3
    LEARNED = 4


_EARLIEST_COMPLETION, _GREEDY, _IN_TURN, _SCHEDULED, _LEARNED = (int(rule) for rule in _Rule)


class _Figures(NamedTuple):
    """What a snapshot says, by row of its topology; see :mod:`policy_server.features.load_table`."""

    services: int
    taken_at_seconds: float
    local_delay_seconds: float
    access_point_system: Int32Array
    dispatcher: Int32Array
    service_bounds: NDArray[np.int64]
    by_service: Int32Array
    link_row: Int32Array
    link_delay_seconds: Float32Array
    link_seconds_per_byte: Float32Array
    link_backlog_bytes: Float32Array
    replica_node: Int32Array
    replica_access_point: Int32Array
    replica_ready: BoolArray
    replica_outstanding: Float32Array
    replica_inverse_concurrency: Float32Array
    replica_cpu_fraction: Float32Array
    replica_execution_seconds: Float32Array
    node_committed: Float32Array
    node_execution_seconds: Float32Array
    node_is_cloud: BoolArray


class _Advice(NamedTuple):
    """What a policy says of the snapshot beforehand, and what it decides with.

    Attributes:
        schedule: float32 [K, R], of GSP-SS; see its ``ShadowSchedule``.
        schedule_row: int64 [A], likewise.
        replica_context: float32 [R, H], of the encoder, as are those of access points.
        access_point_context: float32 [A, H].
        mean, scale: float32 [F], normalisation of the request's features.
        request, request_bias: float32 [F, H] and [H], first layer of the head.
        hidden, hidden_bias: float32 [H, H] and [H], its second.
        score, score_bias: float32 [H] and [1], its last.
        shortcut: float32 [F], from features to score.
        features, first, second: float32 [F], [H] and [H], room to compute in.
    """

    schedule: Float32Array
    schedule_row: Int64Array
    replica_context: Float32Array
    access_point_context: Float32Array
    mean: Float32Array
    scale: Float32Array
    request: Float32Array
    request_bias: Float32Array
    hidden: Float32Array
    hidden_bias: Float32Array
    score: Float32Array
    score_bias: Float32Array
    shortcut: Float32Array
    features: Float32Array
    first: Float32Array
    second: Float32Array


class _Pending(NamedTuple):
    """Own picks that the snapshot does not show: sums by dispatcher, and the picks themselves.

    Attributes:
        made: int64 [K, R], picks ever made by each dispatcher, for rules that take turns.
    """

    replica: Float64Array
    node: Float64Array
    link: Float64Array
    picks: NDArray[Any]
    picked: NDArray[np.int64]
    made: Int64Array


_PICK_DTYPE = np.dtype(
    [
        ("visible_at", np.float64),
        ("bytes", np.float64),
        ("dispatcher", np.int32),
        ("replica", np.int32),
        ("link", np.int32),
    ],
    align=True,
)


class CompiledDispatch:
    """Steps a simulator slot by slot.

    Args:
        simulator: the systems.
        policy: one that :func:`can_compile`; by default earliest completion.
        seed: of the random numbers that break ties.

    Raises:
        ValueError: there is no compiled form of the policy.
    """

    def __init__(
        self,
        simulator: VectorSimulator,
        policy: DispatchPolicy = EarliestCompletion(),  # noqa: B008 - frozen
        *,
        seed: int = 0,
    ) -> None:
        rule = _rule_of(policy)
        if rule is None:
            raise ValueError(
                f"policy: {policy.name!r} has no compiled form; step it by a DispatchEnvironment"
            )
        self._simulator = simulator
        self._policy = policy
        self._rule = int(rule)
        self._advice = _no_advice() if rule is not _Rule.LEARNED else _with_head(_head_of(policy))
        self._random: NDArray[np.uint64] = np.random.default_rng(seed).integers(1, 2**63, 1, np.uint64)
        self._static: TopologyTable | None = None
        self._rows: dict[str, NDArray[Any]] = {}
        self._pending: _Pending | None = None

    def step(self) -> SlotOutcome:
        """Decides all requests of the current slot and simulates it."""
        simulator = self._simulator
        snapshot = simulator.snapshot()
        topology = snapshot.topology
        before = None if self._static is None else self._static.topology
        if self._static is None or before is not topology:
            self._static = TopologyTable(topology)
            self._rows = _topology_rows(self._static)
        static, table = self._static, LoadTable(snapshot, self._static)
        arrivals = simulator.arrivals()
        figures = _Figures(
            services=len(topology.services.names),
            taken_at_seconds=float(snapshot.taken_at_seconds),
            local_delay_seconds=float(topology.local_delay_seconds),
            access_point_system=topology.access_points.system,
            dispatcher=self._rows["dispatcher"],
            service_bounds=self._rows["service_bounds"],
            by_service=self._rows["by_service"],
            link_row=topology.link_row,
            link_delay_seconds=topology.links.delay_seconds,
            link_seconds_per_byte=static.inverse_bandwidth,
            link_backlog_bytes=table.link_backlog_bytes,
            replica_node=topology.replicas.node,
            replica_access_point=static.replica_access_point,
            replica_ready=table.ready,
            replica_outstanding=table.outstanding,
            replica_inverse_concurrency=static.inverse_concurrency,
            replica_cpu_fraction=static.cpu_fraction,
            replica_execution_seconds=static.execution_seconds,
            node_committed=table.node_committed,
            node_execution_seconds=table.node_mean_execution_seconds,
            node_is_cloud=static.node_is_cloud,
        )
        if self._pending is None:
            self._pending = _no_picks(figures, self._rows["dispatcher"])
        elif before is not None and before is not topology:
            self._pending = _carried_over(self._pending, figures, before, topology)
        pending = self._pending = _with_room(self._pending, len(arrivals))
        _settle(figures, pending)
        target = np.empty(len(arrivals), np.int32)
        _decide(
            figures, pending, self._advised(table), self._rule, self._random, arrivals.access_point,
            arrivals.service, arrivals.payload_bytes, arrivals.deadline_seconds, arrivals.arrival_seconds, target,
        )  # fmt: skip
        return simulator.advance(target)

    def _advised(self, table: LoadTable) -> _Advice:
        prepared: Any = self._policy.prepare(table)
        if isinstance(prepared, ShadowSchedule):
            return self._advice._replace(schedule=prepared.fraction, schedule_row=prepared.access_point_rank)
        if self._rule == _LEARNED:
            return self._advice._replace(
                replica_context=np.asarray(prepared.replica_context),
                access_point_context=np.asarray(prepared.access_point_context),
            )
        return self._advice


def slot_stepper(simulator: VectorSimulator, policy: DispatchPolicy) -> SlotStepper:
    """The fastest way to step a simulator by a policy: compiled where there is a compiled form of it."""
    if can_compile(policy):
        return CompiledDispatch(simulator, policy)
    return PolicyDispatch(DispatchEnvironment(simulator, random=np.random.default_rng(0)), policy)


def can_compile(policy: DispatchPolicy) -> bool:
    """Whether :class:`CompiledDispatch` takes a policy: it decides by one of the rules here, without sampling."""
    return _rule_of(policy) is not None


def _rule_of(policy: DispatchPolicy) -> _Rule | None:
    if policy.sampling_temperature > 0 or policy.shares_picks:
        return None
    if isinstance(policy, OnnxDispatch | TorchDispatch):
        return _Rule.LEARNED
    for kind, rule in (
        (EarliestCompletion, _Rule.EARLIEST_COMPLETION),
        (Greedy, _Rule.GREEDY),
        (RoundRobin, _Rule.IN_TURN),
        (GspSs, _Rule.SCHEDULED),
    ):
        if isinstance(policy, kind):
            return rule
    return None


def _head_of(policy: DispatchPolicy) -> DispatchHead:
    if isinstance(policy, TorchDispatch):
        return policy.actor.head
    assert isinstance(policy, OnnxDispatch)
    head = DispatchHead(SCHEMA, DispatchNetworkSizes())
    restore(head, policy.bundle.path / f"{HEAD}.onnx")
    return head


def _no_advice() -> _Advice:
    none, table = np.zeros(0, np.float32), np.zeros((0, 0), np.float32)
    return _Advice(
        table, np.zeros(0, np.int64), table, table, none, none, table, none, table, none, none, none, none, none,
        none, none,
    )  # fmt: skip


def _with_head(head: DispatchHead) -> _Advice:
    def values(tensor: torch.Tensor) -> Float32Array:
        array: Float32Array = np.ascontiguousarray(tensor.detach().numpy(), np.float32)
        return array

    width = head.hidden.in_features
    return _no_advice()._replace(
        mean=values(head.request_norm.mean),
        scale=values(head.request_norm.scale),
        request=values(head.request.weight.T),
        request_bias=values(head.request.bias),
        hidden=values(head.hidden.weight.T),
        hidden_bias=values(head.hidden.bias),
        score=values(head.score.weight[0]),
        score_bias=values(head.score.bias),
        shortcut=values(head.shortcut.weight[0]),
        features=np.zeros(len(SCHEMA.request), np.float32),
        first=np.zeros(width, np.float32),
        second=np.zeros(width, np.float32),
    )


def _topology_rows(static: TopologyTable) -> dict[str, NDArray[Any]]:
    topology = static.topology
    system = topology.access_points.system
    first = np.searchsorted(system, np.arange(topology.system_count))
    order = np.argsort(static.service_system, kind="stable").astype(np.int32)
    pairs = topology.system_count * len(topology.services.names)
    return {
        "dispatcher": (np.arange(len(system)) - first[system]).astype(np.int32),
        "by_service": order,
        "service_bounds": np.searchsorted(static.service_system[order], np.arange(pairs + 1)),
    }


def _no_picks(figures: _Figures, dispatcher: Int32Array) -> _Pending:
    dispatchers, replicas = int(dispatcher.max(initial=0)) + 1, len(figures.replica_node)
    return _Pending(
        replica=np.zeros((dispatchers, replicas)),
        node=np.zeros((dispatchers, len(figures.node_committed))),
        link=np.zeros(len(figures.link_delay_seconds)),
        picks=np.zeros(0, _PICK_DTYPE),
        picked=np.zeros(1, np.int64),
        made=np.zeros((dispatchers, replicas), np.int64),
    )


def _carried_over(pending: _Pending, figures: _Figures, before: Topology, topology: Topology) -> _Pending:
    """Picks of replicas that are still there, under their new rows; what is on links counts no more, as in a ledger."""
    index = topology.replica_index
    rows = np.array([index.get(endpoint, -1) for endpoint in before.replicas.endpoints], np.int32)
    fresh = _no_picks(figures, figures.dispatcher)._replace(picks=pending.picks)
    stays = rows >= 0
    fresh.made[:, rows[stays]] = pending.made[:, stays]
    _carry_over(figures, pending, fresh, rows)
    return fresh


def _with_room(pending: _Pending, arrivals: int) -> _Pending:
    needed = int(pending.picked[0]) + arrivals
    if needed <= len(pending.picks):
        return pending
    picks = np.zeros(2 * needed, _PICK_DTYPE)
    picks[: len(pending.picks)] = pending.picks
    return pending._replace(picks=picks)


@compiled
def _carry_over(figures: _Figures, pending: _Pending, fresh: _Pending, rows: Int32Array) -> None:
    kept = 0
    for position in range(pending.picked[0]):
        pick = pending.picks[position]
        replica = rows[pick.replica]
        if replica < 0:
            continue
        fresh.replica[pick.dispatcher, replica] += 1.0
        fresh.node[pick.dispatcher, figures.replica_node[replica]] += figures.replica_cpu_fraction[replica]
        pick.replica = replica
        pick.link = NO_LINK
        fresh.picks[kept] = pick
        kept += 1
    fresh.picked[0] = kept


@compiled
def _settle(figures: _Figures, pending: _Pending) -> None:
    """Forgets the picks that the snapshot shows."""
    kept = 0
    for position in range(pending.picked[0]):
        pick = pending.picks[position]
        if pick.visible_at > figures.taken_at_seconds:
            pending.picks[kept] = pick
            kept += 1
        else:
            node = figures.replica_node[pick.replica]
            pending.replica[pick.dispatcher, pick.replica] -= 1.0
            pending.node[pick.dispatcher, node] -= figures.replica_cpu_fraction[pick.replica]
            if pick.link != NO_LINK:
                pending.link[pick.link] -= pick.bytes
    pending.picked[0] = kept


@compiled
def _link_to(figures: _Figures, origin: int, replica: int) -> int:
    """Link row from an access point to a ready replica; ``NO_LINK`` at its own nodes, else ``_UNREACHABLE``."""
    if not figures.replica_ready[replica]:
        return _UNREACHABLE
    destination = figures.replica_access_point[replica]
    if destination == origin:
        return NO_LINK
    link = figures.link_row[origin, destination]
    return _UNREACHABLE if link == NO_LINK else link


_UNREACHABLE = -2


@compiled
def _uniform(random: NDArray[np.uint64]) -> float:
    """A random number in [0, 1): xorshift64* (Vigna, 2016)."""
    state = random[0]
    state ^= state >> np.uint64(12)
    state ^= state << np.uint64(25)
    state ^= state >> np.uint64(27)
    random[0] = state
    return float((state * np.uint64(2685821657736338717)) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@compiled
def _head(advice: _Advice, replica: int, origin: int) -> float:
    """The logit of one candidate, whose features lie in ``advice.features``; see ``DispatchHead``."""
    features, first, second = advice.features, advice.first, advice.second
    score = np.float32(0.0)
    for column in range(len(first)):
        first[column] = (
            advice.replica_context[replica, column]
            + advice.access_point_context[origin, column]
            + advice.request_bias[column]
        )
        second[column] = advice.hidden_bias[column]
    for row in range(len(features)):
        value = features[row]
        squashed = np.float32(np.log1p(value)) if value >= 0 else -np.float32(np.log1p(-value))
        normal = (squashed - advice.mean[row]) * advice.scale[row]
        normal = min(max(normal, np.float32(-_BOUND)), np.float32(_BOUND))
        score += normal * advice.shortcut[row]
        for column in range(len(first)):
            first[column] += normal * advice.request[row, column]
    for row in range(len(first)):
        value = first[row]
        if value > 0:
            for column in range(len(second)):
                second[column] += value * advice.hidden[row, column]
    for column in range(len(second)):
        if second[column] > 0:
            score += second[column] * advice.score[column]
    logit: float = score + advice.score_bias[0]
    return logit


_BOUND = NORMALISED_BOUND


@compiled
def _turn(
    figures: _Figures,
    pending: _Pending,
    advice: _Advice,
    rule: int,
    origin: int,
    dispatcher: int,
    first: int,
    last: int,
) -> float:
    """Whose turn it is: a position among the candidates, or a point in the sum of their scheduled fractions."""
    count, made, total = 0, 0, 0.0
    for position in range(first, last):
        replica = figures.by_service[position]
        if _link_to(figures, origin, replica) == _UNREACHABLE:
            continue
        count += 1
        made += pending.made[dispatcher, replica]
        if rule == _SCHEDULED:
            total += advice.schedule[advice.schedule_row[origin], replica]
    start = dispatcher * GOLDEN_RATIO % 1.0
    if rule == _SCHEDULED:
        return (made * GOLDEN_RATIO + start) % 1.0 * total
    return float((made + int(start * count)) % count) if count else 0.0


@compiled
def _decide(
    figures: _Figures,
    pending: _Pending,
    advice: _Advice,
    rule: int,
    random: NDArray[np.uint64],
    access_point: Int32Array,
    service: Int32Array,
    payload_bytes: Float32Array,
    deadline_seconds: Float32Array,
    arrival_seconds: Float64Array,
    target: Int32Array,
) -> None:
    """Writes the replica row of each request to ``target``; see ``Candidates`` for the formulas."""
    for request in range(len(target)):
        origin = access_point[request]
        dispatcher = figures.dispatcher[origin]
        pair = figures.access_point_system[origin] * figures.services + service[request]
        first, last = figures.service_bounds[pair], figures.service_bounds[pair + 1]
        payload, deadline = float(payload_bytes[request]), float(deadline_seconds[request])
        turn, passed = 0.0, 0.0
        if rule in (_IN_TURN, _SCHEDULED):
            turn = _turn(figures, pending, advice, rule, origin, dispatcher, first, last)
        best, best_link, best_score, best_network, ties = REJECT, NO_LINK, -np.inf, 0.0, 0
        for position in range(first, last):
            replica = figures.by_service[position]
            link = _link_to(figures, origin, replica)
            if link == _UNREACHABLE:
                continue
            delay = figures.local_delay_seconds
            network = delay
            if link != NO_LINK:
                delay = figures.link_delay_seconds[link]
                waiting = payload + figures.link_backlog_bytes[link] + pending.link[link]
                network = delay + waiting * figures.link_seconds_per_byte[link]
            node = figures.replica_node[replica]
            committed = figures.node_committed[node] + pending.node[dispatcher, node]
            if rule == _IN_TURN:
                score = 1.0 if passed == turn else 0.0
                passed += 1.0
            elif rule == _SCHEDULED:
                fraction = float(advice.schedule[advice.schedule_row[origin], replica])
                score = fraction + 1.0 if passed <= turn < passed + fraction else fraction
                passed += fraction
            elif rule == _GREEDY:
                score = -committed / (committed + 1.0)
                if figures.node_is_cloud[node]:
                    score -= 1.0
            else:
                execution = figures.replica_execution_seconds[replica]
                excess = committed + figures.replica_cpu_fraction[replica] - 1.0
                turnover = figures.node_execution_seconds[node]
                if turnover <= 0:
                    turnover = execution
                taken = figures.replica_outstanding[replica] + pending.replica[dispatcher, replica] + 1.0
                slots = taken * figures.replica_inverse_concurrency[replica] - 1.0
                wait = max(excess * turnover, slots * execution, 0.0)
                completion = network + wait + execution + delay
                score = -completion
                if rule == _LEARNED:
                    features = advice.features
                    features[_NETWORK_SECONDS] = network
                    features[_RETURN_SECONDS] = delay
                    features[_WAIT_SECONDS] = wait
                    features[_COMPLETION_SECONDS] = completion
                    features[_SLACK_SECONDS] = deadline - completion
                    features[_SLACK_FRACTION] = (deadline - completion) / deadline
                    features[_PENDING_CPU_FRACTION] = pending.node[dispatcher, node]
                    features[_PENDING_PER_SLOT] = (
                        pending.replica[dispatcher, replica] * figures.replica_inverse_concurrency[replica]
                    )
                    features[_EXCESS_CPU_FRACTION] = excess
                    features[_DEADLINE_SECONDS] = deadline
                    features[_SNAPSHOT_AGE_SECONDS] = max(
                        arrival_seconds[request] - figures.taken_at_seconds, 0.0
                    )
                    features[_IS_LOCAL] = 1.0 if link == NO_LINK else 0.0
                    score = _head(advice, replica, origin)
            if score > best_score:
                ties = 0
            if score >= best_score:
                ties += 1
                if ties == 1 or _uniform(random) * ties < 1.0:
                    best, best_link, best_score, best_network = replica, link, score, network
        target[request] = best
        if best == REJECT:
            continue
        pending.made[dispatcher, best] += 1
        pending.replica[dispatcher, best] += 1.0
        pending.node[dispatcher, figures.replica_node[best]] += figures.replica_cpu_fraction[best]
        if best_link != NO_LINK:
            pending.link[best_link] += payload
        pick = pending.picks[pending.picked[0]]
        pick.visible_at = arrival_seconds[request] + best_network
        pick.bytes = payload if best_link != NO_LINK else 0.0
        pick.dispatcher = dispatcher
        pick.replica = best
        pick.link = best_link
        pending.picked[0] += 1


(
    _NETWORK_SECONDS,
    _RETURN_SECONDS,
    _WAIT_SECONDS,
    _COMPLETION_SECONDS,
    _SLACK_SECONDS,
    _SLACK_FRACTION,
    _PENDING_CPU_FRACTION,
    _PENDING_PER_SLOT,
    _EXCESS_CPU_FRACTION,
    _DEADLINE_SECONDS,
    _SNAPSHOT_AGE_SECONDS,
    _IS_LOCAL,
) = (
    SCHEMA.request.index(name)
    for name in (
        "network_seconds",
        "return_seconds",
        "wait_seconds",
        "completion_seconds",
        "slack_seconds",
        "slack_fraction",
        "pending_cpu_fraction",
        "pending_per_slot",
        "excess_cpu_fraction",
        "deadline_seconds",
        "snapshot_age_seconds",
        "is_local",
    )
)
