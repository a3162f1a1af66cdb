"""The subset hint, in every form in which data planes send it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.envoy.subset_hint import subset_of
from policy_server.proto.envoy.config.core.v3.base_pb2 import Metadata
from tests.support.ext_proc import SUBSET, data_plane, picked, request_headers, status_and_reason
from tests.support.serving import graded_endpoints
from tests.support.systems import with_endpoints

FIRST_TWO = ["10.0.0.0:8080", "10.0.0.1:8080"]
NAMESPACE = "envoy.lb.subset_hint"

addresses = st.lists(st.integers(0, 255).map(lambda last: f"10.0.0.{last}:8080"), max_size=6)
blanks = st.sampled_from(["", " ", "  "])


def hint(value: Any) -> Metadata:
    metadata = Metadata()
    metadata.filter_metadata[NAMESPACE].update({SUBSET: value})
    return metadata


@given(addresses, blanks, blanks)
def test_all_forms_say_the_same(listed: list[str], before: str, after: str) -> None:
    joined = ",".join(f"{before}{address}{after}" for address in listed)
    assert subset_of(hint(listed)) == subset_of(hint(joined)) == subset_of(hint([joined])) == listed


@pytest.mark.parametrize("value", [[], "", [""], " , ", None, 8080, {"a": "b"}, [8080]], ids=repr)
def test_a_hint_that_lists_nothing_allows_nothing(value: Any) -> None:
    assert subset_of(hint(value)) == []


def test_no_hint() -> None:
    assert subset_of(Metadata()) is None
    of_another = Metadata()
    of_another.filter_metadata[NAMESPACE].update({"another": ["10.0.0.0:8080"]})
    of_another.filter_metadata["envoy.lb"].update({SUBSET: ["10.0.0.0:8080"]})
    assert subset_of(of_another) is None


async def test_without_a_hint_the_whole_pool_is_chosen_from() -> None:
    async with data_plane(graded_endpoints(4), envoy_max_endpoints=17) as plane:
        assert sorted(await plane.pick()) == [f"10.0.0.{row}:8080" for row in range(4)]


@pytest.mark.parametrize(
    "value",
    [FIRST_TWO, ", ".join(FIRST_TWO), [",".join(FIRST_TWO)]],
    ids=["a list", "a string", "a string in a list"],
)
async def test_only_listed_endpoints_are_picked(value: Any) -> None:
    async with data_plane(graded_endpoints(4), envoy_max_endpoints=17) as plane:
        assert sorted(await plane.pick(subset=value)) == FIRST_TWO


async def test_endpoints_the_pool_lacks_are_never_picked() -> None:
    async with data_plane(graded_endpoints(4)) as plane:
        assert await plane.pick(subset=["10.9.9.9:1", "10.0.0.3:8080"]) == ["10.0.0.3:8080"]
        (answer,) = await plane.exchange(request_headers(subset=["10.9.9.9:1", "10.9.9.8:1"]))
        assert status_and_reason(answer) == (503, "endpoint_picker_nothing_can_serve")


@pytest.mark.parametrize("value", [[], "", [""]], ids=["no list", "no string", "no address"])
async def test_an_empty_subset_is_refused(value: Any) -> None:
    async with data_plane(graded_endpoints(4)) as plane:
        (answer,) = await plane.exchange(request_headers(subset=value))
        assert status_and_reason(answer) == (503, "endpoint_picker_subset_empty")
        assert not answer.immediate_response.headers.remove_headers
        assert await plane.pick()


@pytest.mark.parametrize("spelling", ["[fd00::1]:8080", "[FD00:0:0:0:0:0:0:1]:8080"])
async def test_ipv6_is_matched_and_comes_back_in_brackets(spelling: str) -> None:
    snapshot = with_endpoints(graded_endpoints(3), ["10.0.0.0:8080", "[fd00::1]:8080", "[fd00::2]:8080"])
    async with data_plane(snapshot) as plane:
        assert await plane.pick(subset=[spelling]) == ["[fd00::1]:8080"]


async def test_names_are_no_use_to_a_proxy() -> None:
    snapshot = with_endpoints(graded_endpoints(3), ["fast-one", "10.0.0.1:8080", "10.0.0.2:8080"])
    async with data_plane(snapshot, envoy_max_endpoints=17) as plane:
        assert await plane.pick() == ["10.0.0.1:8080", "10.0.0.2:8080"]


@pytest.mark.parametrize("obeyed", [False, True])
async def test_header_of_the_conformance_tests(obeyed: bool) -> None:
    asked = {":authority": "service", "test-epp-endpoint-selection": "10.0.0.3:8080,10.0.0.2:8080"}
    async with data_plane(graded_endpoints(4), envoy_test_header=obeyed, envoy_max_endpoints=17) as plane:
        assert len(await plane.pick(asked)) == (2 if obeyed else 4)
        if obeyed:
            assert await plane.pick(asked, subset=["10.0.0.3:8080", "10.0.0.1:8080"]) == ["10.0.0.3:8080"]
            stranger = {":authority": "service", "test-epp-endpoint-selection": "10.9.9.9:1"}
            (answer,) = await plane.exchange(request_headers(stranger))
            assert status_and_reason(answer)[0] == 503


async def test_a_subset_is_looked_up_in_the_state_of_the_moment() -> None:
    subset = ["10.0.0.1:8080", "10.0.0.9:8080"]
    async with data_plane(graded_endpoints(2)) as plane:
        assert await plane.pick(subset=subset) == ["10.0.0.1:8080"]
        await plane.serving.report(with_endpoints(graded_endpoints(2), ["10.0.0.9:8080", "10.0.0.8:8080"]))
        assert await plane.pick(subset=subset) == ["10.0.0.9:8080"]
        await plane.serving.report(graded_endpoints(2))
        assert await plane.pick(subset=subset) == ["10.0.0.1:8080"]


async def test_a_subset_does_not_outlive_its_request() -> None:
    async with data_plane(graded_endpoints(4), envoy_max_endpoints=17) as plane:
        stream = plane.open()
        assert picked(await stream.ask(request_headers(subset=FIRST_TWO))) == FIRST_TWO
        assert len(await plane.pick()) == 4
        await stream.finish()
