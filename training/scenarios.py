"""Which system under which load: what training draws from and evaluation enumerates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from training.simulator.presets import build_topology, preset
from training.simulator.simulator import SimulatorConfig, VectorSimulator
from training.workloads.patterns import Pattern, generate
from training.workloads.requests import RequestSequence
from training.workloads.seeds import TRAINING_SEEDS
from training.workloads.services import ServiceCatalogue, default_services
from training.workloads.traces.read import read_trace
from training.workloads.traces.trace import Trace
from training.workloads.traces.windows import Split


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One system and its requests.

    Attributes:
        preset: name of the system configuration.
        seed: of the system's random draws and of the requests.
        load: mean request rate as a multiple of the preset's reference rate.
        pattern: arrival pattern; None with a trace.
        trace: path of a recorded trace; None with a pattern.
        trace_split: which part of the trace.
        trace_window: index of the time window within that part.
    """

    preset: str
    seed: int
    load: float = 1.0
    pattern: Pattern | None = None
    trace: Path | None = None
    trace_split: Split = Split.TRAINING
    trace_window: int = 0

    @staticmethod
    def drawn(*, preset: str, load_range: tuple[float, float], random: np.random.Generator) -> Scenario:
        """A random training scenario: seed, load and pattern are drawn."""
        return Scenario(
            preset=preset,
            # The last thousand seeds are left to validation.
            seed=int(random.integers(len(TRAINING_SEEDS) - 1000)),
            load=float(random.uniform(*load_range)),
            pattern=list(Pattern)[int(random.integers(len(Pattern)))],
        )

    def requests(self, services: ServiceCatalogue, duration_seconds: float) -> RequestSequence:
        """The scenario's requests.

        Raises:
            ValueError: neither a pattern nor a trace, or both.
        """
        config = preset(self.preset)
        rate = config.reference_rate_per_second * self.load
        if (self.pattern is None) == (self.trace is None):
            raise ValueError(f"pattern: {self.pattern}, trace: {self.trace}; give exactly one of them")
        if self.trace is None:
            assert self.pattern is not None
            return generate(
                self.pattern,
                services=services,
                access_points=config.access_points,
                duration_seconds=duration_seconds,
                mean_rate_per_second=rate,
                seed=self.seed,
            )
        recorded = _trace(self.trace)
        return recorded.requests(
            recorded.window_for(self.trace_split, self.trace_window),
            services=services,
            access_points=config.access_points,
            duration_seconds=duration_seconds,
            mean_rate_per_second=rate,
            seed=self.seed,
        )


def build_simulator(
    scenarios: Sequence[Scenario],
    duration_seconds: float,
    config: SimulatorConfig = SimulatorConfig(),  # noqa: B008
) -> VectorSimulator:
    """All scenarios side by side; they share the default services.

    Raises:
        ValueError: no scenario, or presets with different numbers of services.
    """
    if not scenarios:
        raise ValueError("scenarios: empty; give at least one")
    services = default_services(preset(scenarios[0].preset).services)
    return VectorSimulator(
        [build_topology(preset(s.preset), services, s.seed) for s in scenarios],
        [s.requests(services, duration_seconds) for s in scenarios],
        config,
    )


def training_simulator(scenarios: Sequence[Scenario], slots: int) -> VectorSimulator:
    """All scenarios side by side, with requests for that many slots."""
    config = SimulatorConfig()
    return build_simulator(scenarios, slots * config.slot_seconds, config)


@lru_cache(maxsize=8)
def _trace(path: Path) -> Trace:
    return read_trace(path)
