"""A system of ten thousand nodes, held by a real server process."""

from __future__ import annotations

from pathlib import Path

import grpc
import psutil
import pytest

from bench.orchestration_scenario import generate_system
from policy_server.proto.policy.v1.orchestration_service_pb2 import OrchestrateRequest
from policy_server.proto.policy.v1.orchestration_service_pb2_grpc import OrchestrationServiceStub
from policy_server.proto.policy.v1.state_service_pb2 import ReportStateRequest
from policy_server.proto.policy.v1.state_service_pb2_grpc import StateServiceStub
from tests.support.models import write_orchestration_bundle
from tests.support.serving import UNLIMITED_MESSAGES, server_process

NODES = 10_000
MEMORY_LIMIT_BYTES = 2**30


@pytest.mark.slow
def test_ten_thousand_nodes_take_less_than_a_gibibyte(tmp_path: Path) -> None:
    write_orchestration_bundle(tmp_path / "models", width=32)
    state = generate_system(NODES)
    arguments = (
        f"--models={tmp_path / 'models'}",
        f"--max-message-bytes={2**28}",
        "--orchestration-budget-seconds=60",
    )
    with (
        server_process(tmp_path / "log", *arguments) as server,
        grpc.insecure_channel(server.address, UNLIMITED_MESSAGES) as channel,
    ):
        StateServiceStub(channel).ReportState(ReportStateRequest(full=state))
        orchestrate = OrchestrationServiceStub(channel).Orchestrate
        for policy in ("gpg", "static", "greedy", "native", "gsp-ss"):
            for request in (
                OrchestrateRequest(policy=policy),
                OrchestrateRequest(policy=policy, inline_state=state),
            ):
                answer = orchestrate(request, timeout=60)
                assert answer.provenance.policy == policy
                assert len(answer.actions) <= 1000
        assert psutil.Process(server.process.pid).memory_info().rss < MEMORY_LIMIT_BYTES
