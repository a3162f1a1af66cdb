from __future__ import annotations

import pytest

from policy_server.policies.scaling import RULE_SCALING_NAMES
from tests.training.scaling.small import small_application
from training.scaling import tuning
from training.scaling.contenders import STATIC_HEADROOM, contender


def test_every_rule_has_a_grid_and_its_defaults_lie_on_it() -> None:
    assert tuple(tuning.GRIDS) == RULE_SCALING_NAMES
    for name, grid in tuning.GRIDS.items():
        for parameter, values in grid.items():
            default = (
                STATIC_HEADROOM
                if parameter == "provisioned_headroom"
                else getattr(contender(name).policy, parameter)
            )
            assert default in values, (name, parameter)


def test_the_cheapest_combination_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tuning.GRIDS, "threshold", {"target_utilisation": (0.05, 0.5, 0.9)})  # type: ignore[index]
    seen: list[tuning.TunedRule] = []
    tried = tuning.tune_rule(
        small_application(), "threshold", repetitions=1, episode_seconds=120, on_done=seen.append
    )
    assert sorted(rule.cost for rule in seen) == [rule.cost for rule in tried]
    cores = {rule.parameters["target_utilisation"]: rule.cpu_cores for rule in tried}
    assert cores[0.05] > cores[0.5] > cores[0.9]


def test_what_is_not_given_is_as_the_defaults() -> None:
    for name, given in (("static", {"provisioned_headroom": STATIC_HEADROOM}), ("threshold", {})):
        runs = [
            tuning.try_rule(small_application(), name, parameters, repetitions=1, episode_seconds=120)
            for parameters in ({}, given)
        ]
        assert runs[0].cost == runs[1].cost
