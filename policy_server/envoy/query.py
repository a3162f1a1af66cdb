"""Asks a running picker as Envoy does, for the shell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policy_server.envoy.names import DESTINATION_ENDPOINT, SUBSET_KEY, SUBSET_NAMESPACE
from policy_server.proto.envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValue
from policy_server.proto.envoy.service.ext_proc.v3.external_processor_pb2 import (
    HttpHeaders,
    ProcessingRequest,
    ProcessingResponse,
)
from policy_server.proto.envoy.service.ext_proc.v3.external_processor_pb2_grpc import ExternalProcessorStub
from policy_server.query import ask

NO_ANSWER = ProcessingResponse()


@dataclass(frozen=True)
class PickerAnswer:
    """What the picker says to one request.

    Attributes:
        endpoints: best first; empty if it is refused.
        status: HTTP status that a refused request is answered with; None if it is not refused.
        message: why it is refused; else empty.
    """

    endpoints: list[str]
    status: int | None
    message: str


def ask_pick(
    address: str, headers: Mapping[str, str], subset: Sequence[str] | None, timeout_seconds: float
) -> PickerAnswer:
    """The picker's answer to a request without a body, which ends at once.

    Args:
        address: of the picker.
        headers: of the request, names in lower case, pseudo-headers included.
        subset: endpoints the choice is restricted to, or None.
        timeout_seconds: to wait.

    Raises:
        click.ClickException: none answers.
    """
    listed = [HeaderValue(key=name, raw_value=value.encode()) for name, value in headers.items()]
    request = ProcessingRequest(
        request_headers=HttpHeaders(headers=HeaderMap(headers=listed), end_of_stream=True)
    )
    if subset is not None:
        request.metadata_context.filter_metadata[SUBSET_NAMESPACE].update({SUBSET_KEY: list(subset)})
    response: ProcessingResponse = ask(
        address,
        lambda channel: next(
            ExternalProcessorStub(channel).Process(iter([request]), timeout=timeout_seconds)
        ),
    )
    if response.HasField("immediate_response"):
        refusal = response.immediate_response
        return PickerAnswer([], refusal.status.code, refusal.body.decode())
    for option in response.request_headers.response.header_mutation.set_headers:
        if option.header.key == DESTINATION_ENDPOINT:
            return PickerAnswer(option.header.raw_value.decode().split(","), None, "")
    return PickerAnswer([], None, "the answer names no endpoint; is this an endpoint picker?")
