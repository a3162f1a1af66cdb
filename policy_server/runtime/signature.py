"""What goes into a model and comes out of it: names, element types and shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.typing import NDArray

Dimension: TypeAlias = int | str
"""A fixed length, or the name of one that varies from call to call."""


class SignatureError(ValueError):
    """A model, or what it is fed, does not have the shape agreed on. The message names the tensor."""


@dataclass(frozen=True)
class TensorSpec:
    """One input or output.

    Attributes:
        name: in the graph.
        dtype: numpy's name of the element type.
        shape: one entry per dimension.
    """

    name: str
    dtype: str
    shape: tuple[Dimension, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype} [{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Signature:
    """All inputs and outputs of a model, in order."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def require(self, expected: Signature) -> None:
        """Checks that a model with this signature can stand where ``expected`` is called for.

        Names and element types must be the same and fixed lengths equal; where a varying length is expected, a
        frozen one is refused (exporters silently freeze the length of the example input).

        Raises:
            SignatureError: naming the first tensor that differs.
        """
        for role, have, want in (
            ("input", self.inputs, expected.inputs),
            ("output", self.outputs, expected.outputs),
        ):
            have_names, want_names = [t.name for t in have], [t.name for t in want]
            if have_names != want_names:
                raise SignatureError(f"{role}s: {have_names}, expected {want_names}")
            for actual, tensor in zip(have, want, strict=True):
                if not _stands_for(actual, tensor):
                    raise SignatureError(f"{role} {actual}, expected {tensor}")

    def check_inputs(self, feeds: Mapping[str, NDArray[Any]]) -> None:
        """Checks arrays against the inputs.

        Raises:
            SignatureError: naming the first missing, unknown or unfit input.
        """
        names = [tensor.name for tensor in self.inputs]
        for name in feeds:
            if name not in names:
                raise SignatureError(f"input {name}: unknown; the model takes {names}")
        bound: dict[str, tuple[int, str]] = {}
        for tensor in self.inputs:
            if tensor.name not in feeds:
                raise SignatureError(
                    f"input {tensor.name}: missing; give {tensor.dtype} {list(tensor.shape)}"
                )
            _check_array(tensor, feeds[tensor.name], bound)


def _stands_for(actual: TensorSpec, expected: TensorSpec) -> bool:
    if actual.dtype != expected.dtype or len(actual.shape) != len(expected.shape):
        return False
    return all(
        isinstance(have, str) if isinstance(want, str) else have == want
        for have, want in zip(actual.shape, expected.shape, strict=True)
    )


def _check_array(tensor: TensorSpec, array: NDArray[Any], bound: dict[str, tuple[int, str]]) -> None:
    if str(array.dtype) != tensor.dtype:
        raise SignatureError(f"input {tensor.name}: {array.dtype}; give {tensor.dtype}")
    if array.ndim != len(tensor.shape):
        raise SignatureError(f"input {tensor.name}: shape {array.shape}; give {list(tensor.shape)}")
    for length, dimension in zip(array.shape, tensor.shape, strict=True):
        if isinstance(dimension, int):
            if length != dimension:
                raise SignatureError(f"input {tensor.name}: shape {array.shape}; give {list(tensor.shape)}")
            continue
        agreed, other = bound.setdefault(dimension, (length, tensor.name))
        if length != agreed:
            raise SignatureError(
                f"input {tensor.name}: shape {array.shape}; {dimension} is {agreed} in input {other}"
            )
