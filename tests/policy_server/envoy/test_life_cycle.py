"""Whatever happens to streams, each request counts as in flight until its stream ends, and not once more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import grpc
import pytest
from google.protobuf.message import DecodeError
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from policy_server.api.dispatch_logic import DispatchLimits, DispatchLogic
from policy_server.cluster.snapshot import ReplicaState, Snapshot
from policy_server.cluster.state_store import StateStore
from policy_server.envoy.picker import EndpointPicker
from policy_server.envoy.process_stream import ProcessSettings, ProcessStream
from policy_server.envoy.request_mapping import RequestMapping
from policy_server.policies.dispatch import DispatchView
from policy_server.proto.envoy.service.ext_proc.v3.external_processor_pb2 import (
    ProcessingRequest,
    ProcessingResponse,
)
from policy_server.runtime.registry import PolicyRegistry
from policy_server.telemetry.metrics import ServerMetrics
from tests.support.ext_proc import (
    data_plane,
    modes,
    picked,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
)
from tests.support.serving import equal_endpoints, graded_endpoints
from tests.support.systems import Endpoint, one_service_snapshot

ENDPOINTS = 4
served = st.none() | st.integers(0, ENDPOINTS + 1).map(lambda row: f"10.0.0.{row}:8080")
statuses = st.sampled_from(["200", "404", "503"])
duplex = st.sampled_from([0, 1, 2, 4])

messages = st.one_of(
    st.builds(
        lambda eos, mode, subset, silent: request_headers(
            end_of_stream=eos, protocol_config=modes(mode, mode), subset=subset, observability_mode=silent
        ),
        st.booleans(),
        duplex,
        st.none() | st.lists(st.sampled_from(["10.0.0.1:8080", "10.9.9.9:1"]), max_size=2),
        st.sampled_from([False, False, False, True]),
    ),
    st.builds(lambda eos: request_body(b"content", end_of_stream=eos), st.booleans()),
    st.builds(
        lambda status, who, eos: response_headers({":status": status}, served=who, end_of_stream=eos),
        statuses,
        served,
        st.booleans(),
    ),
    st.builds(lambda eos: response_body(b"content", end_of_stream=eos), st.booleans()),
    st.builds(request_trailers),
    st.builds(response_trailers),
    st.builds(ProcessingRequest),
)


@dataclass
class Open:
    """A stream and what is known of it without looking inside."""

    stream: ProcessStream
    in_flight: bool = False


class StreamsMachine(RuleBasedStateMachine):
    """Streams, reports and outcomes in any order, on the pipeline of a real server but without a network."""

    @initialize()
    def start(self) -> None:
        metrics = ServerMetrics()
        self.store: StateStore[DispatchView] = StateStore(DispatchView)
        registry = PolicyRegistry(active="earliest-completion")
        logic = DispatchLogic(self.store, registry, metrics, limits=DispatchLimits())
        self.picker = EndpointPicker(
            logic, self.store, metrics, maximum_endpoints=3, maximum_in_flight=8, saturated_from=1.0
        )
        self.settings = ProcessSettings(
            self.picker,
            RequestMapping("authority", "", ""),
            clear_route_cache=True,
            test_selection=False,
        )
        self.open: list[Open] = []
        self.report(equal_endpoints(ENDPOINTS))

    def report(self, snapshot: Snapshot) -> None:
        self.store.replace(snapshot.topology, snapshot.load)

    @rule()
    def open_stream(self) -> None:
        self.open.append(Open(ProcessStream(self.settings)))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), message=messages)
    def receive(self, data: st.DataObject, message: ProcessingRequest) -> None:
        one = data.draw(st.sampled_from(self.open))
        answers = [ProcessingResponse.FromString(a) for a in one.stream.receive(message.SerializeToString())]
        kinds = [answer.WhichOneof("response") for answer in answers]
        asked = message.WhichOneof("request")
        if "immediate_response" in kinds:
            assert (asked, len(kinds)) == ("request_headers", 1)
            one.in_flight = False
        elif kinds:
            assert set(kinds) == {asked}
            if asked == "request_headers":
                one.in_flight = True
            elif asked == "response_trailers" or _ends(message):
                one.in_flight = False

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def malformed(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.open))
        with pytest.raises(DecodeError):
            list(one.stream.receive(b"\xff\xff"))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), again=st.booleans())
    def end_stream(self, data: st.DataObject, again: bool) -> None:
        one = data.draw(st.sampled_from(self.open))
        one.stream.end()
        one.in_flight = False
        if not again:
            self.open = [other for other in self.open if other is not one]

    @rule(count=st.integers(1, ENDPOINTS + 1))
    def endpoints_come_and_go(self, count: int) -> None:
        self.report(equal_endpoints(count))

    @rule(states=st.lists(st.sampled_from(list(ReplicaState)), min_size=ENDPOINTS, max_size=ENDPOINTS))
    def endpoints_flap(self, states: list[ReplicaState]) -> None:
        self.report(one_service_snapshot([Endpoint(state=state) for state in states]))

    @rule(row=st.integers(0, ENDPOINTS))
    def outcome_is_reported(self, row: int) -> None:
        self.store.settle(f"10.0.0.{row}:8080", "ap-0", 0.1)

    @invariant()
    def requests_in_flight_are_those_of_open_streams(self) -> None:
        assert self.picker.in_flight == sum(one.in_flight for one in self.open)

    @invariant()
    def the_ledger_counts_no_more_than_is_in_flight(self) -> None:
        assert self.store.held is not None
        ledger = self.store.held.ledger
        assert ledger.pending <= self.picker.in_flight
        assert ledger.replica_pending.sum() == ledger.pending
        assert (ledger.pending_values >= 0).all()
        if not self.picker.in_flight:
            assert not ledger.pending_values.any()

    def teardown(self) -> None:
        for one in getattr(self, "open", []):
            one.stream.end()
        if hasattr(self, "picker"):
            assert self.picker.in_flight == 0
            assert self.store.held is not None
            assert self.store.held.ledger.pending == 0


def _ends(message: ProcessingRequest) -> bool:
    kind = message.WhichOneof("request")
    return kind in {"response_headers", "response_body"} and bool(getattr(message, kind).end_of_stream)


TestStreams = StreamsMachine.TestCase
TestStreams.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


async def eventually(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("did not happen in time")


async def test_a_reset_ends_the_request() -> None:
    async with data_plane(equal_endpoints(4)) as plane:
        streams, _ = await plane.picks_in_flight(20)
        for stream in streams[:15]:
            stream.call.cancel()
        await eventually(lambda: plane.in_flight == 5)
        assert sum(plane.pending) == 5
        for stream in streams[15:]:
            await stream.finish()
        assert plane.in_flight == sum(plane.pending) == 0


async def test_a_broken_connection_ends_its_requests() -> None:
    async with data_plane(equal_endpoints(4)) as plane:
        await plane.picks_in_flight(10)
        await plane.channel.close(None)
        await eventually(lambda: plane.in_flight == 0)
        assert sum(plane.pending) == 0


async def test_malformed_bytes_end_the_request_with_an_error() -> None:
    async with data_plane(equal_endpoints(4)) as plane:
        call = plane.channel.stream_stream("/envoy.service.ext_proc.v3.ExternalProcessor/Process")(timeout=20)
        await call.write(request_headers().SerializeToString())
        await call.read()
        assert plane.in_flight == 1
        await call.write(b"\xff\xff")
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        await eventually(lambda: plane.in_flight == 0)
        assert sum(plane.pending) == 0


async def test_a_retry_elsewhere_moves_the_request() -> None:
    async with data_plane(graded_endpoints(3)) as plane:
        stream = plane.open()
        await stream.ask(request_headers())
        assert plane.pending == [1, 0, 0]
        await stream.ask(response_headers(served="10.0.0.2:8080"))
        assert plane.pending == [0, 0, 1]
        stream.call.cancel()
        await eventually(lambda: plane.in_flight == 0)
        assert plane.pending == [0, 0, 0]


async def test_the_end_of_a_response_is_the_end_of_the_request() -> None:
    async with data_plane(graded_endpoints(3)) as plane:
        stream = plane.open()
        await stream.ask(request_headers())
        await stream.ask(response_headers(end_of_stream=True))
        assert plane.in_flight == sum(plane.pending) == 0
        await stream.finish()


async def test_an_endpoint_that_goes_takes_its_requests_along() -> None:
    async with data_plane(graded_endpoints(3)) as plane:
        streams, endpoints = await plane.picks_in_flight(9)
        left = sum(endpoint != "10.0.0.2:8080" for endpoint in endpoints)
        await plane.serving.report(one_service_snapshot([Endpoint(), Endpoint()]), age_seconds=1000)
        assert sum(plane.pending) == left
        await plane.serving.report(graded_endpoints(3), age_seconds=1000)
        assert sum(plane.pending) == left
        for stream in streams:
            await stream.finish()
        assert plane.in_flight == sum(plane.pending) == 0


@pytest.mark.parametrize("listed", [False, True], ids=["without figures", "with figures"])
async def test_a_report_takes_over_only_what_its_figures_show(listed: bool) -> None:
    snapshot = equal_endpoints(2)
    async with data_plane(snapshot) as plane:
        streams, _ = await plane.picks_in_flight(6)
        await asyncio.sleep(0.01)
        await plane.serving.report(snapshot, listed=listed)
        assert sum(plane.pending) == (0 if listed else 6)
        for stream in streams:
            await stream.finish()
        assert plane.in_flight == sum(plane.pending) == 0


async def test_a_thousand_streams_at_once_leave_nothing_behind() -> None:
    async with data_plane(equal_endpoints(4)) as plane:

        async def one(position: int) -> None:
            stream = plane.open()
            assert picked(await stream.ask(request_headers()))
            await all_open.wait()
            if position % 3 == 0:
                stream.call.cancel()
                return
            if position % 3 == 1:
                await stream.ask(response_headers(served="10.0.0.1:8080"))
            await stream.finish()

        all_open = asyncio.Event()
        requests = [asyncio.ensure_future(one(position)) for position in range(1000)]
        await eventually(lambda: plane.in_flight == 1000)
        shares: Iterable[float] = plane.pending
        assert max(shares) <= 260
        all_open.set()
        await asyncio.gather(*requests)
        await eventually(lambda: plane.in_flight == 0)
        assert sum(plane.pending) == 0
        server = plane.serving.server.picker
        assert server is not None
        await eventually(lambda: not server._services.streams._tasks)
