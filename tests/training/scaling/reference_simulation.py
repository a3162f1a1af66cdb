"""The simulator once more, slow and obvious: one application, objects and recursion, a dictionary as ledger.

It draws the same random numbers in the same order, so every figure must agree with the compiled kernel's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

from training.scaling.application import MEBIBYTE, Application, Call

PERIOD = 0.1
MASK = (1 << 64) - 1


class SplitMix64:
    def __init__(self, state: int) -> None:
        self.state = state

    def bits(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def uniform(self) -> float:
        return ((self.bits() >> 11) + 1) * 2.0**-53


class RequestFailedError(Exception):
    """The client gets no answer."""


@dataclass
class Visit:
    """One call of one request as it came out."""

    service: str
    begin: float
    wait: float = 0.0
    end: float = 0.0
    slowest: dict[int, Visit] = field(default_factory=dict)
    """By stage."""
    refused: bool = False


@dataclass
class Container:
    cores: float
    memory_limit: float
    served: int = 0
    down_until: float = 0.0
    memory: float = 0.0
    booked: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    throttled: set[int] = field(default_factory=set)
    stays: list[tuple[float, float]] = field(default_factory=list)
    """When requests came and went."""
    visits: int = 0
    visit_seconds: float = 0.0
    wait_seconds: float = 0.0
    blame: float = 0.0
    kills: int = 0
    peak_memory: float = 0.0
    cpu_seconds: float = 0.0
    throttled_periods: int = 0


class ReferenceSimulation:
    def __init__(
        self, application: Application, cores: dict[str, float], memory: dict[str, float], random: int
    ) -> None:
        self.application = application
        self.service = {service.name: service for service in application.services}
        self.node_of = {service.name: service.node for service in application.services}
        self.site = {node.name: node.site for node in application.nodes}
        self.node_cores = {node.name: node.cpu_cores for node in application.nodes}
        self.containers = {
            name: Container(
                cores[name], memory[name], memory=self.service[name].base_memory_mebibytes * MEBIBYTE
            )
            for name in application.service_names
        }
        self.node_booked: dict[str, dict[int, float]] = {
            node.name: defaultdict(float) for node in application.nodes
        }
        self.random = SplitMix64(random)
        self.period = 0
        self.requests = 0
        self.latencies: list[float] = []
        self.violations = 0
        self.failures = 0

    def run(self, rate: float, periods: int) -> None:
        for _ in range(periods):
            self.check_memory()
            time = self.period * PERIOD
            end = (self.period + 1) * PERIOD
            time -= math.log(self.random.uniform()) / rate
            while time < end:
                self.request(time)
                time -= math.log(self.random.uniform()) / rate
            for container in self.containers.values():
                container.cpu_seconds += container.booked[self.period]
                container.throttled_periods += self.period in container.throttled
            self.period += 1

    def check_memory(self) -> None:
        now = self.period * PERIOD
        for name, container in self.containers.items():
            service = self.service[name]
            present = sum(
                max(0.0, min(end, now + PERIOD) - max(begin, now)) / PERIOD for begin, end in container.stays
            )
            cache = 1 - math.exp(-container.served / service.cache_requests)
            memory = MEBIBYTE * (
                service.base_memory_mebibytes
                + service.cache_memory_mebibytes * cache
                + service.request_memory_mebibytes * present
            )
            container.peak_memory = max(container.peak_memory, min(memory, container.memory_limit))
            if memory > container.memory_limit and now >= container.down_until:
                container.kills += 1
                container.down_until = now + service.restart_seconds
                container.served = 0
                container.stays.clear()
                container.booked.clear()
                memory = min(MEBIBYTE * service.base_memory_mebibytes, container.memory_limit)
            container.memory = memory

    def request(self, arrival: float) -> None:
        draw = self.random.uniform()
        total = sum(operation.share for operation in self.application.operations)
        cumulative = 0.0
        for operation in self.application.operations:
            cumulative += operation.share / total
            if cumulative >= draw:
                break
        delay = self.application.network.client_seconds
        self.lost: str | None = None
        self.failed: Visit | None = None
        entry = Visit(operation.call.service, arrival + delay)
        try:
            self.call(operation.call, entry, arrival, background=False)
            latency = entry.end + delay - arrival
        except RequestFailedError:
            latency = self.application.client_timeout_seconds
            self.failures += 1
        path = critical_path(entry)
        self.requests += 1
        self.latencies.append(latency)
        for visit in path:
            self.containers[visit.service].wait_seconds += visit.wait
        if not (self.failed or self.lost or latency > self.application.latency_objective_seconds):
            return
        self.violations += 1
        total = sum(visit.wait for visit in path)
        if self.lost:
            self.containers[self.lost].blame += 1
        elif self.failed and self.failed.refused:
            self.containers[self.failed.service].blame += 1
        elif total > 0:
            for visit in path:
                self.containers[visit.service].blame += visit.wait / total

    def call(self, call: Call, visit: Visit, arrival: float, *, background: bool) -> None:
        """Fills in the visit.

        Raises:
            RequestFailedError: it or a call it waits for failed; ``failed`` is that call.
        """
        container = self.containers[call.service]
        self.random.bits()  # the quantile of the work; without deviation all are alike
        deadline = arrival + self.application.client_timeout_seconds * (5 if background else 1)
        work = call.cpu_milliseconds / 1000
        above = container.memory / container.memory_limit - 0.85
        slowed = work * (1 + 0.5 * min(1, max(0, above) / 0.15) ** 2)
        container.served += 1
        visit.refused = visit.begin < container.down_until
        done = None if visit.refused else self.book(call.service, visit.begin, slowed, deadline)
        if done is None:
            self.failed = visit
            visit.wait = max(0, deadline - visit.begin)
            visit.end = visit.begin if visit.refused else max(visit.begin, deadline)
            if not background:
                self.leave(visit, visit.end)
            raise RequestFailedError
        visit.wait = done - visit.begin - work
        visit.end = done
        for stage, children in enumerate(call.then):
            stage_begin = visit.end
            for child in children:
                delay = self.delay(call.service, child.service)
                answer = Visit(child.service, stage_begin + delay)
                try:
                    self.call(child, answer, arrival, background=background or child.background)
                except RequestFailedError:
                    assert self.failed is not None
                    if child.background:
                        self.lost = self.lost or self.failed.service
                        self.failed = None
                        continue
                    visit.slowest[stage] = answer
                    self.leave(visit, visit.end if background else max(visit.begin, self.failed.end))
                    raise
                if not child.background and answer.end + delay > visit.end:
                    visit.end, visit.slowest[stage] = answer.end + delay, answer
        self.leave(visit, visit.end)

    def leave(self, visit: Visit, end: float) -> None:
        container = self.containers[visit.service]
        container.visits += 1
        container.visit_seconds += end - visit.begin
        container.stays.append((visit.begin, end))

    def book(self, name: str, begin: float, work: float, deadline: float) -> float | None:
        container, node = self.containers[name], self.node_of[name]
        period, time = int(begin / PERIOD), begin
        while time <= deadline:
            left = container.cores * PERIOD - container.booked[period]
            node_left = self.node_cores[node] * PERIOD - self.node_booked[node][period]
            take = min(work, left, node_left, (period + 1) * PERIOD - time)
            if take > 0:
                container.booked[period] += take
                self.node_booked[node][period] += take
                work -= take
                if work <= 1e-12:
                    return time + take
                left -= take
            if left <= 1e-12:
                container.throttled.add(period)
            period += 1
            time = period * PERIOD
        return None

    def delay(self, caller: str, called: str) -> float:
        network = self.application.network
        if self.node_of[caller] == self.node_of[called]:
            return network.node_seconds
        same_site = self.site[self.node_of[caller]] == self.site[self.node_of[called]]
        return network.site_seconds if same_site else network.cloud_seconds


def critical_path(visit: Visit) -> list[Visit]:
    return [visit, *(inner for child in visit.slowest.values() for inner in critical_path(child))]
