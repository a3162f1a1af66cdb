"""Orchestrate over gRPC: what it answers, what it remembers, what it refuses."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from policy_server.api import orchestration_logic
from policy_server.cluster.snapshot import ReplicaState, Snapshot, idle_load
from policy_server.policies.heuristics import UnknownPolicyError
from policy_server.policies.orchestration.onnx import OnnxOrchestration
from policy_server.policies.orchestration.plan import FramePlan
from policy_server.proto.policy.v1.decision_pb2 import (
    DECISION_SOURCE_FALLBACK,
    DECISION_SOURCE_HEURISTIC,
    DECISION_SOURCE_LEARNED,
    FALLBACK_REASON_MODEL_ERROR,
)
from policy_server.proto.policy.v1.orchestration_service_pb2 import (
    ACTION_KIND_ADD,
    ACTION_KIND_DELETE,
    ACTION_KIND_DRAIN,
    OrchestrateRequest,
    OrchestrateResponse,
)
from policy_server.proto.policy.v1.state_pb2 import Link, Node, Replica
from policy_server.proto.policy.v1.state_service_pb2 import FullState
from tests.support.models import write_example_bundle, write_orchestration_bundle
from tests.support.orchestrating import query_of, strange_systems
from tests.support.serving import error_of, full_report, running_server
from tests.support.systems import (
    Endpoint,
    example_snapshot,
    example_topology,
    one_service_snapshot,
)

BUSY = one_service_snapshot(
    [Endpoint(queued=5, running=2), Endpoint("ap-1", queued=3), Endpoint("ap-1"), Endpoint()]
)
IDLE = one_service_snapshot([Endpoint()] * 3)


def inline(snapshot: Snapshot) -> FullState:
    return full_report(snapshot).full


def places(response: OrchestrateResponse) -> list[tuple[int, str, str]]:
    return [(action.kind, action.node, action.service or action.endpoint) for action in response.actions]


class TestAnswer:
    async def test_an_addition_says_what_it_brings_about_and_why_it_is_feasible(self) -> None:
        async with running_server(BUSY) as serving:
            response = await serving.orchestrate(max_actions=1)
        (action,) = response.actions
        assert (action.kind, action.node, action.service, action.endpoint) == (
            ACTION_KIND_ADD,
            "node-3",
            "service",
            "",
        )
        assert action.score > 0
        effect = action.expected_effect
        assert effect.node_memory_bytes == pytest.approx(2e8, rel=1e-6)
        assert effect.replicas == 5
        assert effect.pulled_bytes == 0
        assert action.feasibility == (
            "node-3 would hold 200000000 of 4294967296 bytes of memory and, with one request of service running, "
            "250 of 1000 millicores"
        )
        source = response.provenance
        assert (source.policy, source.policy_version, source.source, source.snapshot_version) == (
            "greedy",
            "1",
            DECISION_SOURCE_HEURISTIC,
            1,
        )
        assert 0 <= source.snapshot_age_seconds < 60

    async def test_a_deletion_names_a_replica_that_is_idle(self) -> None:
        async with running_server(IDLE) as serving:
            response = await serving.orchestrate()
        assert [(a.kind, a.endpoint, a.node) for a in response.actions] == [
            (ACTION_KIND_DELETE, "10.0.0.0:8080", "node-0"),
            (ACTION_KIND_DELETE, "10.0.0.1:8080", "node-1"),
        ]
        assert response.actions[0].feasibility == "10.0.0.0:8080 is idle; 2 other replicas of service remain"
        assert response.actions[1].feasibility == "10.0.0.1:8080 is idle; 1 other replica of service remains"

    async def test_a_pick_on_its_way_makes_a_replica_busy(self) -> None:
        async with running_server(one_service_snapshot([Endpoint(speed=2.0), Endpoint()])) as serving:
            picked = await serving.dispatch()
            response = await serving.orchestrate(max_actions=1)
        (action,) = response.actions
        assert action.endpoint == picked.endpoint
        assert action.kind == ACTION_KIND_DRAIN
        assert "must drain first" in action.feasibility

    async def test_no_action_is_an_answer(self) -> None:
        async with running_server(BUSY) as serving:
            response = await serving.orchestrate(policy="static")
        assert not response.actions
        assert response.provenance.policy == "static"

    @pytest.mark.parametrize("name", strange_systems())
    async def test_strange_systems_are_answered(self, name: str, tmp_path: Path) -> None:
        write_orchestration_bundle(tmp_path)
        state = inline(strange_systems()[name])
        async with running_server(models=tmp_path) as serving:
            for policy in ("gpg", "static", "greedy", "native", "gsp-ss"):
                await serving.orchestrate(policy=policy, inline_state=state)


class TestOptions:
    @pytest.mark.parametrize("most", [1, 3])
    async def test_no_more_actions_than_asked_for(self, most: int) -> None:
        snapshot = example_snapshot(example_topology(nodes=20, services=6), 1)
        async with running_server(snapshot) as serving:
            assert len((await serving.orchestrate(max_actions=most)).actions) == most

    @pytest.mark.parametrize("trained_for", [None, 1, 5])
    async def test_a_model_takes_as_many_as_it_was_trained_for(
        self, trained_for: int | None, tmp_path: Path
    ) -> None:
        write_orchestration_bundle(tmp_path, maximum_actions=trained_for)
        state = inline(example_snapshot(example_topology(nodes=20, services=6), 1))
        async with running_server(models=tmp_path) as serving:
            assert len((await serving.orchestrate(inline_state=state)).actions) == (trained_for or 2)
            assert len((await serving.orchestrate(inline_state=state, max_actions=3)).actions) == 3

    async def test_a_protected_service_loses_no_replica(self) -> None:
        async with running_server(IDLE) as serving:
            assert not (await serving.orchestrate(protected_services=["service"])).actions
            assert (await serving.orchestrate()).actions

    async def test_a_seed_repeats_the_answer(self, tmp_path: Path) -> None:
        write_orchestration_bundle(tmp_path, sampling_temperature=5.0)
        state = inline(example_snapshot(example_topology(nodes=20, services=6), 1))
        async with running_server(models=tmp_path) as serving:
            answers = [
                places(await serving.orchestrate(inline_state=state, seed=7, max_actions=5)) for _ in range(3)
            ]
            others = {
                tuple(places(await serving.orchestrate(inline_state=state, max_actions=5))) for _ in range(8)
            }
        assert answers[0] == answers[1] == answers[2]
        assert len(others) > 1


class TestFrame:
    async def test_nothing_is_repeated(self) -> None:
        snapshot = example_snapshot(example_topology(nodes=20, services=6), 1)
        async with running_server(snapshot) as serving:
            answers = [await serving.orchestrate() for _ in range(4)]
            answers += await asyncio.gather(*(serving.orchestrate() for _ in range(4)))
        given = [place for answer in answers for place in places(answer)]
        assert len(given) == 16
        assert len(set(given)) == len(given)

    async def test_what_was_given_takes_its_room(self) -> None:
        nodes = replace(BUSY.topology.nodes, memory_bytes=np.full(4, 2.5e8, np.float32))
        crowded = replace(BUSY, topology=replace(BUSY.topology, nodes=nodes))
        async with running_server(crowded) as serving:
            added = [place for _ in range(4) for place in places(await serving.orchestrate(max_actions=4))]
        assert len(added) == len(set(added)) <= 4

    async def test_a_dry_run_is_not_remembered(self) -> None:
        async with running_server(BUSY) as serving:
            dry = [places(await serving.orchestrate(dry_run=True)) for _ in range(2)]
            real = [places(await serving.orchestrate()) for _ in range(2)]
        assert dry[0] == dry[1] == real[0]
        assert not set(real[0]) & set(real[1])

    async def test_the_next_frame_starts_afresh(self) -> None:
        async with running_server(BUSY, frame_seconds=0.0) as serving:
            assert places(await serving.orchestrate()) == places(await serving.orchestrate())

    async def test_inline_states_are_remembered_by_name(self) -> None:
        state = inline(BUSY)
        async with running_server() as serving:
            nameless = [places(await serving.orchestrate(inline_state=state)) for _ in range(2)]
            east = [places(await serving.orchestrate(inline_state=state, cluster="east")) for _ in range(2)]
            west = places(await serving.orchestrate(inline_state=state, cluster="west"))
        assert nameless[0] == nameless[1] == east[0] == west
        assert not set(east[0]) & set(east[1])

    async def test_the_least_recent_name_is_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(orchestration_logic, "_REMEMBERED_CLUSTERS", 2)
        state = inline(BUSY)
        async with running_server() as serving:

            async def ask(cluster: str) -> list[tuple[int, str, str]]:
                return places(await serving.orchestrate(inline_state=state, cluster=cluster))

            first = await ask("east")
            await ask("west")
            assert await ask("east") != first
            await ask("north")
            assert await ask("west") == first

    async def test_the_held_state_and_inline_ones_do_not_share_a_memory(self) -> None:
        async with running_server(BUSY) as serving:
            held = places(await serving.orchestrate())
            assert places(await serving.orchestrate(inline_state=inline(BUSY))) == held


class Held:
    """Makes the decisions of a policy wait until a test lets them go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, policy: type) -> None:
        self.entered, self.release = threading.Event(), threading.Event()
        self.sizes: list[int] = []
        decide = policy.decide

        def wait(rule: Any, queries: Any, random: Any) -> Any:
            self.sizes.append(len(queries))
            self.entered.set()
            assert self.release.wait(30)
            return decide(rule, queries, random)

        monkeypatch.setattr(policy, "decide", wait)

    async def until_entered(self) -> None:
        while not self.entered.is_set():
            await asyncio.sleep(0.005)


class TestBatch:
    async def test_what_waits_is_decided_together(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_orchestration_bundle(tmp_path)
        states = [
            inline(example_snapshot(example_topology(nodes=3 + count, services=count, seed=count), count))
            for count in range(1, 6)
        ]
        async with running_server(models=tmp_path) as serving:
            alone = [places(await serving.orchestrate(inline_state=state)) for state in states]
            held = Held(monkeypatch, OnnxOrchestration)
            first = asyncio.create_task(serving.orchestrate(inline_state=states[0]))
            await held.until_entered()
            others = [asyncio.create_task(serving.orchestrate(inline_state=state)) for state in states]
            while serving.server.orchestration.in_flight < 6:
                await asyncio.sleep(0.005)
            held.release.set()
            together = [places(answer) for answer in await asyncio.gather(*others)]
            await first
        assert held.sizes == [1, 5]
        assert together == alone

    async def test_one_bad_state_harms_no_neighbour(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_orchestration_bundle(tmp_path)
        bad = inline(BUSY)
        bad.topology.nodes[0].cpu_millicores = -1
        async with running_server(models=tmp_path) as serving:
            held = Held(monkeypatch, OnnxOrchestration)
            first = asyncio.create_task(serving.orchestrate(inline_state=inline(BUSY)))
            await held.until_entered()
            refused = asyncio.create_task(error_of(serving.orchestrate(inline_state=bad)))
            sound = asyncio.create_task(serving.orchestrate(inline_state=inline(IDLE)))
            held.release.set()
            assert (await refused).code() is grpc.StatusCode.INVALID_ARGUMENT
            assert (await sound).provenance.policy == "gpg"
            await first

    async def test_dispatch_goes_on_meanwhile(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_orchestration_bundle(tmp_path)
        write_example_bundle(tmp_path)
        async with running_server(BUSY, models=tmp_path) as serving:
            held = Held(monkeypatch, OnnxOrchestration)
            waiting = asyncio.create_task(serving.orchestrate())
            await held.until_entered()
            await serving.dispatch(policy="earliest-completion")
            assert not waiting.done()
            held.release.set()
            await waiting

    async def test_a_call_given_up_holds_up_nobody(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_orchestration_bundle(tmp_path)
        async with running_server(BUSY, models=tmp_path) as serving:
            held = Held(monkeypatch, OnnxOrchestration)
            first = asyncio.create_task(serving.orchestrate())
            await held.until_entered()
            second = asyncio.create_task(serving.orchestrate())
            while serving.server.orchestration.in_flight < 2:
                await asyncio.sleep(0.005)
            second.cancel()
            while serving.server.orchestration.in_flight > 1:
                await asyncio.sleep(0.005)
            held.release.set()
            await first
            assert (await serving.orchestrate(policy="static")).provenance.policy == "static"

    async def test_an_answer_that_nobody_waited_for_was_not_given(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_orchestration_bundle(tmp_path)
        async with running_server(BUSY, models=tmp_path) as serving:
            expected = places(await serving.orchestrate(dry_run=True))
            held = Held(monkeypatch, OnnxOrchestration)
            given_up = asyncio.create_task(serving.orchestrate())
            await held.until_entered()
            given_up.cancel()
            while serving.server.orchestration.in_flight:
                await asyncio.sleep(0.005)
            held.release.set()
            assert places(await serving.orchestrate()) == expected


class TestStateThatChangesMeanwhile:
    async def answer_after(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Snapshot], Snapshot]
    ) -> tuple[OrchestrateResponse, Snapshot]:
        """The answer to a query during which the held state changes."""
        write_orchestration_bundle(tmp_path)
        snapshot = example_snapshot(example_topology(nodes=20, services=6), 1)
        after = change(snapshot)
        async with running_server(snapshot, models=tmp_path) as serving:
            before = await serving.orchestrate(dry_run=True, max_actions=5)
            assert before.actions
            held = Held(monkeypatch, OnnxOrchestration)
            waiting = asyncio.create_task(serving.orchestrate(max_actions=5))
            await held.until_entered()
            await serving.report(after)
            held.release.set()
            return await waiting, after

    async def test_an_action_that_became_infeasible_is_not_returned(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fill(snapshot: Snapshot) -> Snapshot:
            topology = snapshot.topology
            draining = np.full(len(topology.replicas.endpoints), ReplicaState.DRAINING, np.uint8)
            load = replace(
                idle_load(topology),
                node_memory_used_bytes=topology.nodes.memory_bytes,
                replica_state=draining,
            )
            return Snapshot(topology, load)

        response, _ = await self.answer_after(tmp_path, monkeypatch, fill)
        assert not response.actions
        assert response.provenance.snapshot_version == 2

    async def test_what_is_still_feasible_is(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        response, after = await self.answer_after(tmp_path, monkeypatch, lambda snapshot: snapshot)
        assert response.actions
        plan = FramePlan(query_of(after))
        index, services = after.topology.node_index, after.topology.service_index
        for action in response.actions:
            if action.kind == ACTION_KIND_ADD:
                assert plan.add(index[action.node], services[action.service])
            else:
                assert plan.delete(after.topology.replica_index[action.endpoint])


class TestPolicies:
    async def test_the_loaded_model_is_asked_by_default(self, tmp_path: Path) -> None:
        write_orchestration_bundle(tmp_path)
        write_example_bundle(tmp_path)
        async with running_server(BUSY, models=tmp_path) as serving:
            source = (await serving.orchestrate()).provenance
            assert (source.policy, source.source) == ("gpg", DECISION_SOURCE_LEARNED)
            assert (await serving.dispatch()).provenance.policy == "kais"

    async def test_an_unknown_policy_cannot_be_the_active_one(self) -> None:
        with pytest.raises(UnknownPolicyError, match="policy: 'wishful' is unknown; choose one of"):
            async with running_server(orchestration_policy="wishful"):
                pass

    async def test_kinds_do_not_mix(self, tmp_path: Path) -> None:
        write_orchestration_bundle(tmp_path)
        async with running_server(BUSY, models=tmp_path) as serving:
            error = await error_of(serving.dispatch(policy="gpg"))
            assert error.code() is grpc.StatusCode.NOT_FOUND
            error = await error_of(serving.orchestrate(policy="earliest-completion"))
        assert error.code() is grpc.StatusCode.NOT_FOUND
        assert error.details() == (
            "policy: 'earliest-completion' is unknown; choose one of gpg, static, greedy, native, gsp-ss"
        )

    async def test_a_fault_of_a_model_is_no_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise RuntimeError("broken")

        write_orchestration_bundle(tmp_path)
        monkeypatch.setattr(OnnxOrchestration, "decide", fail)
        async with running_server(BUSY, models=tmp_path) as serving:
            source = (await serving.orchestrate()).provenance
        assert (source.policy, source.source) == ("greedy", DECISION_SOURCE_FALLBACK)
        assert source.fallback_reason == FALLBACK_REASON_MODEL_ERROR

    async def test_native_sees_every_report(self) -> None:
        busy = one_service_snapshot([Endpoint(running=2), Endpoint(state=ReplicaState.DRAINING)])
        quiet = one_service_snapshot([Endpoint(), Endpoint(state=ReplicaState.DRAINING)])
        async with running_server(orchestration_policy="native") as serving:
            for _ in range(9):
                await serving.report(quiet)
            await serving.report(busy)
            averaged = await serving.orchestrate(dry_run=True)
            await serving.orchestrate()
            await serving.report(busy)
            sampled = await serving.orchestrate()
        assert not averaged.actions
        assert [action.kind for action in sampled.actions] == [ACTION_KIND_ADD, ACTION_KIND_ADD]


class TestRefusals:
    """Every message names the field, its value and what to do."""

    @staticmethod
    def changed(change: Callable[[FullState], object]) -> FullState:
        state = inline(BUSY)
        change(state)
        return state

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                lambda s: s.topology.links.append(
                    Link(source="ap-0", target="ap-9", bandwidth_bytes_per_second=1)
                ),
                "inline_state.topology.links[6].target: 'ap-9'; is not in inline_state.topology.access_points",
            ),
            (
                lambda s: s.topology.nodes.append(
                    Node(name="node-0", access_point="ap-0", cpu_millicores=1, memory_bytes=1)
                ),
                "inline_state.topology.nodes[4].name: 'node-0'; appears in row 0 already; names must be unique",
            ),
            (
                lambda s: s.topology.replicas.append(
                    Replica(endpoint="10.0.0.1:8080", service="service", node="node-0")
                ),
                "inline_state.topology.replicas[4].endpoint: '10.0.0.1:8080'; appears in row 1 already",
            ),
            (
                lambda s: setattr(s.topology.nodes[1], "cpu_millicores", -5.0),
                "inline_state.topology.nodes[1].cpu_millicores: -5.0; must be a finite number from",
            ),
            (
                lambda s: setattr(s.topology.nodes[1], "memory_bytes", float("nan")),
                "inline_state.topology.nodes[1].memory_bytes: nan; must be a finite number from",
            ),
            (
                lambda s: s.topology.replicas.append(
                    Replica(endpoint="new:1", service="unheard-of", node="node-0")
                ),
                "inline_state.topology.replicas[4].service: 'unheard-of'; is not in inline_state.topology.services",
            ),
            (
                lambda s: setattr(s.load.replicas[0], "queued", float("inf")),
                "inline_state.load.replicas[0].queued: inf; must be a finite number from",
            ),
            (
                lambda s: setattr(s.load.nodes[0], "name", "node-9"),
                "inline_state.load.nodes[0].name: 'node-9'; is not in the topology",
            ),
        ],
    )
    async def test_bad_graphs(self, change: Callable[[FullState], object], message: str) -> None:
        async with running_server() as serving:
            error = await error_of(serving.orchestrate(inline_state=self.changed(change)))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (error.details() or "").startswith(message)

    async def test_too_many_nodes(self) -> None:
        nodes = [
            Node(name=f"n{row}", access_point="ap-0", cpu_millicores=1, memory_bytes=1)
            for row in range(100_000)
        ]
        state = self.changed(lambda s: s.topology.nodes.extend(nodes))
        async with running_server(max_message_bytes=2**28) as serving:
            error = await error_of(serving.orchestrate(inline_state=state))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert error.details() == (
                "inline_state.topology.nodes: 100004 nodes; at most 20000 are accepted; "
                "split the system over several requests"
            )

    async def test_too_many_nodes_held(self) -> None:
        async with running_server(BUSY, max_orchestration_nodes=3) as serving:
            error = await error_of(serving.orchestrate())
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (error.details() or "").startswith("state.topology.nodes: 4 nodes; at most 3 are accepted")

    async def test_too_many_pairs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(orchestration_logic, "MAXIMUM_NODE_SERVICES", 3)
        async with running_server() as serving:
            error = await error_of(serving.orchestrate(inline_state=inline(BUSY)))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details() == (
            "inline_state.topology.services: 4 nodes x services; at most 3 are accepted; "
            "split the system over several requests"
        )

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"max_actions": 0}, "max_actions: 0; ask for 1 to 1000, or leave it out"),
            ({"max_actions": 1001}, "max_actions: 1001; ask for 1 to 1000, or leave it out"),
            ({"age_seconds": -1.0}, "age_seconds: -1.0; must be a finite number from 0"),
            (
                {"cluster": "east"},
                "cluster: 'east'; names the system of inline_state; leave it out or send that",
            ),
            (
                {"protected_services": ["service", "nobody"]},
                "protected_services[1]: 'nobody'; is not among the services of the state; add it there or correct",
            ),
        ],
    )
    async def test_bad_options(self, fields: dict[str, Any], message: str) -> None:
        async with running_server(BUSY) as serving:
            error = await error_of(serving.orchestrate(**fields))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (error.details() or "").startswith(message)

    async def test_no_state(self) -> None:
        async with running_server() as serving:
            error = await error_of(serving.orchestrate())
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert (error.details() or "").startswith(
            "no state is held yet; report it with StateService.ReportState"
        )

    async def test_too_many_at_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_orchestration_bundle(tmp_path)
        async with running_server(BUSY, models=tmp_path, max_orchestrations_in_flight=1) as serving:
            held = Held(monkeypatch, OnnxOrchestration)
            first = asyncio.create_task(serving.orchestrate())
            await held.until_entered()
            error = await error_of(serving.orchestrate())
            held.release.set()
            await first
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(error.trailing_metadata() or ())["grpc-retry-pushback-ms"] == "1000"

    async def test_a_spent_deadline(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_orchestration_bundle(tmp_path)
        async with running_server(BUSY, models=tmp_path) as serving:
            held = Held(monkeypatch, OnnxOrchestration)
            first = asyncio.create_task(serving.orchestrate())
            await held.until_entered()
            late = await error_of(serving.orchestrating.Orchestrate(OrchestrateRequest(), timeout=0.2))
            held.release.set()
            await first
        assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert held.sizes == [1]


async def test_the_documented_controller_carries_out_what_is_answered() -> None:
    page = Path(__file__).parents[3] / "docs" / "orchestration-service.md"
    example = re.search(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert example
    names: dict[str, Any] = {}
    exec(compile(example[1], page.name, "exec"), names)
    done: list[tuple[str, ...]] = []

    async def once(snapshot: Snapshot, *protected: str, picks: int = 0) -> list[tuple[str, ...]]:
        done.clear()
        async with running_server(snapshot) as serving:
            for _ in range(picks):
                await serving.dispatch()
            await asyncio.to_thread(
                names["orchestrate_once"],
                serving.server.address,
                lambda service, node: done.append(("add", service, node)),
                lambda endpoint: done.append(("delete", endpoint)),
                lambda endpoint: done.append(("drain", endpoint)),
                protected,
            )
        return list(done)

    assert ("add", "service", "node-3") in await once(BUSY)
    assert [kind for kind, _ in await once(IDLE)] == ["delete", "delete"]
    assert await once(IDLE, "service") == []
    assert [kind for kind, _ in await once(IDLE, picks=9)] == ["drain", "drain"]
