from __future__ import annotations

import numpy as np
import pytest

from bench.scenario import generate_request, generate_state
from policy_server.api.messages import full_load_from_message, topology_from_message
from policy_server.cluster.ledger import Ledger
from policy_server.cluster.queries import DispatchQueries
from policy_server.cluster.snapshot import Snapshot
from policy_server.policies.dispatch import DispatchView


@pytest.mark.parametrize("candidates", [1, 10, 100])
def test_every_request_has_exactly_the_wanted_candidates(candidates: int) -> None:
    state = generate_state(candidates)
    topology = topology_from_message(state.topology, "topology")
    snapshot = Snapshot(topology, full_load_from_message(state.load, topology, "load"))
    edges = np.flatnonzero(~topology.access_points.is_cloud).astype(np.int32)
    services = np.arange(len(topology.services.names), dtype=np.int32)
    queries = DispatchQueries(
        service=np.tile(services, len(edges)),
        access_point=np.repeat(edges, len(services)),
        deadline_seconds=np.ones(len(services) * len(edges), np.float32),
        payload_bytes=np.zeros(len(services) * len(edges), np.float32),
    )
    found = DispatchView(snapshot).candidates(queries, Ledger(topology), snapshot.taken_at_seconds)
    assert np.diff(found.offsets).tolist() == [candidates] * len(queries)


def test_the_request_fits_the_state() -> None:
    topology, request = generate_state().topology, generate_request()
    assert request.service in {service.name for service in topology.services}
    assert request.access_point in {row.name for row in topology.access_points if not row.cloud}


def test_the_state_is_the_same_every_time_and_not_idle() -> None:
    state = generate_state()
    assert state == generate_state()
    assert len({(replica.queued, replica.running) for replica in state.load.replicas}) > 1
