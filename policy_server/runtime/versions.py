"""Order of version names, by Semantic Versioning 2.0.0."""

from __future__ import annotations

import re
from functools import total_ordering

_IDENTIFIERS = r"[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*"
_PATTERN = re.compile(
    rf"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-({_IDENTIFIERS}))?(?:\+{_IDENTIFIERS})?", re.ASCII
)


@total_ordering
class SemanticVersion:
    """A version that compares by precedence (section 11): numbers first, a pre-release before its release."""

    def __init__(self, text: str) -> None:
        """Parses ``MAJOR.MINOR.PATCH[-PRERELEASE][+BUILD]``.

        Raises:
            ValueError: anything else.
        """
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise ValueError(f"version {text!r}: not MAJOR.MINOR.PATCH; name it like 1.0.0")
        major, minor, patch, prerelease = match.groups()
        self._key = (int(major), int(minor), int(patch), prerelease is None, _precedence(prerelease or ""))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SemanticVersion) and self._key == other._key

    def __lt__(self, other: SemanticVersion) -> bool:
        return self._key < other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _precedence(prerelease: str) -> tuple[tuple[bool, int, str], ...]:
    """Numeric identifiers compare as numbers and come before others."""
    return tuple(
        (False, int(part), "") if part.isdecimal() else (True, 0, part) for part in prerelease.split(".")
    )
