"""Native as a policy: what the autoscaler wants, through the plan, with a memory per system."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from policy_server.cluster.actions import AddReplica, DeleteReplica, OrchestrationAction
from policy_server.cluster.snapshot import Snapshot
from policy_server.policies.orchestration.autoscaler import AutoscalerConfig, HorizontalPodAutoscaler
from policy_server.policies.orchestration.memory import FrameMemory
from policy_server.policies.orchestration.rules import Native
from tests.support.orchestrating import query_of
from tests.support.systems import Endpoint, example_snapshot, example_topology, one_service_snapshot


def decided(snapshot: Snapshot, memory: FrameMemory, rule: Native | None = None) -> list[OrchestrationAction]:
    (decision,) = (rule or Native()).decide([query_of(snapshot, memory=memory)], np.random.default_rng(0))
    memory.record(decision.plan.given_actions(snapshot.taken_at_seconds), snapshot.taken_at_seconds)
    return [planned.action for planned in decision.plan.actions]


def at(snapshot: Snapshot, seconds: float) -> Snapshot:
    return replace(snapshot, taken_at_seconds=seconds)


BUSY = one_service_snapshot([Endpoint(running=2), *[Endpoint(state=2)] * 3])  # type: ignore[arg-type]
"""One replica at 2.5 times its target of 0.8, and three nodes with room."""


def test_it_does_what_the_autoscaler_wants() -> None:
    for seed in range(5):
        snapshot = example_snapshot(example_topology(nodes=6, replicas_per_service=5, seed=seed), seed)
        wanted = HorizontalPodAutoscaler().decide(snapshot)
        actions = decided(snapshot, FrameMemory())
        assert [a for a in actions if isinstance(a, DeleteReplica)] == [
            a for a in wanted if isinstance(a, DeleteReplica)
        ][: len(actions)]
        added = [a.service for a in actions if isinstance(a, AddReplica)]
        assert set(added) <= {a.service for a in wanted if isinstance(a, AddReplica)}


def test_it_adds_the_missing_replicas_where_there_is_room() -> None:
    actions = decided(BUSY, FrameMemory())
    # ceil(1 x 2 / 0.8) = 3, two more.
    assert [type(action) for action in actions] == [AddReplica, AddReplica]
    nodes = [action.node for action in actions if isinstance(action, AddReplica)]
    assert len(set(nodes)) == 2


def test_asked_again_in_the_same_frame_it_wants_nothing_more() -> None:
    memory = FrameMemory()
    assert len(decided(BUSY, memory)) == 2
    assert decided(BUSY, memory) == []
    assert len(decided(at(BUSY, 200.0), memory)) == 2


def test_full_nodes_get_nothing() -> None:
    cpu = np.array([1000, 1000, 0, 1000], np.float32)
    crowded = replace(BUSY, load=replace(BUSY.load, node_cpu_used_millicores=cpu))
    assert decided(crowded, FrameMemory()) == [AddReplica(service=0, node=2)]


def test_usage_is_averaged_over_what_was_observed() -> None:
    memory, rule = FrameMemory(), Native()
    quiet = one_service_snapshot([Endpoint(running=0), *[Endpoint(state=2)] * 3])  # type: ignore[arg-type]
    for second in range(9):
        rule.observe(at(quiet, 100.0 + second), memory)
    assert decided(at(BUSY, 110.0), memory, rule) == []
    assert len(decided(at(BUSY, 200.0), memory, rule)) == 2


def test_scaling_down_waits_for_the_window() -> None:
    memory = FrameMemory()
    rule = Native(config=AutoscalerConfig(scale_down_window_seconds=60.0))
    idle = one_service_snapshot([Endpoint()] * 3)
    assert decided(at(idle, 0.0), memory, rule) == []
    assert decided(at(idle, 50.0), memory, rule) == []
    assert decided(at(idle, 100.0), memory, rule) == [DeleteReplica(2), DeleteReplica(1)]


def test_other_services_start_a_new_memory() -> None:
    memory = FrameMemory()
    decided(BUSY, memory)
    other = example_snapshot(example_topology(services=3), 1)
    decided(other, memory)
    decided(BUSY, memory)


def test_systems_do_not_share_a_memory() -> None:
    first, second = FrameMemory(), FrameMemory()
    assert len(decided(BUSY, first)) == 2
    assert len(decided(BUSY, second)) == 2
