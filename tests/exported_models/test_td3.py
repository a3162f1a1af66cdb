"""The scaling policies that ship: td3 serves any containers in any order and is worth serving."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policy_server.cluster.containers import Fleet, MeasurementHistory
from policy_server.features.scaling import SCALING_SCHEMA, scaling_features
from policy_server.policies.scaling import ThresholdScaling
from policy_server.policies.scaling.actor import ActorScaling
from policy_server.policies.scaling.onnx import onnx_scaling
from policy_server.policies.scaling.safety import decide_scaling
from policy_server.runtime.bundle import Bundle, find_bundles
from training.scaling.contenders import CONTENDER_NAMES, LEARNED_NAMES
from training.scaling.episodes import EpisodeSource
from training.scaling.loop import ScalingLoop
from training.scaling.sock_shop import sock_shop
from training.scaling.trials import run_trials
from training.scaling.workload import LEVELS, Load

PAGE = Path(__file__).resolve().parents[2] / "docs" / "vertical-scaling.md"


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return find_bundles()["td3"][0].load()


@pytest.fixture(scope="module")
def policy(bundle: Bundle) -> ActorScaling:
    return onnx_scaling(bundle)


@pytest.fixture(scope="module")
def seen() -> tuple[Fleet, MeasurementHistory]:
    """Three shops under load, after ten minutes of the threshold rule."""
    episode = EpisodeSource(sock_shop()).validation(1, 300, 1.0)
    loop = ScalingLoop(sock_shop(), episode.seeds, episode.rates)
    while loop.intervals_left:
        loop.step(ThresholdScaling().recommend(loop.fleet, loop.history))
    return loop.fleet, loop.history


@pytest.mark.parametrize("name", LEARNED_NAMES)
def test_every_learned_policy_ships_and_replays_its_goldens(name: str) -> None:
    manifest = find_bundles()[name][0].load().manifest
    assert manifest.kind == "scaling"
    assert manifest.feature_schema_hash == SCALING_SCHEMA.hash
    assert manifest.training.command.startswith("policy-train scale --run RUN")


def test_normalisation_is_in_the_graph(policy: ActorScaling, seen: tuple[Fleet, MeasurementHistory]) -> None:
    """Features go in as they are, and lie within [0, 1]; few answers lie at the ends of the range."""
    features = scaling_features(*seen, 0.5)
    action = policy.run(features)
    assert action.shape == (len(seen[0]), 2)
    assert (np.abs(action) <= 1.0).all()
    assert (np.abs(action) < 0.99).mean() > 0.5
    centred = 2.0 * features - 1.0
    assert np.abs(policy.run(centred) - action).max() > 0.1


def permuted(
    fleet: Fleet, history: MeasurementHistory, order: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> tuple[Fleet, MeasurementHistory]:
    return (
        Fleet(
            fleet.application[order],
            fleet.node[order],
            fleet.latency_objective_seconds[order],
            fleet.node_cpu_cores,
            fleet.node_memory_bytes,
        ),
        MeasurementHistory(history._values[:, :, order]),
    )


def test_the_order_of_containers_does_not_matter(
    policy: ActorScaling, seen: tuple[Fleet, MeasurementHistory]
) -> None:
    fleet, history = seen
    order = np.random.default_rng(1).permutation(len(fleet))
    first = decide_scaling(policy, fleet, history)
    second = decide_scaling(policy, *permuted(fleet, history, order))
    np.testing.assert_allclose(second.cpu_cores.target, first.cpu_cores.target[order], rtol=1e-5)
    np.testing.assert_allclose(second.memory_bytes.target, first.memory_bytes.target[order], rtol=1e-5)


def test_applications_in_one_call_are_decided_as_if_alone(
    policy: ActorScaling, seen: tuple[Fleet, MeasurementHistory]
) -> None:
    fleet, history = seen
    together = policy.recommend(fleet, history)
    for number in range(3):
        rows = np.flatnonzero(fleet.application == number)
        alone = policy.recommend(*permuted(fleet, history, rows))
        np.testing.assert_allclose(alone.cpu_cores, together.cpu_cores[rows], rtol=1e-5)


def test_dearer_resources_are_spared(policy: ActorScaling, seen: tuple[Fleet, MeasurementHistory]) -> None:
    cores = [
        float(ActorScaling(policy.run, economy).recommend(*seen).cpu_cores.sum())
        for economy in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    assert cores == sorted(cores, reverse=True)


@pytest.mark.parametrize("load", Load)
def test_waits_less_than_the_threshold_rule_with_no_more_cpu(policy: ActorScaling, load: Load) -> None:
    application = sock_shop()
    # Whether a queue piles up in an episode can hang on rounding, so there are enough of them that none decides.
    episode = EpisodeSource(application).validation(8, 600, LEVELS[load])
    ours = run_trials(application, policy, episode, provisioned_level=LEVELS[load])
    rule = run_trials(
        application,
        ThresholdScaling(target_utilisation=0.65),
        episode,
        provisioned_level=LEVELS[load],
    )
    assert ours.cpu_cores.mean() < rule.cpu_cores.mean() * 1.05
    assert ours.latency_seconds.sum() / ours.requests.sum() < rule.latency_seconds.sum() / rule.requests.sum()


def evaluations(bundle: Bundle) -> dict[str, dict[str, Any]]:
    return {load.value: bundle.manifest.evaluation[load.value] for load in Load}


def test_the_manifest_records_the_held_out_evaluation(bundle: Bundle) -> None:
    for load, document in evaluations(bundle).items():
        assert document["load"] == load
        assert document["seeds"] >= 10
        assert tuple(document["policies"]) == CONTENDER_NAMES
        assert document["equal_allocation"]
    json.dumps(bundle.manifest.evaluation)


def table_below(heading: str) -> list[list[str]]:
    """Cells of the first table below a heading of the page, without its head."""
    lines = PAGE.read_text().partition(f"\n{heading}\n")[2].splitlines()
    start = next(row for row, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def interval(figures: dict[str, Any], *path: str) -> tuple[float, float, float]:
    mean, ends = figures, figures["ci95"]
    for key in path:
        mean, ends = mean[key], ends[key]
    return float(mean), float(ends[0]), float(ends[1])  # type: ignore[arg-type]


COLUMNS = (
    (("latency_seconds", "mean"), 1000, 1),
    (("latency_seconds", "p99"), 1000, 0),
    (("slo_violation_rate",), 100, 2),
    (("cpu_cores",), 1, 2),
    (("memory_mib",), 1, 0),
    (("changes",), 1, 0),
)


@pytest.mark.parametrize("load", Load)
def test_reported_figures_are_those_of_the_manifest(bundle: Bundle, load: Load) -> None:
    policies = evaluations(bundle)[load.value]["policies"]
    rows = table_below(f"#### Held out, {load.value} load")
    assert [row[0] for row in rows] == list(CONTENDER_NAMES)
    for name, *cells in rows:
        expected = []
        for path, factor, digits in COLUMNS:
            mean, low, high = interval(policies[name], *path)
            expected.append(f"{factor * mean:.{digits}f} ±{factor * (high - low) / 2:.{digits}f}")
        assert cells == expected, name


@pytest.mark.parametrize("load", Load)
def test_reported_comparisons_are_those_of_the_manifest(bundle: Bundle, load: Load) -> None:
    compared = evaluations(bundle)[load.value]["equal_allocation"]
    rows = table_below(f"#### At equal allocation, {load.value} load")
    assert len(rows) == len(compared)
    for cells, row in zip(rows, compared, strict=True):
        violations = row["violation_difference"]
        assert cells == [
            row["policy"],
            f"{row['cpu_ratio']['mean']:.3f}",
            f"{row['memory_ratio']['mean']:.3f}",
            *(
                f"{100 * row[name]['mean']:.1f} [{100 * row[name]['ci95'][0]:.1f}, {100 * row[name]['ci95'][1]:.1f}]"
                for name in ("latency_reduction", "p99_reduction")
            ),
            f"{100 * violations['mean']:+.2f} [{100 * violations['ci95'][0]:+.2f}, "
            f"{100 * violations['ci95'][1]:+.2f}]",
        ]


def test_the_training_command_is_the_documented_one(bundle: Bundle) -> None:
    command = bundle.manifest.training.command.replace("RUN", "runs/td3")
    assert command in [line.split("#")[0].strip() for line in PAGE.read_text().splitlines()]
