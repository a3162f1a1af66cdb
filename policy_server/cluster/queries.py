"""What is asked of a dispatch policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from policy_server.cluster.snapshot import Float32Array, Int32Array, Int64Array


@dataclass(frozen=True)
class DispatchQueries:
    """Requests to dispatch, in columns (Q rows).

    Attributes:
        service: int32 [Q], service row.
        access_point: int32 [Q], row of the access point the request entered at.
        deadline_seconds: float32 [Q], time the caller waits for the response, above zero.
        payload_bytes: float32 [Q], zero or more.
        subset: per request the replica rows the choice is restricted to (int32, ascending), or None; None for
            the whole column when no request is restricted.
        dispatcher: int32 [Q], row of the :class:`~policy_server.cluster.ledger.Ledger` that counts the
            request's own picks; None: row 0 for all.
    """

    service: Int32Array
    access_point: Int32Array
    deadline_seconds: Float32Array
    payload_bytes: Float32Array
    subset: Sequence[Int32Array | None] | None = None
    dispatcher: Int32Array | None = None

    def __len__(self) -> int:
        return len(self.service)

    def select(self, rows: Int64Array) -> DispatchQueries:
        """The requests at these positions, in that order."""
        return DispatchQueries(
            service=self.service[rows],
            access_point=self.access_point[rows],
            deadline_seconds=self.deadline_seconds[rows],
            payload_bytes=self.payload_bytes[rows],
            subset=None if self.subset is None else [self.subset[row] for row in rows.tolist()],
            dispatcher=None if self.dispatcher is None else self.dispatcher[rows],
        )

    def row(self, position: int) -> DispatchQuery:
        """The request at this position."""
        return DispatchQuery(
            self.service.item(position),
            self.access_point.item(position),
            self.deadline_seconds.item(position),
            self.payload_bytes.item(position),
            None if self.subset is None else self.subset[position],
            None if self.dispatcher is None else self.dispatcher.item(position),
        )


class DispatchQuery(NamedTuple):
    """One request to dispatch, in plain numbers; attributes as in :class:`DispatchQueries`."""

    service: int
    access_point: int
    deadline_seconds: float
    payload_bytes: float = 0.0
    subset: Int32Array | None = None
    dispatcher: int | None = None

    def as_batch(self) -> DispatchQueries:
        """The request as a batch of one."""
        return DispatchQueries(
            service=np.array([self.service], np.int32),
            access_point=np.array([self.access_point], np.int32),
            deadline_seconds=np.array([self.deadline_seconds], np.float32),
            payload_bytes=np.array([self.payload_bytes], np.float32),
            subset=None if self.subset is None else [self.subset],
            dispatcher=None if self.dispatcher is None else np.array([self.dispatcher], np.int32),
        )


def single_query(
    service: int,
    access_point: int,
    deadline_seconds: float,
    payload_bytes: float = 0.0,
    subset: Int32Array | None = None,
) -> DispatchQueries:
    """One request as a batch of one."""
    return DispatchQuery(service, access_point, deadline_seconds, payload_bytes, subset).as_batch()


def concatenate_queries(parts: Sequence[DispatchQueries]) -> DispatchQueries:
    """Several batches as one, in order."""
    if len(parts) == 1:
        return parts[0]
    subset: list[Int32Array | None] | None = None
    if any(part.subset is not None for part in parts):
        subset = []
        for part in parts:
            subset.extend(part.subset if part.subset is not None else [None] * len(part))
    dispatcher = None
    if any(part.dispatcher is not None for part in parts):
        dispatcher = np.concatenate(
            [p.dispatcher if p.dispatcher is not None else np.zeros(len(p), np.int32) for p in parts]
        )
    return DispatchQueries(
        service=np.concatenate([p.service for p in parts]),
        access_point=np.concatenate([p.access_point for p in parts]),
        deadline_seconds=np.concatenate([p.deadline_seconds for p in parts]),
        payload_bytes=np.concatenate([p.payload_bytes for p in parts]),
        subset=subset,
        dispatcher=dispatcher,
    )
