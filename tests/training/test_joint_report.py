"""The report on joint evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from training.evaluation.joint_report import add_to_report, is_ablation


def figure(mean: float) -> dict[str, Any]:
    return {"mean": mean, "ci95": [mean - 0.01, mean + 0.01]}


def evaluation(preset: str, workload: str, names: tuple[str, ...]) -> dict[str, Any]:
    return {
        "preset": preset,
        "workload": workload,
        "seeds": 20,
        "load": 1.0,
        "steps": 8,
        "policies": {
            name: {
                "throughput_rate": figure(0.9 - 0.03 * row),
                "scheduling_cost": figure(0.7 + 0.05 * row),
                "pulled_cost": figure(0.1),
                **({} if name == "kais+kais" else {"kais_advantage": figure(0.03 * row)}),
            }
            for row, name in enumerate(names)
        },
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kais+kais", False),
        ("kais+gsp-ss", False),
        ("gsp-ss+kais", False),
        ("native+native", False),
        ("kais+static", True),
        ("native+kais", True),
        ("greedy+kais", True),
        ("kais-alone+kais", True),
        ("kais+kais@2", True),
        ("kais+stacked", True),
    ],
)
def test_what_counts_as_an_ablation(name: str, expected: bool) -> None:
    assert is_ablation(name) is expected


def test_ablations_have_a_section_of_their_own_and_h_a_curve(tmp_path: Path) -> None:
    names = (
        "kais+kais",
        "kais+native",
        "native+native",
        "kais+static",
        "kais+kais@1",
        "kais+kais@2",
        "kais+stacked",
    )
    for workload in ("P1", "P4"):
        report = add_to_report(tmp_path, evaluation("testbed-40", workload, names), {})
    report = add_to_report(tmp_path, evaluation("testbed-100", "alibaba.csv", names[:3]), {})
    text = report.read_text()
    main, ablations = text.split("### testbed-40, ablations")
    main = main[main.index("## testbed-40") :]
    rows = [line.split("|")[1].strip() for line in main.splitlines() if line.startswith("| kais+")]
    assert set(rows) == {"kais+kais", "kais+native"}
    for name in names[3:]:
        assert f"| {name} |" in ablations
    for picture in (
        "testbed-100-throughput_rate.png",
        "testbed-40-throughput_rate.png",
        "testbed-40-scheduling_cost.png",
        "testbed-40-ablations-throughput_rate.png",
        "testbed-40-actions.png",
    ):
        assert f"({picture})" in text
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    # Too few values of H, and nothing left out.
    assert not (tmp_path / "testbed-100-actions.png").exists()
    assert "testbed-100, ablations" not in text
    assert "+0.090 ±0.010" in ablations


def test_legends_name_what_only_some_workloads_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named: dict[str, set[str]] = {}
    save = Figure.savefig

    def remember(picture: Figure, path: Path, **options: Any) -> None:
        legends = [*picture.legends, *(axes.get_legend() for axes in picture.axes)]
        named[path.name] = {text.get_text() for legend in legends if legend for text in legend.get_texts()}
        save(picture, path, **options)

    monkeypatch.setattr(Figure, "savefig", remember)
    add_to_report(tmp_path, evaluation("testbed-40", "P1", ("kais+kais", "native+native")), {})
    add_to_report(tmp_path, evaluation("testbed-40", "P4", ("kais+kais", "firmament+gsp-ss")), {})
    assert named["testbed-40-throughput_rate.png"] == {"kais+kais", "native+native", "firmament+gsp-ss"}
    assert named["testbed-40-trade-off.png"] >= {"firmament dispatch", "native dispatch", "+gsp-ss"}
