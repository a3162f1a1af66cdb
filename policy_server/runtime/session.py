"""One loaded ONNX model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnxruntime
from numpy.typing import NDArray

from policy_server.runtime.cpu_budget import session_options
from policy_server.runtime.signature import Dimension, Signature, SignatureError, TensorSpec

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
}
_UNNAMED = "?"


class ModelError(RuntimeError):
    """A model cannot be loaded or failed while running."""


class ModelSession:
    """An ONNX model ready to run on the CPU; safe to call from several threads."""

    def __init__(self, model: bytes, options: onnxruntime.SessionOptions | None = None) -> None:
        """Loads a serialised ModelProto.

        Raises:
            ModelError: not an ONNX model, or one that ONNX Runtime cannot run.
            SignatureError: a tensor of an unsupported type.
        """
        try:
            self._session = onnxruntime.InferenceSession(
                model, options or session_options(), providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise ModelError(f"not loadable: {error}") from error
        self.signature = Signature(
            inputs=tuple(_tensor_spec(node) for node in self._session.get_inputs()),
            outputs=tuple(_tensor_spec(node) for node in self._session.get_outputs()),
        )
        self._output_names = [tensor.name for tensor in self.signature.outputs]
        # The public method validates names in Python first, a fifth of a call on ten candidates.
        direct = getattr(self._session, "_sess", self._session)
        self._run = direct.run

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Outputs in the order of the signature.

        Args:
            feeds: an array for every input of the signature. Looked at closely only once a run has failed; arrays
                from outside go through :meth:`~policy_server.runtime.signature.Signature.check_inputs` first.

        Raises:
            SignatureError: an unknown input, or one of the wrong type or shape.
            ModelError: any other failure of the run.
        """
        try:
            outputs: list[NDArray[Any]] = self._run(self._output_names, feeds, None)
        except Exception as error:
            self.signature.check_inputs(feeds)
            raise ModelError(str(error)) from error
        return outputs


def _tensor_spec(node: onnxruntime.NodeArg) -> TensorSpec:
    dtype = _DTYPES.get(node.type)
    if dtype is None:
        raise SignatureError(f"{node.name}: {node.type}; export one of {', '.join(_DTYPES)}")
    shape: tuple[Dimension, ...] = tuple(_UNNAMED if length is None else length for length in node.shape)
    return TensorSpec(node.name, dtype, shape)
