"""Dispatch over gRPC: what callers get, from server-held state and from inline candidates."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import grpc
import numpy as np
import pytest

from policy_server.policies.onnx_dispatch import OnnxDispatch
from policy_server.proto.policy.v1.decision_pb2 import DecisionSource, FallbackReason
from policy_server.proto.policy.v1.dispatch_service_pb2 import (
    Candidate,
    DispatchRequest,
    EndpointSubset,
    InlineCandidates,
)
from tests.support.models import write_example_bundle
from tests.support.serving import equal_endpoints, error_of, graded_endpoints, question, running_server
from tests.support.systems import Endpoint, one_service_snapshot


def inline(*candidates: Candidate) -> InlineCandidates:
    return InlineCandidates(candidates=candidates)


async def test_answer_says_what_was_chosen_from_what_and_by_whom() -> None:
    async with running_server(graded_endpoints(4)) as serving:
        answer = await serving.dispatch(max_alternatives=2)
    assert answer.endpoint == "10.0.0.0:8080"
    assert answer.node == "node-0"
    assert [other.endpoint for other in answer.alternatives] == ["10.0.0.1:8080", "10.0.0.2:8080"]
    assert [other.node for other in answer.alternatives] == ["node-1", "node-2"]
    scores = [answer.score, *(other.score for other in answer.alternatives)]
    assert scores == sorted(scores, reverse=True)
    assert answer.candidate_count == 4
    source = answer.provenance
    assert (source.policy, source.policy_version) == ("earliest-completion", "1")
    assert source.source == DecisionSource.DECISION_SOURCE_HEURISTIC
    assert source.fallback_reason == FallbackReason.FALLBACK_REASON_UNSPECIFIED
    assert source.snapshot_version == 1
    assert 0 <= source.snapshot_age_seconds < 60


@pytest.mark.parametrize(("asked", "listed"), [(None, 2), (0, 0), (3, 3), (16, 4)])
async def test_number_of_alternatives(asked: int | None, listed: int) -> None:
    async with running_server(graded_endpoints(5)) as serving:
        answer = await serving.dispatch(**({} if asked is None else {"max_alternatives": asked}))
    endpoints = [answer.endpoint, *(other.endpoint for other in answer.alternatives)]
    assert len(endpoints) == len(set(endpoints)) == listed + 1


async def test_subset_restricts_choice_and_alternatives() -> None:
    subset = EndpointSubset(endpoints=["10.0.0.3:8080", "10.0.0.2:8080", "10.9.9.9:1"])
    async with running_server(graded_endpoints(4)) as serving:
        answer = await serving.dispatch(endpoint_subset=subset)
    assert answer.endpoint == "10.0.0.2:8080"
    assert [other.endpoint for other in answer.alternatives] == ["10.0.0.3:8080"]
    assert answer.candidate_count == 2


async def test_requested_policy_decides() -> None:
    near_and_slow, far_and_fast = Endpoint(speed=0.5), Endpoint("ap-1", speed=10.0)
    async with running_server(one_service_snapshot([near_and_slow, far_and_fast])) as serving:
        by_completion = await serving.dispatch(policy="earliest-completion")
        by_locality = await serving.dispatch(policy="local-first")
    assert by_completion.endpoint == "10.0.0.1:8080"
    assert by_locality.endpoint == "10.0.0.0:8080"
    assert by_locality.provenance.policy == "local-first"


async def test_own_picks_keep_the_herd_away_between_two_reports() -> None:
    async with running_server(equal_endpoints(4)) as serving:
        picked = Counter([(await serving.dispatch()).endpoint for _ in range(100)])
    assert len(picked) == 4
    assert max(picked.values()) <= 35


async def test_equal_candidates_get_equal_shares_wherever_they_stand() -> None:
    candidates = [Candidate(endpoint=name) for name in "abcd"]
    async with running_server() as serving:
        for order in (candidates, candidates[::-1]):
            picked = Counter(
                [
                    (await serving.dispatch(inline_candidates=inline(*order), seed=seed)).endpoint
                    for seed in range(400)
                ]
            )
            # 100 expected each, standard deviation 8.7.
            assert all(60 <= picked[name] <= 140 for name in "abcd"), picked


async def test_seed_repeats_the_whole_answer() -> None:
    candidates = inline(*(Candidate(endpoint=str(row)) for row in range(20)))
    asked = question(inline_candidates=candidates, seed=7, max_alternatives=16)
    async with running_server() as serving:
        answers = [await serving.dispatching.Dispatch(asked) for _ in range(5)]
    assert all(answer == answers[0] for answer in answers)


async def test_inline_candidates_are_judged_by_their_figures() -> None:
    candidates = inline(
        Candidate(endpoint="far", node="n1", network_delay_seconds=0.2),
        Candidate(endpoint="busy", node="n2", queued=5, running=1),
        Candidate(endpoint="idle"),
        Candidate(endpoint="slow", node="n4", speed=0.5),
    )
    async with running_server() as serving:
        answer = await serving.dispatching.Dispatch(
            DispatchRequest(inline_candidates=candidates, max_alternatives=3)
        )
    assert answer.endpoint == "idle"
    assert answer.node == ""
    assert [(other.endpoint, other.node) for other in answer.alternatives] == [
        ("slow", "n4"),
        ("far", "n1"),
        ("busy", "n2"),
    ]
    assert answer.provenance.snapshot_version == 0
    assert answer.provenance.snapshot_age_seconds == pytest.approx(0, abs=5)


async def test_inline_subset() -> None:
    candidates = inline(Candidate(endpoint="a"), Candidate(endpoint="b"))
    async with running_server() as serving:
        only_b = await serving.dispatch(
            inline_candidates=candidates, endpoint_subset=EndpointSubset(endpoints=["b"])
        )
        error = await error_of(
            serving.dispatch(inline_candidates=candidates, endpoint_subset=EndpointSubset(endpoints=["c"]))
        )
    assert only_b.endpoint == "b"
    assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_model_decides_where_one_is_loaded(tmp_path: Path) -> None:
    write_example_bundle(tmp_path)
    async with running_server(graded_endpoints(3), models=tmp_path) as serving:
        answer = await serving.dispatch()
        inline_answer = await serving.dispatch(inline_candidates=inline(Candidate(endpoint="a")))
    for provenance in (answer.provenance, inline_answer.provenance):
        assert (provenance.policy, provenance.policy_version) == ("kais", "1.0.0")
        assert provenance.source == DecisionSource.DECISION_SOURCE_LEARNED


@pytest.mark.parametrize("faulty", [[0], [0, 1, 2]])
@pytest.mark.parametrize("fault", [np.nan, np.inf, -np.inf])
async def test_non_finite_scores_never_reach_a_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: float, faulty: list[int]
) -> None:
    write_example_bundle(tmp_path)

    def score(policy: object, candidates: object, *_: object) -> object:
        scores = np.zeros(3, np.float32)
        scores[faulty] = fault
        return scores

    monkeypatch.setattr(OnnxDispatch, "score", score)
    async with running_server(graded_endpoints(3), models=tmp_path) as serving:
        answer = await serving.dispatch()
    assert answer.endpoint == "10.0.0.0:8080"
    assert answer.provenance.policy == "earliest-completion"
    assert answer.provenance.source == DecisionSource.DECISION_SOURCE_FALLBACK
    assert answer.provenance.fallback_reason == FallbackReason.FALLBACK_REASON_NON_FINITE_OUTPUT


async def test_failing_model_is_stood_in_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_example_bundle(tmp_path)

    def score(*_: object) -> object:
        raise RuntimeError("broken")

    monkeypatch.setattr(OnnxDispatch, "score", score)
    async with running_server(graded_endpoints(3), models=tmp_path) as serving:
        answer = await serving.dispatch()
    assert answer.provenance.fallback_reason == FallbackReason.FALLBACK_REASON_MODEL_ERROR


async def test_stale_state_is_left_to_the_fallback(tmp_path: Path) -> None:
    write_example_bundle(tmp_path)
    async with running_server(models=tmp_path, stale_after_seconds=5.0) as serving:
        await serving.report(graded_endpoints(3), age_seconds=6.0)
        answer = await serving.dispatch()
        await serving.report(graded_endpoints(3))
        fresh = await serving.dispatch()
    assert answer.provenance.fallback_reason == FallbackReason.FALLBACK_REASON_STALE_STATE
    assert answer.provenance.snapshot_age_seconds >= 6.0
    assert fresh.provenance.source == DecisionSource.DECISION_SOURCE_LEARNED
