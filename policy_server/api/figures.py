"""Which numbers are taken for measurements.

NaN, infinities and negative figures are refused, and so are figures no machine has: inside these ranges the
single-precision formulas behind features and scores cannot overflow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policy_server.api.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Range:
    """Smallest and largest figure that is accepted, both included."""

    smallest: float
    largest: float

    @property
    def remedy(self) -> str:
        """What an error message asks for."""
        return f"must be a finite number from {self.smallest:g} to {self.largest:g}"

    def check(self, field: str, value: float) -> float:
        """The value.

        Raises:
            InvalidArgumentError: it is NaN or outside the range.
        """
        if self.smallest <= value <= self.largest:
            return value
        raise InvalidArgumentError(field, value, self.remedy)

    def accepts(self, values: NDArray[np.float64]) -> bool:
        """Whether all values lie in the range."""
        return self._first_refused(values) is None

    def check_values(self, field: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The values of a repeated field.

        Raises:
            InvalidArgumentError: naming the first value that is NaN or outside the range.
        """
        row = self._first_refused(values)
        if row is not None:
            raise InvalidArgumentError(f"{field}[{row}]", float(values[row]), self.remedy)
        return values

    def check_rows(self, rows: str, field: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The values of one field of many rows.

        Raises:
            InvalidArgumentError: naming the first row whose value is NaN or outside the range.
        """
        row = self._first_refused(values)
        if row is not None:
            raise InvalidArgumentError(f"{rows}[{row}].{field}", float(values[row]), self.remedy)
        return values

    def _first_refused(self, values: NDArray[np.float64]) -> int | None:
        accepted = (values >= self.smallest) & (values <= self.largest)
        return None if accepted.all() else int(accepted.argmin())


CPU_MILLICORES = Range(1e-3, 1e9)
CPU_USED_MILLICORES = Range(0, 1e9)
MEMORY_BYTES = Range(1, 1e18)
BYTES = Range(0, 1e18)
SPEED = Range(1e-6, 1e6)
EXECUTION_SECONDS = Range(1e-9, 1e6)
SECONDS = Range(0, 1e6)
DEADLINE_SECONDS = Range(1e-6, 1e6)
OPTIONAL_DEADLINE_SECONDS = Range(0, 1e6)
LATENCY_SECONDS = Range(0, 1e6)
BANDWIDTH_BYTES_PER_SECOND = Range(1e-3, 1e18)
OPTIONAL_BANDWIDTH_BYTES_PER_SECOND = Range(0, 1e18)
REQUESTS = Range(0, 1e9)
REQUESTS_PER_SECOND = Range(0, 1e9)
CONCURRENCY = Range(1, 1e6)
