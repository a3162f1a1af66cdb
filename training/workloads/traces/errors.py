"""The error of everything that reads traces."""

from __future__ import annotations

from pathlib import Path


class TraceError(ValueError):
    """A trace that cannot be read or used.

    Attributes:
        path: the file.
        problem: what is wrong.
        remedy: what to do about it.
        line: 1-based line number where the problem is in one line.
        column: name of the column.
        value: the offending text.
    """

    def __init__(
        self,
        path: Path,
        problem: str,
        remedy: str,
        line: int | None = None,
        column: str | None = None,
        value: str | None = None,
    ) -> None:
        super().__init__(path, problem, remedy, line, column, value)
        self.path = path
        self.problem = problem
        self.remedy = remedy
        self.line = line
        self.column = column
        self.value = value

    def __str__(self) -> str:
        place = str(self.path) if self.line is None else f"{self.path}:{self.line}"
        column = "" if self.column is None else f"{self.column}: "
        value = "" if self.value is None else f" ({_shortened(self.value)!r})"
        return f"{place}: {column}{self.problem}{value}; {self.remedy}"


def _shortened(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
