"""A repeated field as checked columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    def __init__(self, messages: Sequence[Any], path: str) -> None:
        self.messages = messages
        self.path = path

    def __len__(self) -> int:
        return len(self.messages)

    def index(self, field: str) -> dict[str, int]:
        """Row of each name in ``field``.

        Raises:
            InvalidArgumentError: a name is empty or appears twice.
        """
        rows: dict[str, int] = {}
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
        count = len(self.messages)
        names = [getattr(message, field) for message in self.messages]
        rows = np.fromiter((index.get(name, -1) for name in names), np.int32, count)
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
        values = np.fromiter((getattr(message, field) for message in messages), np.float64, count)
        if absent is None:
            return accepted.check_rows(self.path, field, values).astype(np.float32)
        present = np.fromiter((message.HasField(field) for message in messages), bool, count)
        accepted.check_rows(self.path, field, np.where(present, values, accepted.smallest))
        return np.where(present, values, absent).astype(np.float32)

    def error(self, row: int, field: str, value: object, remedy: str) -> InvalidArgumentError:
        """An error that names one field of one row."""
        return InvalidArgumentError(f"{self.path}[{row}].{field}", value, remedy)
