"""Loads of training and validation: which curve, how much of it, from which seeds. Nothing held out is used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policy_server.cluster.snapshot import Float64Array
from training.scaling.application import Application
from training.scaling.workload import LoadCurve, generated_bursts, load_curves, offered_rates
from training.workloads.seeds import TRAINING_SEEDS, training_seed
from training.workloads.traces.windows import Split

LEVEL_RANGE = (0.6, 1.6)
"""Mean load of a training episode relative to normal load; wider than what is evaluated."""
VALIDATION_SEEDS = 1_000
"""Training seeds set aside for validation and tuning: the last of the range."""

_CURVES = ("diurnal", "azure", "bursts")
_WINDOWS = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Episode:
    """The loads of B instances.

    Attributes:
        seeds: B of them.
        rates: float64 [B, seconds].
    """

    seeds: tuple[int, ...]
    rates: Float64Array


class EpisodeSource:
    """Makes episodes for an application."""

    def __init__(self, application: Application, curves: dict[str, LoadCurve] | None = None) -> None:
        self.application = application
        self._curves = curves or load_curves()

    def training(self, number: int, instances: int, seconds: int, seed: int) -> Episode:
        """The training episode at ``number``: each instance has a curve in turn and a random level and window."""
        random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))
        seeds = tuple(int(s) for s in random.integers(TRAINING_SEEDS.stop - VALIDATION_SEEDS, size=instances))
        levels = random.uniform(*LEVEL_RANGE, instances)
        windows = random.integers(_WINDOWS, size=instances)
        return Episode(
            seeds,
            np.stack(
                [
                    self._rates(
                        _CURVES[row % len(_CURVES)],
                        int(windows[row]),
                        seconds,
                        float(levels[row]),
                        seeds[row],
                    )
                    for row in range(instances)
                ]
            ),
        )

    def validation(self, repetitions: int, seconds: int, level: float) -> Episode:
        """Every training curve, ``repetitions`` times: what models are chosen and rules are tuned by."""
        first = len(TRAINING_SEEDS) - VALIDATION_SEEDS
        numbers = range(repetitions * len(_CURVES))
        seeds = tuple(training_seed(first + number) for number in numbers)
        return Episode(
            seeds,
            np.stack(
                [
                    self._rates(_CURVES[n % len(_CURVES)], n // len(_CURVES), seconds, level, seeds[n])
                    for n in numbers
                ]
            ),
        )

    def _rates(self, curve: str, window: int, seconds: int, level: float, seed: int) -> Float64Array:
        if curve == "bursts":
            relative = generated_bursts(seed, seconds)
        else:
            relative = self._curves[curve].window(Split.TRAINING, window, seconds)
        return offered_rates(relative, self.application.mean_rate_per_second * level, seed)
