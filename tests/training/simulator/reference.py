"""The same physics as the simulator's, slow and obvious: one system, one heap of events, one object per request."""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from policy_server.cluster.snapshot import NO_LINK, Topology
from training.simulator.simulator import SimulatorConfig
from training.simulator.state import RequestStatus
from training.workloads.requests import RequestSequence


class Event(IntEnum):
    """Kinds of events, in the order in which they happen at the same instant."""

    ENDS = 0
    EXPIRES = 1
    ARRIVES = 2
    IS_DECIDED = 3
    IS_DISPATCHED = 4
    IS_TRANSMITTED = 5
    REACHES_NODE = 6


class Place(StrEnum):
    ACCESS_POINT = "access point"
    DISPATCHER = "dispatcher"
    LINK_QUEUE = "link queue"
    UNDER_WAY = "under way"
    REPLICA_QUEUE = "replica queue"
    RUNNING = "running"
    GONE = "gone"


@dataclass(eq=False)
class Replica:
    endpoint: str
    service: int
    node: int
    concurrency: int
    ready_at: float
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    unresolved: int = 0
    draining: bool = False
    latency: float = math.nan


@dataclass(eq=False)
class Request:
    index: int
    arrival: float
    access_point: int
    decided_at: float
    expiry: float
    return_delay: float
    payload: float
    execution: float
    replica: Replica
    link: int
    place: Place = Place.ACCESS_POINT


@dataclass(eq=False)
class Transmission:
    handed_at: float
    begins: float
    ends: float


class ReferenceSystem:
    def __init__(self, topology: Topology, workload: RequestSequence, config: SimulatorConfig) -> None:
        self.topology, self.workload, self.config = topology, workload, config
        self.slot = 0
        self.position = 0
        self.events: list[tuple[float, int, int, int, Request]] = []
        count = len(workload)
        self.status = [RequestStatus.PENDING] * count
        self.completion = [math.nan] * count
        self.node_of_request = [-1] * count
        self.resolved_in_slot: list[int] = []
        self.replicas = {
            endpoint: Replica(
                endpoint,
                int(topology.replicas.service[row]),
                int(topology.replicas.node[row]),
                int(topology.replicas.concurrency[row]),
                ready_at=-math.inf,
            )
            for row, endpoint in enumerate(topology.replicas.endpoints)
        }
        self.image_at = {(r.node, r.service): -math.inf for r in self.replicas.values()}
        nodes, access_points = len(topology.nodes.names), len(topology.access_points.names)
        links = len(topology.links.source)
        self.cpu_used = [0.0] * nodes
        self.cpu_seconds = [0.0] * nodes
        self.cpu_since = [0.0] * nodes
        self.memory_used = [0.0] * nodes
        for replica in self.replicas.values():
            self.memory_used[replica.node] += float(topology.services.memory_bytes[replica.service])
        self.undispatched: list[deque[Request]] = [deque() for _ in range(access_points)]
        self.dispatching: list[Request | None] = [None] * access_points
        self.link_queue: list[deque[Request]] = [deque() for _ in range(links)]
        self.transmitting: list[Request | None] = [None] * links
        self.transmissions: list[list[Transmission]] = [[] for _ in range(links)]
        self.handed_at: dict[int, float] = {}
        self.pull_link_free_at = [0.0] * links
        self.rates = [[0.0] * len(topology.services.names) for _ in range(access_points)]
        self.forwarded_bytes = [0.0] * len(topology.services.names)
        self.pulled_bytes = [0.0] * len(topology.services.names)

    @property
    def now(self) -> float:
        return self.slot * self.config.slot_seconds

    def arriving(self) -> list[int]:
        end = (self.slot + 1) * self.config.slot_seconds
        last = self.position
        while last < len(self.workload) and self.workload.arrival_seconds[last] < end:
            last += 1
        return list(range(self.position, last))

    def advance(self, targets: list[str | None], delays: list[float]) -> None:
        self.resolved_in_slot = []
        self._update_rates()
        for index, target, delay in zip(self.arriving(), targets, delays, strict=True):
            self._admit(index, target, delay)
            self.position += 1
        end = (self.slot + 1) * self.config.slot_seconds
        while self.events and self.events[0][0] < end:
            time, _, _, kind, request = heapq.heappop(self.events)
            self._happen(Event(kind), time, request)
        for node in range(len(self.cpu_used)):
            self._integrate_cpu(node, end)
        self.slot += 1

    def add_replica(self, service: int, node: int, concurrency: int, endpoint: str) -> bool:
        services, nodes = self.topology.services, self.topology.nodes
        memory = float(services.memory_bytes[service])
        if services.cpu_millicores[service] > nodes.cpu_millicores[node]:
            return False
        if self.memory_used[node] + memory > float(nodes.memory_bytes[node]):
            return False
        image_at = self._pull(service, node)
        if image_at is None:
            return False
        self.memory_used[node] += memory
        ready_at = max(image_at, self.now) + float(services.cold_start_seconds[service])
        self.replicas[endpoint] = Replica(endpoint, service, node, concurrency, ready_at)
        return True

    def delete_replica(self, endpoint: str) -> bool:
        replica = self.replicas[endpoint]
        if replica.draining:
            return False
        replica.draining = True
        self._remove_if_idle(replica)
        return True

    def pull_backlog_bytes(self, link: int) -> float:
        bandwidth = float(self.topology.links.bandwidth_bytes_per_second[link])
        return max(0.0, self.pull_link_free_at[link] - self.now) * bandwidth

    def request_backlog_bytes(self, link: int, time: float) -> float:
        """Known only once all transmissions of what was handed over by ``time`` have begun."""
        bandwidth = float(self.topology.links.bandwidth_bytes_per_second[link])
        return sum(
            (t.ends - max(time, t.begins)) * bandwidth
            for t in self.transmissions[link]
            if t.handed_at < time < t.ends
        )

    def _admit(self, index: int, target: str | None, delay: float) -> None:
        workload, topology = self.workload, self.topology
        arrival = float(workload.arrival_seconds[index])
        replica = self.replicas.get(target) if target is not None else None
        if replica is None or replica.draining or replica.ready_at > self.now:
            self._resolve(index, RequestStatus.REJECTED, arrival)
            return
        access_point, service = int(workload.access_point[index]), int(workload.service[index])
        link = NO_LINK
        return_delay = float(topology.local_delay_seconds)
        destination = int(topology.nodes.access_point[replica.node])
        if destination != access_point:
            link = int(topology.link_row[access_point, destination])
            return_delay = float(topology.links.delay_seconds[link])
        replica.unresolved += 1
        self.node_of_request[index] = replica.node
        request = Request(
            index=index,
            arrival=arrival,
            access_point=access_point,
            decided_at=arrival + delay,
            expiry=arrival + float(workload.deadline_seconds[index]) - return_delay,
            return_delay=return_delay,
            payload=float(workload.payload_bytes[index]),
            execution=float(topology.services.execution_seconds[service])
            * float(workload.work_factor[index])
            / float(topology.nodes.speed[replica.node]),
            replica=replica,
            link=link,
        )
        self._schedule(Event.ARRIVES, arrival, request)

    def _schedule(self, kind: Event, time: float, request: Request) -> None:
        # Ends and expiries of one instant go by request, an end before an expiry.
        rank = Event.ENDS if kind == Event.EXPIRES else kind
        heapq.heappush(self.events, (time, rank, request.index, kind, request))

    def _happen(self, kind: Event, time: float, request: Request) -> None:
        if kind == Event.ARRIVES:
            self.undispatched[request.access_point].append(request)
            self._schedule(Event.IS_DECIDED, request.decided_at, request)
            self._schedule(Event.EXPIRES, max(request.expiry, time), request)
        elif kind == Event.IS_DECIDED:
            self._dispatch_next(request.access_point, time)
        elif kind == Event.IS_DISPATCHED:
            self.dispatching[request.access_point] = None
            self._dispatch_next(request.access_point, time)
            if request.place == Place.DISPATCHER:
                self._send(request, time)
        elif kind == Event.IS_TRANSMITTED:
            self.transmitting[request.link] = None
            self._transmit_next(request.link, time)
            delay = float(self.topology.links.delay_seconds[request.link])
            self._schedule(Event.REACHES_NODE, time + delay, request)
        elif kind == Event.REACHES_NODE:
            if request.place == Place.UNDER_WAY:
                request.place = Place.REPLICA_QUEUE
                request.replica.waiting.append(request)
                self._start_what_fits(request.replica.node, time)
        elif kind == Event.ENDS:
            if request.place == Place.RUNNING:
                self._end(request, RequestStatus.MET, time)
        elif kind == Event.EXPIRES:
            self._expire(request, time)

    def _dispatch_next(self, access_point: int, time: float) -> None:
        queue = self.undispatched[access_point]
        if self.dispatching[access_point] is None and queue and queue[0].decided_at <= time < queue[0].expiry:
            request = queue.popleft()
            request.place = Place.DISPATCHER
            self.dispatching[access_point] = request
            self._schedule(Event.IS_DISPATCHED, time + self.config.dispatch_seconds_per_request, request)

    def _send(self, request: Request, time: float) -> None:
        if request.link == NO_LINK:
            request.place = Place.UNDER_WAY
            self._schedule(Event.REACHES_NODE, time + float(self.topology.local_delay_seconds), request)
        else:
            request.place = Place.LINK_QUEUE
            self.handed_at[request.index] = time
            self.link_queue[request.link].append(request)
            self._transmit_next(request.link, time)

    def _transmit_next(self, link: int, time: float) -> None:
        if self.transmitting[link] is None and self.link_queue[link]:
            request = self.link_queue[link].popleft()
            request.place = Place.UNDER_WAY
            self.transmitting[link] = request
            ends = time + request.payload / float(self.topology.links.bandwidth_bytes_per_second[link])
            self.transmissions[link].append(Transmission(self.handed_at[request.index], time, ends))
            self.forwarded_bytes[request.replica.service] += request.payload
            self._schedule(Event.IS_TRANSMITTED, ends, request)

    def _start_what_fits(self, node: int, time: float) -> None:
        services, nodes = self.topology.services, self.topology.nodes
        while True:
            free = float(nodes.cpu_millicores[node]) - self.cpu_used[node]
            startable = [
                request
                for replica in self.replicas.values()
                if replica.node == node
                and len(replica.running) < replica.concurrency
                and float(services.cpu_millicores[replica.service]) <= free
                for request in replica.waiting
                if request.expiry > time
            ]
            if not startable:
                return
            chosen = min(startable, key=lambda request: (request.expiry, request.index))
            chosen.replica.waiting.remove(chosen)
            chosen.replica.running.append(chosen)
            chosen.place = Place.RUNNING
            self._use_cpu(node, float(services.cpu_millicores[chosen.replica.service]), time)
            self._schedule(Event.ENDS, time + chosen.execution, chosen)

    def _end(self, request: Request, status: RequestStatus, time: float) -> None:
        replica = request.replica
        replica.running.remove(request)
        self._use_cpu(replica.node, -float(self.topology.services.cpu_millicores[replica.service]), time)
        if status == RequestStatus.MET:
            answered = time + request.return_delay
            latency = answered - request.arrival
            if math.isnan(replica.latency):
                replica.latency = latency
            else:
                replica.latency += self.config.latency_gain * (latency - replica.latency)
            self._leave(request, status, answered)
        else:
            self._leave(request, status, time)
        self._start_what_fits(replica.node, time)

    def _expire(self, request: Request, time: float) -> None:
        if request.place == Place.GONE:
            return
        if request.place == Place.RUNNING:
            self._end(request, RequestStatus.ABORTED_RUNNING, time)
            return
        if request.place == Place.REPLICA_QUEUE:
            request.replica.waiting.remove(request)
        if request.place == Place.LINK_QUEUE:
            self.link_queue[request.link].remove(request)
        if request.place == Place.ACCESS_POINT:
            self.undispatched[request.access_point].remove(request)
            self._dispatch_next(request.access_point, time)
        self._leave(request, RequestStatus.DROPPED_QUEUED, time)

    def _leave(self, request: Request, status: RequestStatus, completion: float) -> None:
        request.place = Place.GONE
        request.replica.unresolved -= 1
        self._resolve(request.index, status, completion)
        self._remove_if_idle(request.replica)

    def _resolve(self, index: int, status: RequestStatus, completion: float) -> None:
        assert self.status[index] == RequestStatus.PENDING
        self.status[index] = status
        self.completion[index] = completion
        self.resolved_in_slot.append(index)

    def _remove_if_idle(self, replica: Replica) -> None:
        if replica.draining and replica.unresolved == 0:
            del self.replicas[replica.endpoint]
            self.memory_used[replica.node] -= float(self.topology.services.memory_bytes[replica.service])

    def _use_cpu(self, node: int, millicores: float, time: float) -> None:
        self._integrate_cpu(node, time)
        self.cpu_used[node] += millicores
        assert 0 <= self.cpu_used[node] <= float(self.topology.nodes.cpu_millicores[node])

    def _integrate_cpu(self, node: int, time: float) -> None:
        self.cpu_seconds[node] += self.cpu_used[node] * (time - self.cpu_since[node])
        self.cpu_since[node] = time

    def _pull(self, service: int, node: int) -> float | None:
        topology = self.topology
        if (node, service) in self.image_at:
            return self.image_at[node, service]
        access_point = int(topology.nodes.access_point[node])
        if topology.access_points.is_cloud[access_point]:
            return self.now
        for link, (source, target) in enumerate(
            zip(topology.links.source, topology.links.target, strict=True)
        ):
            if target == access_point and topology.access_points.is_cloud[source]:
                image = float(topology.services.image_bytes[service])
                begins = max(self.now, self.pull_link_free_at[link])
                self.pull_link_free_at[link] = begins + image / float(
                    topology.links.bandwidth_bytes_per_second[link]
                )
                self.pulled_bytes[service] += image
                self.image_at[node, service] = self.pull_link_free_at[link] + float(
                    topology.links.delay_seconds[link]
                )
                return self.image_at[node, service]
        return None

    def _update_rates(self) -> None:
        seconds = self.config.slot_seconds
        gain = 1 - math.exp(-seconds / self.config.rate_window_seconds)
        counts = [[0] * len(row) for row in self.rates]
        for index in self.arriving():
            counts[int(self.workload.access_point[index])][int(self.workload.service[index])] += 1
        for rates, counted in zip(self.rates, counts, strict=True):
            for service, count in enumerate(counted):
                rates[service] += gain * (count / seconds - rates[service])
