"""Messages to snapshots and back."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy_server.api.errors import InvalidArgumentError
from policy_server.api.messages import (
    delta_load_from_message,
    full_load_from_message,
    load_to_message,
    topology_from_message,
    topology_to_message,
)
from policy_server.cluster.snapshot import Load, ReplicaState, Snapshot, Topology, idle_load
from policy_server.policies.dispatch import DispatchView
from policy_server.proto.policy.v1 import state_pb2
from policy_server.proto.policy.v1.state_pb2 import (
    AccessPoint,
    AccessPointLoad,
    LinkLoad,
    NodeLoad,
    Replica,
    ReplicaLoad,
    Service,
    ServiceRate,
)
from tests.support.systems import example_snapshot, example_topology, snapshots


def assert_same_rows(one: object, other: object) -> None:
    assert type(one) is type(other)
    for column in fields(one):  # type: ignore[arg-type]
        left, right = getattr(one, column.name), getattr(other, column.name)
        if isinstance(left, np.ndarray):
            np.testing.assert_array_equal(left, right)
            assert left.dtype == right.dtype
        else:
            assert left == right


def assert_same_topology(one: Topology, other: Topology) -> None:
    for group in ("access_points", "nodes", "services", "replicas", "links"):
        assert_same_rows(getattr(one, group), getattr(other, group))
    assert one.local_delay_seconds == other.local_delay_seconds


@given(snapshots())
def test_snapshot_survives_the_way_there_and_back(snapshot: Snapshot) -> None:
    topology = topology_from_message(topology_to_message(snapshot.topology), "t")
    assert_same_topology(topology, snapshot.topology)
    load = full_load_from_message(load_to_message(snapshot), topology, "l")
    assert_same_rows(load, snapshot.load)


names = st.text(min_size=1, max_size=8)
figures = st.floats(0, 2.0**20, width=32)


@st.composite
def topology_messages(draw: st.DrawFn) -> state_pb2.Topology:
    access_points = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    services = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    nodes = draw(st.lists(names, max_size=4, unique=True))
    positive = st.floats(2.0**-9, 2.0**19, width=32)
    pairs = st.tuples(st.sampled_from(access_points), st.sampled_from(access_points))
    return state_pb2.Topology(
        access_points=[AccessPoint(name=name, cloud=draw(st.booleans())) for name in access_points],
        nodes=[
            state_pb2.Node(
                name=name,
                access_point=draw(st.sampled_from(access_points)),
                cpu_millicores=draw(positive),
                memory_bytes=1 + draw(figures) // 1,
                speed=draw(positive),
            )
            for name in nodes
        ],
        services=[
            Service(
                name=name,
                cpu_millicores=draw(positive),
                execution_seconds=draw(st.floats(2.0**-20, 2.0**10, width=32)),
                memory_bytes=draw(figures),
                image_bytes=draw(figures),
                cold_start_seconds=draw(st.floats(0, 2.0**10, width=32)),
                deadline_seconds=draw(st.floats(2.0**-10, 2.0**10, width=32)),
            )
            for name in services
        ],
        replicas=[
            Replica(
                endpoint=endpoint,
                service=draw(st.sampled_from(services)),
                node=draw(st.sampled_from(nodes)),
                concurrency=draw(st.integers(1, 1000)),
            )
            for endpoint in draw(st.lists(names, max_size=5 if nodes else 0, unique=True))
        ],
        links=[
            state_pb2.Link(
                source=source,
                target=target,
                delay_seconds=draw(st.floats(0, 2.0**10, width=32)),
                bandwidth_bytes_per_second=draw(positive),
            )
            for source, target in draw(
                st.lists(pairs.filter(lambda ends: ends[0] != ends[1]), max_size=6, unique=True)
            )
        ],
        local_delay_seconds=draw(st.floats(0, 1)),
    )


@given(topology_messages())
@settings(max_examples=60)
def test_message_survives_the_way_there_and_back(message: state_pb2.Topology) -> None:
    topology = topology_from_message(message, "t")
    assert topology_to_message(topology) == message
    # Whatever is accepted can be decided on.
    DispatchView(Snapshot(topology, idle_load(topology)))


def test_absent_fields_have_their_documented_defaults() -> None:
    message = topology_to_message(example_topology(nodes=1, services=1, replicas_per_service=1))
    message.nodes[0].ClearField("speed")
    message.replicas[0].ClearField("concurrency")
    message.ClearField("local_delay_seconds")
    topology = topology_from_message(message, "t")
    assert topology.nodes.speed[0] == 1
    assert topology.replicas.concurrency[0] == 1
    assert topology.local_delay_seconds == 0.001


def test_full_report_leaves_unlisted_rows_idle() -> None:
    topology = example_topology()
    listed = state_pb2.Load(replicas=[ReplicaLoad(endpoint=topology.replicas.endpoints[2], queued=3)])
    load = full_load_from_message(listed, topology, "l")
    expected = idle_load(topology)
    expected.replica_queued[2] = 3
    assert_same_rows(load, expected)


def test_delta_keeps_unlisted_rows_and_leaves_latencies_open() -> None:
    base = example_snapshot(example_topology(), seed=1)
    topology = base.topology
    changed = state_pb2.Load(
        access_points=[
            AccessPointLoad(
                name="ap-1",
                queued=7,
                arrival_rates=[ServiceRate(service="service-2", requests_per_second=11)],
            )
        ],
        nodes=[NodeLoad(name="node-3", cpu_used_millicores=500, memory_used_bytes=1000)],
        replicas=[
            ReplicaLoad(
                endpoint=topology.replicas.endpoints[4],
                state=state_pb2.REPLICA_STATE_DRAINING,
                queued=1,
                running=2,
                latency_seconds=0.25,
            )
        ],
        links=[LinkLoad(source="ap-0", target="ap-1", backlog_bytes=4096)],
    )
    load = delta_load_from_message(changed, base, "l")
    before = Load(**{column.name: getattr(base.load, column.name).copy() for column in fields(Load)})
    before.access_point_queued[1] = 7
    before.arrival_rate_per_second[1, 2] = 11
    before.node_cpu_used_millicores[3] = 500
    before.node_memory_used_bytes[3] = 1000
    before.replica_state[4] = ReplicaState.DRAINING
    before.replica_queued[4] = 1
    before.replica_running[4] = 2
    before.replica_latency_seconds[:] = np.nan
    before.replica_latency_seconds[4] = 0.25
    before.link_backlog_bytes[topology.link_row[0, 1]] = 4096
    assert_same_rows(load, before)


@pytest.mark.parametrize("value", [1e300, 1e-300])
def test_figures_no_machine_has_are_refused(value: float) -> None:
    message = topology_to_message(example_topology())
    message.nodes[1].cpu_millicores = value
    with pytest.raises(InvalidArgumentError, match=r"t\.nodes\[1\]\.cpu_millicores: .*from 0\.001 to 1e\+09"):
        topology_from_message(message, "t")
