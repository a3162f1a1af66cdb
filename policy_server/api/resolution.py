"""Names and indices of requests to rows of a topology, with errors that name the field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from policy_server.api.errors import Count, InvalidArgumentError, shown
from policy_server.api.questions import DispatchQuestion
from policy_server.cluster.snapshot import (
    Float64Array,
    Int32Array,
    Int64Array,
    ReplicaState,
    Snapshot,
    Topology,
)

MAXIMUM_REMEMBERED_SUBSETS = 1024
MAXIMUM_REMEMBERED_ENDPOINTS = 128


def unknown_name(field: str, name: str, version: int) -> InvalidArgumentError:
    """The error for a name that the state does not hold."""
    return InvalidArgumentError(
        field, name, f"is not part of the held state (version {version}); report it there or correct the name"
    )


def rows_of_endpoints(endpoints: Sequence[str], topology: Topology, limit: int) -> Int32Array:
    """int32, ascending: replica rows of the endpoints of a subset. Endpoints the topology lacks allow nothing.

    Raises:
        InvalidArgumentError: more than ``limit`` endpoints.
    """
    if len(endpoints) > limit:
        raise InvalidArgumentError(
            "endpoint_subset.endpoints",
            Count(len(endpoints), "endpoints"),
            f"at most {limit} are accepted; send fewer",
        )
    index = topology.replica_index
    rows = [index[endpoint] for endpoint in endpoints if endpoint in index]
    return np.unique(np.array(rows, np.int32))


class SubsetRows:
    """Remembers the rows of subsets: those that proxies send with every request are few, and the same again and again.

    Args:
        limit: see :func:`rows_of_endpoints`.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._topology: Topology | None = None
        self._rows: dict[tuple[str, ...], Int32Array] = {}

    def rows(self, endpoints: Sequence[str], topology: Topology) -> Int32Array:
        """As :func:`rows_of_endpoints`."""
        if len(endpoints) > MAXIMUM_REMEMBERED_ENDPOINTS:
            return rows_of_endpoints(endpoints, topology, self._limit)
        if topology is not self._topology or len(self._rows) >= MAXIMUM_REMEMBERED_SUBSETS:
            self._topology = topology
            self._rows = {}
        key = tuple(endpoints)
        rows = self._rows.get(key)
        if rows is None:
            rows = self._rows[key] = rows_of_endpoints(endpoints, topology, self._limit)
        return rows


def rows_of_vocabulary(
    field: str, names: Sequence[str], index: Mapping[str, int], version: int
) -> Int32Array:
    """int32 [names]: row of each name of a batch's vocabulary.

    Raises:
        InvalidArgumentError: a name is unknown.
    """
    rows = np.fromiter((index.get(name, -1) for name in names), np.int32, len(names))
    if len(rows) and rows.min() < 0:
        position = int(rows.argmin())
        raise unknown_name(f"{field}[{position}]", names[position], version)
    return rows


def rows_of_indices(field: str, indices: Int64Array, vocabulary: str, rows: Int32Array) -> Int32Array:
    """int32 [Q]: the rows that indices into a vocabulary stand for.

    Raises:
        InvalidArgumentError: an index lies outside the vocabulary.
    """
    outside = indices >= len(rows)
    if outside.any():
        position = int(outside.argmax())
        raise InvalidArgumentError(
            f"{field}[{position}]",
            int(indices[position]),
            f"must be an index into {vocabulary}, which has {len(rows)} entries",
        )
    return rows[indices]


def zero_filled(field: str, values: Float64Array, count: int) -> Float64Array:
    """float64 [count]: the values, or zeros where none were sent.

    Raises:
        InvalidArgumentError: neither none nor one value per request.
    """
    if not len(values):
        return np.zeros(count)
    if len(values) != count:
        raise InvalidArgumentError(
            field, Count(len(values), "values"), f"send none or one per request, {count} as in service"
        )
    return values


def explain_no_candidate(snapshot: Snapshot, question: DispatchQuestion) -> str:
    """Why no endpoint can serve a request whose names are known."""
    topology = snapshot.topology
    hosts = topology.replicas.service == topology.service_index[question.service]
    ready = hosts & (snapshot.load.replica_state == ReplicaState.READY)
    wanted = f"service {shown(question.service)} at access point {shown(question.access_point)}"
    if question.subset is not None:
        rows = rows_of_endpoints(question.subset, topology, len(question.subset))
        return (
            f"{wanted}: none of the {len(question.subset)} endpoints of endpoint_subset can serve it "
            f"({int(hosts[rows].sum())} host the service, {int(ready[rows].sum())} of them are ready)"
        )
    return (
        f"{wanted}: no endpoint can serve it ({int(hosts.sum())} host the service, "
        f"{int(ready.sum())} of them are ready, none of those can be reached from the access point)"
    )
