"""At their reference rate the presets tell good dispatch from bad: nothing trivial is near the optimum."""

from __future__ import annotations

import numpy as np
import pytest

from policy_server.cluster.snapshot import Int32Array
from policy_server.policies.heuristics import EarliestCompletion, Greedy, HeuristicDispatch
from training.environments.dispatch import DispatchEnvironment
from training.scenarios import Scenario, build_simulator
from training.simulator.presets import PRESETS
from training.simulator.simulator import VectorSimulator
from training.workloads.patterns import Pattern

SECONDS = 10.0


def simulator_of(name: str) -> VectorSimulator:
    scenarios = [
        Scenario(preset=name, seed=seed, pattern=pattern)
        for seed, pattern in enumerate((Pattern.P1, Pattern.P2, Pattern.P4))
    ]
    return build_simulator(scenarios, SECONDS)


def mean_throughput(simulator: VectorSimulator) -> float:
    return float(np.mean([result.throughput_rate for result in simulator.results()]))


def always_cloud(name: str) -> VectorSimulator:
    simulator = simulator_of(name)
    replica = cloud_replicas(simulator)
    while not simulator.done:
        requests = simulator.arrivals()
        simulator.advance(replica[requests.system, requests.service])
    return simulator


def by_rule(name: str, rule: HeuristicDispatch) -> VectorSimulator:
    simulator = simulator_of(name)
    environment = DispatchEnvironment(simulator, random=np.random.default_rng(0))
    while not simulator.done:
        environment.step(rule)
    return simulator


def cloud_replicas(simulator: VectorSimulator) -> Int32Array:
    """int32 [S, W]: row of each service's replica in the cloud."""
    topology = simulator.topology
    access_point = topology.nodes.access_point[topology.replicas.node]
    rows = np.flatnonzero(topology.access_points.is_cloud[access_point])
    table = np.full((simulator.systems, len(topology.services.names)), -1, np.int32)
    table[topology.access_points.system[access_point[rows]], topology.replicas.service[rows]] = rows
    assert (table >= 0).all()
    return table


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_the_cloud_alone_answers_less_than_half(name: str) -> None:
    simulator = always_cloud(name)
    assert mean_throughput(simulator) < 0.5
    assert max(result.edge_cpu_utilisation for result in simulator.results()) == 0.0
    assert min(result.forwarded_bytes for result in simulator.results()) > 0


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_greedy_is_loaded_but_not_lost_and_earliest_completion_is_better(name: str) -> None:
    greedy = by_rule(name, Greedy())
    assert 0.6 <= mean_throughput(greedy) <= 0.9
    better = by_rule(name, EarliestCompletion())
    assert mean_throughput(greedy) + 0.03 < mean_throughput(better) < 0.99
    assert min(result.edge_cpu_utilisation for result in better.results()) > 0.3
