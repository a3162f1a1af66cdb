"""Compiled dispatch against the policy objects."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from policy_server.features.schema import SCHEMA
from policy_server.policies.dispatch import DispatchPolicy
from policy_server.policies.heuristics import heuristic_dispatch
from training.environments.compiled_dispatch import CompiledDispatch, can_compile
from training.environments.dispatch import DispatchEnvironment
from training.evaluation.dispatch import learned_dispatch
from training.networks.dispatch import DispatchActor, DispatchNetworkSizes
from training.networks.policies import TorchDispatch
from training.orchestration_scenarios import OrchestrationSetting, orchestration_simulator
from training.scenarios import Scenario
from training.simulator.simulator import VectorSimulator
from training.workloads.patterns import Pattern

SETTING = OrchestrationSetting(frames=1, settle_slots=0)
POLICIES = ("earliest-completion", "greedy", "native", "gsp-ss", "kais", "untrained")


def policy_of(name: str) -> DispatchPolicy:
    if name == "kais":
        return learned_dispatch(None)
    if name == "untrained":
        torch.manual_seed(0)
        return TorchDispatch(DispatchActor(SCHEMA, DispatchNetworkSizes(8, 8)), sampling_temperature=0.0)
    return heuristic_dispatch(name)


def simulator(load: float) -> VectorSimulator:
    return orchestration_simulator(
        [
            Scenario(preset="testbed-40", seed=1, pattern=Pattern.P1, load=load),
            Scenario(preset="testbed-40", seed=2, pattern=Pattern.P4, load=load),
        ],
        SETTING,
    )


def steps(systems: VectorSimulator, name: str, compiled: bool) -> Callable[[], object]:
    policy = policy_of(name)
    if compiled:
        return CompiledDispatch(systems, policy).step
    environment = DispatchEnvironment(systems, random=np.random.default_rng(0))
    return lambda: environment.step(policy)


@pytest.mark.parametrize("name", POLICIES)
def test_slots_are_decided_alike(name: str) -> None:
    """Ten slots are played by the policy object; in an eleventh both decide on what they have come to."""
    nodes = []
    for compiled in (True, False):
        systems = simulator(0.6)
        before = steps(systems, "earliest-completion", compiled=False)
        for _ in range(10):
            before()
        steps(systems, name, compiled)()
        decided = systems.arrivals()
        nodes.append(
            [
                systems.outcomes(system).node[: decided.index[decided.system == system].min()]
                for system in range(2)
            ]
        )
    for compiled_nodes, policy_nodes in zip(*nodes, strict=True):
        latest = slice(-100, None)
        assert len(set(policy_nodes[latest].tolist())) > 5
        # Few requests find an exact tie, or figures between those of a round's mean and their own.
        assert np.mean(compiled_nodes[latest] == policy_nodes[latest]) > (0.8 if name == "greedy" else 0.95)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("load", [0.5, 1.2])
def test_a_frame_ends_alike_while_replicas_come_and_go(name: str, load: float) -> None:
    rates, forwarded = [], []
    for compiled in (True, False):
        systems = simulator(load)
        step = steps(systems, name, compiled)
        while systems.slot < 60:
            if systems.slot == 20:
                systems.add_replica(0, 3)
                systems.delete_replica(0)
            step()
        rates.append([result.throughput_rate for result in systems.results()])
        forwarded.append([result.forwarded_bytes for result in systems.results()])
    assert rates[0] == pytest.approx(rates[1], abs=0.015)
    assert forwarded[0] == pytest.approx(forwarded[1], rel=0.03)
    assert 0.2 < np.mean(rates[0]) < 0.999


def test_ties_are_broken_by_seed() -> None:
    def nodes(seed: int) -> list[int]:
        systems = simulator(0.6)
        CompiledDispatch(systems, heuristic_dispatch("greedy"), seed=seed).step()
        chosen: list[int] = systems.outcomes(0).node[:50].tolist()
        return chosen

    assert nodes(0) == nodes(0)
    assert nodes(0) != nodes(1)


def test_equal_candidates_get_equal_shares() -> None:
    untrained = policy_of("untrained")
    assert isinstance(untrained, TorchDispatch)
    with torch.no_grad():
        for parameter in untrained.actor.head.parameters():
            parameter.zero_()
    systems = simulator(2.0)
    step = CompiledDispatch(systems, untrained).step
    for _ in range(20):
        step()
    decided = int(systems.arrivals().index[systems.arrivals().system == 0].min())
    services = systems.services_of(np.zeros(decided, np.int32), np.arange(decided))
    service = int(np.bincount(services).argmax())
    chosen = systems.outcomes(0).node[:decided][services == service]
    replicas, nodes = systems.topology.replicas, systems.topology.nodes
    own = systems.topology.access_points.system[nodes.access_point[replicas.node]] == 0
    hosts, each = np.unique(replicas.node[(replicas.service == service) & own], return_counts=True)
    expected = len(chosen) * each / each.sum()
    assert len(hosts) > 2
    assert expected.min() > 30
    counts = np.array([np.count_nonzero(chosen == node) for node in hosts])
    assert counts.sum() == len(chosen)
    assert np.abs(counts - expected).max() < 4 * np.sqrt(expected.max())


@pytest.mark.parametrize("name", ["random", "prequal", "firmament", "power-of-two"])
def test_policies_without_a_compiled_form_are_refused(name: str) -> None:
    policy = heuristic_dispatch(name)
    assert not can_compile(policy)
    with pytest.raises(ValueError, match=f"policy: '{name}' has no compiled form"):
        CompiledDispatch(simulator(0.5), policy)


def test_a_sampling_policy_is_refused() -> None:
    actor = DispatchActor(SCHEMA, DispatchNetworkSizes(8, 8))
    assert not can_compile(TorchDispatch(actor, sampling_temperature=1.0))
