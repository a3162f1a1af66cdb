"""Frames of simulated systems."""

from __future__ import annotations

import numpy as np
import pytest

from policy_server.cluster.actions import AddReplica, DeleteReplica
from policy_server.policies.heuristics import heuristic_dispatch
from policy_server.policies.orchestration.rules import heuristic_orchestration
from training.environments.compiled_dispatch import CompiledDispatch
from training.environments.dispatch import DispatchEnvironment
from training.environments.orchestration import OrchestrationEnvironment, PolicyDispatch, decided
from training.orchestration_scenarios import OrchestrationSetting, orchestration_simulator
from training.scenarios import Scenario
from training.workloads.patterns import Pattern

SETTING = OrchestrationSetting(frames=1, settle_slots=8)


def environment(load: float = 0.4, cost_weight: float = 0.0, repeats: int = 1) -> OrchestrationEnvironment:
    simulator = orchestration_simulator(
        [
            Scenario(preset="testbed-40", seed=1, pattern=Pattern.P1, load=load),
            Scenario(preset="testbed-40", seed=2, pattern=Pattern.P4, load=load),
        ],
        SETTING,
        repeats=repeats,
    )
    return OrchestrationEnvironment(simulator, CompiledDispatch(simulator), cost_weight=cost_weight)


def test_the_frames_of_a_run_add_up_to_its_results() -> None:
    systems = environment(cost_weight=0.5)
    hosted = np.zeros((82, 30), bool)
    replicas = systems.simulator.topology.replicas
    hosted[replicas.node, replicas.service] = True
    free = (
        systems.simulator.topology.nodes.memory_bytes
        - systems.simulator.snapshot().load.node_memory_used_bytes
    )
    small = systems.simulator.topology.services.memory_bytes[2]
    node = int(np.flatnonzero(~hosted[:40, 2] & (free[:40] > small))[0])
    outcomes = [systems.step([], slots=8), systems.step([AddReplica(2, node)])]
    while not systems.simulator.done:
        outcomes.append(systems.step([], slots=1))
    for system, result in enumerate(systems.simulator.results()):
        assert sum(outcome.arrived[system] for outcome in outcomes) == result.arrived
        assert sum(outcome.met[system] for outcome in outcomes) == result.met
        assert sum(outcome.failed[system] for outcome in outcomes) == result.failed
        moved = [outcome.forwarded_bytes[system] + outcome.pulled_bytes[system] for outcome in outcomes]
        assert sum(moved) == pytest.approx(result.scheduling_cost_bytes)
    frame = outcomes[1]
    resolved = frame.met + frame.failed
    assert frame.failure_reward.sum(axis=1) == pytest.approx(-frame.failed / resolved)
    assert frame.pulled_bytes[0] > 0 == frame.pulled_bytes[1]
    assert (frame.cost_reward <= 0).all()
    assert (frame.cost_reward.sum(axis=1) < 0).all()
    assert frame.reward == pytest.approx((frame.failure_reward + frame.cost_reward).sum(axis=1))


def test_moved_bytes_are_charged_to_their_service() -> None:
    systems = environment(load=0.1, cost_weight=0.5)
    systems.step([], slots=8)
    simulator = systems.simulator
    hosted = np.zeros((82, 30), bool)
    hosted[simulator.topology.replicas.node, simulator.topology.replicas.service] = True
    free = simulator.topology.nodes.memory_bytes - simulator.snapshot().load.node_memory_used_bytes
    needed = simulator.topology.services.memory_bytes
    node, service = np.argwhere(~hosted[:40] & (free[:40, None] > needed))[0].tolist()
    forwarded, pulled = simulator.moved_bytes()
    with_pull = systems.step([AddReplica(service, node)], slots=4)
    forwarded_after, pulled_after = simulator.moved_bytes()
    image = float(simulator.topology.services.image_bytes[service])
    assert (pulled_after - pulled)[0] == pytest.approx(np.where(np.arange(30) == service, image, 0.0))
    moved = (forwarded_after - forwarded) + (pulled_after - pulled)
    assert with_pull.forwarded_bytes == pytest.approx((forwarded_after - forwarded).sum(axis=1))
    shares = with_pull.cost_reward / with_pull.cost_reward.sum(axis=1, keepdims=True)
    assert shares == pytest.approx(moved / moved.sum(axis=1, keepdims=True))
    assert with_pull.cost_reward[0, service] == with_pull.cost_reward[0].min()


def test_failures_are_charged_to_their_service() -> None:
    systems = environment(load=0.1)
    topology = systems.simulator.topology
    popular = int(systems.simulator.coming_rates(20.0)[:6].sum(axis=0).argmax())
    own = topology.access_points.system[topology.nodes.access_point[topology.replicas.node]] == 0
    gone = np.flatnonzero((topology.replicas.service == popular) & own)
    systems.step([], slots=8)
    systems.step([DeleteReplica(int(row)) for row in gone], slots=8)
    expected = systems.simulator.coming_rates(10.0)[:6].sum(axis=0)
    outcome = systems.step([], slots=40)
    others = np.delete(outcome.failure_reward[0], popular)
    assert outcome.failure_reward[0, popular] == pytest.approx(-expected[popular] / expected.sum(), rel=0.1)
    assert outcome.failure_reward[0, popular] < 3 * others.min() <= 0
    assert outcome.failure_reward[1, popular] > outcome.failure_reward[0, popular] / 3


@pytest.mark.parametrize("load", [1.0, 20.0])
def test_the_reward_tells_systems_apart_where_the_paper_s_has_underflowed(load: float) -> None:
    rewards = []
    for served in (True, False):
        systems = environment(load)
        gone = [] if served else [DeleteReplica(row) for row in range(40)]
        systems.step(gone, slots=8)
        outcome = systems.step([], slots=12)
        queued = systems.simulator.snapshot().load.replica_queued.sum()
        rewards.append(outcome.reward)
    if load > 1:
        # The paper's exp(-queued work) cannot tell such systems apart even in double precision.
        assert np.exp(-float(queued)) == 0.0
    # Only the first system lost replicas.
    assert rewards[0][0] > rewards[1][0] + 1e-3
    assert rewards[0][1] == rewards[1][1]
    assert (np.array(rewards) >= -1).all()


def test_any_dispatch_policy_runs_inside() -> None:
    rates = {}
    for name in ("random", "earliest-completion"):
        systems = environment().simulator
        dispatch = DispatchEnvironment(systems, random=np.random.default_rng(0))
        frames = OrchestrationEnvironment(systems, PolicyDispatch(dispatch, heuristic_dispatch(name)))
        outcome = frames.step([], slots=12)
        rates[name] = outcome.met.sum() / (outcome.met + outcome.failed).sum()
    assert rates["earliest-completion"] > rates["random"]


def test_rules_decide_on_the_union_and_may_be_given_the_rates_to_come() -> None:
    systems = environment(load=1.0)
    systems.step([], slots=8)
    observed = systems.query().graph.snapshot.load.arrival_rate_per_second
    coming = systems.query(rates_to_come=True).graph.snapshot.load.arrival_rate_per_second
    assert np.array_equal(coming, systems.simulator.coming_rates(25.0))
    assert not np.array_equal(observed, coming)
    rule = heuristic_orchestration("gsp-ss")
    actions = decided(rule, systems.query(rates_to_come=True), np.random.default_rng(0))
    nodes = {action.node // 41 for action in actions if isinstance(action, AddReplica)}
    assert nodes == {0, 1}
    assert systems.step(actions, slots=1).refused == 0


def test_native_observes_the_slots_between_its_decisions() -> None:
    systems = environment(load=1.5)
    rule = heuristic_orchestration("native")
    random = np.random.default_rng(0)
    systems.step(decided(rule, systems.query(), random), slots=30, observer=rule)
    assert decided(rule, systems.query(), random)
