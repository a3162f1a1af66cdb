"""What a request's headers and attributes mean: which service, from where, how urgent, how large.

Where the service, the access point and the priority are named are settings: sources separated by commas, the first of
which has a value wins.

========================  ==================================================================================
``header:NAME``           the request header NAME
``attribute:NAME``        the attribute NAME that the filter sends (``request_attributes``, such as
                          ``xds.cluster_name``; for authorization an entry of ``context_extensions``)
``authority``             the host of ``:authority``, without its port
``path-prefix``           the first segment of the path: ``cart`` for ``/cart/items?page=2``
``fixed:VALUE``           VALUE, always
========================  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from policy_server.api.figures import BYTES, OPTIONAL_DEADLINE_SECONDS

Headers = Mapping[str, str]
Attribute = Callable[[str], str]
Source = Callable[[Headers, Attribute], str]

AUTHORITY = ":authority"
PATH = ":path"
EXPECTED_TIMEOUT = "x-envoy-expected-rq-timeout-ms"
GRPC_TIMEOUT = "grpc-timeout"
CONTENT_LENGTH = "content-length"

_GRPC_UNIT_SECONDS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_MOST_GRPC_DIGITS = 8


class MappingError(ValueError):
    """A mapping that cannot be read. The message names it and the remedy."""


class RequestFacts(NamedTuple):
    """What a request asks for.

    Attributes:
        service: empty where no source named one.
        access_point: empty where no source named one.
        deadline_seconds: the client waits for the response; 0: not said.
        payload_bytes: 0: not said.
        priority: below zero for requests that may be shed first.
        malformed: whether one of the three was said but cannot be read; it counts as not said.
    """

    service: str
    access_point: str
    deadline_seconds: float
    payload_bytes: float
    priority: int
    malformed: bool


class RequestMapping:
    """Reads requests.

    Args:
        service: sources of the service's name, as the module describes.
        access_point: sources of the access point's name.
        priority: sources of the priority, a whole number.

    Attributes:
        headers: names of all headers that are read, in lower case.

    Raises:
        MappingError: a source cannot be read.
    """

    def __init__(self, service: str, access_point: str, priority: str) -> None:
        self._service = _Sources("envoy_service", service)
        self._access_point = _Sources("envoy_access_point", access_point)
        self._priority = _Sources("envoy_priority", priority)
        named = (self._service, self._access_point, self._priority)
        self.headers = frozenset(
            (EXPECTED_TIMEOUT, GRPC_TIMEOUT, CONTENT_LENGTH, *(name for one in named for name in one.headers))
        )

    def read(self, headers: Headers, attribute: Attribute) -> RequestFacts:
        """What a request asks for.

        Args:
            headers: those of :attr:`headers` that the request has.
            attribute: value of an attribute; empty where there is none.
        """
        figures = _figures(
            headers.get(EXPECTED_TIMEOUT),
            headers.get(GRPC_TIMEOUT),
            headers.get(CONTENT_LENGTH),
            self._priority.value(headers, attribute),
        )
        return RequestFacts(
            self._service.value(headers, attribute), self._access_point.value(headers, attribute), *figures
        )


class _Sources:
    """The sources of one name, in order."""

    def __init__(self, field: str, text: str) -> None:
        self.headers: set[str] = set()
        parts = [part.strip() for part in text.split(",")]
        self._sources = [self._parsed(field, part) for part in parts if part]

    def value(self, headers: Headers, attribute: Attribute) -> str:
        for source in self._sources:
            if value := source(headers, attribute):
                return value
        return ""

    def _parsed(self, field: str, text: str) -> Source:
        kind, _, name = text.partition(":")
        if kind == "header" and name:
            header = name.lower()
            self.headers.add(header)
            return lambda headers, _: headers.get(header, "")
        if kind == "attribute" and name:
            return lambda _, attribute: attribute(name)
        if kind == "fixed" and name:
            return lambda _, __: name
        if text == "authority":
            self.headers.add(AUTHORITY)
            return lambda headers, _: _host(headers.get(AUTHORITY, ""))
        if text == "path-prefix":
            self.headers.add(PATH)
            return lambda headers, _: _first_segment(headers.get(PATH, ""))
        raise MappingError(
            f"{field}: {text!r}; give header:NAME, attribute:NAME, authority, path-prefix or fixed:VALUE"
        )


@lru_cache(maxsize=4096)
def _host(authority: str) -> str:
    if authority.startswith("["):
        return authority.partition("]")[0] + "]"
    return authority.partition(":")[0].lower()


def _first_segment(path: str) -> str:
    return path.partition("?")[0].lstrip("/").partition("/")[0]


@lru_cache(maxsize=16_384)
def _figures(
    expected_timeout: str | None, grpc_timeout: str | None, content_length: str | None, priority_text: str
) -> tuple[float, float, int, bool]:
    """Deadline in seconds, payload in bytes, priority, and whether one of them cannot be read."""
    deadline_seconds, payload_bytes, priority, malformed = 0.0, 0.0, 0, False
    if expected_timeout is not None:
        milliseconds = _whole_number(expected_timeout)
        malformed = milliseconds is None
        deadline_seconds = (milliseconds or 0) * 1e-3
    elif grpc_timeout is not None:
        seconds = _grpc_timeout_seconds(grpc_timeout)
        malformed = seconds is None
        deadline_seconds = seconds or 0.0
    if content_length is not None:
        size = _whole_number(content_length)
        if size is None or size > BYTES.largest:
            malformed = True
        else:
            payload_bytes = float(size)
    if priority_text:
        number = _whole_number(priority_text.removeprefix("-"))
        malformed = malformed or number is None
        priority = -(number or 0) if priority_text.startswith("-") else number or 0
    # Longer than the longest there is no difference.
    return min(deadline_seconds, OPTIONAL_DEADLINE_SECONDS.largest), payload_bytes, priority, malformed


def _whole_number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else None


def _grpc_timeout_seconds(text: str) -> float | None:
    """The time in a ``grpc-timeout``: at most eight digits and a unit (gRPC over HTTP/2)."""
    digits, unit = text.strip()[:-1], text.strip()[-1:]
    if unit not in _GRPC_UNIT_SECONDS or not 0 < len(digits) <= _MOST_GRPC_DIGITS or not digits.isascii():
        return None
    return int(digits) * _GRPC_UNIT_SECONDS[unit] if digits.isdigit() else None
