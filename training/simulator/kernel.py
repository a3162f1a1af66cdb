"""The compiled event loop.

Between two slot boundaries the access points of a system are independent of each other, and so are its nodes:
requests meet only in the dispatch queue and on the outgoing links of their own access point, both first in first
out, and on their node. So a slot is simulated in two sweeps without a global event list. The first sends the
requests out in order of arrival; queueing at dispatchers and links has a closed form:

    dispatch begins      d = max(arrival + decision delay, dispatcher free)
    dispatcher free      d + dispatch seconds
    transmission begins  t = max(dispatcher free, link free)
    link free            t + payload / bandwidth
    arrival at the node  link free + propagation delay    (own node: dispatcher free + local delay)

The second takes each node through its arrivals and ends in order of time. A request must leave its node by its

    expiry = arrival + deadline - propagation delay of the way back,

which is also the deadline that earliest-deadline-first goes by. A request that expires before its dispatch or its
transmission begins occupies neither. An event at the very end of a slot belongs to the next slot.

The functions take records of :mod:`training.simulator.state`; Python code calls :func:`slot_arrivals`,
:func:`resolve_targets` and :func:`advance_slot` only.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from training.simulator.compilation import compiled
from training.simulator.state import NONE, Ledger, Pool, Records, RequestStatus, Sequences, Structure

_PENDING = int(RequestStatus.PENDING)
_MET = int(RequestStatus.MET)
_DROPPED_QUEUED = int(RequestStatus.DROPPED_QUEUED)
_ABORTED_RUNNING = int(RequestStatus.ABORTED_RUNNING)
_REJECTED = int(RequestStatus.REJECTED)

TARGETS_VALID = 0
TARGET_OUT_OF_RANGE = 1
TARGET_OF_OTHER_SERVICE = 2
TARGET_UNREACHABLE = 3

REPLICA_GONE = -1
LOCAL = -1


@compiled
def _merge(requests: Records, first: int, second: int) -> int:
    """Joins two pairing heaps ordered by (key, index); the root of the joint heap."""
    if first == NONE:
        return second
    if second == NONE:
        return first
    first_key, second_key = requests[first].key, requests[second].key
    if second_key < first_key or (second_key == first_key and requests[second].index < requests[first].index):
        first, second = second, first
    requests[second].next = requests[first].child
    requests[first].child = second
    return first


@compiled
def _without_root(requests: Records, root: int) -> int:
    """Removes the root of a pairing heap; the root of the rest."""
    pairs = NONE
    child = requests[root].child
    requests[root].child = NONE
    while child != NONE:
        sibling = requests[child].next
        requests[child].next = NONE
        if sibling == NONE:
            following = NONE
            pair = child
        else:
            following = requests[sibling].next
            requests[sibling].next = NONE
            pair = _merge(requests, child, sibling)
        requests[pair].next = pairs
        pairs = pair
        child = following
    root = NONE
    while pairs != NONE:
        following = requests[pairs].next
        requests[pairs].next = NONE
        root = _merge(requests, root, pairs)
        pairs = following
    return root


@compiled
def _resolve(
    structure: Structure,
    replicas: Records,
    pool: Pool,
    ledger: Ledger,
    system: int,
    request: int,
    status: int,
    completion: float,
) -> None:
    """Gives a request its outcome, frees its record, and the memory of a draining replica it was the last of."""
    record = pool.requests[request]
    index = record.index
    ledger.status[index] = status
    ledger.completion[index] = completion
    if status == _MET:
        structure.systems[system].met += 1
    else:
        structure.systems[system].failed += 1
    counters = pool.counters[0]
    pool.resolved[counters.resolved] = index
    counters.resolved += 1
    pool.free[counters.free_requests] = request
    counters.free_requests += 1
    replica = replicas[record.replica]
    replica.unresolved -= 1
    if replica.draining and replica.unresolved == 0:
        structure.nodes[replica.node].memory_used -= structure.services[replica.service].memory
        counters.drained_replicas += 1


@compiled
def _transmit(
    structure: Structure,
    sequences: Sequences,
    replicas: Records,
    pool: Pool,
    system: int,
    request: int,
    dispatched: float,
    local_delay: float,
) -> None:
    """Sends a dispatched request towards its node."""
    record = pool.requests[request]
    expiry = record.expiry
    if record.link == LOCAL:
        arrives = dispatched + local_delay
    else:
        link = structure.links[record.link]
        begins = max(dispatched, link.free_at)
        if begins < expiry:
            payload = float(sequences.payload[record.index])
            link.free_at = begins + payload / link.bandwidth
            structure.forwarded_bytes[system, sequences.service[record.index]] += payload
            arrives = link.free_at + link.delay
        else:
            arrives = begins
    if arrives < expiry:
        record.key = arrives
    else:
        record.key = expiry
        record.status = _DROPPED_QUEUED
    node = structure.nodes[replicas[record.replica].node]
    node.in_transit = _merge(pool.requests, node.in_transit, request)


@compiled
def _dispatch_queued(
    structure: Structure,
    sequences: Sequences,
    replicas: Records,
    pool: Pool,
    ledger: Ledger,
    system: int,
    access_point: int,
    slot_end: float,
    dispatch_seconds: float,
    local_delay: float,
) -> None:
    """Dispatches from the head of an access point's queue whatever leaves before the end of the slot."""
    queue = structure.access_points[access_point]
    while queue.first != NONE:
        request = queue.first
        record = pool.requests[request]
        begins = max(record.key, queue.dispatcher_free_at)
        if record.expiry <= begins:
            given_up = max(record.expiry, sequences.arrival[record.index])
            if given_up >= slot_end:
                break
            queue.first = record.next
            queue.queued -= 1
            queue.dispatcher_free_at = max(queue.dispatcher_free_at, given_up)
            _resolve(structure, replicas, pool, ledger, system, request, _DROPPED_QUEUED, given_up)
        else:
            dispatched = begins + dispatch_seconds
            if dispatched >= slot_end and record.expiry >= slot_end:
                break
            queue.first = record.next
            record.next = NONE
            queue.queued -= 1
            queue.dispatcher_free_at = dispatched
            if record.expiry <= dispatched:
                _resolve(structure, replicas, pool, ledger, system, request, _DROPPED_QUEUED, record.expiry)
            else:
                _transmit(structure, sequences, replicas, pool, system, request, dispatched, local_delay)


@compiled
def _drop_expired_undispatched(
    structure: Structure,
    sequences: Sequences,
    replicas: Records,
    pool: Pool,
    ledger: Ledger,
    system: int,
    access_point: int,
    slot_end: float,
) -> None:
    """Drops the requests behind the head of an access point's queue that expired in this slot."""
    queue = structure.access_points[access_point]
    previous = queue.first
    request = pool.requests[previous].next
    while request != NONE:
        record = pool.requests[request]
        following = record.next
        given_up = max(record.expiry, sequences.arrival[record.index])
        if given_up < slot_end:
            pool.requests[previous].next = following
            queue.queued -= 1
            _resolve(structure, replicas, pool, ledger, system, request, _DROPPED_QUEUED, given_up)
        else:
            previous = request
        request = following
    queue.last = previous


@compiled
def _start(
    structure: Structure, replicas: Records, pool: Pool, node: int, request: int, now: float, slot_end: float
) -> None:
    """Runs a request; it ends answered, or aborted at its expiry."""
    record = pool.requests[request]
    end = now + record.execution
    if end <= record.expiry:
        record.status = _MET
        record.key = end
    else:
        record.status = _ABORTED_RUNNING
        record.key = record.expiry
    replica = replicas[record.replica]
    replica.running += 1
    machine = structure.nodes[node]
    machine.cpu_used += replica.cpu
    machine.cpu_work += replica.cpu * (slot_end - now)
    machine.running = _merge(pool.requests, machine.running, request)


@compiled
def _drop_expired_waiting(
    structure: Structure,
    replicas: Records,
    pool: Pool,
    ledger: Ledger,
    system: int,
    node: int,
    replica: int,
    now: float,
    inclusive: bool,
) -> None:
    """Drops from the head of a replica's queue what expired before ``now`` (or at ``now``)."""
    endpoint = replicas[replica]
    while endpoint.queue != NONE:
        request = endpoint.queue
        expiry = pool.requests[request].key
        if expiry > now or (expiry == now and not inclusive):
            break
        endpoint.queue = _without_root(pool.requests, request)
        endpoint.queued -= 1
        structure.nodes[node].queued -= 1
        _resolve(structure, replicas, pool, ledger, system, request, _DROPPED_QUEUED, expiry)


@compiled
def _start_waiting(
    structure: Structure,
    replicas: Records,
    pool: Pool,
    ledger: Ledger,
    system: int,
    node: int,
    now: float,
    slot_end: float,
) -> None:
    """Starts, as long as one fits, the waiting request with the earliest expiry among the heads of a node."""
    machine = structure.nodes[node]
    while machine.queued > 0:
        chosen = NONE
        chosen_expiry = math.inf
        chosen_index = 0
        replica = machine.first_replica
        while replica != NONE:
            endpoint = replicas[replica]
            if (
                endpoint.queued > 0
                and endpoint.running < endpoint.concurrency
                and machine.cpu_used + endpoint.cpu <= machine.cpu_capacity
            ):
                _drop_expired_waiting(structure, replicas, pool, ledger, system, node, replica, now, True)
                if endpoint.queue != NONE:
                    head = pool.requests[endpoint.queue]
                    if head.key < chosen_expiry or (head.key == chosen_expiry and head.index < chosen_index):
                        chosen = replica
                        chosen_expiry = head.key
                        chosen_index = head.index
            replica = endpoint.next
        if chosen == NONE:
            break
        endpoint = replicas[chosen]
        request = endpoint.queue
        endpoint.queue = _without_root(pool.requests, request)
        endpoint.queued -= 1
        machine.queued -= 1
        _start(structure, replicas, pool, node, request, now, slot_end)


@compiled
def _advance_node(
    structure: Structure,
    sequences: Sequences,
    replicas: Records,
    pool: Pool,
    ledger: Ledger,
    system: int,
    node: int,
    slot_start: float,
    slot_end: float,
    latency_gain: float,
) -> None:
    """Takes a node through the events of a slot; at one instant ends come before arrivals.

    A request that finds others waiting at its replica cannot start either: they need the same CPU and slots.
    """
    requests = pool.requests
    machine = structure.nodes[node]
    machine.cpu_work = machine.cpu_used * (slot_end - slot_start)
    while True:
        end = math.inf
        arrival = math.inf
        if machine.running != NONE:
            end = requests[machine.running].key
        if machine.in_transit != NONE:
            arrival = requests[machine.in_transit].key
        if end <= arrival:
            if end >= slot_end:
                break
            request = machine.running
            record = requests[request]
            endpoint = replicas[record.replica]
            machine.running = _without_root(requests, request)
            machine.cpu_used -= endpoint.cpu
            machine.cpu_work -= endpoint.cpu * (slot_end - end)
            endpoint.running -= 1
            completion = end
            if record.status == _MET:
                completion = end + record.return_delay
                latency = completion - sequences.arrival[record.index]
                if math.isnan(endpoint.latency):
                    endpoint.latency = latency
                else:
                    endpoint.latency += latency_gain * (latency - endpoint.latency)
            _resolve(structure, replicas, pool, ledger, system, request, record.status, completion)
            if machine.queued > 0:
                _start_waiting(structure, replicas, pool, ledger, system, node, end, slot_end)
        else:
            if arrival >= slot_end:
                break
            request = machine.in_transit
            record = requests[request]
            machine.in_transit = _without_root(requests, request)
            if record.status == _DROPPED_QUEUED:
                _resolve(structure, replicas, pool, ledger, system, request, _DROPPED_QUEUED, arrival)
                continue
            endpoint = replicas[record.replica]
            if (
                endpoint.queued == 0
                and endpoint.running < endpoint.concurrency
                and machine.cpu_used + endpoint.cpu <= machine.cpu_capacity
            ):
                _start(structure, replicas, pool, node, request, arrival, slot_end)
            else:
                record.key = record.expiry
                endpoint.queue = _merge(requests, endpoint.queue, request)
                endpoint.queued += 1
                machine.queued += 1
    if machine.queued > 0:
        replica = machine.first_replica
        while replica != NONE:
            _drop_expired_waiting(structure, replicas, pool, ledger, system, node, replica, slot_end, False)
            replica = replicas[replica].next


@compiled
def _measure_usage(structure: Structure, system: int, slot_seconds: float) -> None:
    """Standard deviation of CPU (mean over the slot) and memory usage over edge nodes; CPU work of edge and cloud."""
    row = structure.systems[system]
    count = 0
    cpu_sum = 0.0
    memory_sum = 0.0
    edge_work = 0.0
    cloud_work = 0.0
    for node in range(row.first_node, row.last_node):
        machine = structure.nodes[node]
        if machine.is_cloud:
            cloud_work += machine.cpu_work
        else:
            count += 1
            edge_work += machine.cpu_work
            cpu_sum += machine.cpu_work / machine.cpu_capacity
            memory_sum += machine.memory_used / machine.memory_capacity
    row.edge_cpu_work = edge_work
    row.cloud_cpu_work = cloud_work
    row.total_edge_cpu_work += edge_work
    row.total_cloud_cpu_work += cloud_work
    row.cpu_usage_std = 0.0
    row.memory_usage_std = 0.0
    if count == 0:
        return
    cpu_mean = cpu_sum / count
    memory_mean = memory_sum / count
    cpu_squares = 0.0
    memory_squares = 0.0
    for node in range(row.first_node, row.last_node):
        machine = structure.nodes[node]
        if not machine.is_cloud:
            cpu_squares += (machine.cpu_work / machine.cpu_capacity - cpu_mean) ** 2
            memory_squares += (machine.memory_used / machine.memory_capacity - memory_mean) ** 2
    row.cpu_usage_std = math.sqrt(cpu_squares / count) / slot_seconds
    row.memory_usage_std = math.sqrt(memory_squares / count)


@compiled
def slot_arrivals(structure: Structure, sequences: Sequences, slot_end: float) -> int:
    """Sets ``systems.slot_end_position`` behind the last request arriving before ``slot_end``; the total count."""
    total = 0
    for system in range(len(structure.systems)):
        row = structure.systems[system]
        position = row.position
        while position < row.last_request and sequences.arrival[position] < slot_end:
            position += 1
        row.slot_end_position = position
        total += position - row.position
    return total


@compiled
def resolve_targets(
    structure: Structure,
    sequences: Sequences,
    replicas: Records,
    row_replica: NDArray[np.int32],
    now: float,
    target: NDArray[np.int32],
    replica: NDArray[np.int32],
    link: NDArray[np.int32],
) -> tuple[int, int]:
    """Turns topology rows into replica records and links, for the requests of the slot.

    ``replica`` receives the record, or ``NONE`` where the target is negative, gone, or not ready; ``link`` the link
    to its access point, or ``LOCAL``.

    Returns:
        ``TARGETS_VALID`` or what is wrong with a target, and the position of that target.
    """
    cursor = 0
    for system in range(len(structure.systems)):
        row = structure.systems[system]
        count = row.last_access_point - row.first_access_point
        for position in range(row.position, row.slot_end_position):
            chosen = target[cursor]
            replica[cursor] = NONE
            link[cursor] = LOCAL
            if chosen != NONE:
                if chosen < 0 or chosen >= len(row_replica):
                    return TARGET_OUT_OF_RANGE, cursor
                record = row_replica[chosen]
                if record != REPLICA_GONE:
                    endpoint = replicas[record]
                    if endpoint.service != sequences.service[position]:
                        return TARGET_OF_OTHER_SERVICE, cursor
                    source = sequences.access_point[position]
                    destination = structure.nodes[endpoint.node].access_point
                    if destination != source:
                        column = destination - row.first_access_point
                        if column < 0 or column >= count:
                            return TARGET_UNREACHABLE, cursor
                        route = row.first_route + (source - row.first_access_point) * count + column
                        if structure.routes[route] == NONE:
                            return TARGET_UNREACHABLE, cursor
                        link[cursor] = structure.routes[route]
                    if endpoint.ready_at <= now and not endpoint.draining:
                        replica[cursor] = record
            cursor += 1
    return TARGETS_VALID, 0


@compiled
def advance_slot(
    structure: Structure,
    sequences: Sequences,
    replicas: Records,
    pool: Pool,
    ledger: Ledger,
    arrival_rate: NDArray[np.float64],
    replica: NDArray[np.int32],
    link: NDArray[np.int32],
    decision_delay: NDArray[np.float64],
    slot_start: float,
    slot_end: float,
    dispatch_seconds: float,
    local_delay: float,
    rate_gain: float,
    latency_gain: float,
) -> None:
    """Simulates all systems from ``slot_start`` to ``slot_end``.

    Args:
        structure: see its class; positions of arrivals as set by :func:`slot_arrivals`.
        sequences: see its class.
        replicas: ``REPLICA_DTYPE``.
        pool: see its class; has a free record for each arrival.
        ledger: see its class.
        arrival_rate: float64 [A, W], exponentially weighted, updated in place.
        replica: int32, record of each arrival's replica, ``NONE`` rejects.
        link: int32, link of each arrival, or ``LOCAL``.
        decision_delay: float64, seconds of each arrival.
        slot_start: seconds.
        slot_end: seconds.
        dispatch_seconds: time a dispatcher spends on a request.
        local_delay: seconds, one way, between an access point and its own nodes.
        rate_gain: weight of this slot's rate in the arrival rate.
        latency_gain: weight of an answer in its replica's latency.
    """
    slot_seconds = slot_end - slot_start
    for access_point in range(arrival_rate.shape[0]):
        for service in range(arrival_rate.shape[1]):
            arrival_rate[access_point, service] *= 1.0 - rate_gain
    one_arrival = rate_gain / slot_seconds
    counters = pool.counters[0]
    counters.resolved = 0
    cursor = 0
    for system in range(len(structure.systems)):
        row = structure.systems[system]
        row.met = 0
        row.failed = 0
        for access_point in range(row.first_access_point, row.last_access_point):
            _dispatch_queued(
                structure, sequences, replicas, pool, ledger, system, access_point, slot_end, dispatch_seconds,
                local_delay,
            )  # fmt: skip
        for position in range(row.position, row.slot_end_position):
            access_point = sequences.access_point[position]
            service = sequences.service[position]
            arrival_rate[access_point, service] += one_arrival
            record = replica[cursor]
            arrival = sequences.arrival[position]
            if record == NONE:
                ledger.status[position] = _REJECTED
                ledger.completion[position] = arrival
                pool.resolved[counters.resolved] = position
                counters.resolved += 1
                row.failed += 1
            else:
                counters.free_requests -= 1
                request = pool.free[counters.free_requests]
                fields = pool.requests[request]
                endpoint = replicas[record]
                endpoint.unresolved += 1
                node = endpoint.node
                ledger.node[position] = node
                return_delay = local_delay
                if link[cursor] != LOCAL:
                    return_delay = structure.links[link[cursor]].delay
                fields.key = arrival + decision_delay[cursor]
                fields.expiry = arrival + sequences.deadline[position] - return_delay
                fields.execution = (
                    structure.services[service].execution
                    * sequences.work_factor[position]
                    / structure.nodes[node].speed
                )
                fields.return_delay = return_delay
                fields.index = position
                fields.child = NONE
                fields.next = NONE
                fields.replica = record
                fields.link = link[cursor]
                fields.status = _PENDING
                queue = structure.access_points[access_point]
                if queue.first == NONE:
                    queue.first = request
                else:
                    pool.requests[queue.last].next = request
                queue.last = request
                queue.queued += 1
                _dispatch_queued(
                    structure, sequences, replicas, pool, ledger, system, access_point, slot_end,
                    dispatch_seconds, local_delay,
                )  # fmt: skip
            cursor += 1
        row.position = row.slot_end_position
        for access_point in range(row.first_access_point, row.last_access_point):
            if structure.access_points[access_point].first != NONE:
                _drop_expired_undispatched(
                    structure, sequences, replicas, pool, ledger, system, access_point, slot_end
                )
        for node in range(row.first_node, row.last_node):
            _advance_node(
                structure, sequences, replicas, pool, ledger, system, node, slot_start, slot_end, latency_gain
            )
        _measure_usage(structure, system, slot_seconds)
