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

    def bind(self, inputs: Mapping[str, NDArray[Any]], outputs: Mapping[str, NDArray[Any]]) -> BoundRun:
        """A run over arrays that stay where they are.

        Args:
            inputs: a contiguous array for every input of the signature.
            outputs: a contiguous array for every output of the signature, of the shape these inputs lead to.

        Raises:
            SignatureError: an unknown input, or one of the wrong type or shape.
        """
        self.signature.check_inputs(inputs)
        return BoundRun(self._session, inputs, outputs)


class BoundRun:
    """A model bound to arrays: reads its inputs from them and writes its outputs to them, whenever it is run.

    Spares what :meth:`ModelSession.run` does with arrays it has not seen before, which takes a third of a run on ten
    candidates. For one thread at a time.

    Attributes:
        inputs: to be written to before a run.
        outputs: overwritten by every run.
    """

    __slots__ = ("_binding", "_run", "inputs", "outputs")

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        inputs: Mapping[str, NDArray[Any]],
        outputs: Mapping[str, NDArray[Any]],
    ) -> None:
        """See :meth:`ModelSession.bind`."""
        # The binding knows addresses only, so the arrays must live as long as it does.
        self.inputs = inputs
        self.outputs = outputs
        self._run = session.run_with_iobinding
        self._binding = session.io_binding()
        for bind, arrays in ((self._binding.bind_input, inputs), (self._binding.bind_output, outputs)):
            for name, array in arrays.items():
                if not array.flags.c_contiguous:
                    raise ValueError(f"{name}: not contiguous; copy it first")
                bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

    def run(self) -> None:
        """Fills the outputs.

        Raises:
            ModelError: the run failed.
        """
        try:
            self._run(self._binding)
        except Exception as error:
            raise ModelError(str(error)) from error


def _tensor_spec(node: onnxruntime.NodeArg) -> TensorSpec:
    dtype = _DTYPES.get(node.type)
    if dtype is None:
        raise SignatureError(f"{node.name}: {node.type}; export one of {', '.join(_DTYPES)}")
    shape: tuple[Dimension, ...] = tuple(_UNNAMED if length is None else length for length in node.shape)
    return TensorSpec(node.name, dtype, shape)
