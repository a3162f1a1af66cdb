import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.cluster.ledger import Ledger
from policy_server.cluster.queries import DispatchQueries, single_query
from policy_server.cluster.snapshot import Float32Array, Snapshot
from policy_server.features.candidates import Candidates
from policy_server.features.load_table import LoadTable
from policy_server.policies.circuit_breaker import BreakerSettings, BreakerState
from policy_server.policies.dispatch import NO_CANDIDATE, DispatchDecisions, DispatchView, decide
from policy_server.policies.guard import (
    DecisionSource,
    FallbackReason,
    GuardedDecisions,
    GuardedDispatch,
    GuardObserver,
    GuardSettings,
    MissingModel,
)
from policy_server.policies.heuristics import (
    HEURISTIC_DISPATCH_NAMES,
    EarliestCompletion,
    RandomDispatch,
    heuristic_dispatch,
)
from policy_server.policies.onnx_dispatch import OnnxDispatch
from policy_server.proto.policy.v1 import decision_pb2
from tests.support.models import head_model, loaded_bundle
from tests.support.systems import (
    Endpoint,
    example_queries,
    example_snapshot,
    example_topology,
    one_service_snapshot,
    snapshots,
)

NOW = 100.1


class Witness(GuardObserver):
    """Remembers what the guard tells."""

    def __init__(self) -> None:
        self.fallbacks: list[tuple[str, FallbackReason, int]] = []
        self.errors: list[Exception | None] = []
        self.imputed = 0
        self.breaker: list[BreakerState] = []

    def fell_back(
        self, policy: str, reason: FallbackReason, queries: int, error: Exception | None = None
    ) -> None:
        self.fallbacks.append((policy, reason, queries))
        self.errors.append(error)

    def found_non_finite_inputs(self, policy: str, values: int) -> None:
        self.imputed += values

    def breaker_changed(self, policy: str, state: BreakerState) -> None:
        self.breaker.append(state)


class Scripted:
    """A learned policy that does what each test says. Counts its calls."""

    name = "scripted"
    version = "7"
    learned = True
    sampling_temperature = 0.0
    shares_picks = False

    def __init__(self, outcome: Any = 0.0) -> None:
        self.outcome = outcome
        self.prepared = 0
        self.calls = 0
        self.features: Float32Array | None = None

    def prepare(self, table: LoadTable) -> str:
        self.prepared += 1
        return "prepared"

    def score(self, candidates: Candidates, prepared: str, random: np.random.Generator) -> Float32Array:
        assert prepared == "prepared"
        self.calls += 1
        self.features = candidates.features.copy()
        outcome = self.outcome(candidates) if callable(self.outcome) else self.outcome
        if isinstance(outcome, Exception):
            raise outcome
        return (
            np.zeros(len(candidates), np.float32) + np.float32(outcome) if np.isscalar(outcome) else outcome
        )


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def onnx_guard(
    faults: Mapping[int, float] | float | None, witness: Witness | None = None, temperature: float = 0.0
) -> GuardedDispatch:
    bundle = loaded_bundle(head=head_model(faults=faults), sampling_temperature=temperature)
    return GuardedDispatch(OnnxDispatch(bundle), observer=witness)


def decided(
    guard: GuardedDispatch, snapshot: Snapshot, queries: DispatchQueries, **options: Any
) -> GuardedDecisions:
    return guard.decide(
        DispatchView(snapshot),
        queries,
        options.pop("ledger", None) or Ledger(snapshot.topology),
        options.pop("now_seconds", NOW),
        np.random.default_rng(options.pop("seed", 0)),
        **options,
    )


def assert_equal(first: DispatchDecisions, second: DispatchDecisions, rows: Any = slice(None)) -> None:
    for column in fields(DispatchDecisions):
        np.testing.assert_array_equal(getattr(first, column.name)[rows], getattr(second, column.name)[rows])


def reasons(result: GuardedDecisions) -> list[FallbackReason]:
    return [result.origin_of(query).reason for query in range(len(result.decisions))]


@pytest.fixture
def snapshot() -> Snapshot:
    return example_snapshot(example_topology())


@pytest.fixture
def witness() -> Witness:
    return Witness()


@pytest.mark.parametrize(
    ("ours", "theirs"), [(DecisionSource, "DecisionSource"), (FallbackReason, "FallbackReason")]
)
def test_numbers_are_those_of_the_api(ours: type[DecisionSource] | type[FallbackReason], theirs: str) -> None:
    prefix = {"DecisionSource": "DECISION_SOURCE_", "FallbackReason": "FALLBACK_REASON_"}[theirs]
    numbers = {member.name: member.value for member in ours}
    api = {name.removeprefix(prefix): number for name, number in getattr(decision_pb2, theirs).items()}
    assert api.items() <= numbers.items()


class TestSoundPolicy:
    @given(snapshot=snapshots(), count=st.integers(1, 6), seed=st.integers(0, 50), k=st.integers(0, 3))
    def test_decides_as_without_a_guard(self, snapshot: Snapshot, count: int, seed: int, k: int) -> None:
        queries = example_queries(snapshot.topology, count, seed)
        for policy in (OnnxDispatch(loaded_bundle(sampling_temperature=0.5)), RandomDispatch()):
            guarded, plain = Ledger(snapshot.topology), Ledger(snapshot.topology)
            result = decided(
                GuardedDispatch(policy), snapshot, queries, ledger=guarded, alternatives=k, seed=seed
            )
            expected = decide(
                policy,
                DispatchView(snapshot),
                queries,
                plain,
                NOW,
                np.random.default_rng(seed),
                alternatives=k,
            )
            assert_equal(result.decisions, expected)
            np.testing.assert_array_equal(guarded.replica_pending, plain.replica_pending)
            assert result.snapshot_age_seconds == pytest.approx(0.1)
            assert not result.exceptions

    def test_says_who_decided(self, snapshot: Snapshot, witness: Witness) -> None:
        queries = example_queries(snapshot.topology, 3)
        origin = decided(onnx_guard(None, witness), snapshot, queries).origin_of(1)
        assert (origin.policy, origin.version, origin.source) == ("kais", "1.0.0", DecisionSource.LEARNED)
        assert origin.reason is FallbackReason.UNSPECIFIED
        assert witness.fallbacks == []
        for name in HEURISTIC_DISPATCH_NAMES:
            origin = decided(GuardedDispatch(heuristic_dispatch(name)), snapshot, queries).origin
            assert (origin.policy, origin.source) == (name, DecisionSource.HEURISTIC)

    def test_nobody_to_choose_from_is_no_fault(self, witness: Witness) -> None:
        empty = example_snapshot(example_topology(), ready_probability=0.0)
        guard = GuardedDispatch(Scripted(RuntimeError()), observer=witness)
        result = decided(guard, empty, example_queries(empty.topology, 2), alternatives=2)
        assert (result.decisions.replica == NO_CANDIDATE).all()
        assert result.decisions.alternatives.shape == (2, 2)
        assert (witness.fallbacks, guard.breaker_state) == ([], BreakerState.CLOSED)

    def test_picks_count_only_on_request(self, snapshot: Snapshot) -> None:
        for guard in (onnx_guard(None), onnx_guard(math.nan)):
            ledger = Ledger(snapshot.topology)
            queries = example_queries(snapshot.topology, 3)
            decided(guard, snapshot, queries, ledger=ledger, record=False)
            assert ledger.pending == 0
            decided(guard, snapshot, queries, ledger=ledger)
            assert ledger.pending == 3

    def test_equal_endpoints_get_equal_shares_repeatably(self) -> None:
        snapshot = one_service_snapshot([Endpoint()] * 4)
        view, guard = DispatchView(snapshot), onnx_guard(None)

        def picks(seed: int) -> list[int]:
            ledger, random = Ledger(snapshot.topology), np.random.default_rng(seed)
            query = single_query(0, 0, 1.0)
            return [
                int(guard.decide(view, query, ledger, NOW, random, record=False).decisions.replica[0])
                for _ in range(2000)
            ]

        shares = Counter(picks(1))
        assert set(shares) == {0, 1, 2, 3}
        five_sigma = 5 * math.sqrt(2000 * 0.25 * 0.75)
        assert all(abs(share - 500) < five_sigma for share in shares.values())
        assert picks(1) == picks(1)
        assert picks(1) != picks(2)


class TestNonFiniteOutput:
    """Runtimes disagree on NaN; none of it may reach the choice."""

    ENDPOINTS = (
        Endpoint(queued=2, running=4),
        Endpoint(),
        Endpoint(running=4),
        Endpoint("ap-1"),
        Endpoint("cloud"),
    )

    @pytest.mark.parametrize(
        "faults",
        [
            *({k: math.nan} for k in range(5)),
            math.nan,
            {0: math.inf, 3: math.inf},
            {2: math.inf},
            -math.inf,
            {4: -math.inf},
        ],
    )
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_is_answered_by_the_fallback_and_counted_once(
        self, witness: Witness, faults: Mapping[int, float] | float, temperature: float
    ) -> None:
        snapshot = one_service_snapshot(self.ENDPOINTS)
        guard = onnx_guard(faults, witness, temperature)
        result = decided(guard, snapshot, single_query(0, 0, 1.0), alternatives=2)
        expected = decide(
            EarliestCompletion(),
            DispatchView(snapshot),
            single_query(0, 0, 1.0),
            Ledger(snapshot.topology),
            NOW,
            np.random.default_rng(0),
            alternatives=2,
        )
        assert_equal(result.decisions, expected)
        assert result.decisions.replica[0] == 1
        origin = result.origin_of(0)
        assert (origin.policy, origin.source) == ("earliest-completion", DecisionSource.FALLBACK)
        assert origin.reason is FallbackReason.NON_FINITE_OUTPUT
        assert witness.fallbacks == [("kais", FallbackReason.NON_FINITE_OUTPUT, 1)]

    @given(seed=st.integers(0, 10_000), temperature=st.sampled_from([0.0, 0.5]), data=st.data())
    def test_neighbours_in_a_batch_are_decided_as_if_nothing_had_happened(
        self, seed: int, temperature: float, data: st.DataObject
    ) -> None:
        topology = example_topology(seed=seed)
        snapshot = example_snapshot(topology, seed, ready_probability=0.8)
        queries = example_queries(topology, data.draw(st.integers(2, 8)), seed, dispatchers=2)
        ledgers = Ledger(topology, 2), Ledger(topology, 2)
        candidates = DispatchView(snapshot).candidates(queries, ledgers[0], NOW)
        if not len(candidates):
            return
        position = data.draw(st.integers(0, len(candidates) - 1))
        value = data.draw(st.sampled_from([math.nan, math.inf, -math.inf]))
        witness = Witness()
        faulty = decided(
            onnx_guard({position: value}, witness, temperature),
            snapshot,
            queries,
            alternatives=2,
            ledger=ledgers[0],
        )
        sound = decided(
            onnx_guard(None, None, temperature), snapshot, queries, alternatives=2, ledger=ledgers[1]
        )
        affected = int(candidates.segment[position])
        assert_equal(faulty.decisions, sound.decisions, np.arange(len(queries)) != affected)
        assert witness.fallbacks == [("kais", FallbackReason.NON_FINITE_OUTPUT, 1)]
        expected = [FallbackReason.UNSPECIFIED] * len(queries)
        expected[affected] = FallbackReason.NON_FINITE_OUTPUT
        if (np.diff(candidates.offsets) > 0).sum() > 1:
            assert reasons(faulty) == expected
        own = slice(candidates.offsets[affected], candidates.offsets[affected + 1])
        assert faulty.decisions.replica[affected] in candidates.replica[own]
        assert ledgers[0].pending == ledgers[1].pending

    def test_the_affected_query_of_a_batch_gets_what_the_fallback_would_say(self, witness: Witness) -> None:
        snapshot = one_service_snapshot(self.ENDPOINTS)
        queries = DispatchQueries(
            service=np.zeros(3, np.int32),
            access_point=np.array([0, 1, 0], np.int32),
            deadline_seconds=np.ones(3, np.float32),
            payload_bytes=np.zeros(3, np.float32),
            subset=[None, np.array([0, 2, 3], np.int32), None],
            dispatcher=np.array([0, 1, 0], np.int32),
        )
        ledger = Ledger(snapshot.topology, 2)
        result = decided(onnx_guard({6: math.nan}, witness), snapshot, queries, ledger=ledger, alternatives=3)
        assert reasons(result) == [
            FallbackReason.UNSPECIFIED,
            FallbackReason.NON_FINITE_OUTPUT,
            FallbackReason.UNSPECIFIED,
        ]
        completion = decide(
            EarliestCompletion(),
            DispatchView(snapshot),
            single_query(0, 1, 1.0, subset=np.array([0, 2, 3], np.int32)),
            Ledger(snapshot.topology),
            NOW,
            np.random.default_rng(0),
            alternatives=3,
        )
        np.testing.assert_array_equal(result.decisions.replica[1], completion.replica[0])
        np.testing.assert_array_equal(result.decisions.alternatives[1], completion.alternatives[0])
        np.testing.assert_array_equal(ledger.replica_pending.sum(axis=1), [2, 1])

    @pytest.mark.parametrize("seed", range(20))
    def test_ties_of_neighbours_are_broken_as_if_nothing_had_happened(self, seed: int) -> None:
        snapshot = one_service_snapshot([Endpoint()] * 5)
        queries = example_queries(snapshot.topology, 3)
        queries.access_point[:] = 0

        def scores(second: float) -> Scripted:
            return Scripted(np.array([0, 0, 0, 0, 0, second, 1, 2, 3, 4, 0, 0, 0, 0, 0], np.float32))

        faulty = decided(GuardedDispatch(scores(math.nan)), snapshot, queries, seed=seed)
        sound = decided(GuardedDispatch(scores(0.0)), snapshot, queries, seed=seed)
        assert_equal(faulty.decisions, sound.decisions, [0, 2])

    def test_a_wholly_affected_batch_has_one_origin(self, snapshot: Snapshot, witness: Witness) -> None:
        result = decided(onnx_guard(math.nan, witness), snapshot, example_queries(snapshot.topology, 5))
        assert result.origin.reason is FallbackReason.NON_FINITE_OUTPUT
        assert not result.exceptions
        assert witness.fallbacks == [("kais", FallbackReason.NON_FINITE_OUTPUT, 5)]

    def test_heuristics_are_checked_too(self, snapshot: Snapshot) -> None:
        class Broken(RandomDispatch):
            def score(self, candidates: Candidates, prepared: None, random: Any) -> Float32Array:
                return np.full(len(candidates), np.nan, np.float32)

        result = decided(GuardedDispatch(Broken()), snapshot, example_queries(snapshot.topology, 2))
        assert result.origin.source is DecisionSource.FALLBACK

    def test_non_finite_scores_of_the_fallback_itself_rank_last(self, snapshot: Snapshot) -> None:
        query = example_queries(snapshot.topology, 1)
        candidates = DispatchView(snapshot).candidates(query, Ledger(snapshot.topology), NOW)

        class OneFinite(RandomDispatch):
            def score(self, candidates: Candidates, prepared: None, random: Any) -> Float32Array:
                scores = np.array([math.nan, -1e6, math.inf, -math.inf], np.float32)
                return np.resize(np.append(scores, np.repeat(np.nan, 99)), len(candidates)).astype(np.float32)

        guard = GuardedDispatch(Scripted(ValueError()), fallback=OneFinite())
        result = decided(guard, snapshot, query, alternatives=len(candidates))
        assert result.decisions.replica[0] == candidates.replica[1]
        assert set(result.decisions.alternatives[0].tolist()) - {NO_CANDIDATE} == (
            set(candidates.replica.tolist()) - {int(candidates.replica[1])}
        )


class TestNonFiniteInput:
    def test_is_imputed_before_inference_counted_and_harms_no_neighbour(
        self, snapshot: Snapshot, witness: Witness
    ) -> None:
        queries = example_queries(snapshot.topology, 4)
        policy = Scripted(lambda candidates: candidates.replica.astype(np.float32))
        sound = decided(GuardedDispatch(policy), snapshot, queries)
        queries.deadline_seconds[2] = np.nan
        guard = GuardedDispatch(policy, observer=witness)
        result = decided(guard, snapshot, queries)
        assert policy.features is not None
        assert np.isfinite(policy.features).all()
        assert reasons(result) == [
            FallbackReason.UNSPECIFIED,
            FallbackReason.UNSPECIFIED,
            FallbackReason.NON_FINITE_INPUT,
            FallbackReason.UNSPECIFIED,
        ]
        assert_equal(result.decisions, sound.decisions, [0, 1, 3])
        assert result.decisions.replica[2] >= 0
        assert witness.imputed > 0
        assert witness.fallbacks == [("scripted", FallbackReason.NON_FINITE_INPUT, 1)]

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_is_not_held_against_the_policy(self, snapshot: Snapshot, value: float) -> None:
        guard = GuardedDispatch(Scripted())
        query = single_query(0, 0, value)
        with np.errstate(invalid="ignore"):
            for _ in range(20):
                assert decided(guard, snapshot, query).origin.reason is FallbackReason.NON_FINITE_INPUT
        assert guard.breaker_state is BreakerState.CLOSED

    def test_a_trial_on_such_input_closes_the_breaker(self, snapshot: Snapshot) -> None:
        policy, clock = Scripted(RuntimeError()), Clock()
        settings = GuardSettings(breaker=BreakerSettings(fault_limit=1, backoff_seconds=1.0))
        guard = GuardedDispatch(policy, settings=settings, clock=clock)
        decided(guard, snapshot, single_query(0, 0, 1.0))
        assert guard.breaker_state is BreakerState.OPEN
        policy.outcome = 0.0
        clock.now += 1
        decided(guard, snapshot, single_query(0, 0, math.nan))
        assert guard.breaker_state is BreakerState.CLOSED

    def test_output_faults_of_other_queries_are_told_apart(
        self, snapshot: Snapshot, witness: Witness
    ) -> None:
        queries = example_queries(snapshot.topology, 3)
        queries.deadline_seconds[0] = np.nan

        def last_query_nan(candidates: Candidates) -> Float32Array:
            return np.where(candidates.segment == 2, np.nan, 0).astype(np.float32)

        result = decided(GuardedDispatch(Scripted(last_query_nan), observer=witness), snapshot, queries)
        assert reasons(result) == [
            FallbackReason.NON_FINITE_INPUT,
            FallbackReason.UNSPECIFIED,
            FallbackReason.NON_FINITE_OUTPUT,
        ]
        assert sorted(witness.fallbacks) == [
            ("scripted", FallbackReason.NON_FINITE_OUTPUT, 1),
            ("scripted", FallbackReason.NON_FINITE_INPUT, 1),
        ]

    def test_of_a_snapshot_is_imputed_and_counted(self, snapshot: Snapshot, witness: Witness) -> None:
        view = DispatchView(snapshot)
        view.table.node_features[0, 3] = np.inf
        guard = onnx_guard(None, witness)
        result = guard.decide(
            view, single_query(0, 0, 1.0), Ledger(snapshot.topology), NOW, np.random.default_rng(0)
        )
        assert witness.imputed == 1
        assert result.origin.source is DecisionSource.LEARNED


class TestModelError:
    @pytest.mark.parametrize(
        "outcome",
        [
            RuntimeError("out of order"),
            MemoryError(),
            lambda candidates: np.zeros(len(candidates) + 1, np.float32),
            lambda candidates: np.zeros((len(candidates), 1), np.float32),
            lambda candidates: None,
            lambda candidates: np.array(["a"] * len(candidates)),
        ],
    )
    def test_is_answered_by_the_fallback(self, snapshot: Snapshot, witness: Witness, outcome: Any) -> None:
        guard = GuardedDispatch(Scripted(outcome), observer=witness)
        result = decided(guard, snapshot, example_queries(snapshot.topology, 3))
        assert (result.decisions.replica >= 0).all()
        assert result.origin.reason is FallbackReason.MODEL_ERROR
        assert witness.fallbacks == [("scripted", FallbackReason.MODEL_ERROR, 3)]
        assert witness.errors[0] is not None

    def test_of_the_encoder_too(self, snapshot: Snapshot, witness: Witness) -> None:
        class NoEncoder(Scripted):
            def prepare(self, table: LoadTable) -> str:
                raise RuntimeError("no encoder")

        guard = GuardedDispatch(NoEncoder(), observer=witness)
        result = decided(guard, snapshot, example_queries(snapshot.topology, 1))
        assert result.origin.reason is FallbackReason.MODEL_ERROR
        assert str(witness.errors[0]) == "no encoder"

    def test_preparing_ahead_never_raises_but_counts(self, snapshot: Snapshot, witness: Witness) -> None:
        class NoEncoder(Scripted):
            def prepare(self, table: LoadTable) -> str:
                raise RuntimeError("no encoder")

        guard = GuardedDispatch(NoEncoder(), observer=witness)
        for _ in range(5):
            guard.prepare(DispatchView(snapshot))
        assert guard.degraded
        assert witness.breaker == [BreakerState.OPEN]

    def test_preparing_ahead_spares_the_decision(self, snapshot: Snapshot) -> None:
        policy = Scripted()
        guard, view = GuardedDispatch(policy), DispatchView(snapshot)
        guard.prepare(view)
        assert policy.prepared == 1
        guard.decide(view, single_query(0, 0, 1.0), Ledger(snapshot.topology), NOW, np.random.default_rng(0))
        assert policy.prepared == 1

    def test_does_not_hide_an_interrupt(self, snapshot: Snapshot) -> None:
        def interrupt(candidates: Candidates) -> Float32Array:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            decided(GuardedDispatch(Scripted(interrupt)), snapshot, single_query(0, 0, 1.0))


class TestStaleState:
    SETTINGS = GuardSettings(maximum_state_age_seconds=2.0)

    @pytest.mark.parametrize(
        ("age", "reason"), [(1.9, FallbackReason.UNSPECIFIED), (2.1, FallbackReason.STALE_STATE)]
    )
    def test_is_not_judged_by_a_model(self, snapshot: Snapshot, age: float, reason: FallbackReason) -> None:
        policy = Scripted()
        guard = GuardedDispatch(policy, settings=self.SETTINGS)
        result = decided(guard, snapshot, single_query(0, 0, 1.0), now_seconds=100 + age)
        assert result.origin.reason is reason
        assert result.snapshot_age_seconds == pytest.approx(age)
        assert policy.calls == (reason is FallbackReason.UNSPECIFIED)
        assert guard.breaker_state is BreakerState.CLOSED

    def test_heuristics_answer_on_their_own_picks(self, snapshot: Snapshot) -> None:
        guard = GuardedDispatch(heuristic_dispatch("least-loaded"), settings=self.SETTINGS)
        result = decided(guard, snapshot, single_query(0, 0, 1.0), now_seconds=1000)
        assert result.origin.source is DecisionSource.HEURISTIC


class TestMissingModel:
    def test_is_never_asked(self, snapshot: Snapshot, witness: Witness) -> None:
        guard = GuardedDispatch(MissingModel("kais"), observer=witness)
        guard.prepare(DispatchView(snapshot))
        for _ in range(10):
            result = decided(guard, snapshot, example_queries(snapshot.topology, 2))
            assert result.origin.reason is FallbackReason.NO_MODEL
        assert witness.fallbacks == [("kais", FallbackReason.NO_MODEL, 2)] * 10
        assert guard.degraded
        assert guard.breaker_state is BreakerState.CLOSED


class TestCircuitBreaker:
    SETTINGS = GuardSettings(breaker=BreakerSettings(fault_limit=5, backoff_seconds=1.0))

    @pytest.mark.parametrize(
        "fault", [RuntimeError("broken"), math.nan, lambda candidates: np.zeros(0, np.float32)]
    )
    def test_spares_a_failing_policy_and_tries_it_again(
        self, snapshot: Snapshot, witness: Witness, caplog: pytest.LogCaptureFixture, fault: Any
    ) -> None:
        caplog.set_level(logging.INFO)
        policy, clock = Scripted(fault), Clock()
        guard = GuardedDispatch(policy, settings=self.SETTINGS, observer=witness, clock=clock)

        def reason() -> FallbackReason:
            return decided(guard, snapshot, single_query(0, 0, 1.0)).origin.reason

        assert FallbackReason.CIRCUIT_OPEN not in [reason() for _ in range(5)]
        assert guard.degraded
        assert [reason() for _ in range(10)] == [FallbackReason.CIRCUIT_OPEN] * 10
        assert policy.calls == 5
        clock.now += 1
        assert reason() is not FallbackReason.CIRCUIT_OPEN
        assert policy.calls == 6
        clock.now += 1
        assert reason() is FallbackReason.CIRCUIT_OPEN, "the back-off has doubled"
        policy.outcome = 0.0
        clock.now += 1
        assert reason() is FallbackReason.UNSPECIFIED
        assert not guard.degraded
        assert witness.breaker == [BreakerState.OPEN, BreakerState.OPEN, BreakerState.CLOSED]
        assert "not asked for a while" in caplog.text
        assert "sound again" in caplog.text

    def test_stays_closed_while_faults_alternate_with_successes(self, snapshot: Snapshot) -> None:
        policy = Scripted()
        guard = GuardedDispatch(policy, settings=self.SETTINGS)
        for turn in range(40):
            policy.outcome = 0.0 if turn % 5 == 4 else RuntimeError()
            decided(guard, snapshot, single_query(0, 0, 1.0))
        assert policy.calls == 40

    def test_a_nan_for_one_query_is_a_fault(self, snapshot: Snapshot) -> None:
        def first_nan(candidates: Candidates) -> Float32Array:
            return np.where(np.arange(len(candidates)) == 0, np.nan, 0).astype(np.float32)

        guard = GuardedDispatch(Scripted(first_nan), settings=self.SETTINGS)
        for _ in range(5):
            decided(guard, snapshot, example_queries(snapshot.topology, 4))
        assert guard.breaker_state is BreakerState.OPEN


@given(
    snapshots(),
    st.integers(0, 2**16),
    st.sampled_from(["sound", "raises", "all NaN", "first NaN", "missing", *HEURISTIC_DISPATCH_NAMES]),
)
def test_a_single_query_is_decided_like_a_batch_of_one(snapshot: Snapshot, seed: int, behaviour: str) -> None:
    def guard() -> tuple[GuardedDispatch, Witness]:
        witness = Witness()
        if behaviour == "missing":
            return GuardedDispatch(MissingModel("kais"), observer=witness), witness
        if behaviour in HEURISTIC_DISPATCH_NAMES:
            return GuardedDispatch(heuristic_dispatch(behaviour), observer=witness), witness

        def outcome(candidates: Candidates) -> Any:
            scores = -candidates.completion_seconds
            if behaviour == "first NaN":
                scores[0] = np.nan
            return {"raises": ValueError("broken"), "all NaN": np.full_like(scores, np.nan)}.get(
                behaviour, scores
            )

        return GuardedDispatch(Scripted(outcome), observer=witness), witness

    (one, one_witness), (many, many_witness) = guard(), guard()
    view = DispatchView(snapshot)
    one_ledger, many_ledger = Ledger(snapshot.topology, 2), Ledger(snapshot.topology, 2)
    one_random, many_random = np.random.default_rng(seed), np.random.default_rng(seed)
    queries = example_queries(snapshot.topology, 4, seed, dispatchers=2)
    for row in range(4):
        query = queries.row(row)
        single = one.decide_one(view, query, one_ledger, NOW, one_random, alternatives=2)
        batch = many.decide(view, query.as_batch(), many_ledger, NOW, many_random, alternatives=2)
        assert single == batch.row(0)
        np.testing.assert_array_equal(one_ledger.pending_values, many_ledger.pending_values)
    assert one_ledger.pending == many_ledger.pending
    assert one_witness.fallbacks == many_witness.fallbacks
