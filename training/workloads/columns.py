"""Checks shared by everything here that is built of column arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike, NDArray


class WorkloadError(ValueError):
    """A workload that contradicts itself or cannot be made. Names the field, the offending value and the remedy."""


def check_column(
    name: str, values: NDArray[np.number], dtype: DTypeLike, length: int, *, positive: bool = False
) -> None:
    """Refuses a column of another type or length, NaN, infinities and negative values (zero too with ``positive``).

    Raises:
        WorkloadError: naming the column and the first offending row with its value.
    """
    if not isinstance(values, np.ndarray) or values.dtype != np.dtype(dtype) or values.ndim != 1:
        found = f"{values.dtype} {values.shape}" if isinstance(values, np.ndarray) else type(values).__name__
        raise WorkloadError(f"{name}: {found}; must be a one-dimensional {np.dtype(dtype)} array")
    if len(values) != length:
        raise WorkloadError(f"{name}: {len(values)} values for {length} rows; give one value per row")
    good = np.isfinite(values) & (values > 0 if positive else values >= 0)
    if not good.all():
        row = int(np.argmin(good))
        requirement = "above zero" if positive else "zero or more"
        raise WorkloadError(f"{name}[{row}]: {values[row]}; must be a finite number, {requirement}")


def check_index(name: str, values: NDArray[np.number], length: int, bound: int | None = None) -> None:
    """Refuses a column that is not int32 or names a row below zero or, where ``bound`` is given, at or above it.

    Raises:
        WorkloadError: naming the column and the first offending row with its value.
    """
    check_column(name, values, np.int32, length)
    if bound is not None and len(values) and int(values.max()) >= bound:
        row = int(np.argmax(values >= bound))
        raise WorkloadError(f"{name}[{row}]: {values[row]}; must name a row from 0 to {bound - 1}")


def check_positive(name: str, value: float) -> None:
    """Refuses a number that is not finite or not above zero.

    Raises:
        WorkloadError: naming the field and its value.
    """
    if not (np.isfinite(value) and value > 0):
        raise WorkloadError(f"{name}: {value}; must be a finite number above zero")
