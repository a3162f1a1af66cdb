"""Closed loops by the best generator at hand."""

from __future__ import annotations

from bench.load import generator, h2load
from bench.load.measurement import Measurement
from bench.load.plans import ClosedLoop
from bench.load.target import Target


def closed_loop_generator() -> str:
    """Name of the generator :func:`run_closed_loop` uses: h2load where it is installed, else the project's own."""
    return h2load.NAME if h2load.version() else generator.NAME


def run_closed_loop(target: Target, plan: ClosedLoop) -> Measurement:
    """Runs the plan in another process.

    Raises:
        LoadError: the load could not be generated.
    """
    if h2load.version():
        return h2load.generate_closed_loop(target, plan)
    return generator.generate_closed_loop(target, plan)
