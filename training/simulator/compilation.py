"""Compilation of the simulator's inner loops to machine code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    # Nothing here creates an array, so nothing needs to count references to them, which took half of the time.
    "_nrt": False,
}


def compiled(function: FunctionT) -> FunctionT:
    """Compiles on first call, keeps the machine code on disk and releases the GIL while running.

    Floating-point arithmetic follows IEEE 754 in program order (no ``fastmath``), so that results are the same
    bit for bit as those of the same formulas in plain Python. A compiled function must not create arrays.
    """
    return cast(FunctionT, njit(**_OPTIONS)(function))
