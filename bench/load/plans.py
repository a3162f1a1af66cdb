"""What to send when."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ClosedLoop:
    """A fixed number of requests in flight: a new one is sent when an earlier one has ended.

    Attributes:
        requests: How many requests to send, at least one.
        connections: Number of connections.
        streams: Requests in flight per connection.
    """

    requests: int
    connections: int = 1
    streams: int = 1


@dataclass(frozen=True)
class OpenLoop:
    """A fixed rate over one connection: every request is sent at its time, whatever became of the earlier ones.

    Attributes:
        requests: How many requests to send, at least one.
        requests_per_second: The rate, above zero.
    """

    requests: int
    requests_per_second: float
