"""The compiled inner loop of the application simulator.

Time runs in periods of the CPU bandwidth controller (Linux CFS: a quota of CPU time per 100 ms). Every request is
followed along its call tree at once, in order of arrival, and books the CPU it needs in the ledger of each container
it visits: work w that begins at time t takes, period after period,

    min(quota left of the container, capacity left of the node, time left in the period)

until it is done. A call thus runs at the speed of one core while there is quota, many calls at the same time, and
waits for the next period once the quota is spent: throttling. Since booked time stays booked, a later request waits
behind earlier ones, and a container offered more than its quota builds a backlog. What bookings cannot express: work
booked before a resize keeps its place, and a call that reaches a container out of order of arrival (by the time other
calls of its request took) books what is left.

Memory, once a period: base + cache (1 - exp(-requests served / cache requests)) + requests present x request memory.
Above the limit the container is killed and serves nothing until it has restarted. Near the limit the work of a call
grows by the factor 1 + 1/2 min(1, (use / limit - 0.85) / 0.15)^2 for use above 0.85 (garbage collection, page
reclaim).

A request fails when it meets a container that is down, or when its client gives up before a call of it begins; it then
counts as answered at the client's timeout. Nobody waits for background calls, but one that cannot begin within
``BACKGROUND_PATIENCE`` timeouts makes its request a violation.

Blame: the wait of a call is its time in the container beyond its work. Along the critical path (of the calls of a stage
the one that answers last) waits, work and network delays add up to the latency, so the sum of the waits of a container
is what its allocation adds to the mean latency. A violation is shared among the containers of the path in proportion
to their waits; a killed container bears all of it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from policy_server.cluster.snapshot import BoolArray, Float64Array, Int64Array
from training.simulator.compilation import compiled

PERIOD_SECONDS = 0.1
PERIODS_PER_SECOND = 10
BACKGROUND_PATIENCE = 5.0
RECLAIM_ABOVE = 0.85
RECLAIM_COST = 0.5

WORK_QUANTILES_LOG2 = 10
LATENCY_BINS = 512
SHORTEST_LATENCY_SECONDS = 1e-3
LONGEST_LATENCY_SECONDS = 100.0
_BINS_PER_LOG = LATENCY_BINS / math.log(LONGEST_LATENCY_SECONDS / SHORTEST_LATENCY_SECONDS)

_NO_WORK = 1e-12
_NOT_DONE = -1.0
_NONE = -1

_ANSWERED = 0
_GIVEN_UP = 1
_REFUSED = 2


class Structure(NamedTuple):
    """What no simulation changes; see :class:`training.scaling.application.CallGraph`. V calls, S services, N nodes."""

    operation_cumulative: Float64Array
    operation_start: Int64Array
    call_service: Int64Array
    call_parent: Int64Array
    call_depth: Int64Array
    call_stage: Int64Array
    call_background: BoolArray
    call_delay_seconds: Float64Array
    service_node: Int64Array
    base_memory_bytes: Float64Array
    request_memory_bytes: Float64Array
    cache_memory_bytes: Float64Array
    cache_requests: Float64Array
    restart_seconds: Float64Array
    node_period_seconds: Float64Array
    """[N], core-seconds per period."""
    work_quantiles: Float64Array
    """[2^WORK_QUANTILES_LOG2], work of a call relative to its mean, at equally likely quantiles."""
    latency_objective_seconds: float
    client_timeout_seconds: float


class State(NamedTuple):
    """B applications. The last axis of ledgers is a ring of P periods, P a power of two."""

    call_cpu_seconds: Float64Array
    """[B, V]"""
    quota_seconds: Float64Array
    """[B, S], core-seconds per period."""
    memory_limit_bytes: Float64Array
    """[B, S]"""
    booked_seconds: Float64Array
    """[B, S, P]"""
    node_booked_seconds: Float64Array
    """[B, N, P]"""
    throttled: BoolArray
    """[B, S, P]"""
    full_until: Int64Array
    """[B, S], no period before this one has quota left."""
    presence: Float64Array
    """[B, S, P], requests present in part of a period, as a share of it."""
    presence_change: Float64Array
    """[B, S, P], change, from this period on, of the requests present throughout."""
    present: Float64Array
    """[B, S], requests present throughout the current period."""
    served: Float64Array
    """[B, S], requests since the last start."""
    down_until_seconds: Float64Array
    """[B, S]"""
    memory_bytes: Float64Array
    """[B, S]"""
    period: Int64Array
    """[B], the next period to simulate."""
    random: NDArray[np.uint64]
    """[B]"""


class Totals(NamedTuple):
    """What an interval adds up to. Written by :func:`advance`, zeroed by the caller."""

    requests: Int64Array
    """[B]"""
    latency_seconds: Float64Array
    """[B], sum."""
    violations: Int64Array
    """[B], failed requests included."""
    failures: Int64Array
    """[B]"""
    latency_counts: Int64Array
    """[B, LATENCY_BINS]"""
    cpu_seconds: Float64Array
    """[B, S]"""
    throttled_periods: Int64Array
    """[B, S]"""
    peak_memory_bytes: Float64Array
    """[B, S]"""
    visits: Int64Array
    """[B, S]"""
    visit_seconds: Float64Array
    """[B, S], sum of the response times of the container, calls it waits for included."""
    wait_seconds: Float64Array
    """[B, S], what the container added to the latency of all requests."""
    blame: Float64Array
    """[B, S], violations the container answers for."""
    kills: Int64Array
    """[B, S]"""


class Scratch(NamedTuple):
    """One request under way, by call of its tree."""

    begin: Float64Array
    stage_begin: Float64Array
    stage_end: Float64Array
    wait: Float64Array
    stage: Int64Array
    slowest: Int64Array
    on_path: BoolArray
    stack: Int64Array


def new_scratch(calls: int) -> Scratch:
    """Scratch space for trees of up to ``calls`` calls."""
    return Scratch(
        begin=np.zeros(calls),
        stage_begin=np.zeros(calls),
        stage_end=np.zeros(calls),
        wait=np.zeros(calls),
        stage=np.zeros(calls, np.int64),
        slowest=np.zeros(calls, np.int64),
        on_path=np.zeros(calls, np.bool_),
        stack=np.zeros(calls, np.int64),
    )


@compiled
def _random_bits(state: NDArray[np.uint64], row: int) -> np.uint64:
    """64 random bits: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    state[row] += np.uint64(0x9E3779B97F4A7C15)
    bits = state[row]
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.uint64 = bits ^ (bits >> np.uint64(31))
    return mixed


@compiled
def _uniform(state: NDArray[np.uint64], row: int) -> float:
    """Uniform in (0, 1]."""
    return (float(_random_bits(state, row) >> np.uint64(11)) + 1.0) * 2.0**-53


@compiled
def latency_bin(seconds: float) -> int:
    """Bin of a latency; bins are equally wide on a logarithmic scale."""
    if seconds <= SHORTEST_LATENCY_SECONDS:
        return 0
    return min(int(math.log(seconds / SHORTEST_LATENCY_SECONDS) * _BINS_PER_LOG), LATENCY_BINS - 1)


@compiled
def _book(
    structure: Structure, state: State, app: int, service: int, begin: float, work: float, deadline: float
) -> float:
    """Books work and returns when it is done, ``_NOT_DONE`` if it cannot begin or go on by the deadline."""
    ring = state.booked_seconds.shape[2] - 1
    node = structure.service_node[service]
    quota = state.quota_seconds[app, service]
    capacity = structure.node_period_seconds[node]
    booked = state.booked_seconds[app, service]
    node_booked = state.node_booked_seconds[app, node]
    period = int(begin / PERIOD_SECONDS)
    time = begin
    if period < state.full_until[app, service]:
        period = state.full_until[app, service]
        time = period * PERIOD_SECONDS
    while time <= deadline:
        slot = period & ring
        quota_left = quota - booked[slot]
        take = min(work, quota_left, capacity - node_booked[slot], (period + 1) * PERIOD_SECONDS - time)
        if take > 0.0:
            booked[slot] += take
            node_booked[slot] += take
            work -= take
            if work <= _NO_WORK:
                done: float = time + take
                return done
            quota_left -= take
        if quota_left <= _NO_WORK:
            state.throttled[app, service, slot] = True
            if state.full_until[app, service] == period:
                state.full_until[app, service] = period + 1
        period += 1
        time = period * PERIOD_SECONDS
    return _NOT_DONE


@compiled
def _note_presence(state: State, app: int, service: int, begin: float, end: float) -> None:
    """Counts a request as present from ``begin`` to ``end``."""
    ring = state.booked_seconds.shape[2] - 1
    first, last = int(begin / PERIOD_SECONDS), int(end / PERIOD_SECONDS)
    presence = state.presence[app, service]
    if first == last:
        presence[first & ring] += (end - begin) / PERIOD_SECONDS
        return
    presence[first & ring] += first + 1 - begin / PERIOD_SECONDS
    presence[last & ring] += end / PERIOD_SECONDS - last
    state.presence_change[app, service, (first + 1) & ring] += 1.0
    state.presence_change[app, service, last & ring] -= 1.0


@compiled
def _reclaim_factor(memory_bytes: float, limit_bytes: float) -> float:
    """What work grows by close to the memory limit."""
    above = memory_bytes / limit_bytes - RECLAIM_ABOVE
    if above <= 0.0:
        return 1.0
    share = min(1.0, above / (1.0 - RECLAIM_ABOVE))
    return 1.0 + RECLAIM_COST * share * share


@compiled
def _leave(
    structure: Structure, state: State, totals: Totals, scratch: Scratch, app: int, call: int, end: float
) -> None:
    """A request leaves the container of a call."""
    service = structure.call_service[call]
    begin = scratch.begin[call]
    end = max(begin, end)
    totals.visits[app, service] += 1
    totals.visit_seconds[app, service] += end - begin
    _note_presence(state, app, service, begin, end)


@compiled
def _put_on_path(scratch: Scratch, parent: int, call: int) -> None:
    """Makes a call the slowest of its stage."""
    if scratch.slowest[parent] != _NONE:
        scratch.on_path[scratch.slowest[parent]] = False
    scratch.slowest[parent] = call
    scratch.on_path[call] = True


@compiled
def _end_calls(
    structure: Structure, state: State, totals: Totals, scratch: Scratch, app: int, height: int, depth: int
) -> None:
    """Hands the answers of the calls on the stack, from the top down to a depth, to their callers."""
    for position in range(height - 1, depth - 1, -1):
        call = scratch.stack[position]
        _leave(structure, state, totals, scratch, app, call, scratch.stage_end[call])
        if position == 0 or structure.call_background[call]:
            continue
        parent = structure.call_parent[call]
        answered = scratch.stage_end[call] + structure.call_delay_seconds[call]
        if answered > scratch.stage_end[parent]:
            scratch.stage_end[parent] = answered
            _put_on_path(scratch, parent, call)


@compiled
def _run_call(
    structure: Structure, state: State, scratch: Scratch, app: int, begin: float, deadline: float, call: int
) -> int:
    """Does a call's own work; returns what became of it."""
    service = structure.call_service[call]
    quantile = _random_bits(state.random, app) >> np.uint64(64 - WORK_QUANTILES_LOG2)
    work = state.call_cpu_seconds[app, call] * structure.work_quantiles[quantile]
    reclaim = _reclaim_factor(state.memory_bytes[app, service], state.memory_limit_bytes[app, service])
    state.served[app, service] += 1.0
    scratch.begin[call] = begin
    scratch.stage[call] = 0
    scratch.slowest[call] = _NONE
    scratch.on_path[call] = False
    refused = begin < state.down_until_seconds[app, service]
    end = _NOT_DONE if refused else _book(structure, state, app, service, begin, work * reclaim, deadline)
    if end == _NOT_DONE:
        scratch.wait[call] = max(0.0, deadline - begin)
        scratch.stage_end[call] = begin if refused else max(begin, deadline)
        return _REFUSED if refused else _GIVEN_UP
    scratch.wait[call] = end - begin - work
    scratch.stage_begin[call] = end
    scratch.stage_end[call] = end
    return _ANSWERED


@compiled
def _begin_of(structure: Structure, scratch: Scratch, call: int) -> float:
    """When a call reaches its container."""
    parent = structure.call_parent[call]
    if scratch.stage[parent] != structure.call_stage[call]:
        scratch.stage[parent] = structure.call_stage[call]
        scratch.stage_begin[parent] = scratch.stage_end[parent]
        scratch.slowest[parent] = _NONE
    begin: float = scratch.stage_begin[parent] + structure.call_delay_seconds[call]
    return begin


@compiled
def _fail(
    structure: Structure, state: State, totals: Totals, scratch: Scratch, app: int, height: int, failed: int
) -> None:
    """Ends a request that a call has failed; the way to that call is its critical path."""
    end = scratch.stage_end[failed]
    _leave(structure, state, totals, scratch, app, failed, end)
    for position in range(height - 1, -1, -1):
        _put_on_path(scratch, scratch.stack[position], failed)
        failed = scratch.stack[position]
        _leave(structure, state, totals, scratch, app, failed, end)
    totals.failures[app] += 1


@compiled
def _account(
    structure: Structure,
    totals: Totals,
    scratch: Scratch,
    app: int,
    first: int,
    last: int,
    guilty: int,
    violated: bool,
) -> None:
    """Adds the waits along the critical path, and puts the blame for a violation."""
    total = 0.0
    scratch.on_path[first] = True
    for call in range(first, last):
        if call > first and not scratch.on_path[structure.call_parent[call]]:
            scratch.on_path[call] = False
        if scratch.on_path[call]:
            total += scratch.wait[call]
            totals.wait_seconds[app, structure.call_service[call]] += scratch.wait[call]
    if not violated:
        return
    totals.violations[app] += 1
    if guilty != _NONE:
        totals.blame[app, structure.call_service[guilty]] += 1.0
    elif total > 0.0:
        for call in range(first, last):
            if scratch.on_path[call]:
                totals.blame[app, structure.call_service[call]] += scratch.wait[call] / total


@compiled
def _serve_request(
    structure: Structure, state: State, totals: Totals, scratch: Scratch, app: int, arrival: float
) -> None:
    """Follows one request along its call tree."""
    draw = _uniform(state.random, app)
    operation = 0
    while structure.operation_cumulative[operation] < draw:
        operation += 1
    first, last = structure.operation_start[operation], structure.operation_start[operation + 1]
    patience = structure.client_timeout_seconds
    height = 0
    fate = _ANSWERED
    guilty = _NONE
    background_depth = last
    call = first
    while call < last:
        depth = structure.call_depth[call]
        _end_calls(structure, state, totals, scratch, app, height, depth)
        height = depth
        if depth <= background_depth:
            background_depth = depth if structure.call_background[call] else last
        background = depth >= background_depth
        deadline = arrival + patience * (BACKGROUND_PATIENCE if background else 1.0)
        begin = (
            arrival + structure.call_delay_seconds[call]
            if call == first
            else _begin_of(structure, scratch, call)
        )
        fate = _run_call(structure, state, scratch, app, begin, deadline, call)
        call += 1
        if fate == _ANSWERED:
            scratch.stack[height] = call - 1
            height += 1
        elif background:
            if guilty == _NONE:
                guilty = call - 1
            fate = _ANSWERED
            while call < last and structure.call_depth[call] > background_depth:
                scratch.on_path[call] = False
                call += 1
        else:
            if fate == _REFUSED:
                guilty = call - 1
            _fail(structure, state, totals, scratch, app, height, call - 1)
            break
    latency = patience
    if fate == _ANSWERED:
        _end_calls(structure, state, totals, scratch, app, height, 0)
        latency = scratch.stage_end[first] + structure.call_delay_seconds[first] - arrival
    totals.requests[app] += 1
    totals.latency_seconds[app] += latency
    totals.latency_counts[app, latency_bin(latency)] += 1
    violated = fate != _ANSWERED or guilty != _NONE or latency > structure.latency_objective_seconds
    _account(structure, totals, scratch, app, first, call, guilty, violated)


@compiled
def _open_period(structure: Structure, state: State, totals: Totals, app: int) -> None:
    """Memory at the beginning of a period, and what follows from it."""
    ring = state.booked_seconds.shape[2] - 1
    period = state.period[app]
    slot = period & ring
    now = period * PERIOD_SECONDS
    for service in range(len(structure.service_node)):
        state.present[app, service] += state.presence_change[app, service, slot]
        present = state.present[app, service] + state.presence[app, service, slot]
        filled = 1.0 - math.exp(-state.served[app, service] / structure.cache_requests[service])
        memory = (
            structure.base_memory_bytes[service]
            + structure.cache_memory_bytes[service] * filled
            + structure.request_memory_bytes[service] * present
        )
        limit = state.memory_limit_bytes[app, service]
        up = now >= state.down_until_seconds[app, service]
        totals.peak_memory_bytes[app, service] = max(
            totals.peak_memory_bytes[app, service], min(memory, limit)
        )
        if up and memory > limit:
            totals.kills[app, service] += 1
            state.down_until_seconds[app, service] = now + structure.restart_seconds[service]
            state.served[app, service] = 0.0
            state.present[app, service] = 0.0
            state.presence[app, service] = 0.0
            state.presence_change[app, service] = 0.0
            state.booked_seconds[app, service] = 0.0
            state.full_until[app, service] = period
            memory = min(structure.base_memory_bytes[service], limit)
        state.memory_bytes[app, service] = memory


@compiled
def _close_period(structure: Structure, state: State, totals: Totals, app: int) -> None:
    """Accounts for a period that is over and frees its place in the rings."""
    ring = state.booked_seconds.shape[2] - 1
    slot = state.period[app] & ring
    for service in range(len(structure.service_node)):
        totals.cpu_seconds[app, service] += state.booked_seconds[app, service, slot]
        totals.throttled_periods[app, service] += state.throttled[app, service, slot]
        state.booked_seconds[app, service, slot] = 0.0
        state.throttled[app, service, slot] = False
        state.presence[app, service, slot] = 0.0
        state.presence_change[app, service, slot] = 0.0
    for node in range(len(structure.node_period_seconds)):
        state.node_booked_seconds[app, node, slot] = 0.0
    state.period[app] += 1


@compiled
def advance(
    structure: Structure, state: State, totals: Totals, scratch: Scratch, rates: Float64Array, periods: int
) -> None:
    """Simulates ``periods`` periods of every application.

    Args:
        structure: of the application.
        state: changed.
        totals: added to.
        scratch: overwritten.
        rates: float64 [B, at least the seconds begun], requests per second in each second from the first period on.
        periods: to simulate.
    """
    for app in range(len(state.period)):
        begun = state.period[app] // PERIODS_PER_SECOND
        for _ in range(periods):
            _open_period(structure, state, totals, app)
            period = state.period[app]
            rate = rates[app, period // PERIODS_PER_SECOND - begun]
            period_end = (period + 1) * PERIOD_SECONDS
            time = period * PERIOD_SECONDS
            if rate > 0.0:
                time -= math.log(_uniform(state.random, app)) / rate
                while time < period_end:
                    _serve_request(structure, state, totals, scratch, app, time)
                    time -= math.log(_uniform(state.random, app)) / rate
            _close_period(structure, state, totals, app)
