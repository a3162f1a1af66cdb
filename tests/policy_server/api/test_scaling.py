"""Scaling over gRPC: who decides, what is answered, and every row of field notes U16."""

from __future__ import annotations

import math
from pathlib import Path

import grpc
import numpy as np
import pytest

from policy_server.client.scaling import scale_request
from policy_server.policies.scaling import RULE_SCALING_NAMES
from policy_server.policies.scaling.actor import CPU_FACTORS
from policy_server.policies.scaling.guard import GuardedScaling
from policy_server.policies.scaling.onnx import onnx_scaling
from policy_server.proto.policy.v1.scaling_service_pb2 import ScaleRequest, ScaleResponse, ScalingHistory
from policy_server.runtime.scaling_graph import ACTOR
from tests.support.models import actor_model, golden_of, loaded_scaling_bundle, write_scaling_bundle
from tests.support.scaling import MEBIBYTE, ORDINARY, Scaling, assert_sound, container, running_scaling
from tests.support.serving import error_of

BUSY = {"cpu_usage_millicores": 950, "throttled_fraction": 0.3}


# Who decides.


@pytest.mark.parametrize("name", RULE_SCALING_NAMES)
async def test_every_rule_is_served_by_its_name(name: str) -> None:
    async with running_scaling() as scaling:
        rows = await scaling.scale(container("a"), container("b", **BUSY), policy=name)
    for row in rows:
        assert (row.policy, row.policy_version, row.source) == (name, "1", "HEURISTIC")
        assert_sound(row)


async def test_the_first_model_is_active_and_learned(tmp_path: Path) -> None:
    write_scaling_bundle(tmp_path, version="1.0.0")
    write_scaling_bundle(tmp_path, version="1.2.0", seed=1)
    async with running_scaling(models=tmp_path) as scaling:
        (row,) = await scaling.scale(container(), policy="")
    assert (row.policy, row.policy_version, row.source) == ("td3", "1.2.0", "LEARNED")
    assert_sound(row)


async def test_without_a_model_the_fallback_rule_is_active(tmp_path: Path) -> None:
    async with running_scaling(models=tmp_path, scaling_fallback="percentile") as scaling:
        (row,) = await scaling.scale(container(), policy="")
    assert (row.policy, row.source) == ("percentile", "HEURISTIC")


async def test_the_active_policy_is_a_setting(tmp_path: Path) -> None:
    write_scaling_bundle(tmp_path)
    async with running_scaling(models=tmp_path, scaling_policy="static") as scaling:
        (row,) = await scaling.scale(container(**BUSY), policy="")
    assert row.policy == "static"
    assert row.cpu.target == 1000


async def test_an_unknown_policy_is_not_found(tmp_path: Path) -> None:
    write_scaling_bundle(tmp_path)
    async with running_scaling(models=tmp_path) as scaling:
        error = await error_of(scaling.scale(container(), policy="td4"))
        assert error.code() is grpc.StatusCode.NOT_FOUND
        names = "td3, static, threshold, percentile, autothrottle"
        assert error.details() == f"policy: 'td4' is unknown; choose one of {names}"
        # Policies of other decisions are not policies of this one, nor the other way round.
        assert (await error_of(scaling.scale(policy="greedy"))).code() is grpc.StatusCode.NOT_FOUND
        assert "td3" not in scaling.serving.server.registry.names


async def test_a_model_that_cannot_be_loaded_is_stood_in_for(tmp_path: Path) -> None:
    bundle = write_scaling_bundle(tmp_path)
    (bundle / "actor.onnx").write_bytes(b"garbage")
    async with running_scaling(models=tmp_path, scaling_policy="td3") as scaling:
        (row,) = await scaling.scale(container(), policy="td3")
    assert (row.policy, row.source, row.fallback_reason) == ("threshold", "FALLBACK", "NO_MODEL")


async def test_economy_makes_a_model_spare_resources(tmp_path: Path) -> None:
    model = actor_model(fault=-1.0, faulty_where=0.7)
    async with running_scaling(models=tmp_path, scaling_economy=0.9) as scaling:
        _serve(scaling, model)
        (dear,) = await scaling.scale(container(), policy="td3")
        (cheap,) = await scaling.scale(container(), policy="td3", economy=0.1)
    # The model answers -1, the least, where the economy is above 0.7.
    least = 600 * CPU_FACTORS[0]
    assert dear.cpu.uncapped_target == pytest.approx(least)
    assert cheap.cpu.uncapped_target > least


@pytest.mark.parametrize("policy", ["td3", "autothrottle"])
async def test_of_no_containers_nothing_is_said(policy: str, tmp_path: Path) -> None:
    write_scaling_bundle(tmp_path)
    async with running_scaling(models=tmp_path) as scaling:
        for history in (None, ScalingHistory(intervals=3)):
            response = await scaling.stub.Scale(ScaleRequest(policy=policy, history=history))  # type: ignore[misc]
            assert len(response.apply) == len(response.provenance) == 0


async def test_provenance_knows_the_age_of_the_oldest_sample() -> None:
    request = scale_request([container("a", sample_age_seconds=3), container("b", sample_age_seconds=7)])
    async with running_scaling() as scaling:
        response: ScaleResponse = await scaling.stub.Scale(request)  # type: ignore[misc]
    (provenance,) = response.provenances
    assert provenance.snapshot_age_seconds == 7
    assert provenance.snapshot_version == 0


# Faults of a model.


@pytest.mark.parametrize("fault", [math.nan, math.inf, -math.inf])
async def test_a_model_without_an_answer_is_stood_in_for(tmp_path: Path, fault: float) -> None:
    async with running_scaling(models=tmp_path) as scaling:
        _serve(scaling, actor_model(fault=fault))
        rows = await scaling.scale(container("a"), container("b", **BUSY), policy="td3")
        expected = await scaling.scale(container("a"), container("b", **BUSY), policy="threshold")
        metrics = scaling.serving.server.metrics
        assert metrics._fallbacks["td3", 2] == metrics._non_finite_outputs["td3"] == 2
    for row, rule in zip(rows, expected, strict=True):
        assert (row.policy, row.source, row.fallback_reason) == (
            "threshold",
            "FALLBACK",
            "NON_FINITE_OUTPUT",
        )
        assert (row.cpu, row.memory, row.apply) == (rule.cpu, rule.memory, rule.apply)


async def test_a_model_that_fails_for_some_containers_decides_for_the_others(tmp_path: Path) -> None:
    model = actor_model(fault=math.nan, faulty_where=0.5)
    async with running_scaling(models=tmp_path) as scaling:
        guarded = _serve(scaling, model)
        tasks = [
            scaling.scale(container(f"c{economy}"), policy="td3", economy=economy) for economy in (0.2, 0.8)
        ]
        (sound,), (faulty,) = [await task for task in tasks]
        assert (sound.source, faulty.source) == ("LEARNED", "FALLBACK")
        assert not guarded.degraded


async def test_after_repeated_faults_a_model_is_not_asked_for_a_while(tmp_path: Path) -> None:
    async with running_scaling(models=tmp_path) as scaling:
        _serve(scaling, actor_model(fault=math.nan))
        reasons = [(await scaling.scale(container(), policy="td3"))[0].fallback_reason for _ in range(7)]
    assert reasons == ["NON_FINITE_OUTPUT"] * 5 + ["CIRCUIT_OPEN"] * 2


def _serve(scaling: Scaling, model: bytes) -> GuardedScaling:
    """Serves a model that went wrong after it was checked."""
    guarded = scaling.serving.server.scaling_registry._guarded(onnx_scaling(loaded_scaling_bundle(model)))
    scaling.serving.server.scaling_registry._put(guarded)
    return guarded


# Field notes U16, row by row.


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("Deferred", "RESIZE_DEFERRED"),
        ("Infeasible", "RESIZE_INFEASIBLE"),
        ("InProgress", "RESIZE_IN_PROGRESS"),
    ],
)
async def test_a_target_under_way_is_held_and_a_changed_one_is_not(status: str, reason: str) -> None:
    # 900 of 1000 in use: threshold wants 1500, which the pod specifies already, but does not have yet.
    pending = {
        "cpu_request_millicores": 750,
        "cpu_limit_millicores": 1500,
        "last_resize": {"status": status},
    }
    async with running_scaling() as scaling:
        same = await scaling.one(history=_intervals(900), **pending)
        noisy = await scaling.one(history=_intervals(930), **pending)
        changed = await scaling.one(history=_intervals(700), **pending)
    assert (same.apply, same.hold_reason) == (noisy.apply, noisy.hold_reason) == (False, reason)
    assert changed.apply
    assert changed.cpu.limit == pytest.approx(700 / 0.6, abs=1)


def _intervals(usage: float, limit: float = 1000, count: int = 3) -> list[dict[str, float]]:
    return [{**ORDINARY, "cpu_usage_millicores": usage, "cpu_limit_millicores": limit}] * count


@pytest.mark.parametrize(("seconds", "apply"), [(5, False), (19, False), (20, True)])
async def test_a_resize_error_is_retried_with_back_off(seconds: float, apply: bool) -> None:
    last = {"status": "Error", "failures": 2, "seconds_since_attempt": seconds}
    async with running_scaling() as scaling:
        row = await scaling.one(
            history=_intervals(900), cpu_request_millicores=750, cpu_limit_millicores=1500, last_resize=last
        )
    assert (row.apply, row.hold_reason) == (apply, "" if apply else "RESIZE_BACK_OFF")


@pytest.mark.parametrize(("use", "target"), [(200, 250), (250, 313), (240, 300)])
async def test_memory_is_never_below_use_plus_headroom(use: int, target: int) -> None:
    async with running_scaling() as scaling:
        rule = await scaling.one(memory_usage_bytes=use * MEBIBYTE)
        tight = await scaling.one(memory_usage_bytes=use * MEBIBYTE, largest_memory_bytes=64 * MEBIBYTE)
    assert rule.memory.target in (256 * MEBIBYTE, target * MEBIBYTE)
    for row in (rule, tight):
        assert row.memory.target >= min(math.floor(1.1 * use) * MEBIBYTE, 256 * MEBIBYTE)


async def test_guaranteed_stays_guaranteed() -> None:
    async with running_scaling() as scaling:
        row = await scaling.one(
            qos_class="Guaranteed",
            cpu_request_millicores=1000,
            memory_request_bytes=256 * MEBIBYTE,
            cpu_usage_millicores=990,
            memory_usage_bytes=250 * MEBIBYTE,
        )
    assert row.apply
    assert row.cpu.request == row.cpu.limit == row.cpu.target == 1650
    assert row.memory.request == row.memory.limit == row.memory.target == 313 * MEBIBYTE


async def test_burstable_keeps_the_share_of_its_requests() -> None:
    async with running_scaling() as scaling:
        row = await scaling.one(cpu_usage_millicores=990)
    assert (row.cpu.request, row.cpu.limit) == (825, 1650)
    assert row.memory.request is not None
    assert row.memory.limit is not None
    assert row.memory.request < row.memory.limit


async def test_burstable_with_a_request_alone_gets_the_target_as_its_request() -> None:
    async with running_scaling() as scaling:
        row = await scaling.one(
            cpu_request_millicores=1000,
            cpu_limit_millicores=None,
            memory_limit_bytes=None,
            memory_request_bytes=256 * MEBIBYTE,
            cpu_usage_millicores=990,
        )
    assert (row.cpu.request, row.cpu.limit, row.memory.limit) == (1650, None, None)


async def test_best_effort_gets_no_recommendation() -> None:
    nothing = dict.fromkeys(
        ("cpu_request_millicores", "cpu_limit_millicores", "memory_request_bytes", "memory_limit_bytes")
    )
    async with running_scaling() as scaling:
        row = await scaling.one(qos_class="BestEffort", **nothing)
        derived = await scaling.one(qos_class=None, **nothing)
    for found in (row, derived):
        assert (found.apply, found.hold_reason) == (False, "BEST_EFFORT")
        assert math.isnan(found.cpu.target)
        assert math.isnan(found.memory.uncapped_target)
        assert (found.cpu.request, found.memory.limit) == (None, None)


class Loop:
    """A controller of one container: measures, asks, applies; usage in, limits out."""

    def __init__(self, scaling: Scaling, policy: str, cpu: float = 1000.0) -> None:
        self._scaling, self._policy = scaling, policy
        self.cpu, self.memory = cpu, 400.0 * MEBIBYTE
        self.history: list[dict[str, float]] = []
        self.changes = 0

    async def interval(self, cpu_usage: float, memory_usage: float = 250 * MEBIBYTE) -> None:
        newest = {
            **ORDINARY,
            "cpu_usage_millicores": min(cpu_usage, self.cpu),
            "memory_usage_bytes": memory_usage,
            "cpu_limit_millicores": self.cpu,
            "memory_limit_bytes": self.memory,
        }
        self.history = [*self.history[-47:], newest]
        (row,) = await self._scaling.scale(
            container(
                history=self.history,
                cpu_limit_millicores=self.cpu,
                cpu_request_millicores=self.cpu / 2,
                memory_limit_bytes=self.memory,
            ),
            policy=self._policy,
        )
        assert_sound(row)
        if row.apply:
            assert row.cpu.limit is not None
            assert row.memory.limit is not None
            self.changes += 1
            self.cpu, self.memory = row.cpu.limit, row.memory.limit


@pytest.mark.parametrize("policy", ["threshold", "percentile", "td3"])
async def test_five_percent_of_noise_changes_nothing_in_a_hundred_intervals(
    policy: str, tmp_path: Path
) -> None:
    steady = actor_model(fault=-0.3)
    write_scaling_bundle(tmp_path, models={ACTOR: steady}, goldens=[golden_of(ACTOR, steady)])
    random = np.random.default_rng(3)
    async with running_scaling(models=tmp_path) as scaling:
        loop = Loop(scaling, policy)
        for _ in range(50):
            await loop.interval(500)
        loop.changes = 0
        for _ in range(100):
            share = random.uniform(0.95, 1.05)
            await loop.interval(500 * share, 250 * MEBIBYTE * share)
    assert loop.changes == 0


async def test_a_step_to_twice_the_load_is_exactly_one_change() -> None:
    async with running_scaling() as scaling:
        loop = Loop(scaling, "threshold", cpu=800)
        for _ in range(10):
            await loop.interval(460, 310 * MEBIBYTE)
        assert loop.changes == 0
        for _ in range(10):
            await loop.interval(800, 310 * MEBIBYTE)
    assert loop.changes == 1


async def test_a_restarted_controller_changes_nothing_in_its_first_interval() -> None:
    async with running_scaling() as scaling:
        row = await scaling.one(intervals=1, **BUSY)
        again = await scaling.one(intervals=2, **BUSY)
    assert (row.apply, row.hold_reason, row.cpu.reason) == (False, "UNCHANGED", "FIRST_INTERVAL")
    assert again.apply


async def test_a_restarted_container_is_left_alone_for_two_intervals() -> None:
    busy = {**ORDINARY, **BUSY}
    async with running_scaling() as scaling:
        for after, reason in ((0, "RESTARTED"), (1, "RESTARTED"), (2, "STEP_LIMITED")):
            history = [busy, busy, {**busy, "restarts": 1}, *[{**busy, "cpu_usage_millicores": 20}] * after]
            row = await scaling.one(history=history[-3:] if after == 2 else history)
            assert row.cpu.reason == ("RECOMMENDED" if after == 2 else reason)


async def test_a_kill_raises_memory_above_the_limit_of_that_time() -> None:
    limit = {"memory_limit_bytes": 256 * MEBIBYTE}
    killed = [{**ORDINARY, **limit}, {**ORDINARY, **limit, "oom_kills": 1, "restarts": 1}]
    async with running_scaling() as scaling:
        row = await scaling.one(history=killed)
        # Applied since, and remembered: neither raised once more nor let back down.
        raised = {"memory_limit_bytes": 308 * MEBIBYTE}
        later = await scaling.one(history=[*killed, {**ORDINARY, **raised}, {**ORDINARY, **raised}], **raised)
    assert row.apply
    assert row.memory.reason == "OUT_OF_MEMORY"
    assert row.memory.limit == 308 * MEBIBYTE
    assert later.memory.target == 308 * MEBIBYTE


async def test_a_target_above_the_node_is_capped_and_says_so() -> None:
    nodes = [{"name": "edge", "cpu_millicores": 1500, "memory_bytes": 280 * MEBIBYTE}]
    async with running_scaling() as scaling:
        (row,) = await scaling.scale(
            container(node="edge", cpu_usage_millicores=990, memory_usage_bytes=250 * MEBIBYTE), nodes=nodes
        )
    assert (row.cpu.target, row.cpu.reason) == (1500, "NODE_SIZE")
    assert row.cpu.uncapped_target == pytest.approx(1650)
    assert (row.memory.target, row.memory.reason) == (280 * MEBIBYTE, "NODE_SIZE")


async def test_containers_share_their_node() -> None:
    nodes = [
        {"name": "small", "cpu_millicores": 2400, "memory_bytes": 1e12},
        {"name": "unknown", "cpu_millicores": math.inf, "memory_bytes": math.inf},
    ]
    rows = [
        container(f"{node}-{number}", node=node, cpu_usage_millicores=990)
        for node in ("small", "unknown")
        for number in range(2)
    ]
    async with running_scaling() as scaling:
        first, second, *elsewhere = await scaling.scale(*rows, nodes=nodes)
    assert first.cpu.target == second.cpu.target == 1200
    assert first.cpu.reason == "NODE_SHARED"
    assert [row.cpu.target for row in elsewhere] == [1650, 1650]


# Bounds.


async def test_bounds_of_its_own() -> None:
    async with running_scaling() as scaling:
        low = await scaling.one(largest_cpu_millicores=1200.7, cpu_usage_millicores=990)
        high = await scaling.one(smallest_cpu_millicores=1500)
    assert (low.cpu.target, low.cpu.reason) == (1200, "BOUNDED")
    assert (high.cpu.target, high.cpu.reason) == (1500, "BOUNDED")


async def test_default_bounds_force_no_change() -> None:
    large = {"cpu_limit_millicores": 8000, "cpu_request_millicores": 4000, "cpu_usage_millicores": 5000}
    async with running_scaling() as scaling:
        row = await scaling.one(**large)
        asked = await scaling.one(**large, largest_cpu_millicores=2000)
    assert (row.apply, row.cpu.target) == (False, 8000)
    assert (asked.apply, asked.cpu.target) == (True, 2000)


# Measurements that cannot be used are answered safely.


@pytest.mark.parametrize("missing", [None, math.nan])
async def test_what_was_not_measured_is_held(missing: float | None) -> None:
    async with running_scaling() as scaling:
        cpu = await scaling.one(cpu_usage_millicores=missing)
        memory = await scaling.one(memory_usage_bytes=missing, cpu_usage_millicores=990)
        nothing = await scaling.one(history=[])
    assert (cpu.cpu.reason, cpu.cpu.target) == ("NOT_MEASURED", 1000)
    assert (memory.memory.reason, memory.memory.target) == ("NOT_MEASURED", 256 * MEBIBYTE)
    assert memory.apply
    assert memory.memory.limit == 256 * MEBIBYTE
    assert (nothing.apply, nothing.cpu.target) == (False, 1000)


async def test_zeros_are_no_reason_to_take_everything_away(tmp_path: Path) -> None:
    write_scaling_bundle(tmp_path)
    zeros = dict.fromkeys(ORDINARY, 0.0)
    async with running_scaling(models=tmp_path) as scaling:
        for policy in ("threshold", "td3"):
            (row,) = await scaling.scale(container(history=[zeros] * 4), policy=policy)
            assert_sound(row)
            assert row.cpu.target >= 500
            assert (row.memory.target, row.memory.reason) == (256 * MEBIBYTE, "NOT_MEASURED")


@pytest.mark.parametrize(("age", "held"), [(0, False), (60, False), (61, True), (math.nan, True)])
async def test_a_stale_sample_is_held(age: float, held: bool) -> None:
    async with running_scaling() as scaling:
        row = await scaling.one(sample_age_seconds=age, cpu_usage_millicores=990)
    assert row.apply != held
    assert row.cpu.reason == ("STALE_SAMPLE" if held else "RECOMMENDED")


async def test_a_container_that_cannot_be_judged_harms_no_neighbour() -> None:
    async with running_scaling() as scaling:
        (alone,) = await scaling.scale(container("b", **BUSY))
        _, beside = await scaling.scale(container("a", history=[]), container("b", **BUSY))
    assert beside == alone


async def test_a_short_history_beside_a_long_one() -> None:
    async with running_scaling() as scaling:
        new, old = await scaling.scale(container("new", intervals=1), container("old", intervals=9))
    assert new.cpu.reason == "FIRST_INTERVAL"
    assert old.cpu.reason == "WITHIN_DEAD_BAND"
