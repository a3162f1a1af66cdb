from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.workloads.columns import WorkloadError
from training.workloads.services import DEADLINE_FLOOR_SECONDS, MEBIBYTE, ServiceCatalogue, default_services

RANGES = {
    "cpu_millicores": (100, 800),
    "execution_seconds": (0.02, 0.6),
    "memory_bytes": (64 * MEBIBYTE, 768 * MEBIBYTE),
    "image_bytes": (20e6, 400e6),
    "cold_start_seconds": (0.5, 4.0),
    "payload_bytes": (2e3, 1e6),
    "concurrency": (2, 8),
}


@given(st.integers(1, 100), st.integers(0, 2**32))
@settings(max_examples=40)
def test_every_figure_lies_in_its_documented_range(count: int, seed: int) -> None:
    services = default_services(count, seed)
    assert len(services) == count
    for figure, (low, high) in RANGES.items():
        values = getattr(services, figure)
        assert np.all((values >= np.float32(low)) & (values <= np.float32(high))), figure
    slack = services.deadline_seconds / services.execution_seconds
    assert np.all((slack > 1.5) & (slack < 8.1))
    assert np.all(services.deadline_seconds >= np.float32(DEADLINE_FLOOR_SECONDS))


def test_the_services_are_heterogeneous() -> None:
    services = default_services()
    for figure, (low, high) in RANGES.items():
        values = getattr(services, figure).astype(np.float64)
        assert values.min() < low * (high / low) ** 0.2, figure
        assert values.max() > low * (high / low) ** 0.8, figure


@pytest.mark.parametrize("seed", range(8))
def test_a_good_part_of_the_requests_and_not_most_cannot_afford_the_cloud(seed: int) -> None:
    services = default_services(seed=seed)
    slack_seconds = services.deadline_seconds - services.execution_seconds
    share = services.popularity[slack_seconds < 0.12].sum()
    assert 0.05 < share < 0.5


def test_the_same_arguments_give_the_same_catalogue_and_another_seed_another() -> None:
    first, again, other = default_services(30, 3), default_services(30, 3), default_services(30, 4)
    for column in fields(ServiceCatalogue):
        np.testing.assert_array_equal(getattr(first, column.name), getattr(again, column.name))
    assert not np.array_equal(first.execution_seconds, other.execution_seconds)


def test_names_are_unique_beyond_the_thirty_by_hand() -> None:
    names = default_services(95).names
    assert len(set(names)) == 95
    assert names[:3] == ("object-detection", "product-search", "authentication")
    assert names[30] == "object-detection-2"


@pytest.mark.parametrize("count", [0, -3])
def test_no_services_are_refused(count: int) -> None:
    with pytest.raises(WorkloadError, match=f"count: {count}"):
        default_services(count)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": ("a", "b", "a")}, "names: 'a' appears twice"),
        ({"names": ()}, "names: empty"),
        ({"names": ("a", "b")}, "cpu_millicores: 3 values for 2 rows"),
        ({"cpu_millicores": np.array([1, 0, 1], np.float32)}, r"cpu_millicores\[1\]: 0.0"),
        ({"execution_seconds": np.array([1, np.nan, 1], np.float32)}, r"execution_seconds\[1\]: nan"),
        ({"memory_bytes": np.array([-1, 1, 1], np.float32)}, r"memory_bytes\[0\]: -1.0"),
        ({"image_bytes": np.array([1, 1, np.inf], np.float32)}, r"image_bytes\[2\]: inf"),
        ({"cold_start_seconds": np.array([1, -1, 1], np.float32)}, r"cold_start_seconds\[1\]: -1.0"),
        ({"deadline_seconds": np.zeros(3, np.float32)}, r"deadline_seconds\[0\]: 0.0"),
        ({"payload_bytes": np.zeros(3, np.float32)}, r"payload_bytes\[0\]: 0.0"),
        ({"concurrency": np.array([1, 0, 1], np.int32)}, r"concurrency\[1\]: 0"),
        ({"popularity": np.array([0.5, 0.5, 0.5])}, "popularity: sums to 1.5"),
        ({"popularity": np.array([0.5, 0.7, -0.2])}, r"popularity\[2\]: -0.2"),
    ],
)
def test_contradictions_are_refused_with_field_and_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        replace(default_services(3), **changes)
