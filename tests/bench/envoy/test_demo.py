from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.console import Console

from bench.envoy import demo
from bench.envoy.demo import Contestant, DemoFigures, DemoPlan, run_demo
from bench.envoy.demo_table import demo_table
from bench.load import h2load
from bench.void import VoidRunError

SOUND = DemoFigures(p50_ms=50.0, p90_ms=100.0, p99_ms=300.0, rps=219.0, failed=0, unpicked=0, stall_ms=12.0)
STALLED = replace(SOUND, p99_ms=900.0, stall_ms=400.0)
BADLY_STALLED = replace(SOUND, p99_ms=2000.0, stall_ms=800.0)
VOID = VoidRunError("policy", ["the machine is too busy"])


@pytest.fixture(autouse=True)
def no_load_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(h2load, "version", lambda: "1.52.0")


def results_of(monkeypatch: pytest.MonkeyPatch, *outcomes: DemoFigures | VoidRunError) -> DemoFigures:
    """What is made of the outcomes of the attempts of one contestant; all are used up."""
    remaining: Iterator[DemoFigures | VoidRunError] = iter(outcomes)

    def run(plan: DemoPlan, contestant: Contestant) -> DemoFigures:
        outcome = next(remaining)
        if isinstance(outcome, VoidRunError):
            raise outcome
        return outcome

    monkeypatch.setattr(demo, "_run", run)
    monkeypatch.setattr(demo, "ENVOYS_OWN", ())
    results = run_demo(DemoPlan(policies=("greedy",)), lambda name: None)
    assert next(remaining, None) is None
    return results["policy-server, greedy"]


@pytest.mark.parametrize(
    ("outcomes", "figures"),
    [
        ([SOUND], SOUND),
        ([STALLED, SOUND], SOUND),
        ([VOID, SOUND], SOUND),
        ([BADLY_STALLED, STALLED], STALLED),
        ([STALLED, VOID], STALLED),
    ],
)
def test_the_least_disturbed_of_a_few_attempts_counts(
    monkeypatch: pytest.MonkeyPatch, outcomes: list[DemoFigures | VoidRunError], figures: DemoFigures
) -> None:
    assert results_of(monkeypatch, *outcomes) == figures


def test_void_runs_alone_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(VoidRunError):
        results_of(monkeypatch, VOID, VOID)


def test_the_table_names_the_best_and_what_went_wrong() -> None:
    console = Console(width=400, file=io.StringIO())
    plan = DemoPlan(policies=("greedy", "prequal"))
    figures = {contestant.name: SOUND for contestant in plan.contestants}
    figures["policy-server, greedy"] = replace(STALLED, failed=7, unpicked=5)
    console.print(demo_table(plan, figures))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for part in (
        "220 requests/s",
        "least request, all",
        "policy-server, prequal",
        "back end 2 at 20% of its speed from 7 to 10 s",
        "5 requests were not picked for in time",
        "the machine stalled for 400 ms",
    ):
        assert part in text, part
