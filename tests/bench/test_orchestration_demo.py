from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner, Result

from bench.cli import main
from bench.orchestration_demo import (
    REFERENCE,
    OrchestrationDemoError,
    OrchestrationDemoPlan,
    default_plan,
    run_orchestration_demo,
)

SMALL = OrchestrationDemoPlan(
    frames=1, dispatch=("greedy", "kais"), orchestration=("static", "gsp-ss", "kais")
)


def demo(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["demo-orchestrate", *arguments])


def test_every_combination_meets_the_same_requests_and_the_server_decides_each_frame() -> None:
    plan = replace(SMALL, frames=2)
    frames: dict[str, list[int]] = {}
    results = run_orchestration_demo(plan, lambda name, done: frames.setdefault(name, []).append(done))
    assert list(results) == [
        REFERENCE, "greedy+static", "greedy+gsp-ss", "greedy+kais", "kais+static", "kais+gsp-ss", "kais+kais",
    ]  # fmt: skip
    assert len({result.requests for result in results.values()}) == 1
    for name, result in results.items():
        assert frames[name][-1] == 2
        assert 0 < result.throughput_rate < 1
        assert result.forwarded_bytes > 0
        if name.endswith(("static", "native")):
            assert result.asked.seconds == ()
            continue
        assert len(result.asked.seconds) == 2
        assert all(0 < seconds < 10 for seconds in result.asked.seconds)
        assert result.actions_per_frame > 0
        assert result.pulled_bytes > 0
        assert (result.asked.learned, result.asked.fallbacks) == (2 * name.endswith("kais"), 0)
        assert result.throughput_rate > results[f"{name.partition('+')[0]}+static"].throughput_rate
    assert results["kais+static"].pulled_bytes == 0
    assert results["kais+kais"].actions_per_frame <= plan.maximum_actions


def test_the_same_seed_gives_the_same_figures_and_another_seed_others() -> None:
    plan = replace(SMALL, dispatch=("greedy",), orchestration=("kais",))
    first, again = (run_orchestration_demo(plan, lambda name, done: None) for _ in range(2))
    other = run_orchestration_demo(replace(plan, seed=1), lambda name, done: None)
    for name, result in first.items():
        assert again[name].throughput_rate == result.throughput_rate
        assert again[name].cost_bytes == result.cost_bytes
        assert other[name].throughput_rate != result.throughput_rate


def test_a_refused_call_ends_the_demo_with_what_the_server_said() -> None:
    plan = replace(SMALL, dispatch=("greedy",), orchestration=("nonsense",))
    with pytest.raises(OrchestrationDemoError, match=r"(?s)greedy\+nonsense: .*NOT_FOUND.*Its output:.*"):
        run_orchestration_demo(plan, lambda name, done: None)


def test_the_default_has_all_that_ships() -> None:
    assert "kais+kais" in default_plan().combinations
    assert default_plan().combinations[0] == REFERENCE


def test_json_is_nothing_but_json() -> None:
    result = demo("--frames", "1", "--dispatch", "greedy", "--orchestration", "static,gsp-ss", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert list(document["combinations"]) == [REFERENCE, "greedy+static", "greedy+gsp-ss"]
    assert document["combinations"][REFERENCE]["scheduling_cost"] == 1
    assert document["combinations"]["greedy+static"]["decision_seconds"] is None
    assert document["combinations"]["greedy+gsp-ss"]["decision_seconds"]["p50"] > 0
    assert document["combinations"]["greedy+gsp-ss"]["orchestrate_calls"] == 1


def test_ends_with_a_table_of_combinations_and_what_it_says() -> None:
    result = demo("--frames", "1", "--dispatch", "native,greedy", "--orchestration", "static,native")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith("│")]
    assert [row[1] for row in rows[:2]] == ["native", "greedy"]
    assert "1.00" in rows[0]
    assert "Most requests in time: " in result.stdout
    for column in ("throughput rate", "cost", "calls", "p50, slowest", "by model", "fallbacks"):
        assert column in result.stdout[result.stdout.rindex("└") :]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dispatch", "magic"), "'magic' is unknown; choose from native, greedy"),
        (("--orchestration", "kais,kais"), "'kais' is listed twice"),
        (("--frames", "0"), "x>=1"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], message: str) -> None:
    result = demo(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
