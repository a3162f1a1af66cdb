"""A lease counts its request once, on the endpoint that has it."""

from __future__ import annotations

from policy_server.cluster.lease import Lease
from policy_server.cluster.ledger import Ledger
from tests.support.systems import Endpoint, one_service_snapshot

THREE = one_service_snapshot([Endpoint()] * 3).topology
TWO = one_service_snapshot([Endpoint()] * 2).topology


def leased(replica: int = 0) -> tuple[Ledger, Lease]:
    ledger = Ledger(THREE)
    ledger.record_one(0, replica, -1, 0.0, 10.0)
    return ledger, Lease(ledger)


def counts(ledger: Ledger) -> list[float]:
    pending: list[float] = ledger.replica_pending[0].tolist()
    return pending


def test_it_counts_until_it_ends() -> None:
    ledger, lease = leased()
    assert counts(ledger) == [1, 0, 0]
    lease.end()
    assert counts(ledger) == [0, 0, 0]
    ledger.record_one(0, 0, -1, 0.0, 10.0)
    lease.end()
    assert counts(ledger) == [1, 0, 0]


def test_it_moves_to_who_has_the_request() -> None:
    ledger, lease = leased()
    lease.move("10.0.0.2:8080")
    assert counts(ledger) == [0, 0, 1]
    lease.move("10.0.0.1:8080")
    assert counts(ledger) == [0, 1, 0]
    lease.end()
    assert counts(ledger) == [0, 0, 0]
    lease.move("10.0.0.1:8080")
    assert counts(ledger) == [0, 0, 0]


def test_moving_to_a_stranger_ends_it() -> None:
    ledger, lease = leased()
    lease.move("10.9.9.9:1")
    assert counts(ledger) == [0, 0, 0]
    lease.end()
    assert counts(ledger) == [0, 0, 0]


def test_what_figures_show_counts_no_more() -> None:
    ledger, lease = leased()
    ledger.refresh(11.0)
    assert counts(ledger) == [0, 0, 0]
    lease.move("10.0.0.1:8080")
    lease.end()
    assert counts(ledger) == [0, 0, 0]


def test_an_endpoint_that_goes_takes_it_along() -> None:
    ledger, lease = leased(replica=2)
    ledger.bind(TWO)
    assert counts(ledger) == [0, 0]
    ledger.bind(THREE)
    lease.move("10.0.0.0:8080")
    lease.end()
    assert counts(ledger) == [0, 0, 0]
