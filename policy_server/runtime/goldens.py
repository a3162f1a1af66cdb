"""Example inputs and outputs of a bundle's models: proof that they compute here what they computed in training."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy_server.runtime.session import ModelError, ModelSession
from policy_server.runtime.signature import SignatureError

TOLERANCE = 1e-5
"""Largest difference from a golden output, relative to the output's largest magnitude where that exceeds 1."""


class GoldenError(ValueError):
    """Goldens that cannot be read, or that a model does not reproduce. The message names model and output."""


@dataclass(frozen=True)
class Golden:
    """One example run of a model.

    Attributes:
        model: name of the graph.
        inputs: arrays by input name.
        outputs: arrays by output name, as computed by what the graph was exported from.
    """

    model: str
    inputs: Mapping[str, NDArray[Any]]
    outputs: Mapping[str, NDArray[Any]]


def pack_goldens(goldens: Sequence[Golden]) -> bytes:
    """The goldens as an ``.npz`` archive with keys ``CASE/MODEL/(input|output)/NAME``."""
    arrays = {
        f"{case}/{golden.model}/{role}/{name}": array
        for case, golden in enumerate(goldens)
        for role, group in (("input", golden.inputs), ("output", golden.outputs))
        for name, array in group.items()
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def unpack_goldens(packed: bytes) -> list[Golden]:
    """Reads what :func:`pack_goldens` wrote; never unpickles.

    Raises:
        GoldenError: not such an archive.
    """
    cases: dict[tuple[str, str], dict[str, dict[str, NDArray[Any]]]] = {}
    try:
        with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
            for key in arrays.files:
                case, model, role, name = key.split("/")
                cases.setdefault((case, model), {"input": {}, "output": {}})[role][name] = arrays[key]
    except (ValueError, KeyError, TypeError, AttributeError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise GoldenError(f"not readable: {error}") from error
    return [Golden(model, case["input"], case["output"]) for (_, model), case in cases.items()]


def replay_goldens(goldens: Sequence[Golden], sessions: Mapping[str, ModelSession]) -> None:
    """Runs every golden input and compares. Warms the models up on the way.

    Raises:
        GoldenError: a model without goldens, a golden without its model, a failing run, a shape or value that
            differs, or a NaN or infinity on either side.
    """
    for name in sorted(sessions.keys() ^ {golden.model for golden in goldens}):
        raise GoldenError(f"no golden for model {name!r}" if name in sessions else f"unknown model {name!r}")
    for golden in goldens:
        session = sessions[golden.model]
        names = [tensor.name for tensor in session.signature.outputs]
        if sorted(golden.outputs) != sorted(names):
            raise GoldenError(
                f"{golden.model}: outputs {sorted(golden.outputs)}, the model has {sorted(names)}"
            )
        try:
            session.signature.check_inputs(golden.inputs)
            results = session.run(golden.inputs)
        except (ModelError, SignatureError) as error:
            raise GoldenError(f"{golden.model}: {error}") from error
        for name, result in zip(names, results, strict=True):
            problem = _difference(golden.outputs[name], result)
            if problem:
                raise GoldenError(f"{golden.model}: output {name}: {problem}")


def _difference(golden: NDArray[Any], result: NDArray[Any]) -> str | None:
    if golden.shape != result.shape:
        return f"shape {result.shape} instead of {golden.shape}"
    if not (np.isfinite(golden).all() and np.isfinite(result).all()):
        return "NaN or an infinity"
    difference = float(np.abs(result.astype(np.float64) - golden).max(initial=0.0))
    allowed = TOLERANCE * max(1.0, float(np.abs(golden).max(initial=0.0)))
    return f"differs by {difference:.2g}, allowed {allowed:.2g}" if difference > allowed else None
