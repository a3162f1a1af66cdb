"""Addresses have one spelling."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.envoy.addresses import canonical, listed

ports = st.integers(1, 65_535)


@given(st.ip_addresses(v=4), ports)
def test_ipv4_is_as_it_is(address: ipaddress.IPv4Address, port: int) -> None:
    assert canonical(f"{address}:{port}") == f"{address}:{port}"


@given(st.ip_addresses(v=6), ports)
def test_ipv6_has_one_spelling(address: ipaddress.IPv6Address, port: int) -> None:
    spellings = {canonical(f"[{text}]:{port}") for text in (address, address.exploded.upper())}
    assert spellings == {f"[{address}]:{port}"}


@given(st.text(max_size=30))
def test_whatever_has_a_spelling_keeps_it(text: str) -> None:
    spelling = canonical(text)
    assert spelling is None or canonical(spelling) == spelling


@pytest.mark.parametrize(
    "text",
    ["", "cart", "cart:80", "10.0.0.1", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:+1",
     "10.0.0:80", "[10.0.0.1]:80", "fd00::1:80", "[fd00::1]", "[fd00::1:80", "10.0.0.1:8 0"],
)  # fmt: skip
def test_no_address(text: str) -> None:
    assert canonical(text) is None


def test_lists() -> None:
    assert list(listed(" 10.0.0.1:1,, 10.0.0.2:2 ,")) == ["10.0.0.1:1", "10.0.0.2:2"]
