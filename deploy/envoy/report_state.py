"""Reports a state, written as JSON, to a server: ``python report_state.py STATE.json [HOST:PORT]``.

The JSON is that of ``policy.v1.ReportStateRequest``. A real reporter does this every fraction of a second.
"""

from __future__ import annotations

import sys
from pathlib import Path

import grpc
from google.protobuf.json_format import Parse

from policy_server.proto.policy.v1.state_service_pb2 import ReportStateRequest
from policy_server.proto.policy.v1.state_service_pb2_grpc import StateServiceStub


def main(file: str, address: str = "127.0.0.1:50051") -> None:
    """Reports once."""
    request = Parse(Path(file).read_text(encoding="utf-8"), ReportStateRequest())
    with grpc.insecure_channel(address) as channel:
        version = StateServiceStub(channel).ReportState(request, timeout=10).version
    sys.stdout.write(f"the server holds version {version}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
