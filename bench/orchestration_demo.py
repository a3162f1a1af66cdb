"""Dispatch and orchestration together: every frame a simulated cluster asks the real server where replicas should run.

The server runs as a process of its own. At the beginning of each frame of 25 simulated seconds the state of the cluster
goes to it in one Orchestrate call, and the actions that it answers are carried out. Between two frames requests are
dispatched by the same policies as the server's, within the simulation: there are hundreds of thousands.

Two halves are not asked over gRPC: ``static`` does nothing, and the autoscaler of ``native`` measures utilisation
all the time, on the clock of the simulation, which runs a hundred times faster than the server's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import grpc
import numpy as np

from bench.commands import policy_server_command
from bench.server_process import ServerProcess, free_port
from policy_server.api.messages import load_to_message, topology_to_message
from policy_server.cluster.actions import AddReplica, DeleteReplica, OrchestrationAction
from policy_server.cluster.snapshot import Snapshot
from policy_server.policies.heuristics import heuristic_dispatch
from policy_server.policies.orchestration.policy import OrchestrationPolicy
from policy_server.policies.orchestration.rules import heuristic_orchestration
from policy_server.proto.policy.v1.decision_pb2 import DecisionSource
from policy_server.proto.policy.v1.orchestration_service_pb2 import (
    ActionKind,
    OrchestrateRequest,
    OrchestrateResponse,
)
from policy_server.proto.policy.v1.orchestration_service_pb2_grpc import OrchestrationServiceStub
from policy_server.proto.policy.v1.state_service_pb2 import FullState
from policy_server.runtime.bundle import find_bundles
from training.bundle_names import ORCHESTRATION_BUNDLE
from training.environments.compiled_dispatch import slot_stepper
from training.environments.orchestration import OrchestrationEnvironment, decided
from training.evaluation.dispatch import learned_dispatch
from training.evaluation.joint import joint_dispatch
from training.orchestration_scenarios import DEFAULT_STEPS, OrchestrationSetting, orchestration_simulator
from training.scenarios import Scenario
from training.workloads.patterns import Pattern
from training.workloads.seeds import held_out_seed

LEARNED = "kais"
NATIVE = "native"
REFERENCE = f"{NATIVE}+{NATIVE}"
"""Always runs: costs are relative to its."""
DISPATCH = (NATIVE, "greedy", "earliest-completion", LEARNED)
ORCHESTRATION = ("static", "greedy", NATIVE, "gsp-ss", LEARNED)
CALL_TIMEOUT_SECONDS = 10.0
_NATIVE_SECONDS = 15.0
_DEATH_NOTICE_SECONDS = 1.0


class OrchestrationDemoError(RuntimeError):
    """The demo cannot be finished. The message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class OrchestrationDemoPlan:
    """What to simulate.

    Attributes:
        preset: system configuration, in its orchestration scenario.
        pattern: of the requests.
        frames: of 25 s, per combination.
        seed: index of the held-out seed.
        dispatch: names of dispatch halves.
        orchestration: names of orchestration halves.
        maximum_actions: per frame, of Greedy and of the learned policy.
    """

    preset: str = "testbed-40"
    pattern: Pattern = Pattern.P4
    frames: int = 6
    seed: int = 0
    dispatch: tuple[str, ...] = DISPATCH
    orchestration: tuple[str, ...] = ORCHESTRATION
    maximum_actions: int = DEFAULT_STEPS

    @property
    def combinations(self) -> tuple[str, ...]:
        """Names ``DISPATCH+ORCHESTRATION``, the reference first."""
        names = (f"{dispatch}+{half}" for dispatch in self.dispatch for half in self.orchestration)
        return tuple(dict.fromkeys((REFERENCE, *names)))


@dataclass(frozen=True)
class OrchestrateCalls:
    """Orchestrate calls and what they came to.

    Attributes:
        seconds: of each call, as the Python client sees it.
        learned: calls answered by a model.
        fallbacks: calls answered by the fallback policy.
    """

    seconds: tuple[float, ...] = ()
    learned: int = 0
    fallbacks: int = 0

    def __add__(self, other: OrchestrateCalls) -> OrchestrateCalls:
        """Both together."""
        return OrchestrateCalls(
            self.seconds + other.seconds, self.learned + other.learned, self.fallbacks + other.fallbacks
        )

    def to_json(self) -> dict[str, Any]:
        """Median and slowest in seconds, and shares; null without calls."""
        calls = len(self.seconds)
        return {
            "orchestrate_calls": calls,
            "decision_seconds": {"p50": median(self.seconds), "slowest": max(self.seconds)}
            if calls
            else None,
            "learned_share": self.learned / calls if calls else None,
            "fallback_share": self.fallbacks / calls if calls else None,
        }


@dataclass(frozen=True)
class OrchestrationDemoResult:
    """One combination's run.

    Attributes:
        throughput_rate: requests answered within their deadline / requests arrived.
        forwarded_bytes: of requests.
        pulled_bytes: of images.
        requests: that arrived.
        actions_per_frame: replicas added and deleted.
        asked: its Orchestrate calls.
    """

    throughput_rate: float
    forwarded_bytes: float
    pulled_bytes: float
    requests: int
    actions_per_frame: float
    asked: OrchestrateCalls

    @property
    def cost_bytes(self) -> float:
        """Forwarded and pulled."""
        return self.forwarded_bytes + self.pulled_bytes

    def to_json(self, reference_cost_bytes: float) -> dict[str, Any]:
        """The figures, costs relative to that of the reference; null for what no call was made for."""
        return {
            "throughput_rate": self.throughput_rate,
            "scheduling_cost": self.cost_bytes / reference_cost_bytes,
            "pulled_cost": self.pulled_bytes / reference_cost_bytes,
            "actions_per_frame": self.actions_per_frame,
            "requests": self.requests,
            **self.asked.to_json(),
        }


def default_plan() -> OrchestrationDemoPlan:
    """All combinations of what ships with the package."""
    if ORCHESTRATION_BUNDLE in find_bundles(kind="orchestration"):
        return OrchestrationDemoPlan()
    return OrchestrationDemoPlan(dispatch=DISPATCH[:-1], orchestration=ORCHESTRATION[:-1])


def run_orchestration_demo(
    plan: OrchestrationDemoPlan, on_frame: Callable[[str, int], None]
) -> dict[str, OrchestrationDemoResult]:
    """Starts the server and runs every combination on the same system and requests.

    Args:
        plan: what to simulate.
        on_frame: called with the combination and the number of frames done.

    Raises:
        OrchestrationDemoError: the server refuses a call.
        ServerError: the server did not start or died.
    """
    port = free_port()
    results = {}
    with ServerProcess("policy-server", policy_server_command(port), port) as server:
        for name in plan.combinations:
            try:
                with grpc.insecure_channel(server.address) as channel:
                    orchestrate = OrchestrationServiceStub(channel).Orchestrate
                    results[name] = _run(plan, name, orchestrate, on_frame)
            except grpc.RpcError as error:
                server.check_alive(_DEATH_NOTICE_SECONDS)
                raise OrchestrationDemoError(
                    f"{name}: the server refuses: {error.code().name}: {error.details()}. "
                    f"Its output:\n{server.output()}"
                ) from None
    return results


@dataclass
class _Asking:
    """Asks one policy about one system, frame by frame."""

    orchestrate: Callable[..., OrchestrateResponse]
    policy: str
    maximum_actions: int | None
    calls: OrchestrateCalls = OrchestrateCalls()

    def decide(self, snapshot: Snapshot) -> list[OrchestrationAction]:
        """The actions that the server answers, as rows of the snapshot's topology."""
        topology = snapshot.topology
        request = OrchestrateRequest(
            inline_state=FullState(topology=topology_to_message(topology), load=load_to_message(snapshot)),
            policy=self.policy,
            max_actions=self.maximum_actions,
            seed=len(self.calls.seconds),
        )
        started = time.perf_counter()
        response = self.orchestrate(request, timeout=CALL_TIMEOUT_SECONDS)
        source = response.provenance.source
        self.calls += OrchestrateCalls(
            (time.perf_counter() - started,),
            int(source == DecisionSource.DECISION_SOURCE_LEARNED),
            int(source == DecisionSource.DECISION_SOURCE_FALLBACK),
        )
        return [
            AddReplica(topology.service_index[action.service], topology.node_index[action.node])
            if action.kind == ActionKind.ACTION_KIND_ADD
            else DeleteReplica(topology.replica_index[action.endpoint])
            for action in response.actions
        ]


def _run(
    plan: OrchestrationDemoPlan,
    name: str,
    orchestrate: Callable[..., OrchestrateResponse],
    on_frame: Callable[[str, int], None],
) -> OrchestrationDemoResult:
    dispatch, _, orchestration = name.partition("+")
    setting = OrchestrationSetting(frames=plan.frames)
    simulator = orchestration_simulator(
        [Scenario(preset=plan.preset, seed=held_out_seed(plan.seed), pattern=plan.pattern)], setting
    )
    requests = (
        learned_dispatch(None, joint_dispatch(None)) if dispatch == LEARNED else heuristic_dispatch(dispatch)
    )
    environment = OrchestrationEnvironment(simulator, slot_stepper(simulator, requests))
    per_frame = simulator.config.slots_per_frame
    asking = _Asking(
        orchestrate,
        ORCHESTRATION_BUNDLE if orchestration == LEARNED else orchestration,
        None if orchestration == "gsp-ss" else plan.maximum_actions,
    )
    beside: OrchestrationPolicy | None = None
    interval = per_frame
    if orchestration in (NATIVE, "static"):
        beside = heuristic_orchestration(orchestration)
        interval = round(_NATIVE_SECONDS / simulator.config.slot_seconds)
    random = np.random.default_rng(plan.seed)
    environment.step([], slots=setting.settle_slots)
    first = simulator.slot
    end = first + plan.frames * per_frame
    actions = 0
    while simulator.slot < end:
        chosen = (
            decided(beside, environment.query(), random) if beside else asking.decide(simulator.snapshot())
        )
        actions += len(chosen)
        environment.step(chosen, slots=min(interval, end - simulator.slot), observer=beside)
        on_frame(name, (simulator.slot - first) // per_frame)
    while not simulator.done:
        environment.step([], slots=1)
    result = simulator.results()[0]
    return OrchestrationDemoResult(
        throughput_rate=result.throughput_rate,
        forwarded_bytes=result.forwarded_bytes,
        pulled_bytes=result.pulled_bytes,
        requests=result.arrived,
        actions_per_frame=actions / plan.frames,
        asked=asking.calls,
    )
