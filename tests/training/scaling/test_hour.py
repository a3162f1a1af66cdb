from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from policy_server.cluster.containers import Fleet, MeasurementHistory
from policy_server.cluster.snapshot import Float64Array
from policy_server.policies.scaling import ScalingPolicy, rule_scaling
from policy_server.policies.scaling.safety import decide_scaling
from tests.training.scaling.small import small_application
from training.scaling.hour import Hour, bursty_hour, plot_bursty_hour


def controlled(
    policy: ScalingPolicy, fleet: Fleet, history: MeasurementHistory
) -> tuple[Float64Array, Float64Array]:
    decisions = decide_scaling(policy, fleet, history)
    return decisions.cpu_cores.target, decisions.memory_bytes.target


@pytest.fixture(scope="module")
def hours() -> dict[str, Hour]:
    done: dict[str, int] = {}

    def on_interval(name: str, position: int, total: int) -> None:
        assert total == 719
        assert position == done.get(name, 0) + 1
        done[name] = position

    names = ("threshold", "static")
    found = bursty_hour(
        small_application(),
        {name: partial(controlled, rule_scaling(name)) for name in names},
        on_interval=on_interval,
    )
    assert done == dict.fromkeys(names, 719)
    return found


def test_all_controllers_meet_the_same_hour(hours: dict[str, Hour]) -> None:
    threshold, static = hours.values()
    assert threshold.seconds[-1] == 3600.0
    np.testing.assert_allclose(threshold.requests_per_second, static.requests_per_second, rtol=0.3)
    assert threshold.latency_counts.sum() == pytest.approx(static.latency_counts.sum(), rel=0.01)
    burst, calm = threshold.requests_per_second[300:420].mean(), threshold.requests_per_second[:120].mean()
    assert burst > 2 * calm


def test_allocation_follows_the_burst_where_a_rule_decides(hours: dict[str, Hour]) -> None:
    threshold, static = hours.values()
    assert static.changes.sum() == 0
    assert np.ptp(static.cpu_cores) == 0
    assert threshold.changes.sum() > 10
    assert threshold.cpu_cores[300:420].mean() > 1.5 * threshold.cpu_cores[60:120].mean()
    assert (threshold.cpu_usage_cores < threshold.cpu_cores * 1.2).all()


def test_the_hour_is_drawn(hours: dict[str, Hour], tmp_path: Path) -> None:
    path = plot_bursty_hour(tmp_path / "new" / "hour.png", small_application(), hours, "small")
    assert path.stat().st_size > 20_000
