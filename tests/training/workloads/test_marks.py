from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from training.workloads.columns import WorkloadError
from training.workloads.marks import RequestTemplates, draw_marks
from training.workloads.services import default_services

SERVICES = default_services()


def templates(**changes: Any) -> RequestTemplates:
    columns: dict[str, Any] = {
        "service": np.array([2, 0, 2, 2], np.int32),
        "deadline_seconds": np.array([1, 2, 3, 4], np.float32),
        "payload_bytes": np.array([10, 20, 30, 40], np.float32),
        "work_factor": np.array([0.1, 0.2, 0.3, 0.4], np.float32),
    }
    return RequestTemplates(**(columns | changes))


def test_drawn_marks_stay_around_the_typical_figures() -> None:
    rng = np.random.default_rng(0)
    service = rng.integers(len(SERVICES), size=200_000, dtype=np.int32)
    marks = draw_marks(service, SERVICES, rng)
    assert {column.dtype for column in marks} == {np.dtype(np.float32)}
    deadline_factor = marks.deadline_seconds / SERVICES.deadline_seconds[service]
    payload_factor = marks.payload_bytes / SERVICES.payload_bytes[service]
    assert np.all((deadline_factor > 0.899) & (deadline_factor < 1.101))
    assert np.all((payload_factor > 0.199) & (payload_factor < 5.001))
    assert np.all((marks.work_factor >= np.float32(0.4)) & (marks.work_factor <= np.float32(2.5)))
    for factor in (deadline_factor, payload_factor, marks.work_factor):
        assert factor.mean() == pytest.approx(1.0, abs=0.01)


def test_few_requests_are_hopeless_even_on_an_idle_node() -> None:
    rng = np.random.default_rng(0)
    service = rng.choice(len(SERVICES), size=100_000, p=SERVICES.popularity).astype(np.int32)
    marks = draw_marks(service, SERVICES, rng)
    hopeless = marks.work_factor * SERVICES.execution_seconds[service] > marks.deadline_seconds
    assert hopeless.mean() < 0.01


def test_templates_hand_on_whole_rows_of_the_same_service_evenly() -> None:
    service = np.repeat(np.array([0, 2], np.int32), 30_000)
    marks = templates().draw(service, SERVICES, np.random.default_rng(0))
    rows = np.stack([service, *marks], axis=1)
    found, counts = np.unique(rows, axis=0, return_counts=True)
    expected = np.array([[0, 2, 20, 0.2], [2, 1, 10, 0.1], [2, 3, 30, 0.3], [2, 4, 40, 0.4]], np.float32)
    np.testing.assert_allclose(found, expected)
    assert counts[0] == 30_000
    np.testing.assert_allclose(counts[1:], 10_000, rtol=0.05)


def test_a_service_without_template_gets_drawn_marks() -> None:
    service = np.full(100, 1, np.int32)
    marks = templates().draw(service, SERVICES, np.random.default_rng(5))
    expected = draw_marks(service, SERVICES, np.random.default_rng(5))
    for column, wanted in zip(marks, expected, strict=True):
        np.testing.assert_array_equal(column, wanted)


def test_templates_beyond_the_catalogue_are_refused() -> None:
    beyond = templates(service=np.array([0, 30, 0, 0], np.int32))
    with pytest.raises(WorkloadError, match=r"source.service\[1\]: 30; must name a row from 0 to 29"):
        beyond.draw(np.zeros(1, np.int32), SERVICES, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"service": np.empty(0, np.int32)}, "service: empty"),
        ({"deadline_seconds": np.ones(3, np.float32)}, "deadline_seconds: 3 values for 4 rows"),
        ({"payload_bytes": np.zeros(4, np.float32)}, r"payload_bytes\[0\]: 0.0"),
        ({"work_factor": np.full(4, np.nan, np.float32)}, r"work_factor\[0\]: nan"),
    ],
)
def test_bad_templates_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        templates(**changes)
