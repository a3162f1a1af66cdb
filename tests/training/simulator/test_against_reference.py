"""Request by request, the compiled simulator does what the slow and obvious one does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from policy_server.cluster.snapshot import NO_LINK, Int32Array, ReplicaState, Snapshot
from tests.training.simulator.reference import Place, ReferenceSystem
from tests.training.simulator.systems import Scenario, draw_services, draw_topology, draw_workload, scenarios
from training.simulator.simulator import REJECT, SlotRequests, VectorSimulator
from training.simulator.state import RequestStatus


class Comparison:
    """One batch of systems, simulated both ways with the same random decisions."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.rng = np.random.default_rng(scenario.seed)
        services = draw_services(scenario, self.rng)
        topologies = [draw_topology(scenario, services, self.rng) for _ in range(scenario.systems)]
        workloads = [draw_workload(scenario, topology, self.rng) for topology in topologies]
        self.simulator = VectorSimulator(topologies, workloads, scenario.config)
        self.references = [
            ReferenceSystem(topology, workload, scenario.config)
            for topology, workload in zip(topologies, workloads, strict=True)
        ]
        self.backlogs: list[tuple[int, int, float, float]] = []
        self.first_node = np.cumsum([0, *(len(t.nodes.names) for t in topologies)])

    def run(self) -> None:
        while not self.simulator.done:
            if self.scenario.orchestrated:
                self._orchestrate()
            self._compare_snapshots()
            self._advance()
        self._compare_snapshots()
        self._compare_backlogs()
        self._compare_results()

    def _name(self, system: int, name: str) -> str:
        return f"{system}/{name}" if len(self.references) > 1 else name

    def _split(self, endpoint: str) -> tuple[int, str]:
        if len(self.references) == 1:
            return 0, endpoint
        system, _, name = endpoint.partition("/")
        return int(system), name

    def _orchestrate(self) -> None:
        topology = self.simulator.topology
        if self.rng.random() < 0.5 and topology.replicas.endpoints:
            row = int(self.rng.integers(len(topology.replicas.endpoints)))
            system, endpoint = self._split(topology.replicas.endpoints[row])
            done = self.simulator.delete_replica(row)
            assert done.accepted == self.references[system].delete_replica(endpoint)
        if self.rng.random() < 0.5:
            service = int(self.rng.integers(len(topology.services.names)))
            node = int(self.rng.integers(len(topology.nodes.names)))
            system = int(np.searchsorted(self.first_node, node, side="right")) - 1
            local = int(node - self.first_node[system])
            reference = self.references[system]
            outcome = self.simulator.add_replica(service, node)
            concurrency = 1
            if outcome.accepted:
                replicas = self.simulator.topology.replicas
                concurrency = int(replicas.concurrency[replicas.endpoints.index(outcome.endpoint)])
            _, endpoint = self._split(outcome.endpoint) if outcome.accepted else (0, "refused")
            assert outcome.accepted == reference.add_replica(service, local, concurrency, endpoint)
            assert outcome.accepted != bool(outcome.reason)

    def _advance(self) -> None:
        requests = self.simulator.arrivals()
        target = self._choose(self.simulator.snapshot(), requests)
        delay = np.zeros(len(requests))
        if self.scenario.decision_delays:
            delay = self.rng.choice([0.0, 2.0**-7, 2.0**-4], len(requests))
        outcome = self.simulator.advance(target, delay)
        endpoints = [None if row == REJECT else self._endpoints[row] for row in target]
        for system, reference in enumerate(self.references):
            rows = np.flatnonzero(requests.system == system)
            assert requests.index[rows].tolist() == reference.arriving()
            chosen = [None if (e := endpoints[row]) is None else self._split(e)[1] for row in rows]
            reference.advance(chosen, delay[rows].tolist())
            resolved = outcome.resolved_system == system
            assert sorted(outcome.resolved_index[resolved]) == sorted(reference.resolved_in_slot)
            statuses = [reference.status[i] for i in outcome.resolved_index[resolved]]
            assert outcome.resolved_status[resolved].tolist() == statuses
            assert outcome.arrived[system] == len(rows)
            assert outcome.met[system] == statuses.count(RequestStatus.MET)
            assert outcome.failed[system] == len(statuses) - outcome.met[system]

    def _choose(self, snapshot: Snapshot, requests: SlotRequests) -> Int32Array:
        """Any reachable replica of the service, whatever its state, or none."""
        topology = snapshot.topology
        self._endpoints = topology.replicas.endpoints
        destination = topology.nodes.access_point[topology.replicas.node]
        chosen = np.full(len(requests), REJECT, np.int32)
        for row, (point, service) in enumerate(zip(requests.access_point, requests.service, strict=True)):
            reachable = (destination == point) | (topology.link_row[point, destination] != NO_LINK)
            candidates = np.flatnonzero(reachable & (topology.replicas.service == service))
            if len(candidates) and self.rng.random() < 0.95:
                chosen[row] = self.rng.choice(candidates)
        return chosen

    def _compare_snapshots(self) -> None:
        snapshot = self.simulator.snapshot()
        topology, load = snapshot.topology, snapshot.load
        points, nodes, links = topology.access_point_index, topology.node_index, 0
        assert snapshot.taken_at_seconds == self.simulator.now_seconds
        assert len(topology.replicas.endpoints) == sum(len(r.replicas) for r in self.references)
        for system, reference in enumerate(self.references):
            observed = 1 - np.exp(-reference.now / self.scenario.config.rate_window_seconds) or 1.0
            for row, name in enumerate(reference.topology.access_points.names):
                point = points[self._name(system, name)]
                dispatching = reference.dispatching[row]
                in_dispatch = dispatching is not None and dispatching.place == Place.DISPATCHER
                assert load.access_point_queued[point] == len(reference.undispatched[row]) + in_dispatch
                np.testing.assert_allclose(
                    load.arrival_rate_per_second[point], np.array(reference.rates[row]) / observed, rtol=1e-5
                )
            for row, name in enumerate(reference.topology.nodes.names):
                node = nodes[self._name(system, name)]
                assert load.node_cpu_used_millicores[node] == reference.cpu_used[row]
                assert load.node_memory_used_bytes[node] == reference.memory_used[row]
            for endpoint, replica in reference.replicas.items():
                row = topology.replica_index[self._name(system, endpoint)]
                assert load.replica_queued[row] == len(replica.waiting)
                assert load.replica_running[row] == len(replica.running)
                assert load.replica_state[row] == (
                    ReplicaState.DRAINING
                    if replica.draining
                    else ReplicaState.STARTING
                    if replica.ready_at > reference.now
                    else ReplicaState.READY
                )
                np.testing.assert_equal(load.replica_latency_seconds[row], np.float32(replica.latency))
            for link in range(len(reference.topology.links.source)):
                backlog = load.link_backlog_bytes[links + link] - reference.pull_backlog_bytes(link)
                self.backlogs.append((system, link, reference.now, backlog))
            links += len(reference.topology.links.source)

    def _compare_backlogs(self) -> None:
        for system, link, time, backlog in self.backlogs:
            expected = self.references[system].request_backlog_bytes(link, time)
            assert backlog == pytest.approx(expected, rel=1e-5, abs=4)

    def _compare_results(self) -> None:
        elapsed = self.simulator.now_seconds
        for system, (reference, result) in enumerate(
            zip(self.references, self.simulator.results(), strict=True)
        ):
            outcomes = self.simulator.outcomes(system)
            assert outcomes.status.tolist() == reference.status
            assert outcomes.completion_seconds.tolist() == reference.completion
            sent = outcomes.node >= 0
            assert (outcomes.node[sent] - self.first_node[system]).tolist() == [
                node for node in reference.node_of_request if node >= 0
            ]
            for moved, by_service in zip(
                self.simulator.moved_bytes(), (reference.forwarded_bytes, reference.pulled_bytes), strict=True
            ):
                assert moved[system] == pytest.approx(by_service)
            assert result.forwarded_bytes == pytest.approx(sum(reference.forwarded_bytes))
            assert result.pulled_bytes == pytest.approx(sum(reference.pulled_bytes))
            cpu = reference.topology.nodes.cpu_millicores
            cloud = reference.topology.access_points.is_cloud[reference.topology.nodes.access_point]
            work = np.array(reference.cpu_seconds)
            assert result.edge_cpu_utilisation == pytest.approx(
                work[~cloud].sum() / (cpu[~cloud].sum() * elapsed)
            )
            if cloud.any():
                assert result.cloud_cpu_utilisation == pytest.approx(
                    work[cloud].sum() / (cpu[cloud].sum() * elapsed)
                )


@given(scenarios)
@settings(max_examples=150)
def test_equals_the_reference(scenario: Scenario) -> None:
    Comparison(scenario).run()
