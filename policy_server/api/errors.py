"""Why a request gets no decision, in words every transport can translate.

Each message names the field, its value and the remedy. A fault of a model is not among them: the fallback answers.
"""

from __future__ import annotations

from dataclasses import dataclass

_SHOWN_CHARACTERS = 80


class RequestError(Exception):
    """A request that gets no answer. Transports map the subclasses to their own status codes."""


class InvalidArgumentError(RequestError):
    """A field of the request cannot be used."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field}: {shown(value)}; {remedy}")
        self.field = field


class UnknownPolicyError(RequestError):
    """No policy has the requested name."""


class NothingCanServeError(RequestError):
    """No endpoint can serve the request now, or there is no state to choose from; another time there may be."""


class OverloadedError(RequestError):
    """The server sheds load.

    Attributes:
        retry_after_milliseconds: how long the caller should wait.
    """

    def __init__(self, message: str, retry_after_milliseconds: int) -> None:
        super().__init__(message)
        self.retry_after_milliseconds = retry_after_milliseconds


class DeadlineSpentError(RequestError):
    """The caller stopped waiting before a decision was made; no policy was asked."""

    def __init__(self) -> None:
        super().__init__("the call's deadline passed before a decision was made; allow more time")


@dataclass(frozen=True)
class Count:
    """How many there are of something, where that is the value at fault."""

    number: int
    noun: str

    def __str__(self) -> str:
        return f"{self.number} {self.noun}"


def shown(value: object) -> str:
    """The value as error messages show it, shortened where it is long."""
    if value is None:
        return "not set"
    text = repr(value) if isinstance(value, (str, bytes)) else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
