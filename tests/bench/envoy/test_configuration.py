from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest

from bench.envoy import configuration
from bench.envoy.configuration import Balancing, Document, Shipped
from bench.envoy.process import EnvoyProcess
from bench.server_process import ServerError, free_ports
from tests.support.envoy import needs_envoy

COUNT = 3


@pytest.fixture(scope="module")
def back_ends() -> Iterator[list[str]]:
    ports = free_ports(COUNT)
    with EnvoyProcess("back ends", configuration.answer_directly(ports)):
        yield [f"127.0.0.1:{port}" for port in ports]


def fitted(shipped: Shipped, back_ends: list[str]) -> Document:
    document = configuration.shipped(shipped)
    configuration.listen_on_loopback(document)
    configuration.send_to(document, back_ends)
    return document


def get(envoy: EnvoyProcess) -> int:
    with urllib.request.urlopen(f"http://{envoy.address}/", timeout=30) as answer:
        return int(answer.status)


@needs_envoy
@pytest.mark.parametrize("balancing", Balancing)
def test_envoy_balances_alone(balancing: Balancing, back_ends: list[str]) -> None:
    document = fitted(Shipped.FAIL_OPEN, back_ends)
    configuration.balance_alone(document, balancing)
    with EnvoyProcess("envoy", document) as envoy:
        assert [get(envoy) for _ in range(4)] == [200] * 4
        assert envoy.stat("cluster.back_ends.upstream_rq_completed") == 4
        assert envoy.stat("cluster.endpoint_picker.membership_total") == 0


@needs_envoy
def test_settings_of_a_balancing_reach_envoy(back_ends: list[str]) -> None:
    document = fitted(Shipped.FAIL_OPEN, back_ends)
    configuration.balance_alone(document, Balancing.LEAST_REQUEST, selection_method="NO_SUCH_METHOD")
    with pytest.raises(ServerError, match="NO_SUCH_METHOD"):
        EnvoyProcess("envoy", document).__enter__()


def test_addresses_of_the_shipped_files_are_all_replaced() -> None:
    for shipped in Shipped:
        document = fitted(shipped, ["10.0.0.1:1"])
        configuration.ask(document, "10.0.0.2:2")
        text = str(document)
        assert not any(port in text for port in ("8080", "8081", "8082", "9002", "9901"))
        assert "0.0.0.0" not in text


def test_a_missing_checkout_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "FOLDER", configuration.FOLDER / "absent")
    with pytest.raises(FileNotFoundError, match="from a checkout"):
        configuration.shipped(Shipped.FAIL_OPEN)


@pytest.mark.parametrize("shipped", Shipped)
def test_what_happens_without_the_picker_is_said_in_so_many_words(shipped: Shipped) -> None:
    asking = configuration.picker_filter(configuration.shipped(shipped))
    opened = shipped in (Shipped.FAIL_OPEN, Shipped.EXT_AUTHZ)
    assert asking["failure_mode_allow"] is opened
    assert asking.get("message_timeout", asking["grpc_service"].get("timeout")) == "0.2s"
