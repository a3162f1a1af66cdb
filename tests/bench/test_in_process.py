from __future__ import annotations

from pathlib import Path

import pytest

from bench.in_process import measure_policy
from bench.load.errors import LoadError
from bench.reference_head import reference_decision
from tests.support.models import write_example_bundle


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.in_process._ROUND_SECONDS", 0.002)


def test_a_learned_policy_is_timed_beside_the_reference(tmp_path: Path) -> None:
    write_example_bundle(tmp_path)
    result = measure_policy("kais", tmp_path)
    assert list(result.decisions) == ["10", "100", "1000"]
    for figures in result.decisions.values():
        assert 0 < figures.p50_us <= figures.p99_us
        assert figures.answer_p50_us > 0
        assert figures.reference_p50_us > 0
    assert result.batch is not None
    assert (result.batch.size, result.batch.candidates) == (256, 10)
    assert result.batch.decisions_per_second > 0


def test_heuristics_can_be_timed() -> None:
    assert measure_policy("earliest-completion").decisions["10"].p50_us > 0


def test_an_unknown_policy_is_an_error() -> None:
    with pytest.raises(LoadError, match="no-such-policy"):
        measure_policy("no-such-policy")


def test_the_fallback_is_not_timed_in_place_of_a_policy(tmp_path: Path) -> None:
    bundle = write_example_bundle(tmp_path)
    (bundle / "head.onnx").write_bytes(b"damaged")
    with pytest.raises(LoadError, match="fallback"):
        measure_policy("kais", tmp_path)


@pytest.mark.parametrize("candidates", [1, 10, 1000])
def test_the_reference_picks_one_of_the_candidates(candidates: int) -> None:
    decide = reference_decision(candidates)
    assert 0 <= decide() < candidates
    assert decide() == decide()
