"""Credit, against hand computations and slow loops."""

from __future__ import annotations

import numpy as np
import pytest

from policy_server.policies.heuristics import heuristic_dispatch
from training.algorithms.credit import discounted_node_failures, generalised_advantages, others_failures
from training.algorithms.rollout import Rollout, collect
from training.algorithms.slot_reward import slot_reward
from training.environments.dispatch import DispatchEnvironment
from training.scenarios import Scenario, training_simulator
from training.simulator.metrics import SlotOutcome
from training.simulator.state import RequestStatus
from training.workloads.patterns import Pattern


@pytest.fixture(scope="module")
def environment() -> DispatchEnvironment:
    scenarios = [Scenario(preset="testbed-40", seed=row, load=1.6, pattern=Pattern.P4) for row in range(2)]
    return DispatchEnvironment(training_simulator(scenarios, 40), random=np.random.default_rng(0))


@pytest.fixture(scope="module")
def rollout(environment: DispatchEnvironment) -> Rollout:
    return collect(environment, heuristic_dispatch("round-robin"), 12, 20)


def test_slot_reward_by_hand() -> None:
    none = np.zeros(0)
    outcome = SlotOutcome(
        arrived=np.array([4, 0]),
        met=np.array([3, 0]),
        failed=np.array([1, 0]),
        cpu_usage_std=np.array([0.2, 0.0]),
        memory_usage_std=np.array([0.4, 0.0]),
        edge_cpu_utilisation=np.zeros(2),
        cloud_cpu_utilisation=np.zeros(2),
        resolved_system=none.astype(np.int32),
        resolved_index=none.astype(np.int64),
        resolved_status=none.astype(np.uint8),
    )
    assert slot_reward(outcome, 0.5) == pytest.approx([np.exp(-0.25 - 0.5 * 0.3), 1.0])


def test_advantages_against_the_definition() -> None:
    random = np.random.default_rng(1)
    rewards, values = random.normal(size=(6, 3)), random.normal(size=(7, 3))
    discount, trace = 0.9, 0.8
    expected = np.zeros_like(rewards)
    for step in range(6):
        for later in range(step, 6):
            delta = rewards[later] + discount * values[later + 1] - values[later]
            expected[step] += (discount * trace) ** (later - step) * delta
    np.testing.assert_allclose(generalised_advantages(rewards, values, discount, trace), expected)


def test_every_decision_has_the_outcome_of_its_request(
    environment: DispatchEnvironment, rollout: Rollout
) -> None:
    seen = set()
    for slot in rollout.slots:
        for system, index, met in zip(slot.system, slot.index, slot.met, strict=True):
            status = environment.simulator.outcomes(int(system)).status[index]
            assert met == (status == RequestStatus.MET)
            seen.add((int(system), int(index)))
    assert len(seen) == sum(len(slot) for slot in rollout.slots) > 1000
    assert any(not slot.met.all() for slot in rollout.slots)


def test_node_failures_against_a_slow_count(rollout: Rollout) -> None:
    for row, slot in enumerate(rollout.slots):
        destination = slot.node[slot.chosen]
        for node in np.unique(destination):
            here = destination == node
            assert rollout.node_requests[row, node] == here.sum()
            assert rollout.node_failures[row, node] == (~slot.met[here]).sum()
    discounted = discounted_node_failures(rollout, 0.7)
    for row in range(len(rollout.slots)):
        later = rollout.node_failures[row:]
        expected = (0.7 ** np.arange(len(later)))[:, None] * later
        np.testing.assert_allclose(discounted[row], expected.sum(axis=0))


def test_others_failures_leave_out_the_own_request(rollout: Rollout) -> None:
    slot = rollout.slots[3]
    failures = discounted_node_failures(rollout, 0.7)[3]
    others = others_failures(slot, failures)
    chosen = np.zeros(len(slot.node), bool)
    chosen[slot.chosen] = True
    np.testing.assert_allclose(others[~chosen], failures[slot.node[~chosen]], rtol=1e-6)
    np.testing.assert_allclose(
        others[slot.chosen], failures[slot.node[slot.chosen]] - ~slot.met, rtol=1e-5, atol=1e-5
    )
