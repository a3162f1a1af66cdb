"""Services that are popular at some access points and not at others."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from training.workloads.columns import WorkloadError
from training.workloads.locality import Locality, localised
from training.workloads.patterns import Pattern, generate
from training.workloads.requests import RequestSequence
from training.workloads.services import default_services

SERVICES = default_services(30)
LOCALITY = Locality(deviation=1.5, relaxation_seconds=200.0)


def sequence(pattern: Pattern = Pattern.P1, seed: int = 1) -> RequestSequence:
    return generate(
        pattern,
        services=SERVICES,
        access_points=5,
        duration_seconds=100.0,
        mean_rate_per_second=800.0,
        seed=seed,
    )


def table(requests: RequestSequence, start: float, end: float) -> np.ndarray:
    chosen = (requests.arrival_seconds >= start) & (requests.arrival_seconds < end)
    counts = np.zeros((5, 30))
    np.add.at(counts, (requests.access_point[chosen], requests.service[chosen]), 1)
    return counts


def test_only_the_access_points_change_and_the_same_arguments_give_the_same_bytes() -> None:
    before = sequence()
    after = localised(before, LOCALITY, access_points=5, services=30, seed=7)
    again = localised(before, LOCALITY, access_points=5, services=30, seed=7)
    for column in fields(RequestSequence):
        if column.name != "access_point":
            assert getattr(after, column.name) is getattr(before, column.name)
    assert np.array_equal(after.access_point, again.access_point)
    assert 0 <= after.access_point.min() <= after.access_point.max() < 5
    other = localised(before, LOCALITY, access_points=5, services=30, seed=8)
    assert not np.array_equal(after.access_point, other.access_point)


def mix_distance(counts: np.ndarray) -> float:
    """Mean distance in variation between the service mixes of two access points."""
    mixes = counts / counts.sum(axis=1, keepdims=True)
    return float(np.mean([np.abs(a - b).sum() / 2 for a in mixes for b in mixes if a is not b]))


def test_mixes_differ_between_access_points_and_drift() -> None:
    before = sequence()
    after = localised(before, LOCALITY, access_points=5, services=30, seed=7)
    assert mix_distance(table(after, 0, 100)) > 3 * mix_distance(table(before, 0, 100))
    fast = localised(
        before, Locality(deviation=1.5, relaxation_seconds=20.0), access_points=5, services=30, seed=7
    )

    def stability(requests: RequestSequence) -> float:
        early, late = (
            counts / np.maximum(counts.sum(axis=0), 1)
            for counts in (table(requests, 0, 20), table(requests, 80, 100))
        )
        return float(np.corrcoef(early.ravel(), late.ravel())[0, 1])

    assert stability(after) > stability(fast) + 0.2


def test_hot_spots_of_the_sequence_stay_hot() -> None:
    before = sequence(Pattern.P4, seed=3)
    after = localised(
        before, Locality(deviation=0.0, relaxation_seconds=100.0), access_points=5, services=30, seed=1
    )
    for start in range(0, 100, 20):
        shares = [
            np.bincount(
                s.access_point[(s.arrival_seconds >= start) & (s.arrival_seconds < start + 20)], minlength=5
            )
            for s in (before, after)
        ]
        assert shares[1] / shares[1].sum() == pytest.approx(shares[0] / shares[0].sum(), abs=0.03)


def test_one_access_point_and_no_requests() -> None:
    before = sequence()
    assert localised(before, LOCALITY, access_points=1, services=30, seed=1) is before
    empty = before.window(0.0, 1e-9)
    assert localised(empty, LOCALITY, access_points=5, services=30, seed=1) is empty


@pytest.mark.parametrize(
    ("deviation", "relaxation_seconds", "message"),
    [(-1.0, 1.0, "deviation: -1.0"), (np.nan, 1.0, "deviation: nan"), (1.0, 0.0, "relaxation_seconds")],
)
def test_wrong_values_are_named(deviation: float, relaxation_seconds: float, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        Locality(deviation=deviation, relaxation_seconds=relaxation_seconds)
