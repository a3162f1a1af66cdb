"""What headers and attributes mean."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.envoy.request_mapping import MappingError, RequestMapping
from policy_server.settings import Settings, SettingsError
from tests.support.ext_proc import data_plane, picked, request_headers, status_and_reason
from tests.support.serving import graded_endpoints
from tests.support.systems import example_snapshot, example_topology

UNIT_SECONDS = {"H": 3600, "M": 60, "S": 1, "m": 1e-3, "u": 1e-6, "n": 1e-9}
text = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12)
names = st.sampled_from(
    [
        "x-envoy-expected-rq-timeout-ms",
        "grpc-timeout",
        "content-length",
        ":authority",
        ":path",
        "x-ap",
        "x-prio",
    ]
)


def mapping(service: str = "authority", access_point: str = "", priority: str = "") -> RequestMapping:
    return RequestMapping(service, access_point, priority)


def no_attribute(_: str) -> str:
    return ""


@given(st.dictionaries(names, text))
def test_any_headers_give_facts_that_can_be_used(headers: dict[str, str]) -> None:
    facts = mapping("path-prefix,authority", "header:x-ap", "header:x-prio").read(headers, no_attribute)
    assert 0 <= facts.deadline_seconds <= 1e6
    assert 0 <= facts.payload_bytes <= 1e18
    assert facts.access_point == headers.get("x-ap", "")


@given(st.integers(0, 10**9))
def test_expected_timeout(milliseconds: int) -> None:
    headers = {"x-envoy-expected-rq-timeout-ms": str(milliseconds), "grpc-timeout": "1H"}
    facts = mapping().read(headers, no_attribute)
    assert facts.deadline_seconds == pytest.approx(min(milliseconds / 1000, 1e6))
    assert not facts.malformed


@given(st.integers(0, 99_999_999), st.sampled_from(list(UNIT_SECONDS)))
def test_grpc_timeout(number: int, unit: str) -> None:
    facts = mapping().read({"grpc-timeout": f"{number}{unit}"}, no_attribute)
    assert facts.deadline_seconds == pytest.approx(min(number * UNIT_SECONDS[unit], 1e6))
    assert not facts.malformed


@given(st.integers(0, 10**18))
def test_content_length(size: int) -> None:
    facts = mapping().read({"content-length": str(size)}, no_attribute)
    assert facts.payload_bytes == pytest.approx(size)
    assert not facts.malformed


@given(st.integers(-(10**6), 10**6))
def test_priority(priority: int) -> None:
    facts = mapping(priority="header:x-prio").read({"x-prio": str(priority)}, no_attribute)
    assert (facts.priority, facts.malformed) == (priority, False)


@pytest.mark.parametrize(
    "header",
    [
        ("x-envoy-expected-rq-timeout-ms", value)
        for value in ("", "abc", "-1", "1.5", "1e3", "\u0661", "9" * 30)
    ]
    + [("grpc-timeout", value) for value in ("", "S", "1", "-1S", "1 S", "123456789S", "1s", "\u0661S")]
    + [("content-length", value) for value in ("abc", "-1", "1" + "0" * 18 + "0")]
    + [("x-prio", value) for value in ("abc", "1.5", "--1", "-")],
    ids=str,
)
def test_what_cannot_be_read_counts_as_not_said(header: tuple[str, str]) -> None:
    facts = mapping(priority="header:x-prio").read(dict([header]), no_attribute)
    assert facts.malformed
    assert (facts.deadline_seconds, facts.payload_bytes, facts.priority) == (0, 0, 0)


@pytest.mark.parametrize(
    ("sources", "headers", "expected"),
    [
        ("header:X-Service", {"x-service": "cart"}, "cart"),
        ("authority", {":authority": "cart.shop:8080"}, "cart.shop"),
        ("authority", {":authority": "Cart.Shop"}, "cart.shop"),
        ("authority", {":authority": "[fd00::1]:80"}, "[fd00::1]"),
        ("path-prefix", {":path": "/cart/items?page=2"}, "cart"),
        ("path-prefix", {":path": "/cart?page=/2"}, "cart"),
        ("path-prefix", {":path": "/"}, ""),
        ("fixed:cart", {}, "cart"),
        ("attribute:xds.cluster_name", {}, "value of xds.cluster_name"),
        ("header:x-service, authority", {":authority": "cart"}, "cart"),
        ("header:x-service,authority", {"x-service": "", ":authority": "cart"}, "cart"),
        ("header:x-service,authority", {"x-service": "cart", ":authority": "shop"}, "cart"),
        ("", {":authority": "cart"}, ""),
    ],
)
def test_sources(sources: str, headers: dict[str, str], expected: str) -> None:
    facts = mapping(sources, sources).read(headers, lambda name: f"value of {name}")
    assert facts.service == facts.access_point == expected


@pytest.mark.parametrize(
    "sources", ["header", "header:", "attribute:", "fixed:", "host", "authority:x", "a,b"]
)
def test_refused_sources(sources: str) -> None:
    with pytest.raises(MappingError, match=r"envoy_service: '.*'; give header:NAME, attribute:NAME"):
        mapping(sources)


@pytest.mark.parametrize("setting", ["envoy_service", "envoy_access_point", "envoy_priority"])
def test_settings_refuse_what_cannot_be_read(setting: str) -> None:
    with pytest.raises(SettingsError, match=rf"{setting}: 'nonsense'; give header:NAME"):
        Settings(envoy=True, **{setting: "nonsense"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "headers", "attributes"),
    [
        ({}, {":authority": "service-2:80"}, {}),
        ({}, {":authority": "shop", "x-policy-service": "service-2"}, {}),
        ({"envoy_service": "path-prefix"}, {":path": "/service-2/x", ":authority": "shop"}, {}),
        ({"envoy_service": "attribute:xds.cluster_name"}, {}, {"xds.cluster_name": "service-2"}),
        ({"envoy_service": "fixed:service-2"}, {":authority": "shop"}, {}),
    ],
    ids=["authority", "header", "path", "attribute", "fixed"],
)
async def test_the_service_is_chosen_by(
    settings: dict[str, Any], headers: dict[str, str], attributes: dict[str, str]
) -> None:
    topology = example_topology()
    hosts = {
        endpoint
        for endpoint, service in zip(topology.replicas.endpoints, topology.replicas.service, strict=True)
        if service == 2
    }
    async with data_plane(example_snapshot(topology), envoy_max_endpoints=17, **settings) as plane:
        message = request_headers(headers)
        if attributes:
            message.attributes["envoy.filters.http.ext_proc"].update(attributes)
        (answer,) = await plane.exchange(message)
        assert set(picked(answer)) == hosts


async def test_where_there_is_one_service_it_need_not_be_named() -> None:
    async with data_plane(graded_endpoints(2), envoy_service="header:x-service") as plane:
        assert await plane.pick({":authority": "anything"})
    async with data_plane(example_snapshot(example_topology()), envoy_service="header:x-service") as plane:
        (answer,) = await plane.exchange(request_headers())
        assert status_and_reason(answer) == (503, "endpoint_picker_nothing_can_serve")
        assert answer.immediate_response.body == b"the request names no service"


async def test_values_may_come_as_text() -> None:
    message = request_headers({})
    message.request_headers.headers.headers.add(key=":authority", value="service")
    message.request_headers.headers.headers.add(key=":authority", value="another")
    async with data_plane(example_snapshot(example_topology(services=1))) as plane:
        message.request_headers.headers.headers[0].value = "service-0"
        (answer,) = await plane.exchange(message)
        assert picked(answer)
