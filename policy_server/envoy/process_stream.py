"""One stream of external processing: messages of the data plane in, answers out, without any input or output.

What is answered follows the mode of the bodies, which the first message tells. Where a body is streamed in full duplex
its chunks come back as they are; elsewhere each message gets exactly one ordinary answer. The pick is made on the
request headers, whatever the mode.
"""

from __future__ import annotations

from collections.abc import Iterable

import grpc

from policy_server.envoy import replies
from policy_server.envoy.addresses import listed
from policy_server.envoy.names import (
    DESTINATION_NAMESPACE,
    SERVED_ENDPOINT,
    TEST_SELECTION_HEADER,
    UPSTREAM_ADDRESS,
)
from policy_server.envoy.picker import EndpointPicker, PickedRequest, Refusal
from policy_server.envoy.request_mapping import RequestMapping
from policy_server.envoy.subset_hint import subset_of
from policy_server.proto.envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from policy_server.proto.envoy.service.ext_proc.v3.external_processor_pb2 import (
    HttpBody,
    HttpHeaders,
    ProcessingRequest,
)

_NO_ANSWER: tuple[bytes, ...] = ()
_STATUS = ":status"
_SERVER_ERROR = "5"
_GRPC_STATUS = "grpc-status"
_GRPC_STATUS_HEADER = frozenset({_GRPC_STATUS})
_GRPC_SERVER_ERRORS = frozenset(
    str(code.value[0])
    for code in (
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    )
)
_SERVED_HEADER = frozenset({SERVED_ENDPOINT})
_STREAMED_BACK = (ProcessingMode.FULL_DUPLEX_STREAMED, ProcessingMode.GRPC)


class ProcessSettings:
    """What all streams have in common.

    Args:
        picker: picks.
        mapping: of headers and attributes.
        clear_route_cache: whether the proxy is to choose the route again, with the new header.
        test_selection: whether to obey the header of the conformance tests.
    """

    def __init__(
        self,
        picker: EndpointPicker,
        mapping: RequestMapping,
        *,
        clear_route_cache: bool,
        test_selection: bool,
    ) -> None:
        self.picker = picker
        self.mapping = mapping
        self.clear_route_cache = clear_route_cache
        self.test_selection = test_selection
        self.wanted_headers = mapping.headers | ({TEST_SELECTION_HEADER} if test_selection else set())


class ProcessStream:
    """The state of one stream."""

    __slots__ = ("_first", "_picked", "_refused", "_request_mode", "_response_mode", "_settings", "_silent")

    def __init__(self, settings: ProcessSettings) -> None:
        self._settings = settings
        self._first = True
        self._silent = False
        self._refused = False
        self._picked: PickedRequest | None = None
        self._request_mode = self._response_mode = ProcessingMode.NONE

    def receive(self, message: bytes) -> Iterable[bytes]:
        """The answers to a message, to be sent before the next message is received.

        Raises:
            google.protobuf.message.DecodeError: it is no ``ProcessingRequest``.
        """
        request = ProcessingRequest.FromString(message)
        if self._first:
            self._first = False
            self._silent = request.observability_mode
            self._request_mode = request.protocol_config.request_body_mode
            self._response_mode = request.protocol_config.response_body_mode
        if self._silent or self._refused:
            return _NO_ANSWER
        match request.WhichOneof("request"):
            case "request_headers":
                return (self._answer_request_headers(request),)
            case "response_headers":
                self._take_response_headers(request)
                return (replies.RESPONSE_HEADERS,)
            case "request_body":
                return self._answer_body(request.request_body, self._request_mode, of_request=True)
            case "response_body":
                if request.response_body.end_of_stream:
                    self.end()
                return self._answer_body(request.response_body, self._response_mode, of_request=False)
            case "request_trailers":
                return (replies.REQUEST_TRAILERS,)
            case "response_trailers":
                self.end()
                return (replies.RESPONSE_TRAILERS,)
        return _NO_ANSWER

    def end(self) -> None:
        """The request has ended, in whichever way. May be called again; it counts once."""
        if self._picked is not None:
            self._picked.end()
            self._picked = None

    def _answer_request_headers(self, request: ProcessingRequest) -> bytes:
        settings = self._settings
        self.end()
        headers = _wanted(request.request_headers, settings.wanted_headers)
        subset = subset_of(request.metadata_context)
        if settings.test_selection and TEST_SELECTION_HEADER in headers:
            subset = _within(subset, listed(headers[TEST_SELECTION_HEADER]))
        facts = settings.mapping.read(headers, lambda name: _attribute(request, name))
        picked = settings.picker.pick(facts, subset)
        if isinstance(picked, Refusal):
            self._refused = True
            return replies.refused(picked)
        self._picked = picked
        return replies.picked(picked.endpoints, settings.clear_route_cache)

    def _take_response_headers(self, request: ProcessingRequest) -> None:
        if self._picked is None:
            return
        response = request.response_headers
        self._picked.respond(_served(request), failed=_failed(response))
        if response.end_of_stream:
            self.end()

    def _answer_body(
        self, body: HttpBody, mode: ProcessingMode.BodySendMode.ValueType, *, of_request: bool
    ) -> Iterable[bytes]:
        if mode in _STREAMED_BACK:
            return replies.streamed(body, of_request=of_request, whole=mode == ProcessingMode.GRPC)
        return (replies.REQUEST_BODY if of_request else replies.RESPONSE_BODY,)


def _wanted(message: HttpHeaders, names: frozenset[str] | set[str]) -> dict[str, str]:
    """The first value of each header of those names."""
    found: dict[str, str] = {}
    for header in message.headers.headers:
        name = header.key
        if name in names and name not in found:
            found[name] = replies.text_of(header)
    return found


def _attribute(request: ProcessingRequest, name: str) -> str:
    for attributes in request.attributes.values():
        if name in attributes.fields:
            value = attributes.fields[name]
            return value.string_value if value.WhichOneof("kind") == "string_value" else ""
    return ""


def _failed(response: HttpHeaders) -> bool:
    """Whether the server failed, by HTTP status or, where a gRPC call ends with its first headers, by that of gRPC."""
    for header in response.headers.headers:
        # The first of all headers, wherever order counts.
        if header.key == _STATUS:
            if replies.text_of(header).startswith(_SERVER_ERROR):
                return True
            break
    if not response.end_of_stream:
        return False
    return _wanted(response, _GRPC_STATUS_HEADER).get(_GRPC_STATUS) in _GRPC_SERVER_ERRORS


def _served(request: ProcessingRequest) -> str | None:
    """Address of who served; None where nobody tells."""
    namespaces = request.metadata_context.filter_metadata
    if DESTINATION_NAMESPACE in namespaces:
        told = namespaces[DESTINATION_NAMESPACE].fields
        if SERVED_ENDPOINT in told:
            return told[SERVED_ENDPOINT].string_value
    return _attribute(request, UPSTREAM_ADDRESS) or _wanted(request.response_headers, _SERVED_HEADER).get(
        SERVED_ENDPOINT
    )


def _within(subset: list[str] | None, selection: Iterable[str]) -> list[str]:
    return [address for address in selection if subset is None or address in subset]
