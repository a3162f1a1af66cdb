"""Repeated fields that hold a value per row each, read and checked as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy_server.api.errors import Count, InvalidArgumentError
from policy_server.api.figures import Range
from policy_server.cluster.snapshot import Int64Array


class Figures:
    """Fields that are read together, and what their values may be: within a range, or what stands for not known.

    Args:
        ranges: by field.
        unknown: what stands for a value that is not known: NaN, infinity, or nothing does.
    """

    def __init__(self, ranges: Mapping[str, Range], *, unknown: float | None = np.nan) -> None:
        self.fields = tuple(ranges)
        self.accepts_nan = unknown is not None and bool(np.isnan(unknown))
        self.smallest = np.array([[accepted.smallest] for accepted in ranges.values()])
        self.largest = np.array([[accepted.largest] for accepted in ranges.values()])
        if unknown == np.inf:
            self.largest[:] = np.inf
        instead = (
            "" if unknown is None else f", or {'NaN' if self.accepts_nan else 'infinity'} where not known"
        )
        self.remedies = tuple(accepted.remedy + instead for accepted in ranges.values())


class Columns:
    """The columns of one message.

    Args:
        message: holds them.
        path: of the message in the request, for errors.
        count: values that a column must have, unless it is empty.
        each: what there must be one value of, for errors, such as ``one per container``.
    """

    def __init__(self, message: Any, path: str, count: int, each: str) -> None:
        self._message = message
        self._path = path
        self._count = count
        self._each = each

    def given(self, field: str) -> bool:
        """Whether the column is not empty."""
        return len(getattr(self._message, field)) > 0

    def figures(self, accepted: Figures, dtype: type[np.floating[Any]] = np.float64) -> NDArray[Any]:
        """float [fields, count]: several columns at once; NaN where a column is empty.

        Args:
            accepted: the fields, and what their values may be.
            dtype: of the array; that of the fields spares a conversion.

        Raises:
            InvalidArgumentError: a column of another length, an empty one where NaN is not accepted, or a value that
                is not accepted.
        """
        values = np.empty((len(accepted.fields), self._count), dtype)
        for row, field in enumerate(accepted.fields):
            column = self._column(field)
            if column is None and not accepted.accepts_nan:
                raise self.missing(field, f"give {self._each}")
            values[row] = np.nan if column is None else column
        smallest, largest = (
            bound.astype(dtype, copy=False) for bound in (accepted.smallest, accepted.largest)
        )
        if accepted.accepts_nan:
            fine = not ((values < smallest) | (values > largest)).any()
        else:
            fine = bool(((values >= smallest) & (values <= largest)).all())
        if not fine:
            raise self._refused(accepted, values)
        return values

    def index(self, field: str, names: int, vocabulary: str) -> Int64Array:
        """int64 [count]: rows of a vocabulary of so many names.

        Raises:
            InvalidArgumentError: no such column, one of another length, or a row that there is not.
        """
        values = self.counts(field) if self._count else np.zeros(0, np.int64)
        if values is None:
            raise self.missing(field, f"give {self._each}, an index into {vocabulary}")
        self._require_below(
            field, values, names, f"must be an index into {vocabulary}, which has {names} names"
        )
        return values

    def counts(self, field: str) -> Int64Array | None:
        """int64 [count]: whole numbers; None where the column is empty.

        Raises:
            InvalidArgumentError: of another length.
        """
        column = self._column(field)
        return None if column is None else np.array(column, np.int64)

    def enumeration(self, field: str, kind: type[IntEnum]) -> NDArray[np.uint8] | None:
        """uint8 [count]: numbers of an enumeration without gaps; None where the column is empty.

        Raises:
            InvalidArgumentError: of another length, or a number that has no name.
        """
        values = self.counts(field)
        if values is None:
            return None
        self._require_below(field, values, len(kind), f"must be from 0 to {len(kind) - 1}")
        return values.astype(np.uint8)

    def missing(self, field: str, remedy: str) -> InvalidArgumentError:
        """An error for a column that is empty and must not be."""
        return InvalidArgumentError(f"{self._path}.{field}", None, remedy)

    def _column(self, field: str) -> Any:
        column = getattr(self._message, field)
        length = len(column)
        if not length:
            return None
        if length != self._count:
            raise InvalidArgumentError(
                f"{self._path}.{field}",
                Count(length, "values"),
                f"send {self._count}, {self._each}, or none",
            )
        return column

    def _require_below(self, field: str, values: Int64Array, end: int, remedy: str) -> None:
        if len(values) and (values.min() < 0 or values.max() >= end):
            place = int(((values < 0) | (values >= end)).argmax())
            raise InvalidArgumentError(f"{self._path}.{field}[{place}]", int(values[place]), remedy)

    def _refused(self, accepted: Figures, values: NDArray[Any]) -> InvalidArgumentError:
        fine = (values >= accepted.smallest) & (values <= accepted.largest)
        if accepted.accepts_nan:
            fine |= np.isnan(values)
        row, place = np.argwhere(~fine)[0].tolist()
        return InvalidArgumentError(
            f"{self._path}.{accepted.fields[row]}[{place}]", float(values[row, place]), accepted.remedies[row]
        )
