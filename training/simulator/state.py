"""The simulator's state as structured arrays, one record per thing, that the compiled kernel works on.

Rows of all systems are concatenated in the order of the union topology. Chains and heaps are intrusive: a record
holds the row of the next one, ``NONE`` at the end.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Records: TypeAlias = NDArray[Any]

NONE = -1


class RequestStatus(IntEnum):
    """What became of a request. All but PENDING are final, and each request gets exactly one of them."""

    PENDING = 0
    """Not resolved yet (or not arrived yet)."""
    MET = 1
    """Answered within its deadline."""
    DROPPED_QUEUED = 2
    """Could no longer be answered in time while it waited: at the access point, on a link or at the replica."""
    ABORTED_RUNNING = 3
    """Could no longer be answered in time while it ran; its CPU was given back at that instant."""
    REJECTED = 4
    """The dispatcher refused it, or its replica was not ready or gone when it arrived."""


FAILED_STATUSES = (RequestStatus.DROPPED_QUEUED, RequestStatus.ABORTED_RUNNING, RequestStatus.REJECTED)

REQUEST_DTYPE = np.dtype(
    [
        ("key", np.float64),  # what the request waits by: earliest dispatch, arrival at node, expiry, or end
        ("expiry", np.float64),  # last instant at which an answer may leave the node
        ("execution", np.float64),  # seconds on its node
        ("return_delay", np.float64),
        ("index", np.int64),  # position in the concatenated sequences
        ("child", np.int32),
        ("next", np.int32),
        ("replica", np.int32),
        ("link", np.int32),  # NONE: the access point's own node
        ("status", np.int32),  # what it will become when its key comes, unless something happens before
    ],
    align=True,
)
"""A request that is somewhere in a system. Freed and reused once resolved."""

REPLICA_DTYPE = np.dtype(
    [
        ("ready_at", np.float64),
        ("cpu", np.float64),  # millicores of one running request
        ("latency", np.float64),  # NaN until the first answer
        ("service", np.int32),
        ("node", np.int32),
        ("concurrency", np.int32),
        ("queue", np.int32),  # heap of waiting requests by expiry
        ("queued", np.int32),
        ("running", np.int32),
        ("unresolved", np.int32),  # requests sent to it and not resolved
        ("next", np.int32),  # on the same node
        ("draining", np.bool_),
    ],
    align=True,
)

NODE_DTYPE = np.dtype(
    [
        ("cpu_capacity", np.float64),  # millicores
        ("cpu_used", np.float64),
        ("cpu_work", np.float64),  # millicore-seconds spent in the current slot
        ("memory_capacity", np.float64),
        ("memory_used", np.float64),
        ("speed", np.float64),
        ("access_point", np.int32),
        ("in_transit", np.int32),  # heap of requests on their way, by arrival at the node
        ("running", np.int32),  # heap of running requests by their end
        ("queued", np.int32),
        ("first_replica", np.int32),
        ("is_cloud", np.bool_),
    ],
    align=True,
)

ACCESS_POINT_DTYPE = np.dtype(
    [
        ("dispatcher_free_at", np.float64),
        ("first", np.int32),  # queue of requests not yet dispatched
        ("last", np.int32),
        ("queued", np.int32),
    ],
    align=True,
)

LINK_DTYPE = np.dtype(
    [("delay", np.float64), ("bandwidth", np.float64), ("free_at", np.float64)],
    align=True,
)

SERVICE_DTYPE = np.dtype(
    [("cpu", np.float64), ("execution", np.float64), ("memory", np.float64)],
    align=True,
)

SYSTEM_DTYPE = np.dtype(
    [
        ("first_node", np.int64),
        ("last_node", np.int64),  # exclusive, like all that follow
        ("first_access_point", np.int64),
        ("last_access_point", np.int64),
        ("first_route", np.int64),
        ("first_request", np.int64),
        ("last_request", np.int64),
        ("position", np.int64),  # next request to arrive
        ("slot_end_position", np.int64),
        ("met", np.int64),  # in the current slot, like failed
        ("failed", np.int64),
        ("cpu_usage_std", np.float64),
        ("memory_usage_std", np.float64),
        ("edge_cpu_capacity", np.float64),
        ("cloud_cpu_capacity", np.float64),
        ("edge_cpu_work", np.float64),  # millicore-seconds of the current slot
        ("cloud_cpu_work", np.float64),
        ("total_edge_cpu_work", np.float64),
        ("total_cloud_cpu_work", np.float64),
    ],
    align=True,
)

COUNTERS_DTYPE = np.dtype(
    [
        ("free_requests", np.int64),  # height of the stack of free request records
        ("resolved", np.int64),  # in the current slot
        ("drained_replicas", np.int64),  # became idle while draining, not yet collected
    ],
    align=True,
)


class Structure(NamedTuple):
    """What the replicas run on and what requests ask for; row counts never change.

    Attributes:
        systems, access_points, nodes, links, services: records, see the dtypes of this module.
        routes: int32, per system a table [A, A] of link rows between its access points, flattened; the row of
            ``systems.first_route`` starts it.
        forwarded_bytes: float64 [S, W], request bodies of each service sent over links so far.
        pulled_bytes: float64 [S, W], images of each service pulled so far.
    """

    systems: Records
    access_points: Records
    nodes: Records
    links: Records
    services: Records
    routes: NDArray[np.int32]
    forwarded_bytes: NDArray[np.float64]
    pulled_bytes: NDArray[np.float64]


class Sequences(NamedTuple):
    """The requests of all systems, one sequence after another (T rows).

    Attributes:
        arrival: float64 [T], seconds; ascending within a system.
        access_point: int32 [T], union row.
        service: int32 [T].
        deadline: float32 [T], seconds after arrival.
        payload: float32 [T], bytes.
        work_factor: float32 [T], multiple of the service's execution time.
    """

    arrival: NDArray[np.float64]
    access_point: NDArray[np.int32]
    service: NDArray[np.int32]
    deadline: NDArray[np.float32]
    payload: NDArray[np.float32]
    work_factor: NDArray[np.float32]


class Ledger(NamedTuple):
    """What became of each request (T rows, as in :class:`Sequences`).

    Attributes:
        status: uint8 [T], :class:`RequestStatus`.
        completion: float64 [T], when the answer reached the access point, or when the request was given up; NaN
            while pending.
        node: int32 [T], union row of the node it was sent to, ``NONE`` if it was sent nowhere.
    """

    status: NDArray[np.uint8]
    completion: NDArray[np.float64]
    node: NDArray[np.int32]


class Pool(NamedTuple):
    """Records of the requests that are somewhere in a system.

    Attributes:
        requests: ``REQUEST_DTYPE`` [C].
        free: int32 [C], stack of unused rows; ``counters.free_requests`` is its height.
        resolved: int64 [C], indices of the requests resolved in the current slot.
        counters: ``COUNTERS_DTYPE`` [1].
    """

    requests: Records
    free: NDArray[np.int32]
    resolved: NDArray[np.int64]
    counters: Records
