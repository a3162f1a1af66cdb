from __future__ import annotations

import grpc
import pytest

from bench.client import Client
from bench.commands import echo_command
from bench.echo import EXAMPLE_RESPONSE, response_builder, with_work
from bench.flavours import COMPARED_FLAVOURS, parse_flavour
from bench.scenario import generate_request
from bench.server_process import ServerProcess, free_port
from policy_server.proto.policy.v1.decision_pb2 import DecisionSource, FallbackReason, Provenance
from policy_server.proto.policy.v1.dispatch_service_pb2 import DispatchResponse


@pytest.mark.parametrize(
    "template",
    [
        EXAMPLE_RESPONSE,
        DispatchResponse(),
        DispatchResponse(
            endpoint="e",
            provenance=Provenance(
                source=DecisionSource.DECISION_SOURCE_FALLBACK,
                fallback_reason=FallbackReason.FALLBACK_REASON_STALE_STATE,
            ),
        ),
    ],
)
def test_built_responses_equal_the_template_and_are_new_each_time(template: DispatchResponse) -> None:
    build = response_builder(template)
    expected = DispatchResponse.FromString(template.SerializeToString())
    expected.provenance.SetInParent()
    assert build() == expected
    assert build() is not build()


def test_every_field_of_a_response_is_copied() -> None:
    """Fails when the message gains a field that the echo server does not send."""
    response = response_builder(EXAMPLE_RESPONSE)()
    assert {field.name for field, _ in response.ListFields()} == set(
        DispatchResponse.DESCRIPTOR.fields_by_name
    )
    assert set(Provenance.DESCRIPTOR.fields_by_name) == {
        "policy",
        "policy_version",
        "source",
        "fallback_reason",
        "snapshot_version",
        "snapshot_age_seconds",
    }


def test_work_changes_nothing_but_time() -> None:
    assert with_work(response_builder(EXAMPLE_RESPONSE), 10.0)() == EXAMPLE_RESPONSE


@pytest.mark.parametrize("flavour", ["aio", "aio-uvloop", "threads-2"])
def test_every_flavour_answers_and_serves_nothing_else(flavour: str) -> None:
    template = DispatchResponse(endpoint="10.0.0.1:80", provenance=Provenance(policy="p"))
    port = free_port()
    with ServerProcess("echo", echo_command(port, flavour, template), port) as process:
        with Client(process.address) as client:
            assert client.dispatch(generate_request()) == template
        with grpc.insecure_channel(process.address) as channel:
            call = channel.unary_unary("/policy.v1.DispatchService/DispatchBatch")
            with pytest.raises(grpc.RpcError) as error:
                call(b"", timeout=5)
            assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_flavour_names_are_read_back() -> None:
    assert all(parse_flavour(flavour.name) == flavour for flavour in COMPARED_FLAVOURS)


@pytest.mark.parametrize("name", ["", "threads-0", "threads-", "threads-x", "threads", "uvloop", "aio-"])
def test_unknown_flavours_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="use aio, aio-uvloop or threads-N"):
        parse_flavour(name)
