"""A repeated field as checked columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import repeat
from operator import attrgetter, methodcaller
from typing import Any

import numpy as np

from policy_server.api.errors import InvalidArgumentError
from policy_server.api.figures import Range
from policy_server.cluster.snapshot import Float32Array, Int32Array


class MessageRows:
    """The messages of a repeated field.

    Args:
        messages: the repeated field.
        path: of the field in the request, for error messages.
    """

    def __init__(self, messages: Iterable[Any], path: str) -> None:
        # A repeated field makes its messages anew each time it is walked through.
        self.messages = list(messages)
        self.path = path

    def __len__(self) -> int:
        return len(self.messages)

    def index(self, field: str) -> dict[str, int]:
        """Row of each name in ``field``.

        Raises:
            InvalidArgumentError: a name is empty or appears twice.
        """
        names = self._values(field)
        rows = dict(zip(names, range(len(names)), strict=True))
        if len(rows) == len(names) and "" not in rows:
            return rows
        rows = {}
        for row, message in enumerate(self.messages):
            name = getattr(message, field)
            if not name:
                raise self.error(row, field, name, "must not be empty")
            if rows.setdefault(name, row) != row:
                raise self.error(
                    row, field, name, f"appears in row {rows[name]} already; names must be unique"
                )
        return rows

    def references(self, field: str, index: Mapping[str, int], vocabulary: str) -> Int32Array:
        """int32 [rows]: row of each name in ``field``.

        Args:
            field: holds the names.
            index: row of each known name.
            vocabulary: where the known names come from, for error messages.

        Raises:
            InvalidArgumentError: a name is unknown.
        """
        names = self._values(field)
        rows = np.fromiter(map(index.get, names, repeat(-1)), np.int32, len(names))
        unknown = rows < 0
        if unknown.any():
            row = int(np.flatnonzero(unknown)[0])
            raise self.error(
                row, field, names[row], f"is not in {vocabulary}; add it there or correct the name"
            )
        return rows

    def distinct_references(self, field: str, index: Mapping[str, int], vocabulary: str) -> Int32Array:
        """Like :meth:`references`, but no name may appear twice."""
        rows = self.references(field, index, vocabulary)
        if len(np.unique(rows)) != len(rows):
            self.index(field)
        return rows

    def figures(self, field: str, accepted: Range, *, absent: float | None = None) -> Float32Array:
        """float32 [rows]: the figures in ``field``.

        Args:
            field: holds the figures.
            accepted: the range they must lie in.
            absent: for an optional field, what stands for an absent figure.

        Raises:
            InvalidArgumentError: a figure is NaN or outside the range.
        """
        messages, count = self.messages, len(self.messages)
        values = np.fromiter(map(attrgetter(field), messages), np.float64, count)
        if absent is None:
            return accepted.check_rows(self.path, field, values).astype(np.float32)
        present = np.fromiter(map(methodcaller("HasField", field), messages), bool, count)
        accepted.check_rows(self.path, field, np.where(present, values, accepted.smallest))
        return np.where(present, values, absent).astype(np.float32)

    def _values(self, field: str) -> list[str]:
        return list(map(attrgetter(field), self.messages))

    def error(self, row: int, field: str, value: object, remedy: str) -> InvalidArgumentError:
        """An error that names one field of one row."""
        return InvalidArgumentError(f"{self.path}[{row}].{field}", value, remedy)
