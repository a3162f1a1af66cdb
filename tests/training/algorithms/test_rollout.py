"""Rollouts: what is recorded is what was asked, allowed, decided and became of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from policy_server.cluster.snapshot import NO_LINK, Links, ReplicaState
from policy_server.features.schema import SCHEMA
from training.algorithms.rollout import Rollout, collect
from training.environments.dispatch import DispatchEnvironment
from training.networks.dispatch import DispatchActor, DispatchNetworkSizes
from training.networks.policies import TorchDispatch
from training.simulator.presets import build_topology, preset
from training.simulator.simulator import VectorSimulator
from training.simulator.state import RequestStatus
from training.workloads.patterns import Pattern, generate
from training.workloads.services import default_services

SLOTS, TAIL_SLOTS = 5, 12


class Played:
    """Two systems under an untrained policy: one whole, one whose access points reach their own nodes only.

    Some replicas have just been started, some are being drained.
    """

    def __init__(self) -> None:
        services = default_services()
        config = preset("testbed-40")
        whole, cut_off = (build_topology(config, services, seed) for seed in (1, 2))
        none = np.zeros(0, np.int32)
        cut_off = replace(cut_off, links=Links(none, none, none.astype(np.float32), none.astype(np.float32)))
        self.workloads = [
            generate(
                Pattern.P4,
                services=services,
                access_points=config.access_points,
                duration_seconds=6.0,
                mean_rate_per_second=250.0,
                seed=seed,
            )
            for seed in (1, 2)
        ]
        simulator = VectorSimulator([whole, cut_off], self.workloads)
        for replica in range(0, 60, 2):
            simulator.delete_replica(replica, topology=simulator.topology)
        for node in range(20):
            simulator.add_replica(int(np.argmin(services.memory_bytes)), node)
        torch.manual_seed(0)
        self.environment = DispatchEnvironment(simulator, random=np.random.default_rng(0))
        self.policy = TorchDispatch(DispatchActor(SCHEMA, DispatchNetworkSizes(8, 8)))
        # With idle replicas a deletion takes effect at once; under load they are seen draining.
        for _ in range(3):
            self.environment.step(self.policy)
        for replica in range(0, 120, 3):
            simulator.delete_replica(replica, topology=simulator.topology)
        self.first_slot = simulator.slot
        self.rollout: Rollout = collect(self.environment, self.policy, SLOTS, TAIL_SLOTS)


@pytest.fixture(scope="module")
def played() -> Played:
    return Played()


def test_decisions_are_the_arrivals_that_somebody_could_serve(played: Played) -> None:
    slot_seconds = played.environment.simulator.config.slot_seconds
    unserved = 0
    for row, slot in enumerate(played.rollout.slots):
        topology, load = slot.view.snapshot.topology, slot.view.snapshot.load
        replica_access_point = topology.nodes.access_point[topology.replicas.node]
        start = (played.first_slot + row) * slot_seconds
        expected = set()
        for system, workload in enumerate(played.workloads):
            first_access_point = int(np.argmax(topology.access_points.system == system))
            arrived = (workload.arrival_seconds >= start) & (workload.arrival_seconds < start + slot_seconds)
            for index in np.flatnonzero(arrived).tolist():
                access_point = first_access_point + int(workload.access_point[index])
                reachable = (replica_access_point == access_point) | (
                    topology.link_row[access_point, replica_access_point] != NO_LINK
                )
                ready = load.replica_state == ReplicaState.READY
                serving = (topology.replicas.service == workload.service[index]) & ready & reachable
                if serving.any():
                    expected.add((system, index))
                else:
                    unserved += 1
        decided = list(zip(slot.system.tolist(), slot.index.tolist(), strict=True))
        assert len(decided) == len(set(decided))
        assert set(decided) == expected
    assert unserved > 10


def test_only_ready_and_reachable_replicas_of_the_service_are_candidates(played: Played) -> None:
    states = set()
    for slot in played.rollout.slots:
        topology, load = slot.view.snapshot.topology, slot.view.snapshot.load
        states |= set(load.replica_state.tolist())
        assert (load.replica_state[slot.replica] == ReplicaState.READY).all()
        assert (topology.replicas.node[slot.replica] == slot.node).all()
        origin = slot.access_point[slot.segment]
        target = topology.nodes.access_point[slot.node]
        assert ((origin == target) | (topology.link_row[origin, target] != NO_LINK)).all()
        asked = np.array(
            [
                played.workloads[system].service[index]
                for system, index in zip(slot.system, slot.index, strict=True)
            ]
        )
        assert (topology.replicas.service[slot.replica] == asked[slot.segment]).all()
    assert states == {ReplicaState.READY, ReplicaState.STARTING, ReplicaState.DRAINING}


def test_what_each_candidate_forwards_is_the_payload_unless_it_is_local(played: Played) -> None:
    kinds = set()
    for row, slot in enumerate(played.rollout.slots):
        topology = slot.view.snapshot.topology
        remote = slot.access_point[slot.segment] != topology.nodes.access_point[slot.node]
        payload = np.array(
            [
                played.workloads[system].payload_bytes[index]
                for system, index in zip(slot.system, slot.index, strict=True)
            ]
        )
        start = (played.first_slot + row) * 0.25
        arrived = np.concatenate(
            [
                workload.payload_bytes[
                    (workload.arrival_seconds >= start) & (workload.arrival_seconds < start + 0.25)
                ]
                for workload in played.workloads
            ]
        )
        expected = remote * payload[slot.segment] / arrived.mean()
        assert slot.forwarded == pytest.approx(expected, rel=1e-4)
        kinds |= set(remote.tolist())
    assert kinds == {True, False}


def test_each_decision_chose_one_of_its_own_candidates(played: Played) -> None:
    for slot in played.rollout.slots:
        assert (slot.segment[slot.chosen] == np.arange(len(slot))).all()
        assert (np.diff(slot.segment) >= 0).all()


def test_met_is_what_the_simulator_says_and_the_request_went_where_it_was_sent(played: Played) -> None:
    simulator = played.environment.simulator
    met = []
    for slot in played.rollout.slots:
        for row in range(len(slot)):
            outcomes = simulator.outcomes(int(slot.system[row]))
            index = slot.index[row]
            assert slot.met[row] == (outcomes.status[index] == RequestStatus.MET)
            assert outcomes.node[index] == slot.node[slot.chosen[row]]
            met.append(slot.met[row])
    assert 0 < sum(met) < len(met)


def test_log_probabilities_are_a_softmax_over_the_candidates(played: Played) -> None:
    actor = played.policy.actor
    for slot in played.rollout.slots[:2]:
        encoded = played.policy.prepare(slot.view.table)
        with torch.no_grad():
            logits = actor.head(
                encoded.replica_context[torch.from_numpy(slot.replica)],
                encoded.access_point_context[torch.from_numpy(slot.access_point)],
                torch.from_numpy(slot.segment),
                torch.from_numpy(slot.features),
            ).numpy()
        for decision, chosen in enumerate(slot.chosen):
            odds = np.exp(logits[slot.segment == decision].astype(np.float64))
            expected = np.log(np.exp(float(logits[chosen])) / odds.sum())
            assert slot.log_probability[decision] == pytest.approx(expected, abs=1e-5)


def test_what_is_open_at_the_end_counts_as_failed() -> None:
    services, config = default_services(), preset("testbed-40")
    workload = generate(
        Pattern.P1,
        services=services,
        access_points=config.access_points,
        duration_seconds=1.0,
        mean_rate_per_second=400.0,
        seed=3,
    )
    simulator = VectorSimulator([build_topology(config, services, 3)], [workload])
    torch.manual_seed(0)
    policy = TorchDispatch(DispatchActor(SCHEMA, DispatchNetworkSizes(8, 8)))
    rollout = collect(DispatchEnvironment(simulator, random=np.random.default_rng(0)), policy, 2, 0)
    last = rollout.slots[-1]
    status = simulator.outcomes(0).status[last.index]
    assert (status == RequestStatus.PENDING).any()
    assert (last.met == (status == RequestStatus.MET)).all()
