"""A picked request whose end will be told."""

from __future__ import annotations

from policy_server.cluster.ledger import Ledger


class Lease:
    """Counts one request as in flight on an endpoint, from its pick until it ends.

    It may be ended any number of times; it counts once. Where the endpoint's own figures show the request before its
    end, the ledger counts it no more, and neither ending nor moving it changes anything.

    Args:
        ledger: whose latest pick is the request.
    """

    __slots__ = ("_ledger", "_ticket")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._ticket: int | None = ledger.lease_latest()

    def move(self, endpoint: str) -> None:
        """Another endpoint than the picked one has the request now."""
        if self._ticket is None:
            return
        replica = self._ledger.topology.replica_index.get(endpoint)
        if replica is None:
            self.end()
        else:
            self._ticket = self._ledger.transfer(self._ticket, replica)

    def end(self) -> None:
        """The request has ended, in whichever way."""
        if self._ticket is not None:
            self._ledger.release(self._ticket)
            self._ticket = None
