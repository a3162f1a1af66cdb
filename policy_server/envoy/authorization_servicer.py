"""``envoy.service.auth.v3.Authorization`` over gRPC: one call per request, headers only.

It costs less than a stream, and sees no response: how long its requests are in flight is an expectation (see
:mod:`policy_server.envoy.expiry`), unless ``ReportOutcome`` tells.
"""

from __future__ import annotations

from functools import lru_cache

from policy_server.api.rpc import CallContext
from policy_server.envoy import replies
from policy_server.envoy.expiry import Expiry
from policy_server.envoy.names import DESTINATION_ENDPOINT
from policy_server.envoy.picker import EndpointPicker, Refusal
from policy_server.envoy.request_mapping import AUTHORITY, PATH, RequestMapping
from policy_server.envoy.subset_hint import subset_of
from policy_server.proto.envoy.config.core.v3.base_pb2 import HeaderValue, HeaderValueOption
from policy_server.proto.envoy.service.auth.v3.attribute_context_pb2 import AttributeContext
from policy_server.proto.envoy.service.auth.v3.external_auth_pb2 import (
    CheckRequest,
    CheckResponse,
    DeniedHttpResponse,
    OkHttpResponse,
)
from policy_server.proto.envoy.type.v3.http_status_pb2 import HttpStatus
from policy_server.proto.google.rpc.status_pb2 import Status


class AuthorizationServicer:
    """Translates.

    Args:
        picker: picks.
        mapping: of headers and attributes.
        expiry: ends requests.
    """

    def __init__(self, picker: EndpointPicker, mapping: RequestMapping, expiry: Expiry) -> None:
        self._picker = picker
        self._mapping = mapping
        self._expiry = expiry

    async def Check(self, request: CheckRequest, context: CallContext) -> CheckResponse:  # noqa: N802
        """Picks for one request."""
        attributes = request.attributes
        extensions = attributes.context_extensions
        facts = self._mapping.read(
            _headers(attributes.request.http, self._mapping.headers), lambda name: extensions.get(name, "")
        )
        picked = self._picker.pick(facts, subset_of(attributes.metadata_context))
        if isinstance(picked, Refusal):
            return _denied(picked)
        expected_seconds = self._picker.expected_seconds(picked)
        self._expiry.end_after(min(expected_seconds, facts.deadline_seconds or expected_seconds), picked)
        return _allowed(picked.endpoints)


def _headers(http: AttributeContext.HttpRequest, names: frozenset[str]) -> dict[str, str]:
    """The headers of those names, from whichever of its two fields the filter fills."""
    found = {name: http.headers[name] for name in names if name in http.headers}
    for header in http.header_map.headers:
        if header.key in names:
            found.setdefault(header.key, replies.text_of(header))
    if http.host:
        found.setdefault(AUTHORITY, http.host)
    if http.path:
        found.setdefault(PATH, http.path)
    return found


@lru_cache(maxsize=16_384)
def _allowed(endpoints: str) -> CheckResponse:
    header = HeaderValueOption(
        # The filter reads no raw values.
        header=HeaderValue(key=DESTINATION_ENDPOINT, value=endpoints),
        append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
    )
    response = CheckResponse(ok_response=OkHttpResponse(headers=[header]))
    response.dynamic_metadata.update({DESTINATION_ENDPOINT: endpoints})
    return response


def _denied(refusal: Refusal) -> CheckResponse:
    headers = [
        HeaderValueOption(header=HeaderValue(key=name, value=value))
        for name, value in replies.retry_headers(refusal).items()
    ]
    return CheckResponse(
        status=Status(code=replies.grpc_code_of(refusal), message=refusal.message),
        denied_response=DeniedHttpResponse(
            status=HttpStatus(code=replies.status_of(refusal)), headers=headers, body=refusal.message
        ),
    )
