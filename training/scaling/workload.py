"""Offered load of an application, second by second: recorded curves, a generator of bursty hours, held-out windows.

================  ==========================================  =====================
curve             training                                    held out
================  ==========================================  =====================
``diurnal``       first 60 % of ``rps-diurnal.txt``           last 30 %
``azure``         first 60 % of ``azure-llm-code.csv``        last 30 %
``bursts``        generated                                   never
``bursty``        never                                       all of ``rps-bursty.txt``
================  ==========================================  =====================

The only burst of the bursty trace lies within what would be its training part, so the trace is held out as a whole and
bursts to learn from are generated. Curves are relative to the mean of the part of the trace that trains (of the whole
for ``bursty``). Code-completion requests come in volleys that no controller of limits can follow (nothing for minutes,
then ten times the mean), and no application of many users has such a load; so the Azure curve is taken for a quarter of
the load, smoothed over a minute, on top of three quarters that are steady.

Where the trace files are missing, stand-ins with the same mean, spread and time scale take their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from policy_server.cluster.snapshot import Float64Array
from training.workloads.traces.azure import AzureLlmTrace
from training.workloads.traces.location import traces_folder
from training.workloads.traces.rate import RequestRateTrace
from training.workloads.traces.read import read_trace
from training.workloads.traces.windows import Split, TimeWindow, window_for

HOUR_SECONDS = 3600
SECOND_DEVIATION = 0.1
"""Coefficient of variation of the rate from second to second, beyond that of Poisson arrivals."""
AZURE_SHARE = 0.25
AZURE_SMOOTHING_SECONDS = 60

_LARGEST_GENERATED = 2.5
"""Beyond it the application cannot follow whatever its limits are, and there is nothing to be learned."""
_LOAD_STREAM = 0x10AD
_STAND_IN_SEED = 0x57A2


class Load(StrEnum):
    """How much the application is offered."""

    NORMAL = "normal"
    HIGH = "high"


LEVELS: Mapping[Load, float] = {Load.NORMAL: 1.0, Load.HIGH: 1.5}
"""Mean rate of a load relative to the application's normal mean."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadCurve:
    """A curve that windows are cut from.

    Attributes:
        name: see the module.
        relative_rate: float64 [n], of each second, relative to the mean.
        recorded: False for a stand-in.
        entirely: the part of the curve that the window may come from; None: by the common split of traces.
    """

    name: str
    relative_rate: Float64Array
    recorded: bool
    entirely: Split | None = None

    def window(self, split: Split, index: int, seconds: int) -> Float64Array:
        """float64 [seconds]: the window at ``index`` of the split.

        Raises:
            ValueError: the split's part is shorter, or belongs to the other split.
        """
        if self.entirely not in (None, split):
            raise ValueError(f"split: {split.value}; all of {self.name} is {self.entirely}")
        span = TimeWindow(0.0, float(len(self.relative_rate)))
        if self.entirely is None:
            window = window_for(split, index, span=span, length_seconds=float(seconds))
            start, end = int(window.start_seconds), int(window.end_seconds)
        else:
            # Any window will do, so the common split is applied to a span of which it takes all.
            share = 0.6 if split is Split.TRAINING else 0.3
            wide = TimeWindow(0.0, span.length_seconds / share)
            window = window_for(split, index, span=wide, length_seconds=float(seconds))
            offset = 0.0 if split is Split.TRAINING else wide.length_seconds * (1.0 - share)
            start, end = round(window.start_seconds - offset), round(window.end_seconds - offset)
        if end - start < seconds:
            raise ValueError(f"seconds: {seconds}; the {split.value} part of {self.name} has {end - start}")
        return self.relative_rate[start : start + seconds]


def load_curves() -> dict[str, LoadCurve]:
    """The recorded curves, or stand-ins where a file is missing: ``diurnal``, ``azure`` and ``bursty``."""
    return {
        "diurnal": LoadCurve(
            "diurnal", *_relative_rates("rps-diurnal.txt", _stand_in_diurnal, training_part=True)
        ),
        "azure": LoadCurve("azure", *_azure_curve()),
        "bursty": LoadCurve(
            "bursty",
            *_relative_rates("rps-bursty.txt", _stand_in_bursty, training_part=False),
            Split.HELD_OUT,
        ),
    }


def generated_bursts(seed: int, seconds: int) -> Float64Array:
    """A curve with bursts, float64 [seconds]: a slow wave and bursts that come every quarter of an hour on average.

    Each burst multiplies the rate by up to 1 + U(0.5, 2.5), rises and falls as a Gaussian with time constants of
    U(30, 240) and U(60, 300) seconds; the curve ends at 2.5.
    """
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_LOAD_STREAM, 1)))
    time = np.arange(seconds, dtype=np.float64)
    wave = 1.0 + random.uniform(0.0, 0.25) * np.sin(
        2.0 * np.pi * (time / random.uniform(1200, 5400) + random.random())
    )
    factor = np.ones(seconds)
    for _ in range(random.poisson(seconds / 900.0)):
        top = random.uniform(0.0, seconds)
        rise, fall = random.uniform(30.0, 240.0), random.uniform(60.0, 300.0)
        width = np.where(time < top, rise, fall)
        factor += random.uniform(0.5, 2.5) * np.exp(-0.5 * ((time - top) / width) ** 2)
    curve: Float64Array = np.minimum(random.uniform(0.6, 1.1) * wave * factor, _LARGEST_GENERATED)
    return curve


def offered_rates(curve: Float64Array, mean_rate_per_second: float, seed: int) -> Float64Array:
    """Requests per second offered in each second: the curve, scaled, with gamma noise from second to second.

    Args:
        curve: float64 [n], relative rates.
        mean_rate_per_second: what 1 stands for.
        seed: of the noise.
    """
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_LOAD_STREAM, 2)))
    shape = SECOND_DEVIATION**-2
    noise = random.gamma(shape, 1.0 / shape, len(curve))
    rates: Float64Array = mean_rate_per_second * curve * noise
    return rates


def _relative_rates(file: str, stand_in: Float64Array, *, training_part: bool) -> tuple[Float64Array, bool]:
    path = traces_folder() / file
    if not path.is_file():
        return stand_in, False
    trace = read_trace(path)
    if not isinstance(trace, RequestRateTrace):
        raise ValueError(f"{path}: {trace.kind}; must hold requests per second, one number a line")
    rates = trace.table.requests_per_second
    reference = rates[: int(0.6 * len(rates))] if training_part else rates
    return rates / reference.mean(), True


def _azure_curve() -> tuple[Float64Array, bool]:
    path = traces_folder() / "azure-llm-code.csv"
    if not path.is_file():
        return _steady_and(_stand_in_volleys), False
    trace = read_trace(path)
    if not isinstance(trace, AzureLlmTrace):
        raise ValueError(f"{path}: {trace.kind}; must be a trace of Azure LLM requests")
    return _steady_and(np.bincount(trace.table.seconds.astype(np.int64)).astype(np.float64)), True


def _steady_and(counts: Float64Array) -> Float64Array:
    kernel = np.hanning(AZURE_SMOOTHING_SECONDS + 2)[1:-1]
    smooth = np.convolve(counts, kernel / kernel.sum(), mode="same")
    volleys = smooth / smooth[: int(0.6 * len(smooth))].mean()
    return np.asarray(1.0 - AZURE_SHARE + AZURE_SHARE * volleys)


def _generate_stand_ins() -> tuple[Float64Array, Float64Array, Float64Array]:
    """Diurnal and bursty rates with the recorded mean, spread and extremes, and volleys of requests."""
    random = np.random.default_rng(_STAND_IN_SEED)
    time = np.arange(HOUR_SECONDS, dtype=np.float64)
    walk = 1.0 + np.cumsum(random.choice((-1.0, 1.0), HOUR_SECONDS)) * 0.001
    diurnal = (0.7 + 0.65 * np.sin(np.pi * time / HOUR_SECONDS) ** 1.5) * walk
    bursty = (0.65 + 1.75 * np.exp(-0.5 * ((time - 1900.0) / 300.0) ** 2)) * walk
    volleys = np.zeros(HOUR_SECONDS)
    start = 0.0
    while start < HOUR_SECONDS:
        length = random.exponential(40.0)
        volleys[int(start) : int(start + length) + 1] += random.exponential(10.0)
        start += length + random.exponential(90.0)
    return diurnal / diurnal.mean(), bursty / bursty.mean(), random.poisson(volleys).astype(np.float64)


_stand_in_diurnal, _stand_in_bursty, _stand_in_volleys = _generate_stand_ins()
