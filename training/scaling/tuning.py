"""Tunes the rule policies on validation episodes, so that learned policies face each rule at its best.

Every rule is tried with every combination of its grid under normal and high load; the lowest mean cost wins, which is
the same objective that learned policies are trained and chosen by. Nothing held out is touched. The winners are the
defaults of the rules in :mod:`policy_server.policies.scaling` and :data:`training.scaling.contenders.STATIC_HEADROOM`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from training.scaling.application import Application
from training.scaling.contenders import contender
from training.scaling.episodes import EpisodeSource
from training.scaling.trials import run_trials
from training.scaling.workload import LEVELS

_HEADROOM = "provisioned_headroom"

GRIDS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "static": {_HEADROOM: (2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0)},
    "threshold": {
        "target_utilisation": (0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7),
        "history_intervals": (6, 12, 24, 48),
        "target_memory_utilisation": (0.87, 0.8, 0.7),
    },
    "percentile": {
        "percentile": (0.9, 1.0),
        "margin": (0.4, 0.6, 0.8, 1.0, 1.3),
        "half_life_intervals": (1.5, 3.0, 6.0),
        "memory_margin": (0.15, 0.3),
    },
    "autothrottle": {
        "throttle_target": (0.01, 0.03, 0.06, 0.1, 0.15),
        "low_throttle_target": (0.01, 0.02, 0.04, 0.08),
        "usage_intervals": (6, 12, 24),
        "memory_margin": (0.15, 0.3),
    },
}


@dataclass(frozen=True)
class TunedRule:
    """A combination and what it came to, averaged over loads.

    Attributes:
        name: of the rule.
        parameters: of the combination.
        cost: mean cost of an interval.
        latency_seconds: mean.
        violation_rate: mean.
        cpu_cores: mean.
    """

    name: str
    parameters: dict[str, Any]
    cost: float
    latency_seconds: float
    violation_rate: float
    cpu_cores: float


def combinations(name: str) -> Iterator[dict[str, Any]]:
    """Every combination of a rule's grid."""
    grid = GRIDS[name]
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def try_rule(
    application: Application,
    name: str,
    parameters: Mapping[str, Any],
    *,
    repetitions: int = 3,
    episode_seconds: int = 900,
) -> TunedRule:
    """One combination under every load; what is not given is as the rule's defaults."""
    policy_parameters = {key: value for key, value in parameters.items() if key != _HEADROOM}
    tuned = contender(name)
    policy: Any = tuned.policy
    policy = replace(policy, **policy_parameters)
    source = EpisodeSource(application)
    trials = [
        run_trials(
            application,
            policy,
            source.validation(repetitions, episode_seconds, level),
            provisioned_headroom=parameters.get(_HEADROOM, tuned.provisioned_headroom),
            provisioned_level=level,
        )
        for level in LEVELS.values()
    ]
    count = len(trials)
    return TunedRule(
        name,
        dict(parameters),
        cost=sum(float(trial.cost.mean()) for trial in trials) / count,
        latency_seconds=sum(float(trial.mean_latency_seconds.mean()) for trial in trials) / count,
        violation_rate=sum(float(trial.violation_rate.mean()) for trial in trials) / count,
        cpu_cores=sum(float(trial.cpu_cores.mean()) for trial in trials) / count,
    )


def tune_rule(
    application: Application,
    name: str,
    *,
    repetitions: int = 3,
    episode_seconds: int = 900,
    on_done: Callable[[TunedRule], None] = lambda _: None,
) -> list[TunedRule]:
    """All combinations of a rule's grid, cheapest first."""
    tried = []
    for parameters in combinations(name):
        tried.append(
            try_rule(application, name, parameters, repetitions=repetitions, episode_seconds=episode_seconds)
        )
        on_done(tried[-1])
    return sorted(tried, key=lambda rule: rule.cost)
